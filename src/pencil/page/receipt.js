// The receipt of a cell, computed in the browser: the twin of tracing/receipt.py, which is the reference.
// Pure functions of the graph and its arrays; nothing here touches the page. Plans are described in tracing/graph.py.
"use strict";

// The constants of receipt.py, sent with the graph: `shown` terms of a sum are written out and of more the eight
// largest, unnamed values are unfolded `depth` deep but not in lists longer than `wide`; how numbers are rounded.
const RULES = {};

// ---- numbers: a plain number, or a complex one as [real, imaginary]

const paired = (z) => (Array.isArray(z) ? z : [z, 0]);
const size = (z) => (Array.isArray(z) ? Math.hypot(...z) : Math.abs(z));
const same = (a, b) => paired(a).every((x, i) => x === paired(b)[i]);
const unlike = (z) => paired(z).some(Number.isNaN);
const finite = (z) => paired(z).every(Number.isFinite);
const truth = (test) => (...xs) => Number(test(...xs));

/** A function of real numbers, and the same of complex ones where there is such a thing. */
function both(real, complex) {
  return (...xs) => {
    if (!xs.some(Array.isArray)) return real(...xs);
    if (!complex) throw new Error("this page cannot work that out with complex numbers");
    return complex(...xs.map(paired));
  };
}

const times = ([a, b], [c, d]) => [a * c - b * d, a * d + b * c];
const over = ([a, b], [c, d]) => [(a * c + b * d) / (c * c + d * d), (b * c - a * d) / (c * c + d * d)];

