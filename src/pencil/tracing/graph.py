"""What a trace knows: nodes (tensors), how each cell of them was computed (a plan), and the values recorded.

A plan describes how any cell of its node follows from cells of others. It is plain data, so that the terminal, the
page, the spreadsheet and the file all read the same description:

    3.5                                       a number; ("num", "inf") for what JSON cannot write
    ("ref", node, offset, strides, steps)     the cell of `node` at offset + Σ index·stride of its row-major values;
                                              with steps [[step, count], …] a list of cells, the last running fastest
    ("list", node, table, count)              cells whose places are in a table: row r of it for cell r
    ("axis", a)                               the cell's own index along axis a
    ("is", name, plan)                        a named step of the arithmetic
    (function, plan, …)                       one of `functions`

A plan that is a bare ref or list of one cell only moves a value. Two more only move, from several sources:

    ("cat", axis, [[start, ref], …])          the part whose range holds the index along the axis
    ("table", table, [node, …])               places in the sources laid end to end
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .plan_functions import FUNCTIONS

Array = np.ndarray
Plan = Any

# half the distance from 1 to the next float: the largest relative change by rounding
ROUNDING = {
    "float64": 2.0**-53, "complex128": 2.0**-53, "float32": 2.0**-24, "complex64": 2.0**-24,
    "bfloat16": 2.0**-8, "float16": 2.0**-11,
}  # fmt: skip
TINY = 1e-36  # for other dtypes: with a little room for steps that underflow on the way
LEAST = {"float64": 5e-324, "complex128": 5e-324, "float16": 6e-8}  # smaller values cannot be distinguished from 0


@dataclass
class Node:
    """A tensor of the trace. `named`: it has a name of its own, and receipts stop unfolding there."""

    name: str
    op: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    plan: Plan = None
    named: bool = False
    axes: str = ""
    symbol: str = ""
    formula: str = ""
    also: tuple[str, ...] = ()  # other names of the same tensor

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def moves(self) -> bool:
        """Whether its values are another's, only elsewhere."""
        match self.plan:
            case ("cat" | "table", *_) | ("list", _, _, 1) | ("ref", _, _, _, [] | ()):
                return True
        return False

    def letter(self, axis: int) -> str:
        """The letter of an axis, if the tensor has letters."""
        letters = self.axes.split()
        return letters[axis] if len(letters) == len(self.shape) else ""

    def index(self, place: int) -> tuple[int, ...]:
        """The index of a cell, from its place among the row-major values."""
        index: list[int] = []
        for n in reversed(self.shape):
            place, i = divmod(place, n)
            index.append(i)
        return tuple(reversed(index))

    @property
    def portions(self) -> bool:
        """Whether its rows are probabilities, to be shown between 0 and 1."""
        return self.kind == "softmax" or self.formula.startswith("softmax")

    @property
    def inner(self) -> float:
        """The relative rounding of each step inside the operation: half precision is computed in single."""
        return min(ROUNDING.get(self.dtype, 0.0), ROUNDING["float32"])

    @property
    def outer(self) -> float:
        """The relative rounding of what was stored."""
        return ROUNDING.get(self.dtype, 0.0)


