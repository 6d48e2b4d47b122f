// The page: tensors at the left, the chosen one as a table, and the receipt of the chosen cell. See receipt.js for the
// arithmetic. What is looked at is one cell, `here`; the table shows the slice that holds it.

const SMALL = 48; // rows or columns up to which a tensor is a table; larger ones are a picture with a lens
const LENS = 12;
const FINEST = 1024; // dots across a picture
const CHIPS = 32; // operands shown before only the largest are
const ROWS = 2000; // rows of a list on request
const WIDE = matchMedia("(min-width: 760px)");
const DARK = matchMedia("(prefers-color-scheme: dark)");

let graph, meta;
let here = { node: 0, place: 0 };
let trail = []; // the cells walked through to come here, this one last
let lens = { row: 0, column: 0 };
let shown = ""; // what the table shows now, so that it is drawn again only when that changes
let everything = false;
const visited = new Set(); // tensors nobody named are listed once they have been looked at

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
function maths(said) {
  return said.split(/(_[A-Za-z0-9]+)/).map((part) => (part.startsWith("_") ? el("sub", {}, part.slice(1)) : part));
}

/** What a cell or tensor is called: mathematics if it has a symbol, else its name as it is. */
const titled = (n, said) => (n.symbol ? maths(said) : said);

// ---- the data

async function opened() {
  meta = JSON.parse(at("graph").textContent);
  const packed = Uint8Array.from(atob(at("arrays").textContent), (c) => c.charCodeAt(0));
  const raw = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  const kinds = { u8: Uint8Array, i32: Int32Array, f32: Float32Array, f64: Float64Array };
  const arrays = {};
  for (const [key, [kind, begin, count]] of Object.entries(meta.arrays)) arrays[key] = new kinds[kind](raw, begin, count);
  return new Graph(meta, arrays);
}

/** The axes of a node: a letter where it has one, what the letter stands for, and the words along it. */
function axesOf(n) {
  const letters = (n.axes ?? "").split(" ").filter(Boolean);
  return n.shape.map((count, d) => {
    const letter = letters.length === n.shape.length ? letters[d] : "";
    const words = graph.labels[letter];
    return { letter, count, means: meta.legend[letter] ?? letter, words: words?.length === count ? words : null };
  });
}

/** The slice of a node that holds a place: how large, and where it begins. */
function sliceOf(n, place) {
  const [rows, columns] = [n.shape.at(-2) ?? 1, n.shape.at(-1) ?? 1];
  const base = place - (place % (rows * columns));
  return { rows, columns, base, row: Math.floor((place - base) / columns), column: (place - base) % columns };
}

/** What made a tensor's numbers: moves are followed back, and so is a mask that only replaces some of them. */
function origin(node) {
  const n = graph.nodes[graph.resolve(node, 0)[0]];
  const kept = n.plan?.[0] === "if" ? n.plan.slice(2).find((part) => part[0] === "ref") : null;
  return kept ? origin(kept[1]) : n;
}

const famous = (n) => Boolean(n.named) || ["input", "weight", "edited"].includes(n.kind);
const key = (node, place) => `${node}:${place}`;

function address(node, place) {
  const n = graph.nodes[node];
  const name = graph.names[n.name] === node ? n.name : (Object.keys(graph.names).find((one) => graph.names[one] === node) ?? n.name);
  return cell(name, unravel(place, n.shape));
}

/** The cell an address names, or null. */
function located(said) {
  const found = /^([^[\]]+?)\s*(?:\[([\d,\s]*)\])?$/.exec(said.trim());
  const node = found ? graph.names[found[1]] : undefined;
  if (node === undefined) return null;
  const { shape } = graph.nodes[node];
  const index = (found[2] ?? "").split(",").filter((part) => part.trim()).map(Number);
  if (!index.length) return { node, place: striking(node) };
  if (index.length !== shape.length || index.some((i, d) => !(i < shape[d]))) return null;
  return { node, place: ravel(index, shape) };
}

