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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .functions import FUNCTIONS

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
        if not isinstance(self.plan, list | tuple):
            return False
        head = self.plan[0]
        return (
            head in ("cat", "table") or (head == "ref" and not self.plan[4]) or (head == "list" and self.plan[3] == 1)
        )

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

    def step(self, node: int, flat: Array) -> tuple[Array, Array]:
        """Cells of a moving node, one move back: the nodes and the places there."""
        plan, shape = self.nodes[node].plan, self.nodes[node].shape
        head = plan[0]
        if head == "ref":
            return np.full(flat.shape, plan[1]), places(plan, shape, flat)[..., 0]
        if head == "list":
            return np.full(flat.shape, plan[1]), self.tables[plan[2]].reshape(-1)[flat]
        if head == "cat":
            _, axis, parts = plan
            index = np.unravel_index(flat, shape)[axis]
            which = np.searchsorted([start for start, _ in parts], index, side="right") - 1
            nodes, at = np.zeros_like(flat), np.zeros_like(flat)
            for i, (_, ref) in enumerate(parts):
                mine = which == i
                nodes[mine], at[mine] = ref[1], places(ref, shape, flat[mine])[..., 0]
            return nodes, at
        _, table, sources = plan
        where = self.tables[table].reshape(-1)[flat]
        starts = np.cumsum([0] + [self.nodes[s].size for s in sources])
        which = np.searchsorted(starts, where, side="right") - 1
        return np.asarray(sources)[which], where - starts[which]

    def resolve(self, node: int, flat: Array, stop: Callable[[Node], bool] = lambda n: False) -> tuple[Array, Array]:
        """Where the values of these cells were computed: moves are followed back, up to a node that stops them."""
        flat = np.asarray(flat, dtype=np.int64)
        nodes, at = np.full(flat.shape, node), flat.copy()
        todo = [node]
        while todo:
            one = todo.pop()
            if not self.nodes[one].moves or stop(self.nodes[one]):
                continue
            mine = nodes == one
            nodes[mine], at[mine] = self.step(one, at[mine])
            todo += [int(n) for n in np.unique(nodes[mine])]
        return nodes, at

    def cells(self, node: int, flat: Array) -> Array:
        """The recorded values of cells, in double precision (or complex)."""
        nodes, at = self.resolve(node, flat)
        parts = {int(one): _wide(self.stored(int(one)).reshape(-1)[at[nodes == one]]) for one in np.unique(nodes)}
        out = np.zeros(nodes.shape, np.result_type(float, *[p.dtype for p in parts.values()]))
        for one, values in parts.items():
            out[nodes == one] = values
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
        if isinstance(plan, int | float | bool):
            value = np.asarray([float(plan)])
            return value, np.abs(value) * n.inner  # written in full, used in the tensor's precision
        head = plan[0]
        if head == "num":
            return np.asarray([complex(plan[1]) if "j" in plan[1] else float(plan[1])]), np.zeros(1)
        if head == "axis":
            return np.unravel_index(flat, n.shape)[plan[1]][..., None].astype(float), np.zeros(1)
        if head == "is":
            return self._work(plan[2], n, flat)
        if head == "ref":
            values = self.cells(plan[1], np.clip(places(plan, n.shape, flat), 0, self.nodes[plan[1]].size - 1))
            return values, np.zeros(1)
        if head == "list":
            rows = self.tables[plan[2]].reshape(-1, plan[3])[flat]
            return self.cells(plan[1], rows), np.zeros(1)
        values = [self._work(part, n, flat) for part in plan[1:]]
        return apply(head, values, n.inner, n.outer)


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
    if name in ("add", "sub"):
        return out, es[0] + es[1] + u * size
    if name == "sum":
        terms = np.where(np.isfinite(xs[0]), np.abs(xs[0]), 0)
        count = xs[0].shape[-1]
        total = (terms + es[0]).sum(-1, keepdims=True)
        return out, np.broadcast_to(es[0], xs[0].shape).sum(-1, keepdims=True) + (count - 1) * u * total
    if name in ("argmax", "argmin", "kth_at"):
        # kernels do not agree on which of equal values comes first
        chosen = np.take_along_axis(xs[0], out.astype(int), -1)
        tied = ((xs[0] == chosen) | ((xs[0] != xs[0]) & (chosen != chosen))).sum(-1, keepdims=True) > 1
        return out, np.where(tied, float(xs[0].shape[-1]), 0.0)
    if function.reduces:
        errors = np.broadcast_to(es[0], xs[0].shape)
        scale = errors.sum(-1, keepdims=True) * np.maximum(size, 1) if name == "prod" else errors.max(-1, keepdims=True)
        return out, scale + (u * size * xs[0].shape[-1] if name == "prod" else 0)
    if name == "if":
        chosen = np.where(xs[0] != 0, *np.broadcast_arrays(es[1], es[2]))
        return out, chosen
    if name in ("real", "imag"):
        return out, es[0] + 0 * size
    if name == "rounded":
        return out, es[0] + outer * size
    if name == "mul":
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
    if name == "whole":
        # processors do not agree on what a value that is not finite becomes
        return out, np.where(np.isfinite(xs[0]), moved, np.inf)
    if name == "mod":
        return out, moved + 4 * u * np.abs(xs[0])
    if not function.smooth:
        return out, moved
    # a power of a half-precision value is computed in half precision; erf has this error even near 0
    own = 4 * (outer if name == "pow" else u) * size + (8 * u if name == "erf" else 0)
    return out, moved + own


def _wide(values: Array) -> Array:
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)
