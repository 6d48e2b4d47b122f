// Where everything of the picture of a model stands: lines, the columns of its blocks, and the curves between lines.
// Pure: the same picture, weights and width give the same places.

import type { Picture, PictureColumn, Stack } from "../../lib/types";

/** What is known of the number that was chosen: which line is read, and of each column where its heads look from there. */
export type Chosen = {
  stack: string;
  query: readonly number[]; // several: their mean is read
  rows: (Float32Array | null)[]; // of each column heads × keys; null: it does not look from the chosen line
  added: (Float32Array | null)[]; // of each column, one for each head
};

/** Which head the curves of a column show: the mean of all, or one. */
export type Head = number | "mean";

/** A line, or several that were folded into one bundle. */
export type Row = { stack: string; lanes: number[]; y: number };

export type Band = { stack: Stack; top: number; bottom: number; rows: Row[]; rowOf: number[]; mean: number | null };

/** A column on screen: of a block that is zoomed into, one for each head. */
export type Box = { column: number; head: number | null; x: number; width: number; top: number; bottom: number };

export type Block = { stack: string; block: number; x: number; width: number; boxes: Box[] };

export type Curve = { row: Row; weight: number };

/** The curves of a column, and the weight of what is too thin to draw. */
export type Curves = { curves: Curve[]; elsewhere: number };

export type Layout = { width: number; height: number; bands: Band[]; blocks: Block[]; query: number };

export const LANE = 17;
export const BUNDLE = 12;
export const HEAD = 24; // above the lines: what each column is
export const LEAST_PITCH = 56;
const MOST_PITCH = 420;
const BAND_GAP = 26;
const MOST_ROWS = 32; // lines that are drawn without folding
const SHARE = 0.95; // of all weight: so much the lines that are kept received
const KEPT = 24;
const SEEN = 0.01; // a thinner curve is part of "elsewhere"

const isFinitely = (value: number) => Number.isFinite(value);

/** The weights of one head, or their mean over all heads. */
export function weightsOf(rows: Float32Array | null, heads: number, head: Head): Float32Array | null {
  if (!rows || !heads || rows.length % heads) return null;
  const keys = rows.length / heads;
  if (head !== "mean") return rows.subarray(head * keys, (head + 1) * keys);
  const mean = new Float32Array(keys);
  for (let h = 0; h < heads; h++) for (let k = 0; k < keys; k++) mean[k] += rows[h * keys + k] / heads;
  return mean;
}

/** How much each line of a stack was looked at: the largest mean weight of any column. */
export function strengths(picture: Picture, chosen: Chosen, stack: Stack): Float32Array {
  const strongest = new Float32Array(stack.lanes.length);
  picture.columns.forEach((column, i) => {
    const mean = column.keys === stack.id ? weightsOf(chosen.rows[i], column.heads, "mean") : null;
    if (!mean || mean.length !== strongest.length) return;
    mean.forEach((weight, k) => (strongest[k] = Math.max(strongest[k], weight)));
  });
  return strongest;
}

/**
 * The lines that stay lines where there are too many: the chosen one and its neighbours, delimiters, and those that were
 * looked at most. One that was kept before stays until it has half of what another needs, so that little moves.
 */
export function kept(stack: Stack, strength: ArrayLike<number>, query: readonly number[], before: ReadonlySet<number> = new Set(), most = KEPT): Set<number> {
  const count = stack.lanes.length, all = new Set<number>();
  if (count <= MOST_ROWS) {
    for (let i = 0; i < count; i++) all.add(i);
    return all;
  }
  const keep = (i: number) => i >= 0 && i < count && all.size < most + 3 && all.add(i);
  if (query.length === 1) for (const near of [0, -1, 1]) keep(query[0] + near);
  stack.lanes.forEach((lane, i) => (lane.kind === "special" || lane.kind === "class") && keep(i));
  const order = Array.from({ length: count }, (_, i) => i).filter((i) => isFinitely(strength[i]));
  order.sort((a, b) => strength[b] * (before.has(b) ? 2 : 1) - strength[a] * (before.has(a) ? 2 : 1) || a - b);
  const total = order.reduce((sum, i) => sum + strength[i], 0);
  let sum = [...all].reduce((sum, i) => sum + strength[i], 0);
  for (const i of order) {
    if (all.size >= most || sum >= SHARE * total) break;
    if (all.has(i)) continue;
    all.add(i);
    sum += strength[i];
  }
  return all;
}

