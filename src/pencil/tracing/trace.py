"""An opened trace: every cell has its receipt, and the whole can be written as a file, a page or a spreadsheet."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..config import UserError
from . import file, html, notebook, xlsx
from .part import extract
from .receipt import Receipt, receipt
from .trace_base import RecordedTrace, RecordedView


class View(RecordedView):
    """A tensor of a trace, or a part of it; `.why()` is the receipt of one cell."""

    def _repr_html_(self) -> str:
        return notebook.view_html(self)

    def __treescope_repr__(self, path: Any, subtree_renderer: Any) -> Any:
        return notebook.view_in_treescope(self, path, subtree_renderer)

    def why(self, digits: int = 4) -> Receipt:
        """The receipt of this cell, written to this many significant digits."""
        if self.flat.size != 1:
            raise UserError(
                f"a receipt is of one cell, and {self.node.name} here has {self.flat.size}; "
                f"its shape is {'×'.join(map(str, self.node.shape))}: choose one, as {self.node.name}"
                f"[{','.join('0' * len(self.node.shape))}]"
            )
        return receipt(self.trace, self.id, int(self.flat.reshape(-1)[0]), digits)


class Trace(RecordedTrace):
    """What a run computed: `t[name]` is a tensor, `t[name][index]` a cell or a part, `.why()` its receipt."""

    def view(self, node: int) -> View:
        return View(self, node)

    def _repr_html_(self) -> str:
        return notebook.trace_html(self)

    def explore(self, title: str = "", start: str = "", height: int = 720) -> notebook.Framed:
        """The page of the trace, shown inside a notebook; `start` is the cell it opens on."""
        return notebook.Framed(self, title, start, height)

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
    found = Trace(graph, labels, facts)
    found.alone = "they need the model, and a trace file has its numbers alone; pencil trace RUN --html writes them"
    return found
