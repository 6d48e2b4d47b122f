// The page itself: the chosen cell, how one goes from cell to cell, and what a click or a key does. The chosen cell is
// `here`; tensor.js shows the slice that holds it, slip.js its receipt, and receipt.js computes it.

const WIDE = matchMedia("(min-width: 760px)");
const DARK = matchMedia("(prefers-color-scheme: dark)");
const STILL = matchMedia("(prefers-reduced-motion: reduce)");

let graph, meta;
let here = { node: 0, place: 0 };
let trail = []; // the cells followed to come here, this one last
let lens = { row: 0, column: 0 };
let shown = ""; // what the table shows now, so that it is drawn again only when that changes
let everything = false;
const visited = new Set(); // unnamed tensors are listed once they have been shown

const at = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** Mathematics with its subscripts lowered: X_txt. */
function maths(text) {
  return text.split(/(_[A-Za-z0-9]+(?:,[a-z0-9]+)*)/).map((part) => (part.startsWith("_") ? el("sub", {}, part.slice(1)) : part));
}

/** The title of a cell or tensor: mathematics if it has a symbol, else its name as it is. */
const titled = (n, title) => (symbolic(n) ? maths(title) : title);

// ---- the data

async function opened() {
  meta = JSON.parse(at("graph").textContent);
  const letters = atob(at("arrays").textContent), packed = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
  const raw = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  const kinds = { u8: Uint8Array, i32: Int32Array, f32: Float32Array, f64: Float64Array };
  const arrays = {};
  for (const [key, [kind, begin, count]] of Object.entries(meta.arrays)) arrays[key] = new kinds[kind](raw, begin, count);
  return new Graph(meta, arrays);
}

/** The axes of a node: a letter where it has one, what the letter means, and the labels along it. */
function axesOf(n) {
  const letters = (n.axes ?? "").split(" ").filter(Boolean);
  return n.shape.map((count, d) => {
    const letter = letters.length === n.shape.length ? letters[d] : "";
    return { letter, count, means: meta.legend[letter] ?? letter, words: letter ? labelsAlong(n.name, letter, count) : null };
  });
}

/** The labels along an axis: those of the nearest part of the trace; keys are labelled as the tokens are. */
function labelsAlong(name, letter, count) {
  const path = name.split(".");
  for (const one of letter === "S" ? ["S", "T"] : [letter]) {
    for (let end = path.length - 1; end >= 0; end--) {
      const found = graph.labels[[...path.slice(0, end), one].join(".")];
      if (found?.length === count) return found;
    }
  }
  return null;
}

/** The slice of a node that holds a place: how large, and where it begins. */
function sliceOf(n, place) {
  const [rows, columns] = [n.shape.at(-2) ?? 1, n.shape.at(-1) ?? 1];
  const base = place - (place % (rows * columns));
  return { rows, columns, base, row: Math.floor((place - base) / columns), column: (place - base) % columns };
}

/** What computed a tensor's values: moves are followed back, and so is a mask that only replaces some of them. */
function origin(node) {
  const n = graph.nodes[graph.resolve(node, 0)[0]];
  const kept = n.plan?.[0] === "if" ? n.plan.slice(2).find((part) => part[0] === "ref") : null;
  return kept ? origin(kept[1]) : n;
}

const famous = (n) => Boolean(n.named) || ["input", "weight", "edited"].includes(n.kind);
const key = (node, place) => `${node}:${place}`;

function address(node, place) {
  const n = graph.nodes[node];
  const alias = () => Object.keys(graph.names).find((one) => graph.names[one] === node);
  return cell(graph.names[n.name] === node ? n.name : (alias() ?? n.name), unravel(place, n.shape));
}

/** The cell an address names, or null. */
function located(address) {
  const found = /^([^[\]]+?)\s*(?:\[([\d,\s]*)\])?$/.exec(address.trim());
  const node = found ? graph.names[found[1]] : undefined;
  if (node === undefined) return null;
  const { shape } = graph.nodes[node];
  const index = (found[2] ?? "").split(",").filter((part) => part.trim()).map(Number);
  if (!index.length) return { node, place: striking(node) };
  if (index.length !== shape.length || index.some((i, d) => !(i < shape[d]))) return null;
  return { node, place: ravel(index, shape) };
}

/** The cell to show first: of an attention pattern, the largest weight of the most even row; else the first. */
function striking(node) {
  const n = graph.nodes[node];
  if (!isPattern(node)) return 0;
  const { rows, columns } = sliceOf(n, 0), values = graph.values(node);
  const peaks = Array.from({ length: rows }, (_, r) => Math.max(...values.subarray(r * columns, (r + 1) * columns)));
  const peak = Math.min(...peaks.filter((p) => p > 0));
  return Math.max(0, values.indexOf(peak));
}

/** Whether a tensor is an attention pattern: weights of one token for another, made by a softmax. */
function isPattern(node) {
  return graph.nodes[node].shape.length > 2 && origin(node).kind === "softmax" && scaleOf(node).kind === "share";
}

function firstSight() {
  const ids = graph.nodes.map((_, i) => i).filter((i) => graph.nodes[i].named && graph.nodes[i].size);
  const node = ids.find(isPattern) ?? graph.nodes.findIndex((_, i) => isPattern(i));
  if (node >= 0) return { node, place: striking(node) };
  const last = ids.at(-1) ?? graph.nodes.length - 1;
  return { node: last, place: striking(last) };
}

// ---- going from cell to cell

/** Choose a cell. `how` is "follow" from a cell to one it was made of, "slice" to another slice, else a new start. */
function go(node, place, how = "start") {
  const one = { node, place };
  trail = how === "follow" ? [...trail, one] : how === "slice" ? [...trail.slice(0, -1), one] : [one];
  here = one;
  remember(how === "slice" ? "replaceState" : "pushState", `#${address(node, place)}`);
  render();
}