/** A cell worth a first look: of an attention pattern, what the least decided row looks at most; else the first. */
function striking(node) {
  const n = graph.nodes[node];
  if (!looks(node)) return 0;
  const { rows, columns } = sliceOf(n, 0), values = graph.values(node);
  const peaks = Array.from({ length: rows }, (_, r) => Math.max(...values.subarray(r * columns, (r + 1) * columns)));
  const peak = Math.min(...peaks.filter((p) => p > 0));
  return Math.max(0, values.indexOf(peak));
}

/** Whether a tensor is an attention pattern: shares that were made by a softmax, of one token for another. */
function looks(node) {
  return graph.nodes[node].shape.length > 2 && origin(node).kind === "softmax" && scaleOf(node).kind === "share";
}

function firstSight() {
  const ids = graph.nodes.map((_, i) => i).filter((i) => graph.nodes[i].named && graph.nodes[i].size);
  const node = ids.find(looks) ?? graph.nodes.findIndex((_, i) => looks(i));
  if (node >= 0) return { node, place: striking(node) };
  const last = ids.at(-1) ?? graph.nodes.length - 1;
  return { node: last, place: striking(last) };
}

// ---- going from cell to cell

/** Look at a cell. `how` is "walk" from the cell before to one it was made of, "turn" to another slice, else a new start. */
function go(node, place, how = "start") {
  const one = { node, place };
  trail = how === "walk" ? [...trail, one] : how === "turn" ? [...trail.slice(0, -1), one] : [one];
  here = one;
  remember(how === "turn" ? "replaceState" : "pushState", `#${address(node, place)}`);
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

/** Take up what the address bar or the history says. */
function recall(state) {
  // the page may have been written anew since the history was
  const known = (one) => one && one.place < graph.nodes[one.node]?.size;
  const kept = known(state?.here) ? state.here : null;
  here = located(decoded(location.hash.slice(1))) ?? kept ?? located(meta.start) ?? firstSight();
  const way = state?.trail ?? [];
  trail = way.length && way.every(known) && way.at(-1).node === here.node && way.at(-1).place === here.place ? way : [here];
  render();
}

function back() {
  if (trail.length > 1) history.back();
}

// ---- colour: it repeats what the numbers say

function scaleOf(node) {
  const n = graph.nodes[node];
  if (n.scale) return n.scale;
  let most = 0, least = 0;
  for (const v of graph.values(node)) {
    if (Number.isFinite(v)) [most, least] = [Math.max(most, v), Math.min(least, v)];
  }
  const share = n.dtype === "bool" || (origin(node).kind === "softmax" && least >= 0);
  const none = /int/.test(n.dtype);
  n.scale = { kind: none ? "none" : share ? "share" : "signed", top: share ? 1 : Math.max(most, -least) || 1, most, least };
  return n.scale;
}

/** How a value is coloured: below or above zero, how strongly from 0 to 1; or hatched, where it has no size. */
function heat(value, { kind, top }) {
  if (!Number.isFinite(value)) return { tone: "hatched", strength: 0 };
  if (kind === "none") return { tone: "plain", strength: 0 };
  const part = Math.min(1, Math.abs(value) / top);
  // among many tokens every share is small: its root can still be seen
  return { tone: value < 0 ? "below" : "above", strength: kind === "share" ? Math.sqrt(part) : part };
}

/** How many decimals a table needs, so that its numbers stand under one another; null where powers of ten are better. */
function decimalsOf(values, { most, least }) {
  const top = Math.max(most, -least);
  if (top && top < 0.01) return null;
  const limit = top >= 10000 ? 0 : top >= 1000 ? 1 : top >= 100 ? 2 : 3;
  for (let d = 0; d < limit; d++) {
    const even = (v) => !Number.isFinite(v) || Math.abs(v * 10 ** d - Math.round(v * 10 ** d)) < 1e-9 * 10 ** d;
    if (values.every(even)) return d;
  }
  return limit;
}

function brief(value, decimals) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : say(value);
  if (value === 0) return "0";
  return decimals === null ? say(value, 2) : value.toFixed(decimals).replace("-", "−");
}

