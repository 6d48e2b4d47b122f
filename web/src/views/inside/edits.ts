// Edits as the command line writes them: "blocks.0.attn.z[:,2]=0".

export type Address = { name: string; index: (number | null)[] };

/** An address with numbers, or with ":" for a whole axis; null if it is none. */
export function parsed(cell: string): Address | null {
  const found = /^([^[\]=]+?)(?:\[([^\]]*)\])?$/.exec(cell.trim());
  if (!found) return null;
  const parts = (found[2] ?? "").split(",").map((part) => part.trim()).filter(Boolean);
  const index = parts.map((part) => (part === ":" ? null : Number(part)));
  return index.some((one) => one !== null && !Number.isInteger(one)) ? null : { name: found[1]!, index };
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

export type Knob = { label: string; where: string; value: string | null /* null: to be typed */ };
type Known = { axes: string[]; shape: number[] };

const TOKENS = new Set(["T", "S", "s", "t", "M", "N", "n"]);

/** What can be set from one cell: the number, its head, the mask of a query and a key, its token, the whole tensor. */
export function knobs(cell: string, find: (name: string) => Known | undefined, word: (name: string, axis: number, i: number) => string): Knob[] {
  const at = parsed(cell);
  const tensor = at && find(at.name);
  if (!at || !tensor) return [];
  const index = at.index.length === tensor.shape.length ? at.index : tensor.shape.map(() => 0);
  const found: Knob[] = [{ label: "this number", where: written({ name: at.name, index }), value: null }];
  const alone = (name: string, axis: number) => written({ name, index: index.slice(0, axis + 1).map((i, d) => (d === axis ? i : null)) });
  const part = at.name.slice(0, at.name.lastIndexOf(".") + 1);
  const head = tensor.axes.indexOf("h");
  // the values of a head are what it adds: with them at 0 the head is off, whichever of its tensors was chosen
  if (head >= 0 && find(`${part}z`)) found.push({ label: `head ${Number(index[head]) + 1} off`, where: alone(`${part}z`, head), value: "0" });
  const [query, key] = tensor.axes.slice(-2).map((letter) => TOKENS.has(letter));
  if (query && key && find(`${part}scores`)) {
    const [q, k] = index.slice(-2) as number[];
    const d = tensor.axes.length - 2;
    found.push({ label: `mask: ${word(at.name, d, q!)} cannot see ${word(at.name, d + 1, k!)}`, where: `${part}scores[:,:,${q},${k}]`, value: "-inf" });
  } else {
    const token = tensor.axes.findIndex((letter, d) => d > 0 && TOKENS.has(letter));
    if (token >= 0) found.push({ label: `all of ${word(at.name, token, Number(index[token]))} to 0`, where: alone(at.name, token), value: "0" });
  }
  if (tensor.shape.length > 1) found.push({ label: "the whole tensor to 0", where: at.name, value: "0" });
  return found;
}
