// The slip: the receipt of the chosen cell, with its values as links to theirs.

const CHIPS = 32; // operands shown before only the largest are
const ROWS = 2000; // rows of a list on request
const SKETCHED = 40000; // cells of a tensor that is drawn small beside its values

/** The attributes of a link to a cell. */
const link = (node, place) => ({ href: `#${address(node, place)}`, "data-cell": key(node, place), "data-follow": true });

/** Marked text (see receipt.js) with its marks made links. */
function linked(text) {
  return text.split(/(\u0001[^\u0003]*\u0003)/).map((part) => {
    if (!part.startsWith(MARK)) return part;
    const [what, number] = part.slice(1, -1).split(SHUT);
    if (!/^\d+:\d+$/.test(what)) return el("span", { class: "step", "data-cell": what }, number);
    const [node, place] = what.split(":").map(Number);
    return el("a", { ...link(node, place), class: "term", tabindex: "-1", title: address(node, place) }, number);
  });
}

function drawReceipt() {
  const n = graph.nodes[here.node], r = receipt(graph, here.node, here.place);
  const words = axesOf(n).map(({ means, words }, d) => (words ? `${means} ${r.index[d]} “${words[r.index[d]]}”` : null));
  const labels = words.filter(Boolean).join(", ");
  const parts = [
    drawTrail(),
    el("h3", {}, symbolic(n) ? el("i", {}, maths(r.label)) : null, el("code", {}, r.where)),
    labels ? el("p", { class: "labels" }, labels) : null,
    n.formula ? el("p", { class: "meaning" }, el("i", {}, maths(`${n.symbol ?? ""} = ${n.formula}`))) : null,
  ];
  if (r.reworked === null) parts.push(el("p", { class: "formula" }, el("strong", {}, formatNumber(r.recorded)), ` ${r.formula}`));
  else parts.push(el("p", { class: "formula" }, "= ", linked(r.formula)), steps(r), verdict(r), operands(r), ...lists(r));
  at("receipt").replaceChildren(...parts.filter(Boolean));
  at("spoken").textContent = r.lines.join("; ");
}

function steps(r) {
  const line = ({ word, formula, value }) => {
    const worked = el("dd", {}, "= ", linked(formula), " = ", el("b", {}, formatNumber(value)));
    return el("div", { "data-cell": word }, el("dt", {}, `where ${word}`), worked);
  };
  return r.steps.length ? el("dl", {}, r.steps.map(line)) : null;
}

function verdict(r) {
  const differs = r.agrees && r.off > 0 && Number.isFinite(r.allowed);
  return el("p", { class: `verdict ${r.agrees ? "right" : "wrong"}` },
    "= ", el("strong", {}, formatNumber(r.reworked)), " reworked, ",
    el("span", {}, `recorded ${formatNumber(r.recorded)} `, el("b", { class: "mark" }, r.mark)),
    differs ? el("small", {}, `they differ by ${formatNumber(r.off, 2)}; rounding alone may make ${formatNumber(r.allowed, 2)}`) : null);
}

function drawTrail() {
  const crumbs = trail.map((one, i) => {
    const n = graph.nodes[one.node], title = titled(n, label(n, unravel(one.place, n.shape)));
    if (i === trail.length - 1) return el("li", { "aria-current": "true" }, title);
    const crumb = el("a", { href: `#${address(one.node, one.place)}` }, title);
    crumb.addEventListener("click", (event) => {
      event.preventDefault();
      history.go(i - trail.length + 1);
    });
    return el("li", {}, crumb);
  });
  if (crumbs.length < 2) return null;
  const button = el("button", { type: "button", title: "back to the cell before" }, "← Back");
  button.addEventListener("click", back);
  const latest = crumbs.length > 6 ? [el("li", {}, "…"), ...crumbs.slice(-5)] : crumbs;
  return el("nav", { class: "trail", "aria-label": "the cells before this one" }, button, el("ol", {}, latest));
}