// ---- the tensors

/** What a tensor is listed under: the block it is in, else its first part. */
function groupOf(name) {
  const path = name.split(":")[0].split(".");
  const block = path.findIndex((part) => /^\d+$/.test(part));
  if (block > 0 && !name.startsWith("const.")) return path.slice(0, block + 1).join(".");
  return name.includes(":") ? path[0] : path.length > 1 ? path[0] : "";
}

/** Runs of tensors of one group, in the order of computing. */
function groups() {
  const runs = [];
  graph.nodes.forEach((n, node) => {
    if (!(everything || famous(n) || visited.has(node)) || !n.size) return;
    const group = groupOf(n.name);
    if (runs.at(-1)?.group === group) runs.at(-1).nodes.push(node);
    else runs.push({ group, nodes: [node] });
  });
  // one tensor is no group; it stands with its neighbours under its full name
  const merged = [];
  for (const run of runs) {
    if (run.nodes.length === 1 && !/\.\d+$/.test(run.group)) run.group = "";
    if (merged.length && merged.at(-1).group === run.group) merged.at(-1).nodes.push(...run.nodes);
    else merged.push(run);
  }
  return merged;
}

function drawIndex() {
  const list = groups().map(({ group, nodes }) => {
    const items = el("ul", {}, nodes.map((node) => {
      const n = graph.nodes[node];
      const inner = group && n.name.startsWith(group) ? n.name.slice(group.length).replace(/^\./, "") : n.name;
      return el("li", {}, el("a", { href: `#${n.name}`, "data-node": node, title: `${n.name} (${n.op})`, class: n.named ? "" : "unnamed" },
        el("i", {}, maths(n.symbol ?? "")), el("span", { class: "name" }, inner || n.name), el("span", { class: "shape" }, n.shape.join("×") || "1")));
    }));
    return group ? el("details", { open: true }, el("summary", {}, group), items) : items;
  });
  at("tensors").replaceChildren(...list);
  at("tensors").classList.toggle("bare", graph.nodes.every((n) => !n.symbol));
  markIndex();
}

function markIndex() {
  for (const link of at("tensors").querySelectorAll("a")) {
    const current = Number(link.dataset.node) === here.node;
    if (!current) link.removeAttribute("aria-current");
    else if (!link.hasAttribute("aria-current")) {
      link.setAttribute("aria-current", "true");
      const box = at("tensors"), top = link.offsetTop - box.offsetTop;
      if (top < box.scrollTop || top > box.scrollTop + box.clientHeight - 40) box.scrollTop = top - box.clientHeight / 3;
    }
  }
}

// ---- the chosen tensor

function drawTensor() {
  const n = graph.nodes[here.node], axes = axesOf(n), slice = sliceOf(n, here.place);
  const index = unravel(here.place, n.shape);
  const large = slice.rows > SMALL || slice.columns > SMALL;
  if (large) followLens(slice);
  const now = JSON.stringify([here.node, slice.base, large && lens]);
  if (now === shown) return select();
  shown = now;
  const sizes = axes.map((a) => (a.means ? `${a.means} ${a.count}` : String(a.count))).join(" × ") || "a single number";
  const scale = scaleOf(here.node);
  const values = Array.from(graph.values(here.node).slice(slice.base, slice.base + slice.rows * slice.columns));
  const decimals = decimalsOf(values, scale);
  const part = large ? [lens.row, Math.min(lens.row + LENS, slice.rows), lens.column, Math.min(lens.column + LENS, slice.columns)] : [0, slice.rows, 0, slice.columns];
  at("tensor").replaceChildren(
    el("h2", {}, n.symbol ? el("i", {}, maths(n.symbol)) : null, el("code", {}, n.name)),
    el("p", { class: "about" }, n.formula ? el("i", { class: "maths" }, maths(n.formula)) : null, el("span", {}, sizes), el("span", {}, `${n.op.replace(/^_+/, "")}, ${n.dtype}`)),
    el("div", { class: "turns" }, axes.slice(0, -2).map((axis, d) => turner(axis, d, index, n.shape))),
    large ? picture(values, slice, scale) : "",
    el("div", { class: "scroll" }, table(values, slice, part, axes, scale, decimals)),
    legend(scale, values),
  );
  select();
}

