// What is painted over the input: what each of it added to the chosen number, or where a head looked.

import type { Drawn } from "./living.svelte";
import type { Head } from "./layout";

export type Paint = {
  kind: "added" | "attention";
  of: Map<string, ArrayLike<number>>; // of each stack, a value for each line
  top: number; // the value of the strongest colour
};

/** What each line added by way of all paths. */
export function added({ picture, of }: Drawn): Paint {
  const values = new Map(picture.stacks.map((stack) => [stack.id, new Float64Array(stack.lanes.length)]));
  let top = 0;
  for (const one of of.inputs) {
    const line = values.get(one.stack);
    if (!line || one.lane >= line.length) continue;
    line[one.lane] += one.value;
    top = Math.max(top, Math.abs(line[one.lane]));
  }
  return { kind: "added", of: values, top: top || 1 };
}

/** Where one head, or the mean of a column, looked from the chosen line. */
export function looked(drawn: Drawn, column: number, head: Head): Paint | null {
  const weights = drawn.weights(column, head);
  return weights && { kind: "attention", of: new Map([[drawn.picture.columns[column].keys, weights]]), top: 1 };
}

/** How strongly a value is painted, and in which colour. */
export function colour({ kind, top }: Paint, value: number): { tone: "above" | "below" | "share"; strength: number } {
  if (kind === "attention") return { tone: "share", strength: Math.sqrt(Math.max(0, Math.min(1, value))) };
  return { tone: value < 0 ? "below" : "above", strength: Math.min(1, Math.abs(value) / top) };
}