/** The lines of a stack in rows; runs of others become one bundle, unless it was opened. */
export function rowsOf(stack: Stack, keep: ReadonlySet<number>, opened: ReadonlySet<string>): number[][] {
  const rows: number[][] = [];
  let run: number[] = [];
  const close = () => {
    if (run.length > 1 && !opened.has(bundleId(stack.id, run))) rows.push(run);
    else for (const one of run) rows.push([one]);
    run = [];
  };
  for (let i = 0; i < stack.lanes.length; i++) {
    if (keep.has(i)) {
      close();
      rows.push([i]);
    } else run.push(i);
  }
  close();
  return rows;
}

export const bundleId = (stack: string, lanes: readonly number[]) => `${stack}:${lanes[0]}-${lanes.at(-1)}`;

/** The curves of a column, a bundle's as thick as the sum of its lines: all curves and `elsewhere` sum to the row. */
export function curvesOf(band: Band, weights: ArrayLike<number>): Curves {
  const sums = new Float64Array(band.rows.length);
  for (let k = 0; k < weights.length && k < band.rowOf.length; k++) if (isFinitely(weights[k])) sums[band.rowOf[k]] += weights[k];
  const curves: Curve[] = [];
  let elsewhere = 0;
  sums.forEach((weight, i) => {
    if (weight >= SEEN) curves.push({ row: band.rows[i], weight });
    else elsewhere += weight;
  });
  return { curves, elsewhere };
}

/** The blocks of a picture in the order of computing: the columns of one block of one stack. */
export function blocksOf(columns: readonly PictureColumn[]): { stack: string; block: number; columns: number[] }[] {
  const blocks: { stack: string; block: number; columns: number[] }[] = [];
  columns.forEach(({ stack, block }, i) => {
    const last = blocks.find((one) => one.stack === stack && one.block === block);
    if (last) last.columns.push(i);
    else blocks.push({ stack, block, columns: [i] });
  });
  return blocks;
}

export type Options = {
  width: number; // of the place where the columns stand
  only?: { stack: string; block: number } | null; // the block that is zoomed into
  opened?: ReadonlySet<string>; // bundles
  before?: ReadonlyMap<string, ReadonlySet<number>>; // the lines that were kept, of each stack
};

