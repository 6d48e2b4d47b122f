"""Parts of traced tensors as labelled tables."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tracing.receipt import format_number
from ...tracing.trace_base import TraceBase

ROWS, COLUMNS, TABLES = 12, 16, 4  # of one tensor of a worked example
RUN_ROWS, RUN_COLUMNS, RUN_TABLES = 8, 8, 2  # and of a run's, which are larger


@dataclass(frozen=True)
class Grid:
    """Numbers in rows; `where` says which of the leading axes, such as the head."""

    where: str
    rows: tuple[tuple[float, ...], ...]
    down: tuple[str, ...]
    across: tuple[str, ...]


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

    @property
    def meaning(self) -> str:
        return f"{self.ours} = {self.formula}" if self.ours and self.formula else self.ours or self.formula


def found_in(trace: TraceBase, where: str) -> str | None:
    """The first of the names, separated by |, that a trace has; its encoder's where the trace has no other."""
    for one in (word.strip() for word in where.split("|")):
        for tried in (one, f"encoder.{one}"):
            if re.sub(r"\[.*", "", tried) in trace:
                return tried
    return None


def fitting(trace: TraceBase, where: str) -> str:
    """The same name, with an index that is within the tensor's shape."""
    name, index = _parsed(where)
    shape = trace[name].shape
    if index is None:
        return name
    held = [one if isinstance(one, slice) else min(one, side - 1) for one, side in zip(index, shape, strict=False)]
    return f"{name}[{','.join(':' if isinstance(one, slice) else str(one) for one in held)}]"


def shown(trace: TraceBase, source: str, symbol: str, where: str, small: bool = False) -> Shown:
    """A tensor, or the part of it that an index names, as tables of its last two axes."""
    name, index = _parsed(where)
    view = trace[name]
    values = np.asarray(view.value)
    letters = view.node.axes.split()
    if len(letters) != values.ndim:
        letters = [""] * values.ndim
    labels = [trace.words(letter, side) for letter, side in zip(letters, values.shape, strict=True)]
    index = (*(index or ()), *[slice(None)] * (values.ndim - len(index or ())))
    kept = [k for k, one in enumerate(index) if isinstance(one, slice)]
    part, sides = values[index], [labels[k] for k in kept]
    letters = [letters[k] for k in kept]
    if part.ndim > 2 and part.shape[0] == 1 and letters[0] in ("B", ""):
        part, sides, letters = part[0], sides[1:], letters[1:]  # one row of the batch is no axis to read
    grids, cut = _grids(part, letters, sides, (RUN_TABLES, RUN_ROWS, RUN_COLUMNS) if small else (TABLES, ROWS, COLUMNS))
    node = view.node
    axes = tuple(node.axes.split()) if len(node.axes.split()) == len(node.shape) else ()
    return Shown(symbol, source, where, node.symbol, node.formula, tuple(node.shape), axes, grids, cut)


def _grids(
    values: Any, letters: list[str], sides: list[list[str]], most: tuple[int, int, int]
) -> tuple[tuple[Grid, ...], str]:
    """Tables of the last two axes, at most so many and so large, and what was cut."""
    if values.ndim == 0:
        return (Grid("", ((_number(values),),), ("",), ("",)),), ""
    if values.ndim == 1:
        values, letters, sides = values[None], ["", *letters], [[""], *sides]
    tables, rows, columns = most
    places = list(np.ndindex(values.shape[:-2]))
    grids = []
    for at in places[:tables]:
        part = values[at][:rows, :columns]
        where = ", ".join(f"{letters[k] or 'axis'} {sides[k][i]}" for k, i in enumerate(at) if len(sides[k]) > 1)
        grids.append(
            Grid(
                where,
                tuple(tuple(_number(cell) for cell in row) for row in part),
                tuple(sides[-2][:rows]),
                tuple(sides[-1][:columns]),
            )
        )
    parts = [
        f"{most} of {whole} {word}"
        for most, whole, word in (
            (tables, len(places), "tables"),
            (rows, values.shape[-2], "rows"),
            (columns, values.shape[-1], "columns"),
        )
        if whole > most
    ]
    return tuple(grids), ", ".join(parts)


def _number(value: Any) -> float:
    return float(value)


def _parsed(where: str) -> tuple[str, tuple[int | slice, ...] | None]:
    name, _, inside = where.partition("[")
    if not inside:
        return name, None
    words = inside.rstrip("]").split(",")
    return name, tuple(slice(None) if word == ":" else int(word) for word in words)


def written(rows: Sequence[Sequence[float]], digits: int = 4) -> list[list[str]]:
    """Numbers as text."""
    return [[format_number(value, digits) for value in row] for row in rows]
