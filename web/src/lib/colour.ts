// Values as colours: below zero blue, above zero red, shares orange, and hatched where a value has no size.

import { formatNumber } from "./evaluate/numbers";

/** How the values of a tensor are coloured: by their sign, as shares from zero, or not at all. */
export type Scale = { kind: "signed" | "share" | "none"; top: number; low: number; high: number };

export function scaleOf(low: number, high: number, tensor: { portions: boolean; dtype: string }): Scale {
  const none = /int/.test(tensor.dtype), share = tensor.dtype === "bool" || (tensor.portions && low >= 0);
  const top = tensor.dtype === "bool" ? 1 : Math.max(high, -low) || 1;
  return { kind: none ? "none" : share ? "share" : "signed", top, low, high };
}

/** How a value is coloured: below or above zero, how strongly from 0 to 1; or hatched, where it has no size. */
export function heat(value: number, { kind, top }: Scale): { tone: "hatched" | "plain" | "below" | "above" | "share"; strength: number } {
  if (!Number.isFinite(value)) return { tone: "hatched", strength: 0 };
  if (kind === "none") return { tone: "plain", strength: 0 };
  const part = Math.min(1, Math.abs(value) / top);
  // among many tokens every share is small: its root can still be seen
  return kind === "share" ? { tone: "share", strength: Math.sqrt(part) } : { tone: value < 0 ? "below" : "above", strength: part };
}

/** The colours of the page now, for a canvas. */
export function palette(): Record<"above" | "below" | "share" | "plain" | "paper", number[]> {
  const style = getComputedStyle(document.documentElement);
  const tone = (name: string) => style.getPropertyValue(name).trim().split(/\s+/).map(Number);
  return { above: tone("--red"), below: tone("--blue"), share: tone("--orange"), plain: tone("--paper"), paper: tone("--paper") };
}

const FINEST = 1024; // pixels across a picture

/** Draw a matrix on a canvas, a pixel a value (at most 1024 a side); what is not finite is left clear. */
export function paint(canvas: HTMLCanvasElement, values: ArrayLike<number>, rows: number, columns: number, scale: Scale): void {
  const width = (canvas.width = Math.max(1, Math.min(columns, FINEST))), height = (canvas.height = Math.max(1, Math.min(rows, FINEST)));
  const colours: Record<string, number[] | undefined> = palette(), paper = colours.paper!;
  const pen = canvas.getContext("2d")!, pixels = pen.createImageData(width, height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const value = values[Math.floor((y * rows) / height) * columns + Math.floor((x * columns) / width)];
      const { tone, strength } = heat(value, scale), colour = colours[tone];
      if (!colour) continue; // the hatching behind the picture shows through
      for (let k = 0; k < 3; k++) pixels.data[4 * (y * width + x) + k] = paper[k] + (colour[k] - paper[k]) * strength;
      pixels.data[4 * (y * width + x) + 3] = 255;
    }
  }
  pen.putImageData(pixels, 0, 0);
}

/** How many decimals a table needs, so that its values line up; null where powers of ten are better. */
export function decimalsOf(values: ArrayLike<number>, { low, high }: Scale): number | null {
  const top = Math.max(high, -low);
  if (top && top < 0.01) return null;
  const limit = top >= 10000 ? 0 : top >= 1000 ? 1 : top >= 100 ? 2 : 3;
  for (let d = 0; d < limit; d++) {
    const even = (v: number) => !Number.isFinite(v) || Math.abs(v * 10 ** d - Math.round(v * 10 ** d)) < 1e-9 * 10 ** d;
    if (Array.prototype.every.call(values, even)) return d;
  }
  return limit;
}

export function brief(value: number, decimals: number | null): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : formatNumber(value);
  if (value === 0) return "0";
  return decimals === null ? formatNumber(value, 2) : value.toFixed(decimals).replace("-", "−");
}
