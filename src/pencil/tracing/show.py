"""A trace in the terminal: tensors as tables coloured by value, receipts with their links, two traces compared."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .graph import Array, Node
from .opened import Trace, View
from .receipt import SHOWN, Receipt, say

ROWS, COLUMNS = 40, 16  # of a table; more is cut, and said


def names(trace: Trace, console: Console) -> None:
    """Every name with its symbol, its shape and its formula."""
    table = Table(box=None, pad_edge=False)
    for title in ("name", "symbol", "shape", "axes", "formula"):
        table.add_column(title, overflow="fold")
    for name in trace.names:
        n = trace.graph.nodes[trace.graph.names[name]]
        cells = name, n.symbol, "×".join(map(str, n.shape)) or "1", n.axes, n.formula
        table.add_row(*map(Text, cells))
    console.print(table, highlight=False)


def tables(view: View, console: Console, digits: int = 4) -> None:
    """A tensor, or a part of one, as tables of its last two axes."""
    values, flat = view.value, view.flat
    axes = _axes(view)
    if values.ndim == 0:
        console.print(say(values.item(), digits), highlight=False)
        return
    grid = values.reshape(-1, *values.shape[-2:]) if values.ndim > 1 else values[None, None]
    lead = list(np.ndindex(*values.shape[:-2])) if values.ndim > 2 else [()]
    top = float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0)) or 1.0
    probability = view.node.kind == "softmax"
    columns = _words(view.trace, axes[-1] if axes else "", values.shape[-1])
    rows = _words(view.trace, axes[-2], values.shape[-2]) if values.ndim > 1 and len(axes) > 1 else None
    console.print(
        f"{view.node.name}  {_shape(view.node)}  {meaning(view.node)}".rstrip(), highlight=False, markup=False
    )
    for at, part in zip(lead, grid, strict=True):
        if at:
            where = ", ".join(f"{axes[i] if i < len(axes) else 'axis ' + str(i)} {k}" for i, k in enumerate(at))
            console.print(f"\n{where}", highlight=False, markup=False)
        console.print(_table(part, rows, columns, top, probability, digits, console), highlight=False)
    if values.shape[-1] > COLUMNS or (values.ndim > 1 and values.shape[-2] > ROWS):
        part = ",".join(["0"] * (flat.ndim - 1) + [f"{COLUMNS}:{2 * COLUMNS}"])
        cut = f"(the first {ROWS} rows and {COLUMNS} columns; a part is named by its index: {view.node.name}[{part}])"
        console.print(cut, highlight=False, markup=False)


def _table(
    part: Array,
    rows: list[str] | None,
    columns: list[str],
    top: float,
    probability: bool,
    digits: int,
    console: Console,
) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("", style="dim", no_wrap=True)
    for word in columns[:COLUMNS]:
        table.add_column(Text(word), justify="right", no_wrap=True)
    for i, line in enumerate(part[:ROWS]):
        cells = [Text(say(v.item(), digits), style=_heat(v.item(), top, probability)) for v in line[:COLUMNS]]
        table.add_row(rows[i] if rows else "", *cells)
    return table


def _heat(value: complex, top: float, probability: bool) -> str:
    """A background: red above nothing, blue below, stronger the further away."""
    if isinstance(value, complex) or not np.isfinite(value):
        return "dim"
    share = min(1.0, abs(value) / (1.0 if probability else top))
    fade = round(255 - 165 * share)
    red, green, blue = (255, fade, fade) if value >= 0 else (fade, fade, 255)
    return f"black on rgb({red},{green},{blue})"


def _axes(view: View) -> list[str]:
    """The letters of the axes that are left of a part."""
    letters = view.node.axes.split()
    if len(letters) != len(view.node.shape):
        return [f"axis {i}" for i in range(view.flat.ndim)]
    gone = len(letters) - view.flat.ndim
    return letters[gone:] if gone else letters


def _words(trace: Trace, letter: str, count: int) -> list[str]:
    found = trace.labels.get(letter, [])
    return list(found) if len(found) == count else [str(i) for i in range(count)]


def _shape(n: Node) -> str:
    return " ".join(f"{a} {s}" for a, s in zip(n.axes.split(), n.shape, strict=False)) or "×".join(map(str, n.shape))


def meaning(n: Node) -> str:
    return f"{n.symbol} = {n.formula}" if n.symbol else ""


def receipt(found: Receipt, trace: Trace, console: Console) -> None:
    """A receipt, and what it was made of, each by the name that asks for its own."""
    n = trace.graph.nodes[trace.graph.names[found.name]]
    where = []
    for letter, i in zip(n.axes.split(), found.index, strict=False):
        words = trace.labels.get(letter, [])
        size = n.shape[len(where)]
        where.append(f"{letter} {words[i]!r}" if len(words) == size else f"{letter} {i}")
    title = f"{found.where}   {found.meaning}".rstrip()
    console.print(title, style="bold", highlight=False, markup=False)
    if where:
        console.print("  ".join(where), style="dim", highlight=False, markup=False)
    for line in found.lines():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if not found.terms:
        return
    console.print()
    table = Table(box=None, pad_edge=False, show_header=False)
    shown = found.terms if len(found.terms) <= 2 * SHOWN else sorted(found.terms, key=lambda t: -abs(t.value))[:SHOWN]
    for term in shown:
        table.add_row(Text(say(term.value, found.digits), justify="right"), Text(term.where))
    console.print(table, highlight=False)
    if len(shown) < len(found.terms):
        console.print(f"… and {len(found.terms) - len(shown)} more", style="dim", highlight=False)


@dataclass(frozen=True)
class Difference:
    """One tensor of two traces: how far apart, and where most."""

    name: str
    most: float
    index: tuple[int, ...]
    first: float
    second: float
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None


def differences(a: Trace, b: Trace) -> Iterator[Difference]:
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


def only_in(a: Trace, b: Trace) -> Sequence[str]:
    theirs = set(b.names)
    return [name for name in a.names if name not in theirs]