export function layout(picture: Picture, chosen: Chosen, { width, only = null, opened = new Set(), before = new Map() }: Options): Layout {
  const blocks = blocksOf(picture.columns).filter((one) => !only || (one.stack === only.stack && one.block === only.block));
  const read = new Set(blocks.flatMap((one) => one.columns).flatMap((i) => [picture.columns[i].stack, picture.columns[i].keys]));
  const bands: Band[] = [];
  let y = HEAD;
  // a condition stands above what it sets
  const conditions = new Set(picture.columns.flatMap((column) => column.condition ?? []));
  for (const stack of [...picture.stacks].sort((a, b) => Number(conditions.has(b.id)) - Number(conditions.has(a.id)))) {
    if (!stack.lanes.length || (only && !read.has(stack.id) && !conditions.has(stack.id))) continue;
    const query = stack.id === chosen.stack ? chosen.query : [];
    const keep = kept(stack, strengths(picture, chosen, stack), query, before.get(stack.id));
    const top = y, rowOf: number[] = [], rows: Row[] = [];
    for (const lanes of rowsOf(stack, keep, opened)) {
      const height = lanes.length > 1 ? BUNDLE : LANE;
      for (const lane of lanes) rowOf[lane] = rows.length;
      rows.push({ stack: stack.id, lanes, y: y + height / 2 });
      y += height;
    }
    const mean = query.length > 1 ? y + LANE / 2 + 6 : null; // a line for what is read of several
    if (mean !== null) y = mean + LANE / 2;
    bands.push({ stack, top, bottom: y, rows, rowOf, mean });
    y += BAND_GAP;
  }
  const height = Math.max(HEAD, y - BAND_GAP + 8);

  const pitch = Math.max(LEAST_PITCH, Math.min(only ? Infinity : MOST_PITCH, width / Math.max(1, blocks.length)));
  const laid = blocks.map(({ stack, block, columns }, n): Block => {
    const units = columns.map((i) => (picture.columns[i].kind === "mlp" ? (only ? 1.4 : 2) : only ? Math.max(2, picture.columns[i].heads) : 6));
    const gap = Math.min(14, pitch * 0.09), free = pitch - gap * (columns.length + 1), total = units.reduce((a, b) => a + b, 0);
    let x = n * pitch + gap;
    const boxes = columns.flatMap((i, at): Box[] => {
      const column = picture.columns[i], wide = (free * units[at]) / total, from = x;
      x += wide + gap;
      const own = bands.find((band) => band.stack.id === column.stack), other = bands.find((band) => band.stack.id === column.keys);
      const top = Math.min(own?.top ?? HEAD, other?.top ?? HEAD), bottom = Math.max(own?.bottom ?? height, other?.bottom ?? height);
      if (!only || column.kind === "mlp" || column.heads < 2) return [{ column: i, head: null, x: from, width: wide, top, bottom }];
      return Array.from({ length: column.heads }, (_, head) => ({ column: i, head, x: from + (wide * head) / column.heads, width: wide / column.heads - 6, top, bottom }));
    });
    return { stack, block, x: n * pitch, width: pitch, boxes };
  });
  const band = bands.find((one) => one.stack.id === chosen.stack);
  const query = band ? (band.mean ?? band.rows[band.rowOf[chosen.query[0] ?? -1]]?.y ?? -1) : -1;
  return { width: pitch * Math.max(1, blocks.length), height, bands, blocks: laid, query };
}

/** The row at a height, to half a line. */
export function rowAt({ bands }: Layout, y: number): Row | null {
  for (const band of bands) {
    if (y < band.top - 2 || y > band.bottom + 2) continue;
    let best: Row | null = null, near = LANE / 2 + 1;
    for (const row of band.rows) {
      const away = Math.abs(row.y - y);
      if (away < near) [best, near] = [row, away];
    }
    return best;
  }
  return null;
}

/** The column at a place. */
export function boxAt({ blocks }: Layout, x: number): Box | null {
  for (const block of blocks) {
    if (x < block.x || x >= block.x + block.width) continue;
    return block.boxes.find((box) => x >= box.x - 3 && x <= box.x + box.width + 3) ?? null;
  }
  return null;
}

/** A curve from a line at the left of a column to the chosen line at its right. */
export function path(box: Box, from: number, to: number): string {
  const at = (value: number) => Math.round(value * 2) / 2;
  const [left, right] = [box.x + 4, box.x + box.width - 2], middle = left + (right - left) * 0.55;
  return `M${at(left)} ${at(from)}C${at(middle)} ${at(from)} ${at(middle)} ${at(to)} ${at(right)} ${at(to)}`;
}

export const thickness = (weight: number) => Math.max(0.75, 10 * weight);

/** The head whose curves a column shows unless another is chosen: the one that added most to the number, or looks hardest. */
export function leading(rows: Float32Array | null, added: Float32Array | null, heads: number): number {
  let best = 0, most = -1;
  for (let h = 0; h < heads; h++) {
    const keys = rows ? rows.length / heads : 0;
    const size = added && added.length === heads ? Math.abs(added[h]) : rows ? Math.max(0, ...rows.subarray(h * keys, (h + 1) * keys)) : 0;
    if (size > most) [best, most] = [h, size];
  }
  return best;
}
