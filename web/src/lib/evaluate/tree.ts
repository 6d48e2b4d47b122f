// A cell as a tree: its plan with the values put in. The twin of tracing/receipt.py, which is the reference.

import { places, unravel, type Graph, type GraphNode, type Plan } from "./graph";
import type { Tree } from "./part";
import { weigh } from "./weigh";

const isNamed = (m: GraphNode) => Boolean(m.named);

/** A number as a plan writes it: whole ones are exact, others were rounded when they were written. */
function numeral(plan: number | [string, ...any[]]): Tree {
  if (typeof plan === "number") return { op: "num", value: plan, exact: Number.isInteger(plan) };
  const words: Record<string, number> = { inf: Infinity, "-inf": -Infinity, nan: NaN };
  if (plan[1].includes("j")) {
    const digits: string = plan[1].replace(/[()j]/g, "");
    const cut = Math.max(0, digits.search(/(?<=[^e])[+-][^+-]*(?:e[+-]?\d+)?$/));
    return { op: "num", value: [Number(digits.slice(0, cut)), Number(digits.slice(cut))], exact: false };
  }
  return { op: "num", value: words[plan[1]] ?? Number(plan[1]), exact: false };
}

/** The tree of a cell; null where it was given, not computed. */
export function unfolded(graph: Graph, node: number, place: number): Tree | null {
  const n = graph.nodes[node];
  if (n.plan === null) return null;
  if (n.moves) {
    const [from, at] = graph.step(node, place);
    return graph.nodes[from].kind === "edited" ? null : leaf(graph, from, at, 0, true);
  }
  const tree = unfold(graph, n.plan, n, unravel(place, n.shape), place, 0, !reduces(graph, n.plan))[0];
  const sum = n.named ? onlySum(graph, tree) : null;
  return sum ? replaced(tree, sum, worked(graph, sum)) : tree;
}

const LINEAR = ["add", "sub", "mul", "div", "neg", "num", "cell", "made", "picked"];

/** Whether a part is a cell of a mask that hides something. */
export const hides = (graph: Graph, part: Tree) =>
  part.op === "cell" && graph.nodes[part.node!].kind === "mask" && part.value === -Infinity;

/** The one cell that a tree only scales or shifts, if it is a sum: scores are written (q·k)/√d, from q and k. */
function onlySum(graph: Graph, tree: Tree): Tree | null {
  const parts = [...walk(tree)];
  const cells = parts.filter((part) => part.op === "cell" && graph.nodes[part.node!].kind !== "mask");
  if (tree.op === "cell" || cells.length !== 1) return null;
  if (!parts.every((part) => LINEAR.includes(part.op) && !hides(graph, part))) return null;
  const n = graph.nodes[graph.resolve(cells[0].node!, cells[0].place!)[0]];
  return n.kind !== "block" && reduces(graph, n.plan) ? cells[0] : null;
}

/** A named cell that is a sum, as that sum. */
function worked(graph: Graph, sum: Tree): Tree {
  const [node, place] = graph.resolve(sum.node!, sum.place!), n = graph.nodes[node];
  return { op: "made", made: n, of: unfold(graph, n.plan, n, unravel(place, n.shape), place, 1, false)[0] };
}

/** A tree with one part replaced. */
function replaced(tree: Tree, old: Tree, now: Tree): Tree {
  if (tree === old) return now;
  const copy = { ...tree };
  if (tree.of) copy.of = replaced(tree.of, old, now);
  if (tree.args) copy.args = tree.args.map((part) => replaced(part, old, now));
  return copy;
}

/**
 * A plan at one cell: the list of its trees, one unless it is a list of terms.
 * With `whole` an unnamed operand that is itself a sum is unfolded too; inside a sum that would be too much to read.
 */
function unfold(graph: Graph, plan: Plan, n: GraphNode, index: number[], place: number, depth: number, whole: boolean): Tree[] {
  if (!Array.isArray(plan) || plan[0] === "num") return [numeral(plan as number | [string])];
  const [head] = plan;
  const at = (part: Plan, level = depth, all = whole) => unfold(graph, part, n, index, place, level, all);
  if (head === "axis") return [{ op: "num", value: index[plan[1]], exact: true }];
  if (head === "is") return at(plan[2]).map((of) => ({ op: "is", word: plan[1], of }));
  if (head === "ref" || head === "list") {
    const last = graph.nodes[plan[1]].size - 1;
    const row = place * plan[3];
    const cells = head === "ref" ? places(plan as any, index) : Array.from(graph.arrays[plan[2]].slice(row, row + plan[3]));
    const level = cells.length > graph.rules.wide ? graph.rules.depth : depth;
    return cells.map((p) => leaf(graph, plan[1], Math.min(Math.max(p, 0), last), level, whole && cells.length === 1));
  }
  if (head === "if") {
    const why = at(plan[1], graph.rules.depth, false);
    const chosen = plan.slice(2).map((part) => at(part));
    const count = Math.max(why.length, ...chosen.map((c) => c.length));
    return Array.from({ length: count }, (_, i) => {
      const reason = why[i % why.length];
      const taken = chosen[weigh(reason, n).value !== 0 ? 0 : 1];
      return { op: "picked", why: reason, of: taken[i % taken.length] };
    });
  }
  const parts = plan.slice(1).map((part) => at(part));
  const about = graph.functions[head];
  if (about.reduces) return [{ op: head, about, list: parts[0], args: parts.slice(1).map((part) => part[0]) }];
  const count = Math.max(...parts.map((part) => part.length));
  return Array.from({ length: count }, (_, i) => ({ op: head, about, args: parts.map((part) => part[i % part.length]) }));
}

/** A cell as a value, or, where it has no name, as its own arithmetic: sums too, if it is to be `whole`. */
function leaf(graph: Graph, node: number, place: number, depth: number, whole: boolean): Tree {
  [node, place] = graph.resolve(node, place, isNamed);
  const n = graph.nodes[node];
  const worked = n.plan !== null && n.kind !== "block" && depth < graph.rules.depth;
  const sums = worked && reduces(graph, n.plan);
  if (worked && !n.named && (whole || !sums)) {
    return { op: "made", made: n, of: unfold(graph, n.plan, n, unravel(place, n.shape), place, depth + 1, whole && !sums)[0] };
  }
  return { op: "cell", node, place, value: graph.value(node, place) };
}

function reduces(graph: Graph, plan: Plan): boolean {
  if (!Array.isArray(plan) || !(plan[0] === "is" || plan[0] in graph.functions)) return false;
  return Boolean(graph.functions[plan[0]]?.reduces) || plan.slice(1).some((part) => reduces(graph, part));
}

/** Every part of a tree once, what is inside first. A mean is the same tree in every term it is taken from. */
export function* walk(tree: Tree, seen = new Set<Tree>()): Generator<Tree> {
  if (seen.has(tree)) return;
  seen.add(tree);
  // a condition is not what the value was made of, unless that is a constant
  const why = tree.why && tree.of!.op === "num" ? [tree.why] : [];
  for (const part of [...(tree.list ?? []), ...why, ...(tree.args ?? []), ...(tree.of ? [tree.of] : [])]) yield* walk(part, seen);
  yield tree;
}
