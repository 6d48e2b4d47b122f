// The parts of a cell's arithmetic, as data.

import type { About, GraphNode } from "./graph";
import type { Num } from "./numbers";

/** A part of a cell's arithmetic: a number, a cell, a named step, a choice, or a function of other parts. */
export type Tree = {
  op: string;
  value?: Num;
  exact?: boolean;
  node?: number; // of a cell
  place?: number;
  made?: GraphNode; // of an unnamed value that is written as its own arithmetic
  of?: Tree;
  why?: Tree;
  word?: string;
  about?: About;
  list?: Tree[];
  args?: Tree[];
  weighed?: Map<Rounding, Weight>; // what many terms share is computed once
};

/** What rounding needs to know of the node a part belongs to. */
export type Rounding = { inner: number; outer: number; floor: number; op: string; dtype: string };
export type Weight = { value: any; error: number };
