"""The walks as they are written down: one TOML file a document, one [[section]] a heading, in the document's order."""

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from ...config import UserError

FOLDER = Path(__file__).parents[2] / "examples" / "walks"


@dataclass(frozen=True)
class Part:
    """A tensor that a section is about: the document's symbol, our name for it, and its name in a run.

    A name may have an index, as in attn.q[0,0]; several names in a run, separated by |, are tried in turn, and none
    means that only the worked example has it.
    """

    symbol: str
    name: str
    run: str


@dataclass(frozen=True)
class Figure:
    """A figure of the document: a drawing that `pencil figures` makes, or a tensor drawn; and the tensor of a run."""

    caption: str
    of: str = ""
    run: str = ""
    query: str = ""
    drawing: str = ""


@dataclass(frozen=True)
class Entry:
    """A section as its file describes it."""

    heading: str
    lines: tuple[int, int]  # from the heading to the line before the next one; the first section begins the document
    text: str = ""  # what the document does there
    of_example: str = ""  # what the numbers are of; left out for a run
    about: str = ""  # tells headings apart that read the same
    skipped: str = ""  # why the section is not about transformers
    example: str = ""
    show: tuple[Part, ...] = ()
    cells: tuple[str, ...] = ()  # whose arithmetic is unfolded
    run_cells: tuple[str, ...] = ()
    working: tuple[str, ...] = ()  # exercises whose working, with the document's numbers, is unfolded
    beside: tuple[tuple[str, str], ...] = ()  # a step of the check file, and the tensor that has its numbers
    katas: tuple[str, ...] = ()
    labs: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    corrections: tuple[tuple[int | str, str], ...] = ()
    commands: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # tensors without which a run has nothing of the section
    lacks: str = ""  # what a model lacks that does not have them

    @property
    def title(self) -> str:
        """The heading without the marks of its level."""
        return self.heading.lstrip("#").strip()

    @property
    def level(self) -> int:
        return len(self.heading) - len(self.heading.lstrip("#"))


@dataclass(frozen=True)
class Document:
    """One document: its title, the check file with its printed numbers, and its sections."""

    number: str
    title: str
    check: str
    sections: tuple[Entry, ...]


def documents() -> list[str]:
    """The numbers of the documents that can be walked."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@cache
def document(number: str) -> Document:
    """The walk of one document, as it is written down."""
    known = documents()
    if number not in known:
        listed = ", ".join(f"{one} ({document(one).title})" for one in known)
        raise UserError(f"there is no document {number} to walk; known: {listed}")
    table = tomllib.loads((FOLDER / f"{number}.toml").read_text("utf-8"))
    usual = table.get("example", "")
    return Document(
        number, table["title"], table["check"], tuple(_entry(section, usual) for section in table["section"])
    )


def _entry(section: dict[str, Any], example: str) -> Entry:
    unknown = section.keys() - {field.name for field in fields(Entry)}
    if unknown:
        raise ValueError(f"{section['heading']}: {', '.join(sorted(unknown))} is no key of a section")
    made: dict[str, Any] = {"example": example, **section}
    for key in ("text", "of_example"):
        made[key] = " ".join(section.get(key, "").split())
    made["show"] = tuple(Part(one[0], one[1], one[2] if len(one) > 2 else one[1]) for one in section.get("show", ()))
    made["beside"] = tuple(section.get("beside", {}).items())
    made["figures"] = tuple(Figure(**one) for one in section.get("figures", ()))
    made["corrections"] = tuple((number, words) for number, words in section.get("corrections", ()))
    for key in ("lines", "cells", "run_cells", "working", "katas", "labs", "commands", "needs"):
        made[key] = tuple(section.get(key, ()))
    return Entry(**made)
