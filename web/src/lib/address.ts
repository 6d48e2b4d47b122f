// The address of the page is its state: what follows the # reproduces what is on screen.

import type { Input, Lesson } from "./types";

export type Address = {
  model: string; // empty: the first
  input: Input | null; // null: the model's own example
  edits: string[];
  lessons: Lesson[]; // training steps that a copy of the model has taken
  view: string; // empty: the first
  cell: string; // the cell whose receipt is open; empty: none
  more: Record<string, string>; // what a view keeps for itself, such as the layer it shows
};

export const EMPTY: Address = { model: "", input: null, edits: [], lessons: [], view: "", cell: "", more: {} };

export const INPUTS = ["text", "source", "picture", "label"] as const;
const OPTION = "o.";

/** Views that went into another: where an address that names one leads, what it opens there, and what has another name. */
export const MOVED: Record<string, { view: string; more: Record<string, string>; renamed?: Record<string, string> }> = {
  answer: { view: "look", more: {} },
  map: { view: "look", more: {} },
  why: { view: "look", more: { open: "why" } },
  tours: { view: "documents", more: {}, renamed: { tour: "document" } },
};

/** An address of today, of one that may be older. */
export function today(address: Address): Address {
  const moved = Object.hasOwn(MOVED, address.view) ? MOVED[address.view] : null;
  if (!moved) return address;
  const more = Object.entries(address.more).map(([name, value]) => [moved.renamed?.[name] ?? name, value]);
  return { ...address, view: moved.view, more: { ...moved.more, ...Object.fromEntries(more) } };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Only what would end or split the address is encoded, so that it can be read. */
const encoded = (text: string) => encodeURIComponent(text).replace(/%(5B|5D|2C|3A|2F|3D|3B|2B|40)/g, (code) => decodeURIComponent(code));

export function read(hash: string): Address {
  const text = hash.replace(/^#/, "");
  const address: Address = { ...EMPTY, edits: [], lessons: [], more: {} };
  if (text && !/^[\w.]+=/.test(text)) return { ...address, cell: decoded(text) }; // a cell by itself
  const input: Input = {};
  let present = false;
  for (const part of text.split("&").filter(Boolean)) {
    const cut = part.indexOf("=");
    const [name, value] = cut < 0 ? [part, ""] : [decoded(part.slice(0, cut)), decoded(part.slice(cut + 1))];
    if (name === "model" || name === "view" || name === "cell") address[name] = value;
    else if (name === "edit") address.edits.push(value);
    else if (name === "lesson") address.lessons.push(...lessonOf(value));
    else if (INPUTS.some((one) => one === name)) {
      input[name as (typeof INPUTS)[number]] = value;
      present = true;
    } else if (name.startsWith(OPTION)) {
      (input.options ??= {})[name.slice(OPTION.length)] = Number(value);
      present = true;
    } else address.more[name] = value;
  }
  return today(present ? { ...address, input } : address);
}

function lessonOf(text: string): Lesson[] {
  try {
    const { input, target, steps, rate } = JSON.parse(text) as Lesson;
    return typeof input === "object" && input !== null && typeof target === "string" && steps > 0 ? [{ input, target, steps, rate }] : [];
  } catch {
    return [];
  }
}

/** A link of more letters does not open everywhere. */
export const LONGEST = 300_000;
/** A picture of more letters stands in the address as the model sees it, once that is known. */
export const LARGE = 20_000;

/** An address as text; `small` has smaller texts for the same pictures, and what is still too long is left out. */
export function written(address: Address, small: Map<string, string> | null = null): string {
  return put(address, small).text;
}

/** The names of what an address leaves out, since it is too long. */
export const leftOut = (address: Address, small: Map<string, string>): string[] => put(address, small).lacking;

function put(address: Address, small: Map<string, string> | null): { text: string; lacking: string[] } {
  const lacking: string[] = [];
  const texts = entries(address).map(([name, value]) => [name, shortened(value, small)] as const).filter(([name, value]) => {
    if (small === null || value.length <= LONGEST) return true;
    lacking.push(name);
    return false;
  });
  return { text: `#${texts.map(([name, value]) => `${encoded(name)}=${encoded(value)}`).join("&")}`, lacking };
}

function shortened(value: string, small: Map<string, string> | null): string {
  if (small === null || value.length <= LARGE) return value;
  for (const [large, other] of small) value = value.replaceAll(large, other);
  return value;
}

function entries(address: Address): [string, string][] {
  const { input } = address, parts: [string, string][] = [];
  const put = (name: string, value: string) => value && parts.push([name, value]);
  put("model", address.model);
  put("view", address.view);
  if (input) {
    for (const name of INPUTS) if (input[name] !== undefined) parts.push([name, input[name]]);
    for (const [name, value] of Object.entries(input.options ?? {})) parts.push([OPTION + name, String(value)]);
  }
  for (const edit of address.edits) parts.push(["edit", edit]);
  for (const lesson of address.lessons) parts.push(["lesson", JSON.stringify(lesson)]);
  for (const [name, value] of Object.entries(address.more)) put(name, value);
  put("cell", address.cell);
  return parts;
}
