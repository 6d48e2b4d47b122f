// The place in the picture that is open, as the address has it: a block, or a head of a column.

import type { Picture } from "../../lib/types";

export type Place = { column: number; head: number | null; whole: boolean /* the block, not the column alone */ };

/** "blocks.2", "blocks.2.attn" or, with a head, "blocks.2.attn/3" (heads count from one); null: the whole model. */
export function placeOf(at: string | undefined, { columns }: Picture): Place | null {
  if (!at) return null;
  const [path, head] = at.split("/");
  const column = columns.findIndex((one) => one.path === path);
  if (column >= 0) {
    const h = Number(head) - 1;
    return { column, head: head && h >= 0 && h < columns[column].heads ? Math.floor(h) : null, whole: false };
  }
  const first = columns.findIndex((one) => blockPath(one.path) === path || one.path.startsWith(`${path}.`));
  return first < 0 ? null : { column: first, head: null, whole: true };
}

export const blockPath = (path: string) => path.replace(/\.[^.]*$/, "");
export const headAt = (path: string, head: number) => `${path}/${head + 1}`;

/** One step out: from a head to its block, from a block to the model. */
export function above(at: string, { columns }: Picture): string | null {
  const path = at.split("/")[0];
  return columns.some((one) => one.path === path) ? blockPath(path) : null;
}

export const KINDS = { attn: "attention", cross: "cross-attention", mlp: "MLP" };
