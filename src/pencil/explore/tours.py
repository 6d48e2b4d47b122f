"""The walks through the documents for a page, with a document's own numbers or with those of the model on screen."""

import shlex
from base64 import b64encode
from typing import Any

from ..learn.walks import Compared, Section, Shown, Source, Walk, documents, walk
from ..learn.walks.data import document
from .requests import Unknown


def listed() -> dict[str, Any]:
    """The documents, and how many sections each has."""
    every = [document(number) for number in documents()]
    return {"tours": [{"number": one.number, "title": one.title, "sections": len(one.sections)} for one in every]}


class Tours:
    """Walks through the documents; those with a document's own numbers are kept, since they never change."""

    def __init__(self):
        self._published: dict[str, Walk] = {}

    def tour(self, number: str, run: Source | None) -> dict[str, Any]:
        tour = self._walk(number, run)
        sections = [_section(one, run is not None) for one in tour.sections]
        return {"number": tour.number, "title": tour.title, "run": tour.run, "sections": sections}

    def figure(self, number: str, run: Source | None, section: int, figure: int) -> dict[str, Any]:
        """One figure, drawn when it is asked for."""
        sections = self._walk(number, run).sections
        if section >= len(sections) or figure >= len(sections[section].figures):
            raise Unknown(f"document {number} has no figure {figure} in section {section}")
        picture = b64encode(sections[section].figures[figure].png()).decode()
        return {"picture": f"data:image/png;base64,{picture}"}

    def _walk(self, number: str, run: Source | None) -> Walk:
        if number not in documents():
            raise Unknown(f"there is no document of that number; known: {', '.join(documents())}")
        if run is not None:
            return walk(number, run)
        if number not in self._published:
            self._published[number] = walk(number)
        return self._published[number]


def _section(section: Section, of_run: bool) -> dict[str, Any]:
    """A section; what a run's numbers are taken from has its address, `cell`, in the model on screen."""
    plain = ("title", "level", "about", "text", "skipped", "lacking")
    lists = ("lines", "missing", "katas", "labs", "commands")
    return {
        **{key: getattr(section, key) for key in plain},
        **{key: list(getattr(section, key)) for key in lists},
        "corrections": [list(one) for one in section.corrections],
        "shown": [{**_shown(one), "cell": one.name if of_run else None} for one in section.shown],
        "compared": [_compared(one) for one in section.compared],
        "claims": [dict(vars(one)) for one in section.claims],
        "unfolded": [
            {**vars(one), "lines": list(one.lines), "cell": shlex.split(one.command)[-1] if of_run else None}
            for one in section.unfolded
        ],
        "figures": [{"caption": one.caption, "command": one.command} for one in section.figures],
    }


def _shown(shown: Shown) -> dict[str, Any]:
    grids = [
        {
            "where": grid.where,
            "rows": [list(row) for row in grid.rows],
            "down": list(grid.down),
            "across": list(grid.across),
        }
        for grid in shown.grids
    ]
    return {
        **vars(shown),
        "meaning": shown.meaning,
        "shape": list(shown.shape),
        "axes": list(shown.axes),
        "grids": grids,
    }


def _compared(compared: Compared) -> dict[str, Any]:
    keys = ("printed", "true", "verdict", "note")
    rows = [[{key: getattr(one, key) for key in keys} for one in row] for row in compared.rows]
    plain = {key: getattr(compared, key) for key in ("name", "formula", "line", "where")}
    return {**plain, "counts": compared.counts, "rows": rows}
