// The lines of Python that give what a view shows, after those that record the state.

import { edited, OTHER_PICTURE, pictureLine, quoted, traced } from "../../lib/python";
import type { Input, Model, State } from "../../lib/types";

/** One head's pattern, or that of a whole layer. */
export function wallLines(pattern: string, head: number | null): string[] {
  const index = head === null ? "" : `[0, ${head}]`;
  return [`print(t[${quoted(pattern)}].value${index})  # ${head === null ? "batch, heads, queries, keys" : "queries, keys"}`];
}

export function whyLines(cell: string, against: string | null): string[] {
  return [`why = t.contributions(${quoted(cell)}${against === null ? "" : `, against=${/^\d+$/.test(against) ? against : quoted(against)}`})`, "print(why)", "print(why.parts[0].parts)  # what the largest part is made of"];
}

/** The state on screen is `t`, with its edits, of the input `mine`; `other` is what it is compared with. */
export function versusLines(model: Model, other: State, mine: Input): string[] {
  const own = other.input.picture !== undefined && other.input.picture !== mine.picture;
  const pictured = own ? [pictureLine(other.input.picture!, OTHER_PICTURE)] : [];
  const edits = other.edits.map((edit) => `other = ${edited("other", edit)}`);
  return [...pictured, `other = ${traced(model, other.input, "", own ? OTHER_PICTURE : undefined)}`, ...edits, "", "from pencil.tracing.show import differences", "", "for found in differences(other, t):", "    print(found)"];
}

/** A document has an example of its own, and needs no trace either. */
export function documentLines(number: string): string {
  return `from pencil.learn.walks import walk\n\nfor section in walk(${quoted(number)}).sections:\n    print(section.title, [one.name for one in section.shown])\n`;
}

/** An exercise needs no trace. */
export function kataProgram(name: string, seed: number | null): string {
  return `from pencil.learn.katas import kata\n\nquestion = kata(${quoted(name)}).make(${seed ?? "None"})\nprint(question.ask)\n`;
}
