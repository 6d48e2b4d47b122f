// The list of tensors, and the chosen one: as a table, or as a picture with a lens on part of it.

const SMALL = 48; // rows or columns up to which a tensor is a table; larger ones are a picture
const LENS = 12; // rows and columns of the lens
const FINEST = 1024; // pixels across a picture

// ---- colour: the same values, seen at a glance

function scaleOf(node) {
  const n = graph.nodes[node];
  if (n.scale) return n.scale;
  let most = 0, least = 0;
  for (const v of graph.values(node)) {
    if (v > most && v < Infinity) most = v;
    if (v < least && v > -Infinity) least = v;
  }
  const share = n.dtype === "bool" || (origin(node).kind === "softmax" && least >= 0);
  const none = /int/.test(n.dtype);
  n.scale = { kind: none ? "none" : share ? "share" : "signed", top: n.dtype === "bool" ? 1 : Math.max(most, -least) || 1, most, least };
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

/** How many decimals a table needs, so that its values line up; null where powers of ten are better. */
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
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : formatNumber(value);
  if (value === 0) return "0";
  return decimals === null ? formatNumber(value, 2) : value.toFixed(decimals).replace("-", "−");
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
  // one tensor is no group; it is listed with its neighbours under its full name
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
      const about = { href: `#${n.name}`, "data-node": node, title: `${n.name} (${n.op})`, class: n.named ? "" : "unnamed" };
      return el("li", {}, el("a", about,
        el("i", {}, maths(n.symbol ?? "")),
        el("span", { class: "name" }, inner || n.name),
        el("span", { class: "shape" }, n.shape.join("×") || "1")));
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
  const part = large ? lensed(slice) : [0, slice.rows, 0, slice.columns];
  at("tensor").replaceChildren(
    el("h2", {}, n.symbol ? el("i", {}, maths(n.symbol)) : null, el("code", {}, n.name)),
    el("p", { class: "about" },
      n.formula ? el("i", { class: "maths" }, maths(n.formula)) : null,
      el("span", {}, sizes),
      el("span", {}, `${n.op.replace(/^_+/, "")}, ${n.dtype}`)),
    el("div", { class: "axes" }, axes.slice(0, -2).map((axis, d) => axisChoice(axis, d, index, n.shape))),
    large ? picture(values, slice, scale) : "",
    el("div", { class: "scroll" }, table(values, slice, part, axes, scale, decimals)),
    legend(scale, values),
  );
  select();
}

/** The choice of an index along an axis that the table does not show. */
function axisChoice(axis, d, index, shape) {
  if (axis.count === 1) return null;
  const option = (i) => el("option", { value: i, selected: i === index[d] }, axis.words ? `${i} ${axis.words[i]}` : i);
  const choice = el("select", { "data-axis": d }, range(0, axis.count).map(option));
  choice.addEventListener("change", () => go(here.node, ravel(index.with(d, Number(choice.value)), shape), "slice"));
  return el("label", {}, axis.means || `axis ${d}`, choice);
}

const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);

function table(values, { rows, columns, base }, [top, bottom, left, right], axes, scale, decimals) {
  const [down, across] = [axes.at(-2), axes.at(-1)];
  const body = range(top, bottom).map((r) =>
    el("tr", {}, heading(down, r, "row"), range(left, right).map((c) => {
      const place = r * columns + c, value = values[place];
      const about = { role: "gridcell", tabindex: "-1", "data-cell": key(here.node, base + place), "data-r": r, "data-c": c };
      return tinted(el("td", about, brief(value, decimals)), value, scale);
    })));
  const head = el("tr", {}, corner(down, across), range(left, right).map((c) => heading(across, c, "col")));
  return el("table", { role: "grid", "aria-label": graph.nodes[here.node].name, "aria-rowcount": rows, "aria-colcount": columns },
    el("thead", {}, head), el("tbody", {}, body));
}

/** The head of a row or a column: its label, or else its index. */
function heading(axis, i, scope) {
  const word = axis?.words?.[i];
  return el("th", { scope, "data-i": i }, word === undefined ? i : el("b", { title: `${i} ${word}` }, word));
}

function corner(down, across) {
  const axes = [down, across].filter((axis) => axis?.letter);
  const title = axes.map((axis) => `${axis.means} ${axis === down ? "down" : "across"}`).join(", ");
  return el("td", { class: "corner", title }, axes.map((axis) => axis.letter).join("\u2009╲\u2009"));
}

