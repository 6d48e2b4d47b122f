"""A trace in the terminal: tensors as tables coloured by value, receipts with their links, two traces compared."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table
from rich.text import Text

from ..console import Console
from .graph import Array, Node
from .receipt import SHOWN, Receipt, format_number
from .trace_base import TraceBase, ViewBase

if TYPE_CHECKING:  # it needs torch, which showing a trace file does not
    from .contributions import Contributions

ROWS, COLUMNS = 40, 16  # of a table in a terminal; more is cut, with a note
PIPED = 512  # and of one in a file
TABLES = 256  # of one tensor


def names(trace: TraceBase, console: Console) -> None:
    """Every name with its symbol, its shape and its formula."""
    table = Table(box=None, pad_edge=False)
    for title in ("name", "symbol", "shape", "axes", "formula"):
        table.add_column(title, overflow="fold")
    for name in trace.names:
        n = trace.graph.nodes[trace.graph.names[name]]
        cells = name, n.symbol, "×".join(map(str, n.shape)) or "1", n.axes, n.formula
        table.add_row(*map(Text, cells))
    console.print(table, highlight=False)


def tables(view: ViewBase, console: Console, digits: int = 4) -> None:
    """A tensor, or a part of one, as tables of its last two axes; as many columns as the terminal is wide."""
    values = view.value
    title = f"{view.node.name}  {_shape(view.node)}  {meaning(view.node)}".rstrip()
    if values.ndim == 0:
        console.print(format_number(values.item(), digits), highlight=False)
        return
    console.print(title, highlight=False, markup=False)
    if not values.size:
        console.print(f"(nothing: {'×'.join(map(str, values.shape))})", highlight=False, markup=False)
        return
    sides = [_along(view, axis) for axis in range(values.ndim)]
    columns = sides[-1][1]
    rows = sides[-2][1] if values.ndim > 1 else [""]
    top = float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0)) or 1.0
    written = np.vectorize(lambda v: format_number(v.item() if hasattr(v, "item") else v, digits), otypes=[object])
    cut, shown, most = False, 0, (ROWS, COLUMNS) if console.is_terminal else (PIPED, PIPED)
    places = np.ndindex(*values.shape[:-2]) if values.ndim > 2 else [()]
    for at in itertools.islice(places, TABLES):
        if at:
            where = ", ".join(f"{sides[i][0]} {sides[i][1][k]}" for i, k in enumerate(at))
            console.print(f"\n{where}", highlight=False, markup=False)
        part = np.atleast_2d(values[at])[: most[0], : most[1]]
        words = written(part)
        count = shown = _fitting(words, rows, columns, console)
        cut |= count < values.shape[-1] or len(part) < len(rows)
        table = Table(box=None, pad_edge=False)
        table.add_column("", style="dim", no_wrap=True)
        for word in columns[:count]:
            table.add_column(Text(word), justify="right", no_wrap=True)
        for i, line in enumerate(part[:, :count]):
            cells = [Text(words[i, j], style=_heat(v.item(), top, view.node.portions)) for j, v in enumerate(line)]
            table.add_row(Text(rows[i]), *cells)
        console.print(table, highlight=False)
    if (count := prod(values.shape[:-2])) > TABLES:
        note = f"({count - TABLES:,} more tables; give an index for a part of {view.node.name})"
        console.print(note, style="dim", highlight=False, markup=False)
    if cut:
        note = f"(cut; the next columns are {view.node.name}[{_next(view, shown)}])"
        console.print(note, style="dim", highlight=False, markup=False)


def _next(view: ViewBase, shown: int) -> str:
    """The index of the columns after those that were shown."""
    at = np.unravel_index(view.flat.reshape(-1)[:: max(1, view.flat.size - 1)], view.node.shape)
    parts = [str(each[0]) if (each == each[0]).all() else ":" for each in at]
    last = len(parts) - 1 - parts[::-1].index(":") if ":" in parts else len(parts) - 1
    begin = int(at[last][0]) + shown
    parts[last] = f"{begin}:{begin + shown}"
    return ",".join(parts)


def _fitting(words: Array, rows: list[str], columns: list[str], console: Console) -> int:
    """How many columns a terminal has room for; a file or a pipe has room for all."""
    if not console.is_terminal:
        return words.shape[1]
    widths = [max(map(len, (*words[:, j], columns[j]))) + 2 for j in range(words.shape[1])]
    width = console.width - max(map(len, rows))
    return max(1, int(np.searchsorted(np.cumsum(widths), width, side="right")))


def _along(view: ViewBase, axis: int) -> tuple[str, list[str]]:
    """An axis of a part: its letter, and a label or an index for each place along it."""
    shape = view.node.shape
    line = np.moveaxis(view.flat, axis, 0).reshape(view.flat.shape[axis], -1)[:, 0]
    index = np.unravel_index(line, shape)
    moving = [k for k, each in enumerate(index) if len(set(each.tolist())) > 1]
    along = moving[0] if moving else len(shape) - view.flat.ndim + axis
    words = view.trace.axis_words(view.node, along)
    return view.node.letter(along) or f"axis {along}", [words[i] for i in index[along].tolist()]


def _heat(value: complex, top: float, probability: bool) -> str:
    """A background: red above 0, blue below, stronger the further away."""
    if isinstance(value, complex) or not np.isfinite(value):
        return "dim"
    share = min(1.0, abs(value) / (1.0 if probability else top))
    fade = round(255 - 165 * share)
    red, green, blue = (255, fade, fade) if value >= 0 else (fade, fade, 255)
    return f"black on rgb({red},{green},{blue})"


def _shape(n: Node) -> str:
    return " ".join(f"{a} {s}" for a, s in zip(n.axes.split(), n.shape, strict=False)) or "×".join(map(str, n.shape))


def meaning(n: Node) -> str:
    return f"{n.symbol} = {n.formula}" if n.formula else n.symbol


def receipt(reasons: Receipt, trace: TraceBase, console: Console) -> None:
    """A receipt, and the values it was made of, each by the name that opens its own."""
    title = f"{reasons.where}   {reasons.meaning}".rstrip()
    console.print(title, style="bold", highlight=False, markup=False)
    if reasons.axes:
        console.print(reasons.axes, style="dim", highlight=False, markup=False)
    for line in reasons.lines():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if not reasons.terms:
        return
    console.print()
    table = Table(box=None, pad_edge=False, show_header=False)
    shown = reasons.terms if len(reasons.terms) <= 2 * SHOWN else (reasons.leading or reasons.terms)[: 2 * SHOWN]
    for term in shown:
        table.add_row(Text(format_number(term.value, reasons.digits), justify="right"), Text(term.where))
    console.print(table, highlight=False)
    if len(shown) < len(reasons.terms):
        console.print(f"… and {len(reasons.terms) - len(shown)} more", style="dim", highlight=False)


def contributions(whole: "Contributions", console: Console, digits: int = 4) -> None:
    """The largest contributions to a number, what the others sum to, and what was held."""
    from .contributions import SHARES  # here, because it loads torch

    console.print(whole.title(digits), style="bold", highlight=False, markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, show_header=False)
    for value, share, label, cell in whole.rows(digits=digits):
        table.add_row(Text(value, justify="right"), Text(share, justify="right"), Text(label), Text(cell, style="dim"))
    console.print(table, highlight=False)
    for line in (SHARES, *whole.held):
        console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Difference:
    """One tensor of two traces: the largest difference, and where it is."""

    name: str
    most: float
    index: tuple[int, ...]
    first: float
    second: float
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None


def differences(a: TraceBase, b: TraceBase) -> Iterator[Difference]:
    """The tensors both traces have, in the order of computing, that are not the same to the last bit."""
    theirs = set(b.names)
    for name in (n for n in a.names if n in theirs):
        x, y = np.asarray(a.array(name)), np.asarray(b.array(name))
        if x.shape != y.shape:
            yield Difference(name, np.inf, (), np.nan, np.nan, (x.shape, y.shape))
            continue
        same = (x == y) | ((x != x) & (y != y))
        if same.all():
            continue
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0, np.abs(x.astype(complex) - y.astype(complex)))
        gap = np.where(np.isnan(gap), np.inf, gap)
        at = tuple(int(i) for i in np.unravel_index(int(np.argmax(gap)), gap.shape))
        yield Difference(name, float(gap.max()), at, x[at].item(), y[at].item())


def only_in(a: TraceBase, b: TraceBase) -> Sequence[str]:
    theirs = set(b.names)
    return [name for name in a.names if name not in theirs]
