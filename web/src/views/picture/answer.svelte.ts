// What of the answer is shown, and which number of it is chosen.

import { session } from "../../lib/session.svelte";
import type { OutToken } from "../../lib/types";
import { unsure } from "../answer/numbers";

export type Shown = {
  arriving: boolean; // a slow answer, as far as it has come
  tokens: OutToken[];
  chosen: number;
  token: OutToken | undefined;
  cell: string; // the chosen number; empty: the answer is a picture or a vector
  label: string;
  stale: boolean;
  writes: boolean; // tokens are drawn one after the other; else places are filled in
};

export function shownAnswer(): Shown {
  const { answer, partial, model, address } = session;
  // an answer that takes long is shown as it comes; a quick one replaces the old one when it is whole
  const arriving = session.answering && !model.live && (partial.tokens.length > 0 || partial.frames.length > 0);
  const tokens = arriving ? partial.tokens : (answer?.tokens ?? []);
  const first = arriving ? 0 : unsure(tokens, answer?.text);
  const chosen = Math.max(0, Math.min(Number(address.more.token ?? first) || 0, tokens.length - 1));
  const token = tokens[chosen], best = answer?.classes?.find((one) => String(one.id) === address.more.class) ?? answer?.classes?.[0];
  return {
    arriving, tokens, chosen, token, cell: token?.cell ?? best?.cell ?? "", label: token?.text ?? best?.label ?? "",
    stale: session.stale && !arriving, writes: model.controls.some((one) => one.name === "temperature"),
  };
}
