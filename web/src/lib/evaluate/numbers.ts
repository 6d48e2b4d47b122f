// The functions that plans are written in: the twin of tracing/plan_functions.py, which is the reference.

/** A plain number, or a complex one as [real, imaginary]. */
export type Num = number | [number, number];
type Pair = [number, number];

export const paired = (z: Num): Pair => (Array.isArray(z) ? z : [z, 0]);
export const size = (z: Num): number => (Array.isArray(z) ? Math.hypot(...z) : Math.abs(z));
export const same = (a: Num, b: Num): boolean => paired(a).every((x, i) => x === paired(b)[i]);
export const unlike = (z: Num): boolean => paired(z).some(Number.isNaN);
export const finite = (z: Num): boolean => paired(z).every(Number.isFinite);
type Fn = (...xs: any[]) => any;
const truth = (test: Fn): Fn => (...xs) => Number(test(...xs));

/** A function of real numbers, and the same of complex ones where there is such a thing. */
function both(real: Fn, complex?: Fn): Fn {
  return (...xs) => {
    if (!xs.some(Array.isArray)) return real(...xs);
    if (!complex) throw new Error("this page cannot work that out with complex numbers");
    return complex(...xs.map(paired));
  };
}

const times = ([a, b]: Pair, [c, d]: Pair): Pair => [a * c - b * d, a * d + b * c];
const over = ([a, b]: Pair, [c, d]: Pair): Pair => [(a * c + b * d) / (c * c + d * d), (b * c - a * d) / (c * c + d * d)];

/** The error function, to the last digit or two of a double: its series near zero, a continued fraction beyond. */
export function erf(x: number): number {
  const a = Math.abs(x);
  if (Number.isNaN(x) || a > 6) return Number.isNaN(x) ? NaN : Math.sign(x);
  if (a < 2) {
    let term = x, sum = x;
    for (let n = 1; Math.abs(term) > 1e-18 * Math.abs(sum); n++) sum += term *= (2 * x * x) / (2 * n + 1);
    return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
  }
  let tail = a;
  for (let n = 80; n > 0; n--) tail = a + n / 2 / tail;
  return Math.sign(x) * (1 - Math.exp(-a * a) / Math.sqrt(Math.PI) / tail);
}

function halfEven(x: number): number {
  const low = Math.floor(x), rest = x - low;
  return rest < 0.5 ? low : rest > 0.5 ? low + 1 : low % 2 ? low + 1 : low;
}

/** x mod y with the sign of y. */
function mod(x: number, y: number): number {
  const rest = x % y;
  return rest && rest < 0 !== y < 0 ? rest + y : rest;
}

/** A sum in the order numpy takes it, so that both give the same to the last bit. */
export function pairwise(x: number[], from = 0, count = x.length): number {
  if (count < 8) {
    let sum = count ? x[from] : 0;
    for (let i = 1; i < count; i++) sum += x[from + i];
    return sum;
  }
  if (count <= 128) {
    const r = Array.from(x.slice(from, from + 8));
    let i = 8;
    for (; i < count - (count % 8); i += 8) for (let k = 0; k < 8; k++) r[k] += x[from + i + k];
    let sum = r[0] + r[1] + (r[2] + r[3]) + (r[4] + r[5] + (r[6] + r[7]));
    for (; i < count; i++) sum += x[from + i];
    return sum;
  }
  const half = Math.floor(count / 2) - (Math.floor(count / 2) % 8);
  return pairwise(x, from, half) + pairwise(x, from + half, count - half);
}

function total(list: Num[]): Num {
  if (!list.some(Array.isArray)) return pairwise(list as number[]);
  return [0, 1].map((part) => list.reduce((sum: number, z) => sum + paired(z)[part], 0)) as Pair;
}

/** The index of the first that is better than all before it; NaN is better than any. */
function extreme(better: (a: number, b: number) => boolean) {
  const beats = (x: number, best: number) => better(x, best) || (Number.isNaN(x) && !Number.isNaN(best));
  return (list: number[]) => list.reduce((best, x, i) => (beats(x, list[best]) ? i : best), 0);
}

