"""A tensor as tables of numbers, cut to fit, and which of its cells a walk has shown before."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tracing.receipt import format_number
from ...tracing.trace_base import TraceBase

Limits = tuple[int, int, int]  # tables, rows, columns
LIMITS: Limits = (4, 12, 16)  # of one tensor of a worked example
RUN_LIMITS: Limits = (2, 8, 8)  # and of a run's, which are larger
MASKED = "·"  # in place of a weight that is 0 because a mask hides the key
Index = tuple[int | slice, ...]


@dataclass(frozen=True)
class Grid:
    """Numbers in rows; `where` says which of the leading axes, such as the head."""

    where: str
    rows: tuple[tuple[float, ...], ...]
    down: tuple[str, ...]
    across: tuple[str, ...]
    masked: frozenset[tuple[int, int]] = frozenset()  # row and column of weights that a mask makes 0

    def written(self, digits: int = 4) -> list[list[str]]:
        """The numbers as text."""
        return [
            [MASKED if (i, j) in self.masked else format_number(value, digits) for j, value in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]


@dataclass(frozen=True)
class Shown:
    """A tensor, or a part of it: the document's symbol, our name, symbol and formula, and its numbers."""

    symbol: str
    source: str  # what it is a tensor of: example:NAME, or a run
    name: str
    ours: str
    formula: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    grids: tuple[Grid, ...]
    cut: str  # what is not shown
    again: str = ""  # where the walk has shown these numbers before

    @property
    def meaning(self) -> str:
        return f"{self.ours} = {self.formula}" if self.ours and self.formula else self.ours or self.formula


def parsed(where: str) -> tuple[str, tuple[int | slice, ...] | None]:
    """The name and the index of an address."""
    name, _, inside = where.partition("[")
    if not inside:
        return name, None
    words = inside.rstrip("]").split(",")
    return name, tuple(slice(None) if word == ":" else int(word) for word in words)


def fitting(trace: TraceBase, where: str) -> str:
    """The same name, with an index that is within the tensor's shape."""
    name, index = parsed(where)
    shape = trace[name].shape
    if index is None:
        return name
    inside = [one if isinstance(one, slice) else min(one, side - 1) for one, side in zip(index, shape, strict=False)]
    return f"{name}[{','.join(':' if isinstance(one, slice) else str(one) for one in inside)}]"


def shown(trace: TraceBase, source: str, symbol: str, where: str, limits: Limits = LIMITS) -> Shown:
    """A tensor, or the part of it that an index names, as tables of its last two axes."""
    name, index = parsed(where)
    node = trace[name].node
    values = np.asarray(trace[name].value)
    letters = node.axes.split()
    if len(letters) != values.ndim:
        letters = [""] * values.ndim
    index, axes = _index(index, letters, values.shape)
    labels = [trace.axis_words(node, axis) for axis in axes]
    hidden = masked(trace, name)[index]
    grids, cut = _grids(values[index], hidden, [letters[axis] for axis in axes], labels, limits)
    return Shown(
        symbol, source, where, node.symbol, node.formula, tuple(node.shape), tuple(filter(None, letters)), grids, cut
    )


def masked(trace: TraceBase, name: str) -> Any:
    """Which numbers of an attention pattern are 0 because the score of the key is −∞."""
    values, scores = np.asarray(trace[name].value), f"{name.removesuffix('pattern')}scores"
    if not name.endswith("pattern") or scores not in trace:
        return np.zeros(values.shape, dtype=bool)
    return np.isneginf(np.asarray(trace[scores].value)) & (values == 0)


def _index(index: Index | None, letters: Sequence[str], shape: Sequence[int]) -> tuple[Index, list[int]]:
    """An index with every axis of the tensor, and the axes that are left; one row of a batch is no axis to read."""
    whole = (*(index or ()), *[slice(None)] * (len(shape) - len(index or ())))
    axes = [axis for axis, one in enumerate(whole) if isinstance(one, slice)]
    if len(axes) > 2 and shape[axes[0]] == 1 and letters[axes[0]] in ("B", ""):
        whole = (*whole[: axes[0]], 0, *whole[axes[0] + 1 :])
        axes = axes[1:]
    return whole, axes


def _grids(
    values: Any, hidden: Any, letters: list[str], sides: list[list[str]], limits: Limits
) -> tuple[tuple[Grid, ...], str]:
    """Tables of the last two axes, at most so many and so large, and what was cut."""
    if values.ndim == 0:
        return (Grid("", ((float(values),),), ("",), ("",)),), ""
    if values.ndim == 1:
        values, hidden, letters, sides = values[None], hidden[None], ["", *letters], [[""], *sides]
    tables, rows, columns = limits
    grids = []
    for at, part in _cut(values, limits):
        where = ", ".join(f"{letters[k] or 'axis'} {sides[k][i]}" for k, i in enumerate(at) if len(sides[k]) > 1)
        grids.append(
            Grid(
                where,
                tuple(tuple(map(float, row)) for row in part),
                tuple(sides[-2][:rows]),
                tuple(sides[-1][:columns]),
                frozenset((int(i), int(j)) for i, j in np.argwhere(hidden[at][:rows, :columns])),
            )
        )
    parts = [
        f"{most} of {whole} {word}"
        for most, whole, word in (
            (tables, int(np.prod(values.shape[:-2])), "tables"),
            (rows, values.shape[-2], "rows"),
            (columns, values.shape[-1], "columns"),
        )
        if whole > most
    ]
    return tuple(grids), ", ".join(parts)


def _cut(values: Any, limits: Limits) -> Iterator[tuple[tuple[int, ...], Any]]:
    """The tables that are shown, each with the indices of the leading axes."""
    tables, rows, columns = limits
    for at in list(np.ndindex(values.shape[:-2]))[:tables]:
        yield at, values[at][:rows, :columns]


class Earlier:
    """Which cells the steps of a walk have shown, so that each table is drawn once."""

    def __init__(self):
        self._steps: dict[tuple[str, str], np.ndarray] = {}  # of each cell, 1 + the index in `_places`; 0 is not shown
        self._places: list[tuple[int, str]] = []

    def add(self, one: Shown, step: int, limits: Limits) -> str:
        """Note that a step shows these cells; where all of them were shown before, which step did, in words."""
        name, index = parsed(one.name)
        steps = self._steps.setdefault((one.source, name), np.zeros(one.shape, dtype=int))
        letters = one.axes if len(one.axes) == len(one.shape) else ("",) * len(one.shape)
        cells = np.atleast_2d(steps[_index(index, letters, one.shape)[0]])  # a view: what is set in it is kept
        if not isinstance(cells.base, np.ndarray):
            return ""  # a single cell
        parts = [part for _, part in _cut(cells, limits)]
        before = sorted({int(place) for part in parts for place in np.unique(part)})
        if before and before[0]:
            return "; ".join(f"step {at}: {symbol}" for at, symbol in (self._places[place - 1] for place in before))
        self._places.append((step, one.symbol))
        for part in parts:
            part[part == 0] = len(self._places)
        return ""


def tensor_of(where: str) -> str:
    """The first of the names separated by |, without its index."""
    return re.split(r"[|\[]", where)[0].strip()
