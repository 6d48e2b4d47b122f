// Numbers and words as the answer shows them.

import { brief } from "../../lib/colour";
import type { Control } from "../../lib/types";

/** A probability, three decimals; what would round to none of them says so. */
export function probability(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (value > 0 && value < 0.0005) return "<0.001";
  if (value < 1 && value > 0.9995) return ">0.999";
  return value.toFixed(3);
}

/** A logit or another number in a short column. */
export const short = (value: number) => brief(value, 2);

/** A token in running text: a label marks a leading space as ␣ and a line end as ⏎. */
export function visible(label: string): string {
  const bare = label.replace(/^[␣\s]+(?=[^␣\s])/, "").trim();
  return bare || "␣";
}

/** One of several labels in running text: of equal ones with its number, "2 #3"; as it stands where only a space tells two apart. */
export function numbered(labels: readonly string[], at: number, quotes = false): string {
  const label = labels[at] ?? "", same = labels.flatMap((one, i) => (one === label ? [i] : []));
  const alike = labels.some((one) => one !== label && visible(one) === visible(label));
  const word = alike ? label : visible(label);
  return `${quotes ? `“${word}”` : word}${same.length > 1 ? ` #${same.indexOf(at) + 1}` : ""}`;
}

export type Spaced = { gap: boolean; word: string; breaks: boolean; special: boolean };

/** Tokens as they stand in the text they make: with a space before them or not; special ones are not in it. */
export function spaced(tokens: { text: string }[], text: string | undefined): Spaced[] {
  let at = 0;
  return tokens.map(({ text: label }, i) => {
    const word = visible(label), bare = label.replace(/[␣⏎\s]/g, "");
    const start = text === undefined || !bare ? -1 : text.indexOf(bare, at);
    const between = start < 0 ? "" : text!.slice(at, start);
    const near = start >= 0 && !between.trim();
    if (near) at = start + bare.length;
    const gap = i > 0 && (/^[␣\s]/.test(label) || (near && /\s/.test(between))) && word !== "␣";
    return { gap, word, breaks: /[⏎\n]/.test(label), special: text !== undefined && bare !== "" && !near };
  });
}

/** The token to begin with: the first word the model was not sure of; of sure ones the second, since the first says least. */
export function unsure(tokens: { text: string; probability: number }[], text: string | undefined): number {
  const words = spaced(tokens, text), order = tokens.map((_, i) => i).filter((i) => !words[i].special);
  return order.find((i) => tokens[i].probability < 0.999) ?? order[1] ?? order[0] ?? 0;
}

/** The same cell with another last index: the logit of another token at the same position. */
export function sibling(cell: string, last: number): string {
  return cell.replace(/[^,[]*\]$/, `${last}]`);
}

/** How strongly a share from 0 to 1 is coloured: among many keys every share is small, and its root can still be seen. */
export const strength = (share: number) => Math.sqrt(Math.min(1, Math.max(0, share)));

/** The places of the largest values, largest first. */
export function largest(values: ArrayLike<number>, count: number): number[] {
  const order = Array.from({ length: values.length }, (_, i) => i);
  order.sort((a, b) => values[b] - values[a] || a - b);
  return order.slice(0, count);
}

export const ATTENDED = 0.01; // a smaller weight is not called attending; that of a masked key is 0

/** The keys that a query attends to most, largest first. */
export function attended(weights: ArrayLike<number>, count: number): number[] {
  return largest(weights, count).filter((key) => weights[key] >= ATTENDED);
}

/** The value of a setting, and the most it can be: some go up to the value of another, as a step does to the number of steps. */
export function chosen(control: Control, controls: Control[], options: Record<string, number>): { value: number; most: number } {
  const bound = controls.find((one) => one.name === control.within);
  const most = bound ? Math.min(control.most, options[bound.name] ?? bound.value) : control.most;
  return { value: Math.min(options[control.name] ?? control.value, most), most };
}

/** The step of diffusion whose numbers are opened; null where a model has no such setting. */
export function recordedStep(controls: Control[], options: Record<string, number> = {}): number | null {
  const step = controls.find((one) => one.name === "step");
  return step ? chosen(step, controls, options).value : null;
}

/** Settings whose name on the page says more than their own. */
export const CALLED: Record<string, string> = {
  top_k: "top-k", top_p: "top-p", min_p: "min-p", tokens: "tokens to write", steps: "denoising steps", step: "recorded step",
};
