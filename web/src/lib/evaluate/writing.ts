// A tree in writing. A number that is a cell, or a named step, is marked, so that the page can make a link of it, with
// characters that no text holds; `bare` takes the marks away, and what is left is what receipt.py writes.

import type { Graph } from "./graph";
import { formatNumber, size, WORK, type Num } from "./numbers";
import { is, Simplifier } from "./simplify";
import type { Rounding, Tree } from "./part";
import { EXACT, weigh } from "./weigh";

const MARK = "\u0001", SHUT = "\u0002", END = "\u0003";
export const marked = (what: string, text: string) => MARK + what + SHUT + text + END;
export const bare = (text: string) => text.replace(/\u0001[^\u0002]*\u0002|\u0003/g, "");
const negative = (text: string) => /^(?:\u0001[^\u0002]*\u0002)*−/.test(text);

/** Marked text in pieces: plain text, and what is marked with what it stands for. */
export function pieces(text: string): { what: string; text: string }[] {
  return text.split(/(\u0001[^\u0003]*\u0003)/).filter(Boolean).map((part) => {
    if (!part.startsWith(MARK)) return { what: "", text: part };
    const [what, shown] = part.slice(1, -1).split(SHUT);
    return { what, text: shown };
  });
}

type Bound = [string, number]; // text, and how tightly it binds

const numberText = (value: Num, digits: number): Bound => [formatNumber(value, digits), Array.isArray(value) ? 0 : 3];

/** √n, if a number is one: how embeddings are scaled. */
function surd(value: Num): string | null {
  if (Array.isArray(value) || !(value > 1 && value < 1e3) || Number.isInteger(value)) return null;
  const n = Math.round(value * value);
  return Math.abs(value * value - n) <= 1e-12 * n ? `√${n}` : null;
}

/** √n, if a number is one over it: how scores are scaled. */
function rooted(tree: Tree): string | null {
  const value = tree.op === "num" ? (tree.value as number) : 0;
  if (!(value > 1e-3 && value < 1)) return null;
  const n = Math.round(1 / value ** 2);
  if (Math.abs(value * value * n - 1) > 1e-9 || n < 2) return null;
  const whole = Math.round(Math.sqrt(n));
  return whole * whole === n ? String(whole) : `√${n}`;
}

/** Arguments put into a form such as "{} + {}" or "{1} if {0} else {2}". */
function form(pattern: string, args: string[]): string {
  let next = 0;
  return pattern.replace(/\{(\d?)\}/g, (_, i) => args[i === "" ? next++ : Number(i)]);
}

/** Terms of a sum in a row; a negative one is subtracted. */
function joined(terms: string[]): string {
  return terms.reduce((line, one) => line + (negative(one) ? ` − ${one.replace("−", "")}` : ` + ${one}`));
}

export class Writer {
  private readonly simplifier: Simplifier;

  constructor(
    private readonly graph: Graph,
    private readonly digits: number,
  ) {
    this.simplifier = new Simplifier(graph.functions);
  }

  text(tree: Tree, n: Rounding = EXACT): string {
    return this.written(this.simplifier.simplified(tree, n))[0];
  }

  /** A simplified tree as text, and how tightly that binds. */
  private written(tree: Tree): Bound {
    const { op } = tree, args = tree.args ?? [];
    if (op === "num") {
      const root = surd(tree.value!);
      return root ? [root, 2] : numberText(tree.value!, this.digits);
    }
    if (op === "cell" || op === "is") {
      const [number, binds] = numberText(op === "cell" ? tree.value! : weigh(tree.of!, EXACT).value, this.digits);
      return [marked(op === "cell" ? `${tree.node}:${tree.place}` : tree.word!, number), binds];
    }
    if (op === "sum") return [this.summed(tree.list!), 0];
    const about = tree.about!;
    if (tree.list) {
      const more = tree.list.length > 8 ? `, … ${tree.list.length} in all` : "";
      const inside = tree.list.slice(0, 8).map((part) => this.text(part)).join(", ") + more;
      return [form(about.text, [inside, ...args.map((part) => this.text(part))]), 3];
    }
    if (op === "neg" && is(args[0], 0)) return ["0", 3];
    if (op === "mul") {
      for (const [i, j] of [[1, 0], [0, 1]]) {
        const root = rooted(args[i]);
        if (root) return [`${this.held(args[j], 1)}/${root}`, 1];
      }
    }
    if (about.binds === 3) return [form(about.text, args.map((part) => this.written(part)[0])), 3];
    if (op === "add" || op === "sub") {
      const [left] = this.written(args[0]);
      let [right, binds] = this.written(args[1]);
      if (op === "add") return [joined([left, right]), 0];
      if (binds === 0 || negative(right)) right = `(${right})`;
      return [`${left} − ${right}`, 0];
    }
    if (about.binds === 0) {
      const each = args.map((part) => this.written(part)).map(([part, binds]) => (binds ? part : `(${part})`));
      return [form(about.text, each), 0];
    }
    // what is right of − or / or · must bind more tightly than they do
    const strict: Record<string, number[]> = { div: [1, 2], mul: [1, 1], pow: [3, 3], neg: [1] };
    const tight = strict[op] ?? args.map(() => (about.binds === 2 ? 3 : 1));
    return [form(about.text, args.map((part, i) => this.held(part, tight[i]))), about.binds];
  }

  private held(tree: Tree, tight: number): string {
    const [part, binds] = this.written(tree);
    return binds < tight || (tight && negative(part)) ? `(${part})` : part;
  }

  /** A term of a sum: what is compared or chosen is in brackets. */
  private term(tree: Tree): string {
    const inner = this.simplifier.simplified(tree, EXACT), [part, binds] = this.written(inner);
    const plain = ["add", "sub", "sum", "num", "cell", "is"].includes(inner.op);
    return binds === 0 && !plain && part.includes(" ") ? `(${part})` : part;
  }

  private summed(parts: Tree[]): string {
    if (!parts.length) return "0";
    if (parts.length <= this.graph.rules.shown) {
      const written = parts.map((part) => this.term(part)), shown = written.filter((term) => bare(term) !== "0");
      const zeros = written.length - shown.length;
      if (!shown.length) return "0";
      return zeros < 2 ? joined(written) : `${joined(shown)} + … (${zeros} more are 0)`;
    }
    const values: Num[] = parts.map((part) => weigh(part, EXACT).value);
    const order = values.map((_, i) => i).sort((i, j) => size(values[j]) - size(values[i]) || i - j);
    const largest = order.slice(0, 8).filter((i) => size(values[i]) !== 0).sort((i, j) => i - j);
    const rest = values.filter((_, i) => !largest.includes(i)).reduce((a, b) => WORK.add(a, b), 0);
    const sum = largest.length === 8 ? `sum to ${formatNumber(rest, this.digits)}` : "are 0";
    const shown = largest.length ? joined(largest.map((i) => this.term(parts[i]))) : "0";
    return `${shown} + … (${parts.length - largest.length} more ${sum})`;
  }
}
