// The outline of a trace that is inside a file: its tensors, and the map of the model, from the names alone.

import type { Graph, GraphNode } from "./evaluate/graph";
import type { MapKind, MapNode, Tensor } from "./types";

const famous = (n: GraphNode) => Boolean(n.named) || ["input", "weight", "edited"].includes(n.kind);

/** What computed a tensor's values: moves are followed back, and so is a mask that only replaces some of them. */
function origin(graph: Graph, node: number): GraphNode {
  const n = graph.nodes[graph.resolve(node, 0)[0]];
  const source = Array.isArray(n.plan) && n.plan[0] === "if" ? n.plan.slice(2).find((part) => part[0] === "ref") : null;
  return source ? origin(graph, source[1]) : n;
}

/** The name that leads to a node: its own, or else another one of it. */
export function namesOf(graph: Graph): string[] {
  const alias = new Map(Object.entries(graph.names).map(([name, node]) => [node, name]));
  return graph.nodes.map((n, i) => (graph.names[n.name] === i ? n.name : (alias.get(i) ?? n.name)));
}

export function tensorsOf(graph: Graph, names: string[]): Tensor[] {
  return graph.nodes.map((n, i) => ({
    name: names[i],
    symbol: n.symbol ?? "",
    formula: n.formula ?? "",
    shape: n.shape,
    axes: (n.axes ?? "").split(" ").filter(Boolean),
    kind: n.kind,
    op: n.op,
    dtype: n.dtype,
    portions: n.size > 0 && (n.dtype === "bool" || origin(graph, i).kind === "softmax"),
    path: pathOf(n.name).join("."),
    named: famous(n),
  }));
}

/** The parts a tensor is in: blocks.0.attn.scores is in blocks.0, then in attn. */
function pathOf(name: string): string[] {
  const path = name.includes(":") ? name.split(":")[0].split(".") : name.split(".").slice(0, -1);
  const parts: string[] = [];
  for (const part of path) {
    if (/^\d+$/.test(part) && parts.length) parts.push(`${parts.pop()}.${part}`);
    else parts.push(part);
  }
  return parts;
}

const KINDS: [RegExp, MapKind][] = [
  [/\.\d+$/, "block"],
  [/attn|attention|cross/, "attention"],
  [/mlp|ffn|feed_forward/, "mlp"],
  [/norm|(^|_)ln/, "norm"],
  [/embed|tokens|position|patch|wte|wpe/, "embedding"],
  [/head|logits|unembed/, "head"],
];

const TITLES: Record<string, string> = { attn: "attention", mlp: "MLP", cross: "cross-attention" };

function titleOf(part: string): string {
  const block = /^(.*)\.(\d+)$/.exec(part);
  if (block) return `${/^(blocks?|h|layers?)$/.test(block[1]) ? "block" : block[1].replace(/s$/, "")} ${Number(block[2]) + 1}`; // names count from one
  return TITLES[part] ?? part.replace(/_/g, " ");
}

export function mapOf(tensors: Tensor[], title: string): MapNode {
  const root: MapNode = { path: "", title, kind: "model", parameters: 0, tensors: [], children: [] };
  for (const tensor of tensors) {
    if (tensor.name.startsWith("const.")) continue;
    let at = root;
    const size = tensor.kind === "weight" ? tensor.shape.reduce((a, b) => a * b, 1) : 0;
    const way = pathOf(tensor.name);
    root.parameters += size;
    way.forEach((part, depth) => {
      const path = way.slice(0, depth + 1).join(".");
      let next = at.children.find((child) => child.path === path);
      if (!next) {
        const kind = KINDS.find(([pattern]) => pattern.test(part))?.[1] ?? "other";
        next = { path, title: titleOf(part), kind, parameters: 0, tensors: [], children: [] };
        at.children.push(next);
      }
      next.parameters += size;
      at = next;
    });
    at.tensors.push(tensor.name);
    if (size && tensor.shape.length === 2 && at !== root && at.kind === "other") at.kind = "matrix";
    if (size && tensor.shape.length === 2 && at !== root) at.shape ??= tensor.shape;
  }
  return collapsed(root);
}

/** Where a tensor is, by its name alone. */
export const placeOf = (name: string) => pathOf(name).map(titleOf);

/** A part that only holds one other part is that part. */
function collapsed(node: MapNode): MapNode {
  const children = node.children.map(collapsed).map((child) => {
    const [only] = child.children;
    if (child.children.length !== 1 || child.tensors.length || child.kind === "block") return child;
    return only;
  });
  return { ...node, children };
}
