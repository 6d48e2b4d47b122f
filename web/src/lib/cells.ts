// Addresses of cells, such as blocks.0.attn.scores[0,1,2,3], and the words along the axes of a tensor.

import type { MapNode, Outline, Tensor } from "./types";

export type Cell = { name: string; index: number[] };

/** The parts of an address; null where it is none. */
export function cellParts(address: string): Cell | null {
  const match = /^([^[\]]+?)\s*(?:\[([\d,\s]*)\])?$/.exec(address.trim());
  if (!match) return null;
  return { name: match[1], index: (match[2] ?? "").split(",").filter((part) => part.trim()).map(Number) };
}

export const cellName = (name: string, index: (number | string)[]) => (index.length ? `${name}[${index.join(",")}]` : name);

/** The labels along an axis: those of the nearest part of the trace; keys are labelled as the tokens are. */
export function labelsAlong(labels: Record<string, string[]>, name: string, letter: string, count: number): string[] | null {
  const path = name.split(".");
  for (const one of letter === "S" ? ["S", "T"] : [letter]) {
    for (let end = path.length - 1; end >= 0; end--) {
      const words = labels[[...path.slice(0, end), one].join(".")];
      if (words?.length === count) return words;
    }
  }
  return null;
}

/** What the letters of axes mean, in words. */
export const MEANS: Record<string, string> = {};

export type Axis = { letter: string; count: number; means: string; words: string[] | null };

export function axesOf(tensor: Tensor, labels: Record<string, string[]>): Axis[] {
  return tensor.shape.map((count, d) => {
    const letter = tensor.axes.length === tensor.shape.length ? tensor.axes[d] : "";
    return { letter, count, means: MEANS[letter] ?? letter, words: letter ? labelsAlong(labels, tensor.name, letter, count) : null };
  });
}

/** The way from the whole model to the part that has a tensor, or to the part of a path. */
export function wayTo(map: MapNode, fits: (node: MapNode) => boolean): MapNode[] {
  for (const child of map.children) {
    const way = wayTo(child, fits);
    if (way.length) return [map, ...way];
  }
  return fits(map) ? [map] : [];
}

/** The axis of the heads of a tensor; -1 where it has none. */
export const headAxis = (tensor: Tensor) => (tensor.axes.length === tensor.shape.length ? tensor.axes.indexOf("h") : -1);

/** A part of the model, and a head of it: "block 2 · head 1". */
export function headOf(place: string[], head: number): string[] {
  return [...(place.at(-1) === "attention" ? place.slice(0, -1) : place), `head ${head + 1}`]; // names count from one, indices from zero
}

/** A tensor after the place it is in. */
export function tensorAt(place: string[], name: string): string {
  const last = name.split(/[.:]/).at(-1)!.replace(/_/g, " ");
  return [...place, ...(place.at(-1) === last ? [] : [last])].join(" · ");
}

const OF: Record<string, string> = { grad: "gradient of ", clipped: "clipped gradient of ", old: "before the step: ", new: "after the step: ", norm: "norm of the gradient of ", muon: "on Muon's way: " };

/** Where a cell is, in words: "block 2 · head 1 · pattern". */
export function whereabouts(outline: Outline, cell: string): string {
  const parts = cellParts(cell), tensor = parts && outline.tensors.find((one) => one.name === parts.name);
  if (!parts || !tensor) return "";
  const [, of, name] = /^(?:(grad|clipped|old|new|norm|muon):)?(.*)$/.exec(tensor.name)!;
  const way = wayTo(outline.map, (node) => node.tensors.includes(name));
  // a part of a joined matrix is in no list: it stands in its module
  const words = (way.length || !of ? way : wayTo(outline.map, (node) => node.path === name.replace(/\.[^.]*$/, ""))).slice(1).map((node) => node.title);
  const head = headAxis(tensor), prefix = of ? OF[of] : "";
  return prefix + tensorAt(head >= 0 && parts.index.length ? headOf(words, parts.index[head]) : words, tensor.name);
}
