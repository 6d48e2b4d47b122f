"""What a notebook shows of a trace, without a server: tensors with words on their axes, and the whole page."""

from html import escape
from typing import Any

from . import html
from .trace_base import RecordedTrace, RecordedView, letter_of

LISTED = 20  # names that a notebook shows at once


class Framed:
    """The page of a trace; a notebook shows it in a frame."""

    def __init__(self, trace: RecordedTrace, title: str, start: str, height: int):
        self.trace, self.title, self.start, self.height = trace, title, start, height

    def _repr_html_(self) -> str:
        return html.frame(self.trace, self.title, start=self.start, height=self.height)

    def __repr__(self) -> str:
        return "<the page of a trace: a notebook shows it; t.to_html(path) writes it>"


def view_html(view: Any) -> str:
    """A part of a trace: the receipt of one cell, or a table, with a way to what the table leaves out."""
    if view.flat.size == 1:
        return view.why()._repr_html_()
    shown, sizes, name = html.table(view), view.shape, view.node.name
    begun = f't["{name}"]' if sizes == view.node.shape else "_"  # _ is what a notebook has shown last
    first, most = ["0"] * max(0, len(sizes) - 2), html.MOST
    more = ["1"] if first and max(sizes[: len(first)]) > 1 else []
    if len(sizes) > 1 and sizes[-2] > most:
        more.append(", ".join([*first, f"{most}:", ":"]))
    if sizes and sizes[-1] > most:
        more.append(", ".join([*first, *[":"] * (len(sizes) > 1), f"{most}:"]))
    if not more:
        return shown
    others = ", ".join(f"<code>{escape(f'{begun}[{one}]')}</code>" for one in more)
    return f"{shown}<p>The rest: {others}; all of it: <code>t.explore()</code></p>"


def trace_html(trace: RecordedTrace) -> str:
    """The names of a trace with symbol, shape and formula: the first of them, and the others to unfold."""
    nodes = [trace.graph.nodes[trace.graph.names[name]] for name in trace.names]
    rows = [
        (n.symbol, name, "×".join(map(str, n.shape)), n.formula) for n, name in zip(nodes, trace.names, strict=True)
    ]
    about = f'{trace.size}; <code>t["name"]</code> shows one, <code>t.explore()</code> all of them'
    rest = rows[LISTED:]
    more = f"<details><summary>… and {len(rest)} more</summary>{_named(rest)}</details>" if rest else ""
    return f"<p>{about}</p>{_named(rows[:LISTED])}{more}"


def _named(rows: list[tuple[str, ...]]) -> str:
    lines = ("<tr>" + "".join(f"<td>{escape(part)}</td>" for part in row) + "</tr>" for row in rows)
    head = "".join(f"<th>{word}</th>" for word in ("symbol", "name", "shape", "formula"))
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def view_in_treescope(view: RecordedView, path: Any, subtree_renderer: Any) -> Any:
    """A tensor as treescope draws arrays, with the letters of its axes and the words along them."""
    import treescope
    from treescope import rendering_parts as parts

    node, values = view.node, view.value
    whole = view.shape == node.shape
    letters = {axis: letter_of(node, axis) or f"axis {axis}" for axis in range(values.ndim)} if whole else {}
    words = {axis: view.trace.words(letters[axis], values.shape[axis], node.name) for axis in letters}
    drawn = treescope.render_array(
        values,
        axis_labels={axis: f"{letter}: {values.shape[axis]}" for axis, letter in letters.items()},
        axis_item_labels=words,
        truncate=True,
    )
    about = f"{node.symbol or node.name} = {node.formula}" if node.formula else node.symbol
    return parts.siblings(parts.text(f"{node.name}  {about}\n"), drawn.treescope_part)