/** The choice of an index along an axis that the table does not show. */
function turner(axis, d, index, shape) {
  if (axis.count === 1) return null;
  const options = Array.from({ length: axis.count }, (_, i) => el("option", { value: i, selected: i === index[d] }, axis.words ? `${i} ${axis.words[i]}` : i));
  const choice = el("select", { "data-axis": d }, options);
  choice.addEventListener("change", () => go(here.node, ravel(index.with(d, Number(choice.value)), shape), "turn"));
  return el("label", {}, axis.means || `axis ${d}`, choice);
}

function table(values, { rows, columns, base, row: chosenRow, column: chosenColumn }, [top, bottom, left, right], axes, scale, decimals) {
  const [down, across] = [axes.at(-2), axes.at(-1)];
  const head = (axis, i, scope) =>
    el("th", { scope, "data-i": i }, el("span", {}, axis?.words ? "" : i), axis?.words ? el("b", { title: `${i} ${axis.words[i]}` }, axis.words[i]) : null);
  const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);
  const corner = el("td", { class: "corner", title: [down, across].map((a) => a?.means).filter(Boolean).join(" down, ") + (across?.means ? " across" : "") }, [down, across].map((a) => a?.letter).filter(Boolean).join("\u2009╲\u2009"));
  const body = range(top, bottom).map((r) =>
    el("tr", {}, head(down, r, "row"), range(left, right).map((c) => {
      const value = values[r * columns + c], { tone, strength } = heat(value, scale);
      const made = el("td", { role: "gridcell", class: tone, tabindex: "-1", "data-cell": key(here.node, base + r * columns + c), "data-r": r, "data-c": c }, brief(value, decimals));
      if (strength) made.style.setProperty("--t", strength.toFixed(3));
      return made;
    })));
  return el("table", { role: "grid", "aria-label": graph.nodes[here.node].name, "aria-rowcount": rows, "aria-colcount": columns },
    el("thead", {}, el("tr", {}, corner, range(left, right).map((c) => head(across, c, "col")))), el("tbody", {}, body));
}

/** Mark the chosen cell in the table, and let Tab lead to it. */
function select() {
  const grid = at("tensor").querySelector("table");
  const { row, column } = sliceOf(graph.nodes[here.node], here.place);
  for (const old of grid.querySelectorAll('[tabindex="0"], .chosen, .on')) {
    old.classList.remove("chosen", "on");
    old.removeAttribute("aria-selected");
    if (old.matches("td")) old.tabIndex = -1;
  }
  const one = grid.querySelector(`td[data-cell="${key(here.node, here.place)}"]`);
  if (!one) return (grid.querySelector("td[data-cell]").tabIndex = 0);
  one.classList.add("chosen");
  one.setAttribute("aria-selected", "true");
  one.tabIndex = 0;
  grid.querySelector(`th[scope=row][data-i="${row}"]`).classList.add("on");
  grid.querySelector(`th[scope=col][data-i="${column}"]`).classList.add("on");
}

function legend(scale, values) {
  const hatched = values.some((v) => !Number.isFinite(v)) ? [el("span", { class: "swatch hatched" }), "not finite (−∞)"] : [];
  if (scale.kind === "none") return el("p", { class: "legend" }, "whole numbers, not coloured", hatched);
  const bar = el("span", { class: `bar ${scale.kind}`, "aria-hidden": "true" });
  return el("p", { class: "legend" }, scale.kind === "share" ? "0" : say(-scale.top, 3), bar, scale.kind === "share" ? "1" : say(scale.top, 3), hatched);
}

