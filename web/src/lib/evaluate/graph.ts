// The graph of a trace: where the value of a cell is. Plans are described in tracing/graph.py.

import { size, type Num } from "./numbers";

// A plan is a number, or a list whose first item says what the others are.
export type Plan = number | PlanList | null;
export type PlanList = [string, ...any[]];
type Ref = ["ref", number, number, number[], [number, number][]];
export type Typed = Uint8Array | Int32Array | Float32Array | Float64Array;

export type About = { text: string; binds: number; reduces: boolean; smooth: boolean };

export type GraphNode = {
  name: string;
  kind: string;
  op: string;
  dtype: string;
  shape: number[];
  plan: Plan;
  key: string | null;
  named?: boolean | string;
  symbol?: string;
  formula?: string;
  axes?: string;
  // worked out when the graph is opened
  moves: boolean;
  outer: number;
  inner: number;
  floor: number;
  size: number;
  complex: boolean;
};

export type Meta = {
  format?: string;
  nodes: GraphNode[];
  names: Record<string, number>;
  labels: Record<string, string[]>;
  facts?: Record<string, unknown>;
  functions: Record<string, About>;
  rules: Rules;
  legend: Record<string, string>;
  arrays: Record<string, [string, number, number]>;
  title?: string;
  about?: string[];
  start?: string;
};

/** The constants of receipt.py: `shown` terms of a sum are written out and of more the eight largest; unnamed values
 * are unfolded `depth` deep but not in lists longer than `wide`; how numbers are rounded. */
export type Rules = {
  shown: number;
  depth: number;
  wide: number;
  origins: Record<string, string>;
  rounding: Record<string, number>;
  least: Record<string, number>;
  tiny: number;
};

export const volume = (shape: number[]) => shape.reduce((a, b) => a * b, 1);

/** The index of a place of a row-major tensor. */
export function unravel(place: number, shape: number[]): number[] {
  const index = new Array<number>(shape.length);
  for (let d = shape.length - 1; d >= 0; d--) {
    index[d] = place % shape[d];
    place = Math.floor(place / shape[d]);
  }
  return index;
}

export const ravel = (index: number[], shape: number[]) => index.reduce((place, i, d) => place * shape[d] + i, 0);
export const cellOf = (name: string, index: (number | string)[]) => (index.length ? `${name}[${index.join(",")}]` : name);

function moves(plan: Plan): boolean {
  if (!Array.isArray(plan)) return false;
  const [head, , , count, steps] = plan;
  return head === "cat" || head === "table" || (head === "ref" && !steps.length) || (head === "list" && count === 1);
}

/** The place a ref points to for a cell, before the steps of a list. */
const begin = ([, , offset, strides]: Ref, index: number[]) => index.reduce((at, i, d) => at + i * strides[d], offset);

/** All places a ref points to for a cell. */
export function places(ref: Ref, index: number[]): number[] {
  let inner = [begin(ref, index)];
  for (const [step, count] of ref[4]) {
    inner = inner.flatMap((at) => Array.from({ length: count }, (_, i) => at + i * step));
  }
  return inner;
}

/** The last of sorted starts that is not beyond `at`. */
const within = (starts: number[], at: number) => starts.findLastIndex((start) => start <= at);

export class Graph {
  readonly nodes: GraphNode[];
  readonly names: Record<string, number>;
  readonly labels: Record<string, string[]>;
  readonly functions: Record<string, About>;
  readonly rules: Rules;
  private readonly cached = new Map<number, Float64Array>();

  /** `meta` is the graph as tracing/file.py packs it; `arrays` its arrays by key, complex ones as pairs. */
  constructor(
    readonly meta: Meta,
    readonly arrays: Record<string, Typed>,
  ) {
    ({ nodes: this.nodes, names: this.names, labels: this.labels, functions: this.functions, rules: this.rules } = meta);
    for (const n of this.nodes) {
      n.moves = moves(n.plan);
      n.outer = this.rules.rounding[n.dtype] ?? 0;
      n.inner = Math.min(n.outer, this.rules.rounding.float32);
      n.floor = n.outer ? (this.rules.least[n.dtype] ?? this.rules.tiny) : 0;
      n.size = volume(n.shape);
      n.complex = n.dtype.startsWith("complex");
    }
  }

  /** Where a cell that was only moved came from. */
  step(node: number, place: number): [number, number] {
    const { plan, shape } = this.nodes[node] as { plan: PlanList; shape: number[] };
    if (plan[0] === "ref") return [plan[1], begin(plan as Ref, unravel(place, shape))];
    if (plan[0] === "list") return [plan[1], this.arrays[plan[2]][place]];
    if (plan[0] === "cat") {
      const index = unravel(place, shape), pieces = plan[2] as [number, Ref][];
      const ref = pieces[within(pieces.map(([start]) => start), index[plan[1]])][1];
      return [ref[1], begin(ref, index)];
    }
    let where = this.arrays[plan[1]][place];
    for (const source of plan[2] as number[]) {
      if (where < this.nodes[source].size) return [source, where];
      where -= this.nodes[source].size;
    }
    throw new Error("a table points outside its sources");
  }

  /** Where the value of a cell was computed: moves are followed back, up to a node that stops them. */
  resolve(node: number, place: number, stop: (n: GraphNode) => boolean = () => false): [number, number] {
    while (this.nodes[node].moves && !stop(this.nodes[node])) [node, place] = this.step(node, place);
    return [node, place];
  }

  /** Whether the values of a node are here. */
  has(node: number): boolean {
    const n = this.nodes[node];
    if (!n.size) return true;
    return this.nodes[this.resolve(node, 0)[0]].key !== null;
  }

  value(node: number, place: number): Num {
    const [at, i] = this.resolve(node, place);
    const { key, complex, name } = this.nodes[at];
    if (key === null) throw new Error(`the values of ${name} are not in this trace`);
    const array = this.arrays[key];
    return complex ? [array[2 * i], array[2 * i + 1]] : array[i];
  }

  /** All values of a node at once, for its picture; of complex ones their sizes. */
  values(node: number): Typed {
    const n = this.nodes[node];
    if (!n.moves && !n.complex) {
      if (n.key === null) throw new Error(`the values of ${n.name} are not in this trace`);
      return this.arrays[n.key];
    }
    let out = this.cached.get(node);
    if (!out) {
      out = new Float64Array(n.size);
      for (let i = 0; i < n.size; i++) out[i] = n.complex ? size(this.value(node, i)) : (this.value(node, i) as number);
      this.cached.set(node, out);
    }
    return out;
  }
}
