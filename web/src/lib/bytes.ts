// Numbers that come as base64 of little-endian bytes.

import type { Slice } from "./types";

function bytes(text: string): ArrayBuffer {
  const letters = atob(text), out = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) out[i] = letters.charCodeAt(i);
  return out.buffer;
}

export const float64s = (text: string) => new Float64Array(bytes(text));
export const float32s = (text: string) => new Float32Array(bytes(text));
export const int8s = (text: string) => new Int8Array(bytes(text));
export const uint8s = (text: string) => new Uint8Array(bytes(text));

const decoded = new WeakMap<Slice, Float64Array>();

/** The numbers of a slice, row by row. */
export function numbersOf(slice: Slice): Float64Array {
  if (typeof slice.values !== "string") return slice.values;
  let values = decoded.get(slice);
  if (!values) decoded.set(slice, (values = float64s(slice.values)));
  return values;
}

export async function unzipped(text: string): Promise<ArrayBuffer> {
  return new Response(new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}