// ---- a tensor too large for a table: a picture, and a lens on a part of it

function followLens({ rows, columns, row, column }) {
  const fit = (begin, i, count) => {
    const inside = i >= begin && i < begin + LENS ? begin : i - LENS / 2;
    return Math.max(0, Math.min(inside, count - LENS));
  };
  lens = { row: fit(lens.row, row, rows), column: fit(lens.column, column, columns) };
}

function picture(values, { rows, columns, base }, scale) {
  const box = heatMap(values, rows, columns, scale, [lens.row, Math.min(lens.row + LENS, rows), lens.column, Math.min(lens.column + LENS, columns)], "picture");
  const canvas = box.firstChild;
  canvas.setAttribute("aria-label", `heat map of ${rows} by ${columns} numbers; the table below is a lens on part of it`);
  // dots no larger than eight, and a single row not thinner than a finger
  Object.assign(box.style, { width: `min(100%, ${columns * 8}px)`, aspectRatio: `${columns} / ${Math.max(rows, columns / 24)}`, maxHeight: `${Math.min(rows * 12, 460)}px` });
  box.addEventListener("click", (event) => {
    const area = canvas.getBoundingClientRect();
    const r = Math.min(rows - 1, Math.floor(((event.clientY - area.top) / area.height) * rows));
    const c = Math.min(columns - 1, Math.floor(((event.clientX - area.left) / area.width) * columns));
    lens = { row: r - LENS / 2, column: c - LENS / 2 };
    go(here.node, base + r * columns + c);
  });
  return box;
}

/** A heat map with a frame around a part of it. */
function heatMap(values, rows, columns, scale, [top, bottom, left, right], kind) {
  const canvas = el("canvas", { width: Math.min(columns, FINEST), height: Math.min(rows, FINEST), role: "img", "aria-label": `heat map, ${rows} by ${columns}` });
  paint(canvas, values, rows, columns, scale);
  const frame = el("span", { class: "frame" });
  const percent = (part, whole) => `${(100 * part) / whole}%`;
  Object.assign(frame.style, { left: percent(left, columns), top: percent(top, rows), width: percent(right - left, columns), height: percent(bottom - top, rows) });
  const box = el("div", { class: kind }, canvas, frame);
  if (kind === "sketch") Object.assign(box.style, { width: `${Math.min(columns * 11, 88)}px`, height: `${Math.min(rows * 11, 88)}px` });
  return box;
}

function paint(canvas, values, rows, columns, scale) {
  const tone = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);
  const colours = { above: tone("--red"), below: tone("--blue"), plain: tone("--paper") }, paper = tone("--paper");
  const { width, height } = canvas, pen = canvas.getContext("2d"), dots = pen.createImageData(width, height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const value = values[Math.floor((y * rows) / height) * columns + Math.floor((x * columns) / width)];
      const { tone: name, strength } = heat(value, scale), colour = colours[name];
      if (!colour) continue; // left clear: the hatching behind the picture shows through
      for (let k = 0; k < 3; k++) dots.data[4 * (y * width + x) + k] = paper[k] + (colour[k] - paper[k]) * strength;
      dots.data[4 * (y * width + x) + 3] = 255;
    }
  }
  pen.putImageData(dots, 0, 0);
}

// ---- the receipt

/** Marked text (see receipt.js) with its marks made links. */
function linked(said) {
  return said.split(/(\u0001[^\u0003]*\u0003)/).map((part) => {
    if (!part.startsWith(MARK)) return part;
    const [what, number] = part.slice(1, -1).split(SHUT);
    if (!/^\d+:\d+$/.test(what)) return el("span", { class: "step", "data-cell": what }, number);
    const [node, place] = what.split(":").map(Number);
    return el("a", { class: "term", href: `#${address(node, place)}`, "data-cell": what, "data-walk": true, tabindex: "-1", title: address(node, place) }, number);
  });
}