function remember(method, hash) {
  const state = { here, trail };
  try {
    history[method](state, "", hash);
  } catch {
    history[method](state, ""); // a page inside a notebook has no address of its own
  }
}

function decoded(hash) {
  try {
    return decodeURIComponent(hash);
  } catch {
    return hash;
  }
}

/** Show the cell of the address bar or the history. */
function recall(state) {
  // the page may have been written anew since the history was
  const known = (one) => one && one.place < graph.nodes[one.node]?.size;
  const kept = known(state?.here) ? state.here : null;
  here = located(decoded(location.hash.slice(1))) ?? kept ?? located(meta.start) ?? firstSight();
  const before = state?.trail ?? [], last = before.at(-1);
  trail = last && before.every(known) && last.node === here.node && last.place === here.place ? before : [here];
  render();
}

function back() {
  if (trail.length > 1) history.back();
}

// ---- what a click or a key does

function render() {
  const held = document.activeElement?.closest("#tensor table, #receipt, select");
  drawTensor();
  drawReceipt();
  if (famous(graph.nodes[here.node]) || visited.has(here.node)) markIndex();
  else {
    visited.add(here.node);
    drawIndex();
  }
  // what had the focus may have been drawn anew: it goes to the chosen cell, or stays with the choice of an axis
  const next = held?.matches("select") ? `select[data-axis="${held.dataset.axis}"]` : "td.chosen";
  if (held) at("tensor").querySelector(next)?.focus({ preventScroll: true });
}

function onClick(event) {
  if (event.metaKey || event.ctrlKey || event.shiftKey) return;
  const target = event.target.closest("[data-follow], [data-node], td[data-cell]");
  if (!target) return;
  event.preventDefault();
  if (target.dataset.node !== undefined) {
    if (!WIDE.matches) at("index").open = false;
    return go(Number(target.dataset.node), striking(Number(target.dataset.node)));
  }
  const [node, place] = target.dataset.cell.split(":").map(Number);
  go(node, place, target.dataset.follow === undefined ? "start" : "follow");
  const slip = at("receipt").getBoundingClientRect();
  const behavior = STILL.matches ? "auto" : "smooth";
  if (slip.top > innerHeight - 120) at("receipt").scrollIntoView({ block: "nearest", behavior });
}

/** Arrows move among the cells; a lens moves on at its edge. Enter opens. */
function onKey(event) {
  const one = event.target.closest("td[data-cell]");
  if (!one) return;
  const n = graph.nodes[here.node], { rows, columns } = sliceOf(n, here.place);
  let r = Number(one.dataset.r), c = Number(one.dataset.c);
  const steps = {
    ArrowUp: [r - 1, c], ArrowDown: [r + 1, c], ArrowLeft: [r, c - 1], ArrowRight: [r, c + 1],
    Home: [r, 0], End: [r, columns - 1], PageUp: [r - LENS, c], PageDown: [r + LENS, c],
  };
  if (event.key === "Enter" || event.key === " ") one.click();
  else if (event.key in steps) {
    const clip = (i, count) => Math.max(0, Math.min(i, count - 1));
    [r, c] = [clip(steps[event.key][0], rows), clip(steps[event.key][1], columns)];
    const find = () => at("tensor").querySelector(`td[data-r="${r}"][data-c="${c}"]`);
    if (!find()) showLens(r, c);
    for (const old of at("tensor").querySelectorAll('td[tabindex="0"]')) old.tabIndex = -1;
    find().tabIndex = 0;
    find().focus();
  } else return;
  event.preventDefault();
}

/** Move the lens so that a cell is in it, without opening the cell. */
function showLens(row, column) {
  const chosen = here;
  const { base, columns } = sliceOf(graph.nodes[here.node], here.place);
  here = { node: here.node, place: base + row * columns + column };
  drawTensor();
  here = chosen;
  select();
}

/** Everything that shows the same cell lights up together. */
function onPoint(event) {
  for (const lit of document.querySelectorAll(".lit")) lit.classList.remove("lit");
  const what = event.target.closest?.("[data-cell]")?.dataset.cell;
  if (what) for (const one of document.querySelectorAll(`[data-cell="${CSS.escape(what)}"]`)) one.classList.add("lit");
}

function build() {
  const toggle = el("input", { type: "checkbox" });
  toggle.addEventListener("change", () => {
    everything = toggle.checked;
    drawIndex();
  });
  const skip = el("a", { class: "skip", href: "#" }, "To the numbers");
  skip.addEventListener("click", (event) => {
    event.preventDefault();
    at("tensor").querySelector('td[tabindex="0"]').focus();
  });
  at("app").replaceChildren(
    skip,
    el("details", { id: "index", open: WIDE.matches }, el("summary", {}, "Tensors"),
      el("label", { class: "every" }, toggle, "show every operation"), el("nav", { id: "tensors", "aria-label": "tensors" })),
    el("main", { id: "tensor" }),
    el("aside", { id: "receipt", "aria-label": "receipt" }),
    el("p", { id: "spoken", "aria-live": "polite" }),
  );
  document.addEventListener("click", onClick);
  document.addEventListener("keydown", onKey);
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, onPoint);
  addEventListener("popstate", (event) => recall(event.state));
  WIDE.addEventListener("change", () => (at("index").open = WIDE.matches));
  DARK.addEventListener("change", () => {
    shown = "";
    drawTensor();
  });
}

opened().then(
  (read) => {
    graph = read;
    build();
    drawIndex();
    recall(history.state);
    remember("replaceState", location.hash || undefined);
  },
  () => {
    at("app").replaceChildren(el("p", { class: "wait" }, "This browser cannot open the numbers in this page; a newer one can."));
  },
);
