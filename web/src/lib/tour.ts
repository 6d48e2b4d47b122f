// The tour of a model, as the server fills it in (src/pencil/explore/tour.py), and what is said of an answer.

import { formatNumber } from "./evaluate/numbers";

/** A word, or a number and where it is from: a cell of the trace, a size, a place counted from 1, the answer. */
export type Slot =
  | { kind: "word"; text: string }
  | { kind: "cell"; value: number; cell: string }
  | { kind: "size" | "place" | "answer" | "derived"; value: number; cell?: string };
export type Told = (string | Slot)[];

export type Asked = { ask: Told; why: Told } & (
  | { kind: "number"; answer: Slot & { value: number }; allowed: number; mistakes: { value: number; why: Told }[] }
  | { kind: "choice"; choices: { text: Told; right: boolean; why: Told }[] }
);

export type TourStep = {
  id: string;
  title: string;
  address: { view: string; cell: string; more: Record<string, string> };
  text: Told;
  notes: string; // for whoever gives the lecture
  minutes: number;
  question: Asked;
};

export type TourOf = { model: string; steps: TourStep[] };

export type Verdict = { right: boolean; said: string; why: Told };

/** A sentence as one text. */
export const plainly = (told: Told): string =>
  told.map((piece) => (typeof piece === "string" ? piece : piece.kind === "word" ? piece.text : formatNumber(piece.value))).join("");

/** What was typed as a number: a comma or a true minus sign are read too; null: it is none. */
export function typed(text: string): number | null {
  const plain = text.trim().replace(/−/g, "-").replace(/^([^.]*),(\d+)$/, "$1.$2").replace(/\s/g, "");
  return plain && Number.isFinite(Number(plain)) ? Number(plain) : null;
}

/** What is said of a number: how far off it is, and which mistake gives it. */
export function verdict(question: Asked & { kind: "number" }, value: number): Verdict {
  const { answer, allowed, mistakes, why } = question, off = value - answer.value;
  if (Math.abs(off) <= allowed) return { right: true, said: "Right.", why };
  const near = (one: number) => Math.abs(value - one) <= Math.max(1e-9, 0.02 * Math.abs(one));
  const mistake = mistakes.find((one) => near(one.value));
  const said = `${formatNumber(Math.abs(off))} too ${off > 0 ? "large" : "small"}.`;
  if (value && Math.abs(value + answer.value) <= allowed) return { right: false, said, why: mistake?.why ?? ["The size is right and the sign is not."] };
  return { right: false, said, why: mistake?.why ?? [] };
}