function drawReceipt() {
  const n = graph.nodes[here.node], r = receipt(graph, here.node, here.place);
  const told = axesOf(n).map((axis, d) => (axis.words ? `${axis.means} ${r.index[d]} “${axis.words[r.index[d]]}”` : null)).filter(Boolean);
  const parts = [
    drawTrail(),
    el("h3", {}, n.symbol ? el("i", {}, maths(r.label)) : null, el("code", {}, r.where)),
    told.length ? el("p", { class: "told" }, told.join(", ")) : null,
    n.formula ? el("p", { class: "meaning" }, el("i", {}, titled(n, n.symbol || n.name), " = ", maths(n.formula))) : null,
  ];
  if (r.reworked === null) {
    parts.push(el("p", { class: "formula" }, el("strong", {}, say(r.recorded)), ` ${r.formula}`));
  } else {
    const apart = r.agrees && r.off > 0 && Number.isFinite(r.allowed) ? `${say(r.off, 2)} apart; rounding alone may make ${say(r.allowed, 2)}` : "";
    parts.push(
      el("p", { class: "formula" }, "= ", linked(r.formula)),
      r.steps.length ? el("dl", {}, r.steps.map((s) => el("div", { "data-cell": s.word }, el("dt", {}, `where ${s.word}`), el("dd", {}, "= ", linked(s.formula), " = ", el("b", {}, say(s.value)))))) : null,
      el("p", { class: `verdict ${r.agrees ? "right" : "wrong"}` }, "= ", el("strong", {}, say(r.reworked)), " reworked, ", el("span", {}, `recorded ${say(r.recorded)} `, el("b", { class: "mark" }, r.mark)), apart ? el("small", {}, apart) : null),
      operands(r),
      ...lists(r),
    );
  }
  at("receipt").replaceChildren(...parts.filter(Boolean));
  at("spoken").textContent = r.lines.join("; ");
}

function drawTrail() {
  const crumbs = trail.map((one, i) => {
    const n = graph.nodes[one.node], said = titled(n, label(n, unravel(one.place, n.shape)));
    if (i === trail.length - 1) return el("li", { "aria-current": "true" }, said);
    const crumb = el("a", { href: `#${address(one.node, one.place)}` }, said);
    crumb.addEventListener("click", (event) => {
      event.preventDefault();
      history.go(i - trail.length + 1);
    });
    return el("li", {}, crumb);
  });
  if (crumbs.length < 2) return null;
  const button = el("button", { type: "button", title: "back to the cell before" }, "← Back");
  button.addEventListener("click", back);
  return el("nav", { class: "trail", "aria-label": "the way here" }, button, el("ol", {}, crumbs.length > 6 ? [el("li", {}, "…"), ...crumbs.slice(-5)] : crumbs));
}