class Graph(ABC):
    """Nodes and their values; any cell can be resolved to where its value came from, and computed again."""

    def __init__(self, nodes: Sequence[Node] = (), names: dict[str, int] | None = None):
        self.nodes: list[Node] = list(nodes)
        self.names: dict[str, int] = names or {}
        self.tables: dict[str, Array] = {}

    @abstractmethod
    def stored(self, node: int) -> Array:
        """The recorded values of a node that does not only move."""

    def has(self, node: int) -> bool:
        """Whether the values of a node are here; a part of a trace may lack them."""
        return True

    def behind(self, nodes: Iterable[int]) -> set[int]:
        """These nodes and all that they are computed from."""
        behind = set(nodes)
        todo = list(behind)
        while todo:
            new = set(refs(self.nodes[todo.pop()].plan)) - behind
            behind |= new
            todo += new
        return behind

    def step(self, node: int, flat: Array) -> tuple[Array, Array]:
        """Cells of a moving node, one move back: the nodes and the places there."""
        shape = self.nodes[node].shape
        match self.nodes[node].plan:
            case ("ref", source, *_) as ref:
                return np.full(flat.shape, source), places(ref, shape, flat)[..., 0]
            case "list", source, table, _:
                return np.full(flat.shape, source), self.tables[table].reshape(-1)[flat]
            case "cat", axis, parts:
                index = np.unravel_index(flat, shape)[axis]
                which = np.searchsorted([start for start, _ in parts], index, side="right") - 1
                nodes, at = np.zeros_like(flat), np.zeros_like(flat)
                for i, (_, ref) in enumerate(parts):
                    here = which == i
                    nodes[here], at[here] = ref[1], places(ref, shape, flat[here])[..., 0]
                return nodes, at
            case "table", table, sources:
                where = self.tables[table].reshape(-1)[flat]
                starts = np.cumsum([0] + [self.nodes[source].size for source in sources])
                which = np.searchsorted(starts, where, side="right") - 1
                return np.asarray(sources)[which], where - starts[which]
        raise ValueError(f"{self.nodes[node].name} does not move values")

    def resolve(self, node: int, flat: Array, stop: Callable[[Node], bool] = lambda n: False) -> tuple[Array, Array]:
        """Where the values of these cells were computed: moves are followed back, up to a node that stops them."""
        flat = np.asarray(flat, dtype=np.int64)
        nodes, at = np.full(flat.shape, node), flat.copy()
        todo = [node]
        while todo:
            source = todo.pop()
            if self.nodes[source].moves and not stop(self.nodes[source]):
                here = nodes == source
                nodes[here], at[here] = self.step(source, at[here])
                todo += [int(n) for n in np.unique(nodes[here])]
        return nodes, at

    def cells(self, node: int, flat: Array) -> Array:
        """The recorded values of cells, in double precision (or complex)."""
        nodes, at = self.resolve(node, flat)
        parts = {int(m): self.stored(int(m)).reshape(-1)[at[nodes == m]] for m in np.unique(nodes)}
        out = np.zeros(nodes.shape, complex if any(map(np.iscomplexobj, parts.values())) else float)
        for m, values in parts.items():
            out[nodes == m] = values
        return out

    def value(self, node: int) -> Array:
        """All recorded values of a node, in its shape."""
        n = self.nodes[node]
        if n.moves:
            return self.cells(node, np.arange(n.size)).reshape(n.shape)
        return self.stored(node).reshape(n.shape)

    def work(self, node: int, flat: Array) -> tuple[Array, Array]:
        """Cells computed again from the recorded operands, and how far rounding may have moved what was recorded."""
        n = self.nodes[node]
        flat = np.asarray(flat, dtype=np.int64)
        with np.errstate(all="ignore"):
            if n.moves:
                return self.cells(node, flat), np.zeros(flat.shape)
            value, error = self._work(n.plan, n, flat)
            value = np.broadcast_to(value, (*flat.shape, 1))[..., 0]
            error = np.broadcast_to(error, (*flat.shape, 1))[..., 0]
            return value, error + slack(n, value)

    def _work(self, plan: Plan, n: Node, flat: Array) -> tuple[Array, Array]:
        match plan:
            case int() | float():
                value = np.asarray([float(plan)])
                return value, np.abs(value) * n.inner  # written in full, used in the tensor's precision
            case "num", *_:
                return np.asarray([number_in(plan)]), np.zeros(1)
            case "axis", axis:
                return np.unravel_index(flat, n.shape)[axis][..., None].astype(float), np.zeros(1)
            case "is", _, part:
                return self._work(part, n, flat)
            case "ref" | "list", node, *_:
                return self.cells(node, self.operands(plan, n, flat)), np.zeros(1)
        return apply(plan[0], [self._work(part, n, flat) for part in plan[1:]], n.inner, n.outer)

    def operands(self, plan: Plan, n: Node, flat: Array) -> Array:
        """The places that a ref or a list in the plan of `n` reads, a row for each of these cells.

        A cell that a choice does not take may not exist: its place is clipped to one that does.
        """
        at = places(plan, n.shape, flat) if plan[0] == "ref" else self.tables[plan[2]].reshape(-1, plan[3])[flat]
        return np.clip(at, 0, self.nodes[plan[1]].size - 1)


def leaves(plan: Plan) -> Iterator[Plan]:
    """The parts of a plan that are no functions of others: refs, lists, moves, indices, numbers as text."""
    if isinstance(plan, list | tuple):
        if plan[0] in ("ref", "list", "cat", "table", "num", "axis", "block"):
            yield plan
        else:
            for part in plan[1:]:
                yield from leaves(part)


def refs(plan: Plan) -> Iterator[int]:
    """The nodes a plan reads."""
    for leaf in leaves(plan):
        match leaf:
            case (("ref" | "list"), node, *_):
                yield node
            case "cat", _, parts:
                yield from (ref[1] for _, ref in parts)
            case "table", _, nodes:
                yield from nodes


def tables(plan: Plan) -> Iterator[str]:
    """The tables a plan reads."""
    yield from (leaf[2 if leaf[0] == "list" else 1] for leaf in leaves(plan) if leaf[0] in ("list", "table"))


