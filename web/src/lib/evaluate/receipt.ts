// The receipt of a cell, computed in the page: the twin of tracing/receipt.py, which is the reference. Pure functions of
// the graph and its arrays; nothing here touches the page.

import { cellOf, unravel, type Graph, type GraphNode } from "./graph";
import { formatNumber, size, WORK, type Num } from "./numbers";
import type { Tree } from "./part";
import { hides, unfolded, walk } from "./tree";
import { agree, EXACT, slack, weigh } from "./weigh";
import { bare, marked, Writer } from "./writing";

export type WorkedTerm = { node: number; place: number; index: number[]; where: string; value: Num };

/** A receipt as it is computed here. Its formulas are marked (see writing.ts); `lines` is its bare text. */
export type Worked = {
  node: number;
  place: number;
  index: number[];
  where: string;
  label: string;
  meaning: string;
  recorded: Num;
  formula: string;
  lines: string[];
  steps: { word: string; formula: string; value: Num }[];
  terms: WorkedTerm[];
  reworked: Num | null;
  allowed: number;
  agrees: boolean;
  off: number;
  masked: boolean;
  ends: string[]; // where the proof ends: values that it reads of operations that are not described
  tree: Tree | null;
};

const lettersOf = (n: GraphNode) => (n.axes ?? "").split(" ").filter(Boolean);
export const symbolic = (n: GraphNode) =>
  Boolean(n.symbol) && !["weight", "input"].includes(n.kind) && lettersOf(n).length === n.shape.length;

/** What a cell is called in the mathematics: its symbol, and its index without batch and head. */
export function label(n: GraphNode, index: number[]): string {
  if (!symbolic(n)) return cellOf(n.name, index);
  const letters = lettersOf(n), indices = index.filter((_, d) => !["B", "h", "g", "1"].includes(letters[d]));
  return `${n.symbol!.split(" = ")[0]}[${indices.join(",")}]`; // a tensor with two names has two symbols
}

export function receipt(graph: Graph, node: number, place: number, digits = 4): Worked {
  const n = graph.nodes[node];
  const index = unravel(place, n.shape);
  const about = { node, place, index, where: cellOf(n.name, index), label: label(n, index), meaning: n.formula ?? "" };
  const recorded = graph.value(node, place);
  const tree = unfolded(graph, node, place);
  if (tree === null) {
    const formula = graph.rules.origins[n.op === "edit" ? "edited" : n.kind] ?? "(not recorded)";
    const lines = [`${about.label} = ${formatNumber(recorded, digits)}   ${formula}`];
    const none = { steps: [], terms: [], reworked: null, allowed: 0, agrees: true, off: 0, masked: false, ends: [] };
    return { ...about, ...none, recorded, tree, formula, lines };
  }
  const { value, error } = weigh(tree, n);
  const writer = new Writer(graph, digits);
  const steps = new Map<string, Worked["steps"][number]>(), terms = new Map<string, WorkedTerm>();
  for (const part of walk(tree)) {
    if (part.op === "is" && !steps.has(part.word!)) {
      steps.set(part.word!, { word: part.word!, formula: writer.text(part.of!, n), value: weigh(part.of!, EXACT).value });
    }
    const key = `${part.node}:${part.place}`;
    if (part.op === "cell" && !terms.has(key)) {
      const m = graph.nodes[part.node!], at = unravel(part.place!, m.shape);
      terms.set(key, { node: part.node!, place: part.place!, index: at, where: cellOf(m.name, at), value: part.value! });
    }
  }
  const moved = tree.op === "cell";
  const formula = moved ? marked(`${tree.node}:${tree.place}`, [...terms.values()][0].where) : writer.text(tree, n);
  const allowed = error + slack(n, value), agrees = agree(value, recorded, allowed);
  const off = size(WORK.sub(value, recorded));
  const masked = value === -Infinity && (n.kind === "mask" || [...walk(tree)].some((part) => hides(graph, part)));
  const worked = formatNumber(value, digits), plain = bare(formula);
  const tail = (worked === plain ? "" : ` = ${worked}`) + (masked ? "   (masked: it may not be seen)" : "");
  const sources = new Set([...terms.values()].map((term) => graph.resolve(term.node, term.place)[0]));
  const ends = [...sources].sort((a, b) => a - b).map((i) => graph.nodes[i]).filter((m) => m.kind === "undescribed")
    .map((m) => `the proof ends at ${m.name}: the operation ${m.op} is not described`);
  const lines = [
    `${about.label} = ${plain}${tail}`,
    ...wheres([...steps.values()], digits),
    `recorded ${formatNumber(recorded, digits)} ${mark(agrees, off, allowed)}`,
    ...ends,
  ];
  const reworking = { steps: [...steps.values()], terms: [...terms.values()], reworked: value, allowed, agrees, off, masked, ends };
  return { ...about, ...reworking, recorded, tree, formula, lines };
}

/** The lines of the steps; settings, such as η = 0.001, which are made of nothing, are together in the last. */
function wheres(steps: Worked["steps"], digits: number): string[] {
  const all = steps.map(({ word, formula, value }) => ({ word, formula: bare(formula), value: formatNumber(value, digits) }));
  const given = all.filter((step) => step.formula === step.value).map((step) => `${step.word} = ${step.value}`);
  const made = all.filter((step) => step.formula !== step.value).map((step) => `  where ${step.word} = ${step.formula} = ${step.value}`);
  return given.length ? [...made, `  where ${given.join(", ")}`] : made;
}

export function mark(agrees: boolean, off: number, allowed: number): string {
  return agrees ? "✓" : `✗ (off by ${formatNumber(off, 3)}, ${formatNumber(allowed, 2)} allowed)`;
}

/** Every term of the sums that a formula shortens: a title, and the rows when they are asked for. */
export function shortened(graph: Graph, tree: Tree | null, most = 2000) {
  if (!tree) return [];
  const writer = new Writer(graph, 4);
  const long = [...walk(tree)].filter((part) => part.list && part.list.length > (part.op === "sum" ? graph.rules.shown : 8));
  const worth = (part: Tree) => formatNumber(weigh(part, EXACT).value);
  const counted = (part: Tree) => `all ${part.list!.length} terms of ${part.op === "sum" ? "Σ" : part.op} = ${worth(part)}`;
  const each = new Map(long.map((part) => [counted(part), part])); // a step that is used twice is listed once
  return [...each].slice(0, 6).map(([title, part]) => ({
    title,
    rows: () => part.list!.slice(0, most).map((one) => ({ formula: writer.text(one), value: worth(one) })),
  }));
}