/** An element coloured by the value it shows. */
function tinted(one, value, scale) {
  const { tone, strength } = heat(value, scale);
  one.classList.add(tone);
  if (strength) one.style.setProperty("--t", strength.toFixed(3));
  return one;
}

/** Mark the chosen cell in the table, and make it the one that Tab reaches. */
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
  reveal(one, grid.querySelector(".corner"));
}

/** Scroll a table, and not the page, so that a cell of it can be seen beside the heads. */
function reveal(one, corner) {
  const box = one.closest(".scroll");
  const sides = [["scrollLeft", "offsetLeft", "clientWidth", "offsetWidth"], ["scrollTop", "offsetTop", "clientHeight", "offsetHeight"]];
  for (const [scroll, offset, client, length] of sides) {
    const from = one[offset] - corner[length], to = one[offset] + one[length] - box[client];
    if (box[scroll] > from || box[scroll] < to) box[scroll] = Math.min(from, Math.max(to, from - box[client] / 3));
  }
}

function legend(scale, values) {
  const hatched = values.some((v) => !Number.isFinite(v)) ? [el("span", { class: "swatch hatched" }), "not finite (−∞)"] : [];
  if (scale.kind === "none") return el("p", { class: "legend" }, "whole numbers, not coloured", hatched);
  const bar = el("span", { class: `bar ${scale.kind}`, "aria-hidden": "true" });
  const to = formatNumber(scale.top, 3), from = scale.kind === "share" ? "0" : formatNumber(-scale.top, 3);
  const largest = scale.kind === "share" && scale.top < 1 ? ", the largest here" : "";
  return el("p", { class: "legend" }, from, bar, to + largest, hatched);
}

// ---- a tensor too large for a table: a picture, and a lens on a part of it

function followLens({ rows, columns, row, column }) {
  const fit = (begin, i, count) => {
    const inside = i >= begin && i < begin + LENS ? begin : i - LENS / 2;
    return Math.max(0, Math.min(inside, count - LENS));
  };
  lens = { row: fit(lens.row, row, rows), column: fit(lens.column, column, columns) };
}

const lensed = ({ rows, columns }) => [lens.row, Math.min(lens.row + LENS, rows), lens.column, Math.min(lens.column + LENS, columns)];

function picture(values, slice, scale) {
  const { rows, columns, base } = slice;
  const box = heatMap(values, rows, columns, scale, lensed(slice), "picture");
  const canvas = box.firstChild;
  canvas.setAttribute("aria-label", `heat map of ${rows} by ${columns} numbers; the table below is a lens on part of it`);
  // cells no larger than eight pixels, and a single row not thinner than a finger
  Object.assign(box.style, {
    width: `min(100%, ${columns * 8}px)`,
    aspectRatio: `${columns} / ${Math.max(rows, columns / 24)}`,
    maxHeight: `${Math.min(rows * 12, 460)}px`,
  });
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
  const [width, height] = [Math.min(columns, FINEST), Math.min(rows, FINEST)];
  const canvas = el("canvas", { width, height, role: "img", "aria-label": `heat map, ${rows} by ${columns}` });
  fill(canvas, values, rows, columns, scale);
  const frame = el("span", { class: "frame" });
  const percent = (part, whole) => `${(100 * part) / whole}%`;
  Object.assign(frame.style, {
    left: percent(left, columns), width: percent(right - left, columns),
    top: percent(top, rows), height: percent(bottom - top, rows),
  });
  return el("div", { class: kind }, canvas, frame);
}

function fill(canvas, values, rows, columns, scale) {
  const tone = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);
  const colours = { above: tone("--red"), below: tone("--blue"), plain: tone("--paper") }, paper = tone("--paper");
  const { width, height } = canvas, pen = canvas.getContext("2d"), pixels = pen.createImageData(width, height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const value = values[Math.floor((y * rows) / height) * columns + Math.floor((x * columns) / width)];
      const { tone: name, strength } = heat(value, scale), colour = colours[name];
      if (!colour) continue; // left clear: the hatching behind the picture shows through
      for (let k = 0; k < 3; k++) pixels.data[4 * (y * width + x) + k] = paper[k] + (colour[k] - paper[k]) * strength;
      pixels.data[4 * (y * width + x) + 3] = 255;
    }
  }
  pen.putImageData(pixels, 0, 0);
}