/** The values a cell was made of, by tensor: each a link to its own receipt. */
function operands(r) {
  if (!r.terms.length) return null; // made of indices alone
  const byNode = Map.groupBy(r.terms, (term) => term.node);
  // named tensors first, unnamed ones last
  const order = [...byNode].sort(([a], [b]) => famous(graph.nodes[b]) - famous(graph.nodes[a]));
  const made = order.map(([node, terms]) => operand(node, terms.sort((a, b) => a.place - b.place)));
  return el("section", { class: "operands" }, el("h4", {}, r.moved ? "the same number, elsewhere" : "made of"), el("ul", {}, made));
}

/** The cells of one tensor: one as a line, several as a row of values beside a small picture. */
function operand(node, terms) {
  const n = graph.nodes[node], scale = scaleOf(node);
  // what all of them share of their index is in the heading
  const index = terms[0].index.map((i, d) => (terms.every((t) => t.index[d] === i) ? i : "·"));
  const title = el("h5", {}, n.symbol ? el("i", {}, maths(n.symbol)) : null, el("code", {}, cell(n.name, index)));
  if (terms.length === 1) {
    const [{ place, value }] = terms;
    return el("li", {}, el("a", { ...link(node, place), class: "whole" }, title, el("span", {}, `= ${formatNumber(value)}`)));
  }
  const count = terms.length > CHIPS ? RULES.shown : terms.length;
  const largest = new Set([...terms].sort((a, b) => size(b.value) - size(a.value)).slice(0, count));
  const chips = terms.filter((term) => largest.has(term)).map(({ place, where, value }) => {
    const title = `${where} = ${formatNumber(value)}`;
    const chip = el("a", { ...link(node, place), class: "chip", title, "aria-label": title }, formatNumber(value, 3));
    return tinted(chip, n.complex ? NaN : value, scale);
  });
  const more = count < terms.length ? el("small", {}, `the ${count} largest of ${terms.length}`) : null;
  return el("li", {}, title, el("div", { class: "beside" }, sketch(node, terms), el("div", { class: "chips" }, chips)), more);
}

/** A small picture of a tensor with the row, or the column, that its cells were taken from. */
function sketch(node, terms) {
  const n = graph.nodes[node], { rows, columns, base } = sliceOf(n, terms[0].place);
  const r = terms.map((t) => Math.floor((t.place - base) / columns)), c = terms.map((t) => (t.place - base) % columns);
  const [top, bottom, left, right] = [Math.min(...r), Math.max(...r) + 1, Math.min(...c), Math.max(...c) + 1];
  const whole = top >= 0 && bottom <= rows && (bottom - top) * (right - left) === terms.length;
  if (!whole || rows < 2 || columns < 2 || rows * columns > SKETCHED) return null;
  const values = graph.values(node).slice(base, base + rows * columns);
  const box = heatMap(values, rows, columns, scaleOf(node), [top, bottom, left, right], "sketch");
  Object.assign(box.style, { width: `${Math.min(columns * 11, 88)}px`, height: `${Math.min(rows * 11, 88)}px` });
  return box;
}

/** Every term of the sums that the formula shortens, on request. */
function lists(r) {
  const long = [...walk(r.tree)].filter((part) => part.list && part.list.length > (part.op === "sum" ? RULES.shown : 8));
  const worth = (part) => formatNumber(weigh(part, EXACT).value);
  const counted = (part) => `all ${part.list.length} terms of ${part.op === "sum" ? "Σ" : part.op} = ${worth(part)}`;
  const each = new Map(long.map((part) => [counted(part), part])); // a step that is used twice is listed once
  return [...each].slice(0, 6).map(([title, part]) => {
    const box = el("details", { class: "list" }, el("summary", {}, title));
    box.addEventListener("toggle", () => {
      if (box.children.length > 1) return;
      const row = (one, i) => el("tr", {}, el("th", { scope: "row" }, i), el("td", {}, linked(text(one))), el("td", {}, worth(one)));
      const rest = part.list.length - ROWS;
      box.append(el("div", { class: "scroll" }, el("table", {}, el("tbody", {}, part.list.slice(0, ROWS).map(row)))));
      if (rest > 0) box.append(el("small", {}, `and ${rest} more`));
    });
    return box;
  });
}
