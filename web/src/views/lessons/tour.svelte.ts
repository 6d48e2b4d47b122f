// The tour of the model on screen: read once for a state, by the bar above the views and by the view that lists it.

import { untrack } from "svelte";
import { session } from "../../lib/session.svelte";
import type { TourOf, TourStep } from "../../lib/tour";
import { LatestReply } from "../inside/latest_reply.svelte";

const OWN = ["head", "why", "against", "open", "token", "at", "after"]; // what one step says of its place, and the next may not

class Tour {
  readonly reply = new LatestReply<TourOf>();
  private of = "";
  answered = $state<string[]>([]); // the steps whose question was answered

  steps: TourStep[] = $derived(this.reply.value?.steps ?? []);

  /** Read the tour of the present state, unless it is here. */
  read(again = false): void {
    const { key } = session;
    if (!again && this.of === key) return;
    this.of = key;
    untrack(() => void this.reply.ask(() => session.ask((trace) => session.source.tour(trace))));
  }

  /** Go to a step: the real view moves there. */
  go(at: number): void {
    const step = this.steps[at];
    if (!step) return;
    const { view, cell, more } = step.address;
    session.go({ view, cell, more: { ...Object.fromEntries(OWN.map((name) => [name, null])), ...more, tour: String(at + 1) } });
  }

  leave(): void {
    session.go({ more: { tour: null } });
  }
}

export const tour = new Tour();
