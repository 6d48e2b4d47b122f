"""An opened trace: every cell has its receipt, and the whole can be written as a file, a page or a spreadsheet."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..config import UserError
from . import file, html, xlsx
from .receipt import Receipt, receipt
from .subgraph import extract
from .trace_base import TraceBase, ViewBase

LISTED = 20  # names that a notebook shows at once


class Framed:
    """The page of a trace; a notebook shows it in a frame."""

    def __init__(self, trace: TraceBase, title: str, start: str, height: int):
        self.trace, self.title, self.start, self.height = trace, title, start, height

    def _repr_html_(self) -> str:
        return html.frame(self.trace, self.title, start=self.start, height=self.height)

    def __repr__(self) -> str:
        return "<the page of a trace: a notebook shows it; t.to_html(path) writes it>"


class View(ViewBase):
    """A tensor of a trace, or a part of it; `.why()` is the receipt of one cell."""

    def _repr_html_(self) -> str:
        """A part of a trace: the receipt of one cell, or a table, with a way to what the table leaves out."""
        if self.flat.size == 1:
            return self.why()._repr_html_()
        shown, sizes, name = html.table(self), self.shape, self.node.name
        begun = f't["{name}"]' if sizes == self.node.shape else "_"  # _ is what a notebook has shown last
        first, most = ["0"] * max(0, len(sizes) - 2), html.MOST
        more = ["1"] if first and max(sizes[: len(first)]) > 1 else []
        if len(sizes) > 1 and sizes[-2] > most:
            more.append(", ".join([*first, f"{most}:", ":"]))
        if sizes and sizes[-1] > most:
            more.append(", ".join([*first, *[":"] * (len(sizes) > 1), f"{most}:"]))
        if not more:
            return shown
        others = ", ".join(f"<code>{escape(f'{begun}[{index}]')}</code>" for index in more)
        return f"{shown}<p>The rest: {others}; all of it: <code>t.explore()</code></p>"

    def __treescope_repr__(self, path: Any, subtree_renderer: Any) -> Any:
        """A tensor as treescope draws arrays, with the letters of its axes and the words along them."""
        import treescope
        from treescope import rendering_parts as parts

        node, values = self.node, self.value
        whole = self.shape == node.shape
        letters = {axis: node.letter(axis) or f"axis {axis}" for axis in range(values.ndim)} if whole else {}
        words = {axis: self.trace.axis_words(node, axis) for axis in letters}
        drawn = treescope.render_array(
            values,
            axis_labels={axis: f"{letter}: {values.shape[axis]}" for axis, letter in letters.items()},
            axis_item_labels=words,
            truncate=True,
        )
        about = f"{node.symbol or node.name} = {node.formula}" if node.formula else node.symbol
        return parts.siblings(parts.text(f"{node.name}  {about}\n"), drawn.treescope_part)

    def why(self, digits: int = 4) -> Receipt:
        """The receipt of this cell, written to this many significant digits."""
        if self.flat.size != 1:
            raise UserError(
                f"a receipt is of one cell, and {self.node.name} here has {self.flat.size}; "
                f"its shape is {'×'.join(map(str, self.node.shape))}: choose one, as {self.node.name}"
                f"[{','.join('0' * len(self.node.shape))}]"
            )
        return receipt(self.trace, self.id, int(self.flat.reshape(-1)[0]), digits)


class Trace(TraceBase):
    """What a run computed: `t[name]` is a tensor, `t[name][index]` a cell or a part, `.why()` its receipt."""

    def view(self, node: int) -> View:
        return View(self, node)

    def _repr_html_(self) -> str:
        """The names of the trace with symbol, shape and formula: the first of them, and the others to unfold."""
        nodes = [self.graph.nodes[self.graph.names[name]] for name in self.names]
        rows = [
            (n.symbol, name, "×".join(map(str, n.shape)), n.formula) for n, name in zip(nodes, self.names, strict=True)
        ]
        about = f'{self.size}; <code>t["name"]</code> shows one, <code>t.explore()</code> all of them'
        rest = rows[LISTED:]
        more = f"<details><summary>… and {len(rest)} more</summary>{_named(rest)}</details>" if rest else ""
        return f"<p>{about}</p>{_named(rows[:LISTED])}{more}"

    def explore(self, title: str = "", start: str = "", height: int = 720) -> Framed:
        """The page of the trace, shown inside a notebook; `start` is the cell it opens on."""
        return Framed(self, title, start, height)

    def contributions(self, cell: str, against: str | int | None = None) -> Any:
        """What each part of the model added to one number; a trace that was read from a file has no model for it."""
        raise UserError(
            "this trace was read from a file, and contributions need its model: trace the run again, "
            "t = pencil.trace(run, …), or name the run instead of the file"
        )

    def save(self, path: str | Path) -> None:
        """Write a trace file, to be opened without the model."""
        file.write(self, path)

    def to_html(self, path: str | Path, title: str = "", of: Sequence[str] = ()) -> None:
        """Write one page that opens anywhere: click a number and its arithmetic unfolds. `of`: as for `to_xlsx`.

        Of a run it has the views of `pencil explore`, at most 5 MB, and names what it leaves out.
        """
        html.write(extract(self, of)[0] if of else self, Path(path), title)

    def to_xlsx(self, path: str | Path, of: Sequence[str] = ()) -> None:
        """Write a spreadsheet of live formulas; exact when the model was traced in double precision.

        `of` chooses tensors, ["blocks.1.*"], or parts of them, ["blocks.1.attn.*[0,head 2]"]; what these read from
        elsewhere is written as values.
        """
        xlsx.write(self, Path(path), of)


def read(path: str | Path, warn: Callable[[str], None] | None = None) -> Trace:
    """Open a trace file; anything else is refused by name. `warn` is called with what cannot be checked."""
    graph, labels, facts = file.load(path, **({} if warn is None else {"warn": warn}))
    trace = Trace(graph, labels, facts)
    trace.alone = "they need the model, and a trace file has its numbers alone; pencil trace RUN --html writes them"
    return trace


def _named(rows: list[tuple[str, ...]]) -> str:
    lines = ("<tr>" + "".join(f"<td>{escape(part)}</td>" for part in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{word}</th>" for word in ("symbol", "name", "shape", "formula"))
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"
