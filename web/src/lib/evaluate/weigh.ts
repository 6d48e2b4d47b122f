// The value of a tree, and how far rounding may have moved what was recorded.

import { finite, pairwise, same, size, unlike, WORK, type Num } from "./numbers";
import type { Rounding, Tree, Weight } from "./part";
import type { About } from "./graph";

/** For the value alone, where its error is of no interest. */
export const EXACT: Rounding = { inner: 0, outer: 0, floor: 0, op: "", dtype: "float64" };
export const slack = (n: Rounding, value: Num) => (finite(value) ? size(value) : 0) * n.outer + n.floor;

export function weigh(tree: Tree, n: Rounding): Weight {
  const { op } = tree;
  if (op === "cell") return { value: tree.value, error: 0 };
  if (op === "num") {
    const exact = tree.exact || !Number.isFinite(size(tree.value!));
    return { value: tree.value, error: exact ? 0 : size(tree.value!) * n.inner };
  }
  if (op === "is" || op === "picked") return weigh(tree.of!, n);
  tree.weighed ??= new Map();
  let weight = tree.weighed.get(n);
  if (!weight) tree.weighed.set(n, (weight = weighed(tree, n)));
  return weight;
}

function weighed(tree: Tree, n: Rounding): Weight {
  const { op } = tree;
  if (op === "made") {
    const { value, error } = weigh(tree.of!, tree.made!);
    return { value, error: error + slack(tree.made!, value) };
  }
  const args = tree.args!.map((part) => weigh(part, n));
  if (tree.list) return reduced(op, tree.list.map((part) => weigh(part, n)), args, n.inner);
  return applied(op, tree.about!, args, n);
}

function reduced(op: string, list: Weight[], args: Weight[], u: number): Weight {
  const value = WORK[op](list.map((w) => w.value), ...args.map((w) => w.value));
  const errors = list.map((w) => w.error);
  const scale = finite(value) ? size(value) : 0;
  if (op === "sum") {
    const weight = list.reduce((sum, w) => sum + (finite(w.value) ? size(w.value) : 0) + w.error, 0);
    // with a second argument the running total is rounded so; adding 0 rounds nothing
    const rounded = args.length ? Math.max(list.filter((w) => w.value !== 0).length - 1, 0) * args[0].value : (list.length - 1) * u;
    return { value, error: pairwise(errors) + rounded * weight };
  }
  if (["argmax", "argmin", "kth_at"].includes(op)) {
    // kernels do not agree on which of equal values comes first
    const best = list[value].value;
    const tied = list.filter((w) => same(w.value, best) || (unlike(w.value) && unlike(best))).length > 1;
    return { value, error: tied ? list.length : 0 };
  }
  if (op === "prod") return { value, error: pairwise(errors) * Math.max(scale, 1) + (args[0]?.value ?? u) * scale * list.length };
  return { value, error: errors.reduce((a, b) => Math.max(a, b)) };
}

function applied(op: string, about: About, args: Weight[], { inner: u, outer }: Rounding): Weight {
  const xs = args.map((w) => w.value), es = args.map((w) => w.error);
  const value = WORK[op](...xs);
  const scale = finite(value) ? size(value) : 0;
  if (op === "add" || op === "sub") return { value, error: es[0] + es[1] + u * scale };
  if (op === "real" || op === "imag") return { value, error: es[0] };
  if (op === "rounded") return { value, error: es[0] + outer * scale };
  if (op === "multiplied") return { value, error: es[0] + 2 * u * scale };
  if (op === "double") return { value, error: u * scale };
  if (op === "mul") {
    const [a, b] = xs.map((x) => (finite(x) ? size(x) : 0));
    return { value, error: a * es[1] + b * es[0] + es[0] * es[1] + u * scale };
  }
  let moved = 0;
  es.forEach((e, i) => {
    for (const sign of e === 0 ? [] : [1, -1]) {
      const step = size(WORK.sub(WORK[op](...xs.map((x, j) => (j === i ? WORK.add(x, sign * e) : x))), value));
      if (Number.isFinite(step)) moved = Math.max(moved, step);
    }
  });
  if (op === "whole") return { value, error: finite(xs[0]) ? moved : Infinity };
  if (op === "mod") return { value, error: moved + 4 * u * size(xs[0]) };
  if (!about.smooth) return { value, error: moved };
  return { value, error: moved + 4 * (op === "pow" ? outer : u) * scale + (op === "erf" ? 8 * u : 0) };
}

export function agree(reworked: Num, recorded: Num, allowed: number): boolean {
  return same(reworked, recorded) || (unlike(reworked) && unlike(recorded)) || size(WORK.sub(reworked, recorded)) <= allowed;
}
