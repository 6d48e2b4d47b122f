// Arithmetic as a person would write it: the twin of tracing/simplify.py, which is the reference. The same value with
// fewer signs; receipts are evaluated as recorded, and only written in this form.

const OPPOSITE = { lt: "ge", ge: "lt", le: "gt", gt: "le", eq: "ne", ne: "eq" };
const TRUTH = [...Object.keys(OPPOSITE), "and", "or", "xor", "not"];
const made = (op, ...args) => ({ op, about: RULES.functions[op], args });
const whole = (value) => ({ op: "num", value, exact: true });
const is = (tree, value) => tree.op === "num" && tree.value === value;

/** A tree of node `n` in the form it is written in; terms of a list stay as they are until they are written. */
function simplified(tree, n) {
  const { op } = tree;
  if (op === "num" || op === "cell" || op === "is") return tree;
  if (op === "made") return simplified(tree.of, tree.node);
  if (op === "picked") return simplified(tree.of, n);
  if (op === "rounded") return simplified(tree.args[0], n);
  if (tree.list) return { ...tree, list: tree.list.map((of) => ({ op: "made", node: n, of })) };
  return rewritten(op, tree.args.map((part) => simplified(part, n)), n);
}

/** One operation on operands that are in their written form already. */
function rewritten(op, parts, n) {
  const [a, b] = parts;
  if ((op === "add" || op === "mul") && indices(parts, n, op)) return whole(op === "add" ? a.value + b.value : a.value * b.value);
  if (op === "add" && is(b, 0)) return a;
  if (op === "neg") return negated(a) ?? made("neg", a);
  if (op === "sub" && b.op === "neg") return made("add", a, b.args[0]);
  if (op === "pow" && a.op === "num") {
    const power = negated(b);
    if (power) return made("div", whole(1), made("pow", a, power));
  }
  if (op === "mul") {
    if (inverse(a)) return numerated(a, b);
    if (inverse(b)) return numerated(b, a);
    for (const i of [0, 1]) {
      if (parts[i].op === "neg") return made("neg", rewritten("mul", parts.with(i, parts[i].args[0]), n));
    }
    if (is(a, 1) && !ofIndices(b)) return b;
    if (b.op === "cell" && a.op !== "num" && ofIndices(a)) return made("mul", b, a);
  }
  if (op === "div" && a.op === "neg") return made("neg", made("div", a.args[0], b));
  if (op === "not" && a.op in OPPOSITE && a.args.every((part) => part.op === "num")) return made(OPPOSITE[a.op], ...a.args);
  if (op === "ne" && is(b, 0) && TRUTH.includes(a.op)) return a;
  return made(op, ...parts);
}

/** Whether this is arithmetic with indices; the step of a range is kept, because it means something: 2·i. */
function indices(parts, n, op) {
  if (!parts.every((part) => part.op === "num" && Number.isInteger(part.value))) return false;
  return n.op === "arange" ? op === "add" : /int/.test(n.dtype);
}

const ofIndices = (tree) => tree.op === "num" || Boolean(tree.args && !tree.list && tree.args.every(ofIndices));

/** What a tree is the negative of, if it is written with a minus; else null. */
function negated(tree) {
  if (tree.op === "neg") return tree.args[0];
  if (tree.op === "num" && tree.value < 0) return { ...tree, value: -tree.value };
  const first = tree.op === "mul" || tree.op === "div" ? negated(tree.args[0]) : null;
  return first && made(tree.op, first, tree.args[1]);
}

/** Whether a tree is one over something: 1/x, 1/x/y. */
const inverse = (tree) => tree.op === "div" && (is(tree.args[0], 1) || inverse(tree.args[0]));
const numerated = ({ args: [top, under] }, a) => made("div", is(top, 1) ? a : numerated(top, a), under);