const ranked = (list: number[]) => list.map((_, i) => i).sort((i, j) => list[j] - list[i] || i - j);
const bits = (of: (a: bigint, b: bigint) => bigint): Fn => (a, b) => Number(of(BigInt(a), BigInt(b)));

export const WORK: Record<string, Fn> = {
  add: both((a, b) => a + b, (a, b) => [a[0] + b[0], a[1] + b[1]]),
  sub: both((a, b) => a - b, (a, b) => [a[0] - b[0], a[1] - b[1]]),
  mul: both((a, b) => a * b, times),
  div: both((a, b) => a / b, over),
  neg: both((a) => -a, ([a, b]) => [-a, -b]),
  pow: both(Math.pow),
  square: both((a) => a * a, (a) => times(a, a)),
  sqrt: both(Math.sqrt),
  exp: both(Math.exp, ([a, b]) => [Math.exp(a) * Math.cos(b), Math.exp(a) * Math.sin(b)]),
  log: both(Math.log),
  sin: both(Math.sin), cos: both(Math.cos), tan: both(Math.tan), atan: both(Math.atan), tanh: both(Math.tanh), erf: both(erf),
  abs: size,
  rounded: (a) => a, multiplied: (a) => a, double: (a) => a,
  floor: Math.floor, ceil: Math.ceil, trunc: Math.trunc, whole: Math.trunc, round: halfEven, sign: Math.sign, mod,
  greater: (a, b) => Math.max(a, b),
  lesser: (a, b) => Math.min(a, b),
  eq: truth(same), ne: truth((a, b) => !same(a, b)),
  lt: truth((a, b) => a < b), le: truth((a, b) => a <= b), gt: truth((a, b) => a > b), ge: truth((a, b) => a >= b),
  and: truth((a, b) => a !== 0 && b !== 0), or: truth((a, b) => a !== 0 || b !== 0),
  xor: truth((a, b) => (a !== 0) !== (b !== 0)), not: truth((a) => a === 0),
  bitand: bits((a, b) => a & b), bitor: bits((a, b) => a | b), bitxor: bits((a, b) => a ^ b),
  isfinite: truth(finite), isnan: truth(unlike), isinf: truth((a) => !finite(a) && !unlike(a)),
  if: (c, a, b) => (c !== 0 ? a : b),
  complex: (a, b) => [a, b],
  real: (z) => paired(z)[0],
  imag: (z) => paired(z)[1],
  // of a list
  sum: total,
  prod: (list: Num[]) => list.reduce((a, b) => WORK.mul(a, b), 1),
  max: (list: number[]) => list.reduce((a, b) => Math.max(a, b)),
  min: (list: number[]) => list.reduce((a, b) => Math.min(a, b)),
  argmax: extreme((a, b) => a > b),
  argmin: extreme((a, b) => a < b),
  kth: (list: number[], k: number) => list[ranked(list)[k]],
  kth_at: (list: number[], k: number) => ranked(list)[k],
};

/** A number to this many significant digits, halves rounded up. */
export function formatNumber(value: Num, digits = 4): string {
  if (Array.isArray(value)) return `${formatNumber(value[0], digits)} ${value[1] < 0 ? "−" : "+"} ${formatNumber(Math.abs(value[1]), digits)}i`;
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "not a number" : value < 0 ? "−∞" : "∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value + 0).replace("-", "−");
  const shorn = (number: string) => (number.includes(".") ? number.replace(/\.?0+$/, "") : number);
  const power = Number(value.toExponential().split("e")[1]);
  let text;
  if (power < -4 || power >= 15) {
    const [mantissa, e] = value.toExponential(digits - 1).split("e");
    text = `${shorn(mantissa)}e${Number(e)}`;
  } else {
    text = power >= digits - 1 ? value.toFixed(0) : shorn(value.toPrecision(digits));
  }
  return text.replaceAll("-", "−");
}