/** The error function, to the last digit or two of a double: its series near zero, a continued fraction beyond. */
function erf(x) {
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

function halfEven(x) {
  const low = Math.floor(x), rest = x - low;
  return rest < 0.5 ? low : rest > 0.5 ? low + 1 : low % 2 ? low + 1 : low;
}

/** x mod y with the sign of y. */
function mod(x, y) {
  const rest = x % y;
  return rest && rest < 0 !== y < 0 ? rest + y : rest;
}

/** A sum in the order numpy takes it, so that both give the same to the last bit. */
function pairwise(x, from = 0, count = x.length) {
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

function total(list) {
  if (!list.some(Array.isArray)) return pairwise(list);
  return [0, 1].map((part) => list.reduce((sum, z) => sum + paired(z)[part], 0));
}

/** The index of the first that is better than all before it; NaN is better than any. */
function extreme(better) {
  const beats = (x, best) => better(x, best) || (Number.isNaN(x) && !Number.isNaN(best));
  return (list) => list.reduce((best, x, i) => (beats(x, list[best]) ? i : best), 0);
}

const ranked = (list) => list.map((_, i) => i).sort((i, j) => list[j] - list[i] || i - j);
const bits = (of) => (a, b) => Number(of(BigInt(a), BigInt(b)));

const WORK = {
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
  rounded: (a) => a,
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
  prod: (list) => list.reduce((a, b) => WORK.mul(a, b), 1),
  max: (list) => list.reduce((a, b) => Math.max(a, b)),
  min: (list) => list.reduce((a, b) => Math.min(a, b)),
  argmax: extreme((a, b) => a > b),
  argmin: extreme((a, b) => a < b),
  kth: (list, k) => list[ranked(list)[k]],
  kth_at: (list, k) => ranked(list)[k],
};

// ---- the graph: where a cell's value is

const volume = (shape) => shape.reduce((a, b) => a * b, 1);

/** The index of a place of a row-major tensor. */
function unravel(place, shape) {
  const index = new Array(shape.length);
  for (let d = shape.length - 1; d >= 0; d--) {
    index[d] = place % shape[d];
    place = Math.floor(place / shape[d]);
  }
  return index;
}

const ravel = (index, shape) => index.reduce((place, i, d) => place * shape[d] + i, 0);
const cell = (name, index) => (index.length ? `${name}[${index.join(",")}]` : name);

function moves(plan) {
  if (!Array.isArray(plan)) return false;
  const [head, , , count, steps] = plan;
  return head === "cat" || head === "table" || (head === "ref" && !steps.length) || (head === "list" && count === 1);
}

/** The place a ref points to for a cell, before the steps of a list. */
function begin([, , offset, strides], index) {
  return index.reduce((at, i, d) => at + i * strides[d], offset);
}

function places(ref, index) {
  let inner = [begin(ref, index)];
  for (const [step, count] of ref[4]) {
    inner = inner.flatMap((at) => Array.from({ length: count }, (_, i) => at + i * step));
  }
  return inner;
}

/** The last of sorted starts that is not beyond `at`. */
const within = (starts, at) => starts.findLastIndex((start) => start <= at);

class Graph {
  /** `meta` is the graph as tracing/file.py packs it; `arrays` its arrays by key, complex ones as pairs. */
  constructor(meta, arrays) {
    Object.assign(RULES, meta.rules, { functions: meta.functions });
    Object.assign(this, { nodes: meta.nodes, names: meta.names, labels: meta.labels, functions: meta.functions, arrays });
    this.cached = new Map();
    for (const n of this.nodes) {
      n.moves = moves(n.plan);
      n.outer = RULES.rounding[n.dtype] ?? 0;
      n.inner = Math.min(n.outer, RULES.rounding.float32);
      n.floor = n.outer ? (RULES.least[n.dtype] ?? RULES.tiny) : 0;
      n.size = volume(n.shape);
      n.complex = n.dtype.startsWith("complex");
    }
  }

  step(node, place) {
    const { plan, shape } = this.nodes[node];
    if (plan[0] === "ref") return [plan[1], begin(plan, unravel(place, shape))];
    if (plan[0] === "list") return [plan[1], this.arrays[plan[2]][place]];
    if (plan[0] === "cat") {
      const index = unravel(place, shape);
      const ref = plan[2][within(plan[2].map(([start]) => start), index[plan[1]])][1];
      return [ref[1], begin(ref, index)];
    }
    let where = this.arrays[plan[1]][place];
    for (const source of plan[2]) {
      if (where < this.nodes[source].size) return [source, where];
      where -= this.nodes[source].size;
    }
    throw new Error("a table points outside its sources");
  }

  /** Where the value of a cell was computed: moves are followed back, up to a node that stops them. */
  resolve(node, place, stop = () => false) {
    while (this.nodes[node].moves && !stop(this.nodes[node])) [node, place] = this.step(node, place);
    return [node, place];
  }

  value(node, place) {
    const [at, i] = this.resolve(node, place);
    const { key, complex, name } = this.nodes[at];
    if (key === null) throw new Error(`the values of ${name} are not in this trace`);
    const array = this.arrays[key];
    return complex ? [array[2 * i], array[2 * i + 1]] : array[i];
  }

  /** All values of a node at once, for its picture; of complex ones their sizes. */
  values(node) {
    const n = this.nodes[node];
    if (!n.moves && !n.complex) return this.arrays[n.key];
    if (!this.cached.has(node)) {
      const out = new Float64Array(n.size);
      for (let i = 0; i < n.size; i++) out[i] = n.complex ? size(this.value(node, i)) : this.value(node, i);
      this.cached.set(node, out);
    }
    return this.cached.get(node);
  }
}

// ---- a cell as a tree: its plan with the values put in

const known = (m) => Boolean(m.named);

/** A number as a plan writes it: whole ones are exact, others were rounded when they were written. */
function numeral(plan) {
  if (typeof plan === "number") return { op: "num", value: plan, exact: Number.isInteger(plan) };
  const words = { inf: Infinity, "-inf": -Infinity, nan: NaN };
  if (plan[1].includes("j")) {
    const digits = plan[1].replace(/[()j]/g, "");
    const cut = Math.max(0, digits.search(/(?<=[^e])[+-][^+-]*(?:e[+-]?\d+)?$/));
    return { op: "num", value: [Number(digits.slice(0, cut)), Number(digits.slice(cut))], exact: false };
  }
  return { op: "num", value: words[plan[1]] ?? Number(plan[1]), exact: false };
}

/** The tree of a cell; null where it was given, not computed. */
function unfolded(graph, node, place) {
  const n = graph.nodes[node];
  if (n.plan === null) return null;
  if (n.moves) {
    const [from, at] = graph.step(node, place);
    return graph.nodes[from].kind === "edited" ? null : leaf(graph, from, at, 0, true);
  }
  const tree = unfold(graph, n.plan, n, unravel(place, n.shape), place, 0, !reduces(graph, n.plan))[0];
  const found = n.named ? onlySum(graph, tree) : null;
  return found ? replaced(tree, found, worked(graph, found)) : tree;
}

const LINEAR = ["add", "sub", "mul", "div", "neg", "num", "cell", "made", "picked"];

/** Whether a part is a cell of a mask that hides something. */
const hides = (graph, part) => part.op === "cell" && graph.nodes[part.node].kind === "mask" && part.value === -Infinity;

/** The one cell that a tree only scales or shifts, if it is a sum: scores are written (q·k)/√d, from q and k. */
function onlySum(graph, tree) {
  const parts = [...walk(tree)];
  const cells = parts.filter((part) => part.op === "cell" && graph.nodes[part.node].kind !== "mask");
  if (tree.op === "cell" || cells.length !== 1) return null;
  if (!parts.every((part) => LINEAR.includes(part.op) && !hides(graph, part))) return null;
  const n = graph.nodes[graph.resolve(cells[0].node, cells[0].place)[0]];
  return n.kind !== "block" && reduces(graph, n.plan) ? cells[0] : null;
}

/** A named cell that is a sum, as that sum. */
function worked(graph, found) {
  const [node, place] = graph.resolve(found.node, found.place), n = graph.nodes[node];
  return { op: "made", node: n, of: unfold(graph, n.plan, n, unravel(place, n.shape), place, 1, false)[0] };
}

/** A tree with one part replaced. */
function replaced(tree, old, now) {
  if (tree === old) return now;
  const copy = { ...tree };
  if (tree.of) copy.of = replaced(tree.of, old, now);
  if (tree.args) copy.args = tree.args.map((part) => replaced(part, old, now));
  return copy;
}

/**
 * A plan at one cell: the list of its trees, one unless it is a list of terms.
 * With `whole` an unnamed operand that is itself a sum is unfolded too; inside a sum that would be too much to read.
 */
function unfold(graph, plan, n, index, place, depth, whole) {
  if (!Array.isArray(plan) || plan[0] === "num") return [numeral(plan)];
  const [head] = plan;
  if (head === "axis") return [{ op: "num", value: index[plan[1]], exact: true }];
  if (head === "is") return unfold(graph, plan[2], n, index, place, depth, whole).map((of) => ({ op: "is", word: plan[1], of }));
  if (head === "ref" || head === "list") {
    const last = graph.nodes[plan[1]].size - 1;
    const row = place * plan[3];
    const at = head === "ref" ? places(plan, index) : Array.from(graph.arrays[plan[2]].slice(row, row + plan[3]));
    const level = at.length > RULES.wide ? RULES.depth : depth;
    return at.map((p) => leaf(graph, plan[1], Math.min(Math.max(p, 0), last), level, whole && at.length === 1));
  }
  if (head === "if") {
    const why = unfold(graph, plan[1], n, index, place, RULES.depth, false);
    const chosen = plan.slice(2).map((part) => unfold(graph, part, n, index, place, depth, whole));
    const count = Math.max(why.length, ...chosen.map((c) => c.length));
    return Array.from({ length: count }, (_, i) => {
      const reason = why[i % why.length];
      const taken = chosen[weigh(reason, n).value !== 0 ? 0 : 1];
      return { op: "picked", why: reason, of: taken[i % taken.length] };
    });
  }
  const parts = plan.slice(1).map((part) => unfold(graph, part, n, index, place, depth, whole));
  const about = graph.functions[head];
  if (about.reduces) return [{ op: head, about, list: parts[0], args: parts.slice(1).map((part) => part[0]) }];
  const count = Math.max(...parts.map((part) => part.length));
  return Array.from({ length: count }, (_, i) => ({ op: head, about, args: parts.map((part) => part[i % part.length]) }));
}

/** A cell as a value, or, where it has no name, as its own arithmetic: sums too, if it is to be `whole`. */
function leaf(graph, node, place, depth, whole) {
  [node, place] = graph.resolve(node, place, known);
  const n = graph.nodes[node];
  const worked = n.plan !== null && n.kind !== "block" && depth < RULES.depth;
  const sums = worked && reduces(graph, n.plan);
  if (worked && !n.named && (whole || !sums)) {
    return { op: "made", node: n, of: unfold(graph, n.plan, n, unravel(place, n.shape), place, depth + 1, whole && !sums)[0] };
  }
  return { op: "cell", node, place, value: graph.value(node, place) };
}

function reduces(graph, plan) {
  if (!Array.isArray(plan) || !(plan[0] === "is" || plan[0] in graph.functions)) return false;
  return Boolean(graph.functions[plan[0]]?.reduces) || plan.slice(1).some((part) => reduces(graph, part));
}

/** Every part of a tree once, what is inside first. A mean is the same tree in every term it is taken from. */
function* walk(tree, seen = new Set()) {
  if (seen.has(tree)) return;
  seen.add(tree);
  // a condition is not what the value was made of, unless that is a constant
  const why = tree.why && tree.of.op === "num" ? [tree.why] : [];
  for (const part of [...(tree.list ?? []), ...why, ...(tree.args ?? []), ...(tree.of ? [tree.of] : [])]) yield* walk(part, seen);
  yield tree;
}

// ---- its value, and how far rounding may have moved what was recorded

const EXACT = { inner: 0, outer: 0, floor: 0, op: "", dtype: "float64" }; // for the value alone, where its error is of no interest
const slack = (n, value) => (finite(value) ? size(value) : 0) * n.outer + n.floor;

function weigh(tree, n) {
  const { op } = tree;
  if (op === "cell") return { value: tree.value, error: 0 };
  if (op === "num") {
    const exact = tree.exact || !Number.isFinite(size(tree.value));
    return { value: tree.value, error: exact ? 0 : size(tree.value) * n.inner };
  }
  if (op === "is" || op === "picked") return weigh(tree.of, n);
  tree.weighed ??= new Map(); // what many terms share is computed once
  if (!tree.weighed.has(n)) tree.weighed.set(n, weighed(tree, n));
  return tree.weighed.get(n);
}

function weighed(tree, n) {
  const { op } = tree;
  if (op === "made") {
    const { value, error } = weigh(tree.of, tree.node);
    return { value, error: error + slack(tree.node, value) };
  }
  const args = tree.args.map((part) => weigh(part, n));
  if (tree.list) return reduced(op, tree.list.map((part) => weigh(part, n)), args, n.inner);
  return applied(op, tree.about, args, n);
}

function reduced(op, list, args, u) {
  const value = WORK[op](list.map((w) => w.value), ...args.map((w) => w.value));
  const errors = list.map((w) => w.error);
  const scale = finite(value) ? size(value) : 0;
  if (op === "sum") {
    const weight = list.reduce((sum, w) => sum + (finite(w.value) ? size(w.value) : 0) + w.error, 0);
    return { value, error: pairwise(errors) + (list.length - 1) * u * weight };
  }
  if (["argmax", "argmin", "kth_at"].includes(op)) {
    // kernels do not agree on which of equal values comes first
    const best = list[value].value;
    const tied = list.filter((w) => same(w.value, best) || (unlike(w.value) && unlike(best))).length > 1;
    return { value, error: tied ? list.length : 0 };
  }
  if (op === "prod") return { value, error: pairwise(errors) * Math.max(scale, 1) + u * scale * list.length };
  return { value, error: errors.reduce((a, b) => Math.max(a, b)) };
}

function applied(op, about, args, { inner: u, outer }) {
  const xs = args.map((w) => w.value), es = args.map((w) => w.error);
  const value = WORK[op](...xs);
  const scale = finite(value) ? size(value) : 0;
  if (op === "add" || op === "sub") return { value, error: es[0] + es[1] + u * scale };
  if (op === "real" || op === "imag") return { value, error: es[0] };
  if (op === "rounded") return { value, error: es[0] + outer * scale };
  if (op === "mul") {
    const [a, b] = xs.map((x) => (finite(x) ? size(x) : 0));
    return { value, error: a * es[1] + b * es[0] + es[0] * es[1] + u * scale };
  }
  let moved = 0;
  es.forEach((e, i) => {
    for (const sign of e === 0 ? [] : [1, -1]) {
      const step = size(WORK.sub(WORK[op](...xs.map((x, j) => (j === i ? WORK.add(x, sign * e) : x))), value));
      if (Number.isFinite(step)) moved = Math.max(moved, step);
    }
  });
  if (op === "whole") return { value, error: finite(xs[0]) ? moved : Infinity };
  if (op === "mod") return { value, error: moved + 4 * u * size(xs[0]) };
  if (!about.smooth) return { value, error: moved };
  return { value, error: moved + 4 * (op === "pow" ? outer : u) * scale + (op === "erf" ? 8 * u : 0) };
}

function agree(reworked, recorded, allowed) {
  return same(reworked, recorded) || (unlike(reworked) && unlike(recorded)) || size(WORK.sub(reworked, recorded)) <= allowed;
}

// ---- in writing

// A number that is a cell, or a named step, is marked, so that the page can make a link of it: ⟪what⟫number⟪⟫ with
// characters that no text holds. `bare` takes the marks away, and what is left is what receipt.py writes.
const MARK = "\u0001", SHUT = "\u0002", END = "\u0003";
const marked = (what, text) => MARK + what + SHUT + text + END;
const bare = (text) => text.replace(/\u0001[^\u0002]*\u0002|\u0003/g, "");
const negative = (text) => /^(?:\u0001[^\u0002]*\u0002)*−/.test(text);

/** A number to this many significant digits, halves rounded up. */
function formatNumber(value, digits = 4) {
  if (Array.isArray(value)) return `${formatNumber(value[0], digits)} ${value[1] < 0 ? "−" : "+"} ${formatNumber(Math.abs(value[1]), digits)}i`;
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "not a number" : value < 0 ? "−∞" : "∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value + 0).replace("-", "−");
  const shorn = (number) => (number.includes(".") ? number.replace(/\.?0+$/, "") : number);
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

const numberText = (value, digits) => [formatNumber(value, digits), Array.isArray(value) ? 0 : 3];
const text = (tree, digits = 4, n = EXACT) => written(simplified(tree, n), digits)[0];

/** √n, if a number is one: how embeddings are scaled. */
function surd(value) {
  if (!(value > 1 && value < 1e3) || Number.isInteger(value)) return null;
  const n = Math.round(value * value);
  return Math.abs(value * value - n) <= 1e-12 * n ? `√${n}` : null;
}

/** A simplified tree as text, and how tightly that binds. */
function written(tree, digits) {
  const { op, args, about } = tree;
  if (op === "num") {
    const root = surd(tree.value);
    return root ? [root, 2] : numberText(tree.value, digits);
  }
  if (op === "cell" || op === "is") {
    const [number, binds] = numberText(op === "cell" ? tree.value : weigh(tree.of, EXACT).value, digits);
    return [marked(op === "cell" ? `${tree.node}:${tree.place}` : tree.word, number), binds];
  }
  if (op === "sum") return [summed(tree.list, digits), 0];
  if (tree.list) {
    const more = tree.list.length > 8 ? `, … ${tree.list.length} in all` : "";
    const inside = tree.list.slice(0, 8).map((part) => text(part, digits)).join(", ") + more;
    return [form(about.text, [inside, ...args.map((part) => text(part, digits))]), 3];
  }
  if (op === "neg" && is(args[0], 0)) return ["0", 3];
  if (op === "mul") {
    for (const [i, j] of [[1, 0], [0, 1]]) {
      const root = rooted(args[i]);
      if (root) return [`${held(args[j], 1, digits)}/${root}`, 1];
    }
  }
  if (about.binds === 3) return [form(about.text, args.map((part) => written(part, digits)[0])), 3];
  if (op === "add" || op === "sub") {
    const left = written(args[0], digits);
    let [right, binds] = written(args[1], digits);
    if (op === "add") return [joined([left[0], right]), 0];
    if (binds === 0 || negative(right)) right = `(${right})`;
    return [`${left[0]} − ${right}`, 0];
  }
  // what is right of − or / or · must bind more tightly than they do
  const strict = { div: [1, 2], mul: [1, 1], pow: [3, 3], neg: [1] };
  if (about.binds === 0) {
    const each = args.map((part) => written(part, digits)).map(([part, binds]) => (binds ? part : `(${part})`));
    return [form(about.text, each), 0];
  }
  const tight = strict[op] ?? args.map(() => (about.binds === 2 ? 3 : 1));
  return [form(about.text, args.map((part, i) => held(part, tight[i], digits))), about.binds];
}

/** Arguments put into a form such as "{} + {}" or "{1} if {0} else {2}". */
function form(pattern, args) {
  let next = 0;
  return pattern.replace(/\{(\d?)\}/g, (_, i) => args[i === "" ? next++ : Number(i)]);
}

function held(tree, tight, digits) {
  const [part, binds] = written(tree, digits);
  return binds < tight || (tight && negative(part)) ? `(${part})` : part;
}

/** A term of a sum: what is compared or chosen is in brackets. */
function term(tree, digits) {
  const inner = simplified(tree, EXACT), [part, binds] = written(inner, digits);
  const plain = ["add", "sub", "sum", "num", "cell", "is"].includes(inner.op);
  return binds === 0 && !plain && part.includes(" ") ? `(${part})` : part;
}

function summed(parts, digits) {
  if (!parts.length) return "0";
  if (parts.length <= RULES.shown) return joined(parts.map((part) => term(part, digits)));
  const values = parts.map((part) => weigh(part, EXACT).value);
  const order = values.map((_, i) => i).sort((i, j) => size(values[j]) - size(values[i]) || i - j);
  const largest = order.slice(0, 8).sort((i, j) => i - j);
  const rest = values.filter((_, i) => !largest.includes(i)).reduce((a, b) => WORK.add(a, b), 0);
  return `${joined(largest.map((i) => term(parts[i], digits)))} + … (${parts.length - 8} more sum to ${formatNumber(rest, digits)})`;
}

/** Terms of a sum in a row; a negative one is subtracted. */
function joined(terms) {
  return terms.reduce((line, one) => line + (negative(one) ? ` − ${one.replace("−", "")}` : ` + ${one}`));
}

/** √n, if a number is one over it: how scores are scaled. */
function rooted(tree) {
  const value = tree.op === "num" ? tree.value : 0;
  if (!(value > 1e-3 && value < 1)) return null;
  const n = Math.round(1 / value ** 2);
  if (Math.abs(value * value * n - 1) > 1e-9 || n < 2) return null;
  const whole = Math.round(Math.sqrt(n));
  return whole * whole === n ? String(whole) : `√${n}`;
}

const lettersOf = (n) => (n.axes ?? "").split(" ").filter(Boolean);
const symbolic = (n) => Boolean(n.symbol) && !["weight", "input"].includes(n.kind) && lettersOf(n).length === n.shape.length;

/** What a cell is called in the mathematics: its symbol, and its index without batch and head. */
function label(n, index) {
  if (!symbolic(n)) return cell(n.name, index);
  const letters = lettersOf(n), kept = index.filter((_, d) => !["B", "h", "g", "1"].includes(letters[d]));
  return `${n.symbol.split(" = ")[0]}[${kept.join(",")}]`; // a tensor with two names has two symbols
}

/** The receipt of one cell. Its formulas are marked (see above); `lines` is its bare text, as receipt.py writes it. */
function receipt(graph, node, place, digits = 4) {
  const n = graph.nodes[node];
  const index = unravel(place, n.shape);
  const out = { node, place, index, where: cell(n.name, index), label: label(n, index), meaning: n.formula ?? "" };
  out.recorded = graph.value(node, place);
  const tree = (out.tree = unfolded(graph, node, place));
  if (tree === null) {
    const formula = RULES.origins[n.op === "edit" ? "edited" : n.kind] ?? "(not recorded)";
    const lines = [`${out.label} = ${formatNumber(out.recorded, digits)}   ${formula}`];
    return Object.assign(out, { formula, lines, steps: [], terms: [], reworked: null, allowed: 0, agrees: true });
  }
  const { value, error } = weigh(tree, n);
  const steps = new Map(), terms = new Map();
  for (const part of walk(tree)) {
    if (part.op === "is" && !steps.has(part.word)) {
      steps.set(part.word, { word: part.word, formula: text(part.of, digits, n), value: weigh(part.of, EXACT).value });
    }
    const key = `${part.node}:${part.place}`;
    if (part.op === "cell" && !terms.has(key)) {
      const m = graph.nodes[part.node], at = unravel(part.place, m.shape);
      terms.set(key, { node: part.node, place: part.place, index: at, where: cell(m.name, at), value: part.value });
    }
  }
  out.steps = [...steps.values()];
  out.terms = [...terms.values()];
  out.moved = tree.op === "cell";
  out.formula = out.moved ? marked(`${tree.node}:${tree.place}`, out.terms[0].where) : text(tree, digits, n);
  out.reworked = value;
  out.allowed = error + slack(n, value);
  out.agrees = agree(value, out.recorded, out.allowed);
  out.off = size(WORK.sub(value, out.recorded));
  out.mark = out.agrees ? "✓" : `✗ (off by ${formatNumber(out.off, 3)}, ${formatNumber(out.allowed, 2)} allowed)`;
  const worked = formatNumber(value, digits), formula = bare(out.formula);
  out.masked = value === -Infinity && (n.kind === "mask" || [...walk(tree)].some((part) => hides(graph, part)));
  const tail = (worked === formula ? "" : ` = ${worked}`) + (out.masked ? "   (masked: it may not be seen)" : "");
  out.lines = [
    `${out.label} = ${formula}${tail}`,
    ...out.steps.map((step) => `  where ${step.word} = ${bare(step.formula)} = ${formatNumber(step.value, digits)}`),
    `recorded ${formatNumber(out.recorded, digits)} ${out.mark}`,
  ];
  return out;
}
