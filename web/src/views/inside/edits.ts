// Edits as the command line writes them: "blocks.0.attn.z[:,2]=0".

import { headOf, tensorAt, wayTo } from "../../lib/cells";
import { placeOf } from "../../lib/outline";
import type { Outline } from "../../lib/types";
import { visible } from "../answer/numbers";

export type Address = { name: string; index: (number | null)[] };

/** An address with numbers, or with ":" for a whole axis; null if it is none. */
export function parsed(cell: string): Address | null {
  const match = /^([^[\]=]+?)(?:\[([^\]]*)\])?$/.exec(cell.trim());
  if (!match) return null;
  const parts = (match[2] ?? "").split(",").map((part) => part.trim()).filter(Boolean);
  const index = parts.map((part) => (part === ":" ? null : Number(part)));
  return index.some((one) => one !== null && !Number.isInteger(one)) ? null : { name: match[1]!, index };
}

export function written({ name, index }: Address): string {
  return index.length ? `${name}[${index.map((one) => (one === null ? ":" : String(one))).join(",")}]` : name;
}

export function split(edit: string): { where: string; value: string } {
  const at = edit.lastIndexOf("=");
  return at < 0 ? { where: edit, value: "" } : { where: edit.slice(0, at), value: edit.slice(at + 1) };
}

/** A number as an edit takes it: Python reads inf, -inf and nan. Null if it is none. */
export function number(text: string): string | null {
  const plain = text.trim().replace("−", "-").replace("∞", "inf").replace(",", ".");
  if (/^[+-]?(inf|nan)$/i.test(plain)) return plain.toLowerCase();
  return plain !== "" && Number.isFinite(Number(plain)) ? String(Number(plain)) : null;
}

/** The list with one edit more; an edit of the same place is replaced. */
export function withEdit(edits: string[], where: string, value: string): string[] {
  return [...edits.filter((one) => split(one).where !== where), `${where}=${value}`];
}

/** The vocabulary, where a tensor holds the ids of tokens. */
export function ofTokens(name: string, outline: Outline | null): string[] | null {
  // an input that was edited has its own name with "before"
  const input = outline?.tensors.find((one) => one.kind === "input" && [name, `${name}:before`].includes(one.name));
  return input && /int/.test(input.dtype) && input.shape.length === 2 ? (outline!.labels.V ?? null) : null;
}

/** The id of a token that is written as its text, or as its id; null if it is none. */
export function tokenOf(text: string, vocabulary: string[]): string | null {
  const plain = text.trim();
  if (/^\d+$/.test(plain) && Number(plain) < vocabulary.length) return String(Number(plain));
  const quoted = /^[“"](.*)[”"]$/.exec(plain)?.[1] ?? text;
  for (const one of [quoted, quoted.replace(/^ /, "␣"), quoted.trim(), `␣${quoted.trim()}`]) {
    const id = one ? vocabulary.indexOf(one) : -1;
    if (id >= 0) return String(id);
  }
  return null;
}

/** An edit in words: "block 3 · head 3 off". */
export function said(edit: string, outline: Outline | null): string {
  const { where, value } = edit.includes("=") ? split(edit) : { where: edit, value: "" }, at = parsed(where);
  if (!at) return edit;
  const way = outline ? wayTo(outline.map, (node) => node.tensors.includes(at.name)).slice(1).map((node) => node.title) : [];
  const place = way.length ? way : placeOf(at.name), fixed = at.index.filter((one) => one !== null);
  if (at.name.endsWith(".z") && fixed.length === 1 && at.index[1] === fixed[0] && Number(value) === 0 && value) return `${headOf(place, fixed[0]!).join(" · ")} off`;
  if (at.name.endsWith(".scores") && at.index.length === 4 && fixed.length === 2 && value === "-inf") return `${place.join(" · ")}: token ${at.index[2]! + 1} cannot see token ${at.index[3]! + 1}`;
  const words = ofTokens(at.name, outline);
  if (words && fixed.length === at.index.length && words[Number(value)] !== undefined) return `token ${fixed.at(-1)! + 1} is “${visible(words[Number(value)]!)}”`;
  const whole = tensorAt(place, at.name), cell = fixed.length ? `${whole}[${at.index.map((one) => one ?? ":").join(",")}]` : `all of ${whole}`;
  const becomes = inWords(value);
  if (becomes) return `${cell} ${becomes}`;
  return value ? `${cell} set to ${value.replace("-", "−").replace("inf", "∞")}` : `${whole} changed`;
}

/** What cells become besides a number, in words; nothing for a number. */
function inWords(value: string): string {
  const [word, deviation, seed = "0"] = value.trim().split(":");
  if (word === "mean") return "set to the mean over the positions";
  if (word === "patch") return "as for the other input";
  return word === "noise" ? `with noise of deviation ${deviation} (seed ${seed})` : "";
}

export type Knob = { label: string; where: string; value: string | null /* null: to be typed */ };
type Known = { axes: string[]; shape: number[] };

const TOKENS = new Set(["T", "S", "s", "t", "M", "N", "n"]);

/** What can be set from one cell: the number, its head, the mask of a query and a key, its token, the whole tensor. */
export function knobs(cell: string, find: (name: string) => Known | undefined, word: (name: string, axis: number, i: number) => string): Knob[] {
  const at = parsed(cell);
  const tensor = at && find(at.name);
  if (!at || !tensor) return [];
  const index = at.index.length === tensor.shape.length ? at.index : tensor.shape.map(() => 0);
  const list: Knob[] = [{ label: "this number", where: written({ name: at.name, index }), value: null }];
  const alone = (name: string, axis: number) => written({ name, index: index.slice(0, axis + 1).map((i, d) => (d === axis ? i : null)) });
  const part = at.name.slice(0, at.name.lastIndexOf(".") + 1);
  const head = tensor.axes.indexOf("h");
  // the values of a head are what it adds: with them at 0 the head is off, whichever of its tensors was chosen
  if (head >= 0 && find(`${part}z`)) list.push({ label: `head ${Number(index[head]) + 1} off`, where: alone(`${part}z`, head), value: "0" });
  const [query, key] = tensor.axes.slice(-2).map((letter) => TOKENS.has(letter));
  if (query && key && find(`${part}scores`)) {
    const [q, k] = index.slice(-2) as number[];
    const d = tensor.axes.length - 2;
    list.push({ label: `mask: ${word(at.name, d, q!)} cannot see ${word(at.name, d + 1, k!)}`, where: `${part}scores[:,:,${q},${k}]`, value: "-inf" });
  } else {
    const token = tensor.axes.findIndex((letter, d) => d > 0 && TOKENS.has(letter));
    if (token >= 0) list.push({ label: `all of ${word(at.name, token, Number(index[token]))} to 0`, where: alone(at.name, token), value: "0" });
  }
  if (tensor.shape.length > 1) list.push({ label: "the whole tensor to 0", where: at.name, value: "0" });
  return list;
}
