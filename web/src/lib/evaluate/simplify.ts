// Arithmetic as a person would write it: the twin of tracing/receipt_text.py, which is the reference. The same value with
// fewer signs; receipts are evaluated as recorded, and only written in this form.

import type { About } from "./graph";
import type { Rounding, Tree } from "./part";

type Functions = Record<string, About>;

const OPPOSITE: Record<string, string> = { lt: "ge", ge: "lt", le: "gt", gt: "le", eq: "ne", ne: "eq" };
const TRUTH = [...Object.keys(OPPOSITE), "and", "or", "xor", "not"];
const whole = (value: number): Tree => ({ op: "num", value, exact: true });
export const is = (tree: Tree, value: number) => tree.op === "num" && tree.value === value;

/** Trees rewritten with the functions of one trace. */
export class Simplifier {
  constructor(private readonly functions: Functions) {}

  private made(op: string, ...args: Tree[]): Tree {
    return { op, about: this.functions[op], args };
  }

  /** A tree of node `n` in the form it is written in; terms of a list stay as they are until they are written. */
  simplified(tree: Tree, n: Rounding): Tree {
    const { op } = tree;
    if (op === "num" || op === "cell" || op === "is") return tree;
    if (op === "made") return this.simplified(tree.of!, tree.made!);
    if (op === "picked") return this.simplified(tree.of!, n);
    if (["rounded", "multiplied", "double"].includes(op)) return this.simplified(tree.args![0], n);
    if (tree.list) return { ...tree, weighed: undefined, list: tree.list.map((of) => ({ op: "made", made: n as never, of })) };
    return this.rewritten(op, tree.args!.map((part) => this.simplified(part, n)), n);
  }

  /** One operation on operands that are in their written form already. */
  private rewritten(op: string, parts: Tree[], n: Rounding): Tree {
    const [a, b] = parts, made = this.made.bind(this);
    if ((op === "add" || op === "mul") && indices(parts, n, op)) {
      const [x, y] = [a.value as number, b.value as number];
      return whole(op === "add" ? x + y : x * y);
    }
    if (op === "add" && is(b, 0)) return a;
    if (op === "neg") return this.negated(a) ?? made("neg", a);
    if (op === "sub" && b.op === "neg") return made("add", a, b.args![0]);
    if (op === "pow" && a.op === "num") {
      const power = this.negated(b);
      if (power) return made("div", whole(1), made("pow", a, power));
    }
    if (op === "mul") {
      if (inverse(a)) return this.numerated(a, b);
      if (inverse(b)) return this.numerated(b, a);
      for (const i of [0, 1]) {
        if (parts[i].op === "neg") return made("neg", this.rewritten("mul", parts.with(i, parts[i].args![0]), n));
      }
      if (is(a, 1) && !ofIndices(b)) return b;
      if (b.op === "cell" && a.op !== "num" && ofIndices(a)) return made("mul", b, a);
    }
    if (op === "div" && a.op === "neg") return made("neg", made("div", a.args![0], b));
    if (op === "not" && a.op in OPPOSITE && a.args!.every((part) => part.op === "num")) return made(OPPOSITE[a.op], ...a.args!);
    if (op === "ne" && is(b, 0) && TRUTH.includes(a.op)) return a;
    return made(op, ...parts);
  }

  /** What a tree is the negative of, if it is written with a minus; else null. */
  private negated(tree: Tree): Tree | null {
    if (tree.op === "neg") return tree.args![0];
    if (tree.op === "num" && (tree.value as number) < 0) return { ...tree, value: -(tree.value as number) };
    const first = tree.op === "mul" || tree.op === "div" ? this.negated(tree.args![0]) : null;
    return first && this.made(tree.op, first, tree.args![1]);
  }

  private numerated(tree: Tree, a: Tree): Tree {
    const [top, under] = tree.args!;
    return this.made("div", is(top, 1) ? a : this.numerated(top, a), under);
  }
}

/** Whether this is arithmetic with indices; the step of a range is kept, because it means something: 2·i. */
function indices(parts: Tree[], n: Rounding, op: string): boolean {
  if (!parts.every((part) => part.op === "num" && Number.isInteger(part.value))) return false;
  return n.op === "arange" ? op === "add" : /int/.test(n.dtype);
}

const ofIndices = (tree: Tree): boolean => tree.op === "num" || Boolean(tree.args && !tree.list && tree.args.every(ofIndices));

/** Whether a tree is one over something: 1/x, 1/x/y. */
const inverse = (tree: Tree): boolean => tree.op === "div" && (is(tree.args![0], 1) || inverse(tree.args![0]));
