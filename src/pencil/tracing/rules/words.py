"""What rules are written with: plans as arithmetic, an operation as it was called, and the table of rules."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..graph import Array, Plan


class P(tuple):
    """A plan that can be written as arithmetic."""

    __slots__ = ()

    def __add__(self, other):  # pyright: ignore[reportIncompatibleMethodOverride]
        return P(("add", self, other))

    def __radd__(self, other):
        return P(("add", other, self))

    def __sub__(self, other):
        return P(("sub", self, other))

    def __rsub__(self, other):
        return P(("sub", other, self))

    def __mul__(self, other):  # pyright: ignore[reportIncompatibleMethodOverride]
        return P(("mul", self, other))

    def __rmul__(self, other):  # pyright: ignore[reportIncompatibleMethodOverride]
        return P(("mul", other, self))

    def __truediv__(self, other):
        return P(("div", self, other))

    def __rtruediv__(self, other):
        return P(("div", other, self))

    def __neg__(self):
        return P(("neg", self))


def fn(name: str) -> Callable[..., P]:
    return lambda *args: P((name, *(number(a) if isinstance(a, int | float | complex) else a for a in args)))


def number(value: Any) -> Any:
    """A number as a plan holds it: what JSON cannot write is written as a string."""
    if isinstance(value, complex):
        return P(("num", str(value)))
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int) or math.isfinite(value) else P(("num", str(value)))


def step(name: str, plan: Plan) -> P:
    return P(("is", name, plan))


exp, log, sqrt, erf, tanh, sin, cos = map(fn, ("exp", "log", "sqrt", "erf", "tanh", "sin", "cos"))
total, most, least, square, choose = map(fn, ("sum", "max", "min", "square", "if"))


@dataclass(frozen=True)
class In:
    """A tensor an operation read: its node, shape and dtype."""

    node: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def exact(self) -> bool:
        return not self.dtype.startswith(("float", "bfloat", "complex"))


@dataclass
class Call:
    """One operation as it was called: its arguments by name, tensors as `In`, and the shape and dtype of an output."""

    op: str
    args: dict[str, Any]
    shape: tuple[int, ...]
    dtype: str
    out: int  # which of its outputs
    me: int  # the node this output becomes
    read: Callable[[In], Array]  # the values of a tensor read
    again: Callable[[], Any]  # the same operation on the places of its inputs, for what only moves
    table: Callable[[Array], str]  # keep a table, and give its key
    facts: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.args[name]
        except KeyError:
            raise AttributeError(name) from None

    def get(self, name: str, default: Any = None) -> Any:
        value = self.args.get(name)
        return default if value is None else value

    def broadcast(self, x: Any) -> Any:
        """An operand as broadcasting gives it to each cell; a plain number is itself."""
        if not isinstance(x, In):
            return number(x)
        strides = row_major(x.shape)
        lead = len(self.shape) - len(x.shape)
        along = [0] * lead + [0 if n == 1 else s for n, s in zip(x.shape, strides, strict=True)]
        return P(("ref", x.node, 0, along, []))

    def over(self, x: In, dims: Sequence[int] | int | None, keep: bool = False) -> P:
        """The list of cells of x that an output of a reduction was made of."""
        count = len(x.shape)
        dims = range(count) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
        gone = sorted(d % count for d in dims) if count else []
        strides = row_major(x.shape)
        along = [0 if d in gone else s for d, s in enumerate(strides) if keep or d not in gone]
        return P(("ref", x.node, 0, along, [[strides[d], x.shape[d]] for d in gone] or [[0, 1]]))

    def line(self, x: In, dim: int) -> P:
        """The cells of x along one axis with the output's cell; x and the output have one shape."""
        strides, dim = row_major(x.shape), dim % max(len(x.shape), 1)
        if not x.shape:
            return P(("ref", x.node, 0, [], [[0, 1]]))
        along = [0 if d == dim else s for d, s in enumerate(strides)]
        return P(("ref", x.node, 0, along, [[strides[dim], x.shape[dim]]]))


def row_major(shape: Sequence[int]) -> list[int]:
    strides, run = [], 1
    for n in reversed(shape):
        strides.append(run)
        run *= n
    return strides[::-1]


Rule = Callable[[Call], Plan]
RULES: dict[str, tuple[str, Rule]] = {}  # operation -> kind, rule


def rule(kind: str, *ops: str) -> Callable[[Rule], Rule]:
    def keep(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = (kind, function)
        return function

    return keep
