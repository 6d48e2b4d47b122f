// One request of a view: its result, and its problem; a late reply to an earlier question is dropped.

import { problem } from "../../lib/session.svelte";
import type { Problem } from "../../lib/source";

export class LatestReply<T> {
  value = $state.raw<T | null>(null);
  problem = $state.raw<Problem | null>(null);
  busy = $state(false);
  private turn = 0;

  /** Ask; the earlier result stays until the new one is there. */
  async ask(question: () => Promise<T>): Promise<T | null> {
    const turn = ++this.turn;
    this.busy = true;
    try {
      const value = await question();
      if (turn !== this.turn) return null;
      this.value = value;
      this.problem = null;
      return value;
    } catch (error) {
      if (turn === this.turn && !(error instanceof DOMException && error.name === "AbortError")) this.problem = problem(error);
      return null;
    } finally {
      if (turn === this.turn) this.busy = false;
    }
  }

  clear(): void {
    this.turn++;
    this.value = this.problem = null;
    this.busy = false;
  }
}