/** The numbers a cell was made of, by tensor: each a link to its own receipt. */
function operands(r) {
  const byNode = Map.groupBy(r.terms, (term) => term.node);
  // what people know first, a mask nobody named last
  const order = [...byNode].sort(([a], [b]) => famous(graph.nodes[b]) - famous(graph.nodes[a]));
  const made = order.map(([node, terms]) => {
    const n = graph.nodes[node];
    terms.sort((a, b) => a.place - b.place);
    // what all of them share of their index stands in the heading
    const index = terms[0].index.map((i, d) => (terms.every((t) => t.index[d] === i) ? i : "·"));
    const heading = el("h5", {}, n.symbol ? el("i", {}, maths(n.symbol)) : null, el("code", {}, cell(n.name, index)));
    const link = (term, said) => el("a", { href: `#${address(term.node, term.place)}`, "data-cell": key(term.node, term.place), "data-walk": true, title: `${term.where} = ${say(term.value)}`, "aria-label": `${term.where} = ${say(term.value)}` }, said);
    if (terms.length === 1) {
      return el("li", {}, el("a", { class: "whole", href: `#${address(node, terms[0].place)}`, "data-cell": key(node, terms[0].place), "data-walk": true }, heading, el("span", {}, `= ${say(terms[0].value)}`)));
    }
    const largest = new Set([...terms].sort((a, b) => size(b.value) - size(a.value)).slice(0, terms.length > CHIPS ? RULES.shown : CHIPS));
    const scale = scaleOf(node);
    const chips = terms.filter((t) => largest.has(t)).map((term) => {
      const { tone, strength } = heat(size(term.value) === Math.abs(term.value) ? term.value : NaN, scale);
      const chip = link(term, say(term.value, 3));
      chip.className = `chip ${tone}`;
      if (strength) chip.style.setProperty("--t", strength.toFixed(3));
      return chip;
    });
    const more = terms.length > largest.size ? el("small", {}, `the ${largest.size} largest of ${terms.length}`) : null;
    return el("li", {}, heading, el("div", { class: "beside" }, sketch(node, terms), el("div", { class: "chips" }, chips)), more);
  });
  return el("section", { class: "operands" }, el("h4", {}, r.moved ? "the same number, elsewhere" : "made of"), el("ul", {}, made));
}

/** A small picture of a tensor with the row, or the column, that its cells were taken from. */
function sketch(node, terms) {
  const n = graph.nodes[node], { rows, columns, base } = sliceOf(n, terms[0].place);
  const [r, c] = [0, 1].map((axis) => terms.map((t) => Math.floor((t.place - base) / (axis ? 1 : columns)) % (axis ? columns : Infinity)));
  const [top, bottom, left, right] = [Math.min(...r), Math.max(...r) + 1, Math.min(...c), Math.max(...c) + 1];
  if (rows < 2 || columns < 2 || rows * columns > 40000 || bottom > rows || (bottom - top) * (right - left) !== terms.length) return null;
  return heatMap(graph.values(node).slice(base, base + rows * columns), rows, columns, scaleOf(node), [top, bottom, left, right], "sketch");
}

/** Every term of the sums that the formula shortens, on request. */
function lists(r) {
  const long = [...walk(r.tree)].filter((part) => part.list && part.list.length > (part.op === "sum" ? RULES.shown : 8));
  const counted = (part) => `all ${part.list.length} terms of ${part.op === "sum" ? "Σ" : part.op} = ${say(weigh(part, EXACT).value)}`;
  const each = new Map(long.map((part) => [counted(part), part])); // a step that is used twice is listed once
  return [...each].slice(0, 6).map(([title, part]) => {
    const box = el("details", { class: "list" }, el("summary", {}, title));
    box.addEventListener("toggle", () => {
      if (box.children.length > 1) return;
      const rows = part.list.slice(0, ROWS).map((one, i) => el("tr", {}, el("th", { scope: "row" }, i), el("td", {}, linked(text(one))), el("td", {}, say(weigh(one, EXACT).value))));
      const rest = part.list.length - ROWS;
      box.append(el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, rows))), rest > 0 ? el("small", {}, `and ${rest} more`) : "");
    });
    return box;
  });
}

// ---- what a hand or a key does

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
  const target = event.target.closest("[data-walk], [data-node], td[data-cell]");
  if (!target) return;
  event.preventDefault();
  if (target.dataset.node !== undefined) {
    if (!WIDE.matches) at("index").open = false;
    return go(Number(target.dataset.node), striking(Number(target.dataset.node)));
  }
  const [node, place] = target.dataset.cell.split(":").map(Number);
  go(node, place, target.dataset.walk === undefined ? "start" : "walk");
  const slip = at("receipt").getBoundingClientRect();
  if (slip.top > innerHeight - 120) at("receipt").scrollIntoView({ block: "nearest", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
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

/** Whatever stands for the same number lights up together. */
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
  () => at("app").replaceChildren(el("p", { class: "wait" }, "This browser cannot open the numbers in this page; a newer one can.")),
);