def reduces(plan: Plan) -> bool:
    """Whether a plan sums or compares a list of cells."""
    if not isinstance(plan, list | tuple) or plan[0] not in (*FUNCTIONS, "is"):
        return False
    return (plan[0] != "is" and FUNCTIONS[plan[0]].reduces) or any(map(reduces, plan[1:]))


def number_in(plan: Plan) -> complex | float:
    """The number of a plan that has it as text."""
    return complex(plan[1]) if "j" in plan[1] else float(plan[1])


def places(ref: Plan, shape: Sequence[int], flat: Array) -> Array:
    """The places a ref points to, for cells given by their place: one more axis, of as many as it lists."""
    _, _, offset, strides, steps = ref
    at = np.full(flat.shape, offset, np.int64)
    if shape:
        for index, stride in zip(np.unravel_index(flat, shape), strides, strict=True):
            if stride:
                at = at + index * stride
    inner = np.zeros(1, np.int64)
    for step, count in steps:
        inner = (inner[:, None] + step * np.arange(count)).reshape(-1)
    return at[..., None] + inner


def slack(node: Node, value: Any) -> Any:
    """How much storing a value may change it: its last bit, or all of one too small to be distinguished from 0."""
    finite = np.where(np.isfinite(value), np.abs(value), 0)
    floor = LEAST.get(node.dtype, TINY) if node.outer else 0.0
    return finite * node.outer + floor


def apply(name: str, values: Sequence[tuple[Any, Any]], u: float, outer: float) -> tuple[Any, Any]:
    """A function's value, and the most it can be off: what its arguments' errors do to it, and its own rounding."""
    function = FUNCTIONS[name]
    xs, es = [v for v, _ in values], [e for _, e in values]
    out = function.of(*xs)
    if np.asarray(out).dtype == bool:
        out = out.astype(float)
    size = np.where(np.isfinite(out), np.abs(out), 0)
    match name:
        case "add" | "sub":
            return out, es[0] + es[1] + u * size
        case "sum":
            terms = np.where(np.isfinite(xs[0]), np.abs(xs[0]), 0)
            total = (terms + es[0]).sum(-1, keepdims=True)
            errors = np.broadcast_to(es[0], xs[0].shape).sum(-1, keepdims=True)
            if len(xs) > 1:  # adding 0 rounds nothing
                return out, errors + np.maximum((terms != 0).sum(-1, keepdims=True) - 1, 0) * xs[1] * total
            return out, errors + (xs[0].shape[-1] - 1) * u * total
        case "argmax" | "argmin" | "kth_at":
            # kernels do not agree on which of equal values comes first
            picked = np.take_along_axis(xs[0], out.astype(int), -1)
            tied = ((xs[0] == picked) | ((xs[0] != xs[0]) & (picked != picked))).sum(-1, keepdims=True) > 1
            return out, np.where(tied, float(xs[0].shape[-1]), 0.0)
        case "prod":
            errors = np.broadcast_to(es[0], xs[0].shape).sum(-1, keepdims=True)
            return out, errors * np.maximum(size, 1) + (xs[1] if len(xs) > 1 else u) * size * xs[0].shape[-1]
        case _ if function.reduces:
            return out, np.broadcast_to(es[0], xs[0].shape).max(-1, keepdims=True)
        case "if":
            return out, np.where(xs[0] != 0, *np.broadcast_arrays(es[1], es[2]))
        case "real" | "imag":
            return out, es[0] + 0 * size
        case "rounded":
            return out, es[0] + outer * size
        case "multiplied":
            return out, es[0] + 2 * u * size
        case "double":
            return out, u * size
        case "mul":
            a, b = (np.where(np.isfinite(x), np.abs(x), 0) for x in xs)
            return out, a * es[1] + b * es[0] + es[0] * es[1] + u * size
    # any other function: how far it moves when its arguments move by their errors
    moved = np.zeros_like(size)
    for i, e in enumerate(es):
        if np.any(e):
            for sign in (1, -1):
                other = function.of(*[x + sign * e if j == i else x for j, x in enumerate(xs)])
                step = np.abs(other - out)
                moved = np.maximum(moved, np.where(np.isfinite(step), step, 0))
    match name:
        case "whole":
            # processors do not agree on what a value that is not finite becomes
            return out, np.where(np.isfinite(xs[0]), moved, np.inf)
        case "mod":
            return out, moved + 4 * u * np.abs(xs[0])
        case _ if not function.smooth:
            return out, moved
    # a power of a half-precision value is computed in half precision; erf has this error even near 0
    own = 4 * (outer if name == "pow" else u) * size + (8 * u if name == "erf" else 0)
    return out, moved + own
