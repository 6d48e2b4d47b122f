"""A walk through a document: its sections with numbers from traces and verdicts from its check file."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ...config import UserError
from ...tracing.receipt import format_number
from ...tracing.trace_base import TraceBase
from ..check.check import VERDICTS, Number, Report, Step, check, shipped
from ..check.claims import Claim
from .data import Document, Entry, Figure, document

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


@dataclass(frozen=True)
class Source:
    """A trace, and the word by which commands name it: example:NAME, a run's folder or a trace file."""

    word: str
    trace: TraceBase


@dataclass(frozen=True)
class Compared:
    """Printed numbers of one step against the right ones; `where` is the traced tensor with the same numbers."""

    name: str
    formula: str
    line: int
    where: str
    rows: tuple[tuple[Number, ...], ...]

    @property
    def counts(self) -> dict[str, int]:
        """The number of verdicts of each kind."""
        found = [number.verdict for row in self.rows for number in row]
        return {verdict: found.count(verdict) for verdict in VERDICTS}


@dataclass(frozen=True)
class Unfolded:
    """The arithmetic of one cell, or the working of an exercise, line by line, and the command that shows it."""

    title: str
    lines: tuple[str, ...]
    command: str


@dataclass(frozen=True)
class Drawn:
    """A figure: its caption, the command that draws it, and its bytes (PNG) when they are asked for."""

    caption: str
    command: str
    png: Callable[[], bytes]


@dataclass(frozen=True)
class Section:
    """One heading of a document with all that belongs to it."""

    title: str
    level: int
    about: str
    lines: tuple[int, int]
    text: str
    skipped: str
    shown: tuple[Shown, ...]
    compared: tuple[Compared, ...]
    claims: tuple[Claim, ...]
    unfolded: tuple[Unfolded, ...]
    katas: tuple[str, ...]
    labs: tuple[str, ...]
    figures: tuple[Drawn, ...]
    corrections: tuple[tuple[int | str, str], ...]
    commands: tuple[str, ...]
    missing: tuple[str, ...] = ()  # tensors of the section that the run's model does not have
    lacking: str = ""  # why a run has none of the section


@dataclass(frozen=True)
class Walk:
    """A document from its first heading to its last; `run` is the run whose numbers it has."""

    number: str
    title: str
    sections: tuple[Section, ...]
    run: str = ""


def walk(number: str, run: Source | None = None) -> Walk:
    """The walk of one document: with its own numbers, or with those of a run."""
    written = document(number)
    if run is None:
        return _published(written)
    sections = tuple(_of_run(entry, run) for entry in written.sections)
    if not any(section.shown for section in sections):
        raise UserError(f"{run.word} has no tensor that a section of {number} is about; pencil show lists what it has")
    return Walk(number, written.title, sections, run.word)


def _published(written: Document) -> Walk:
    from ..worked.examples import example

    traces = cache(lambda name: Source(f"example:{name}", example(name)))
    report = check(shipped()[written.check])
    return Walk(
        written.number,
        written.title,
        tuple(_of_document(written.number, entry, report, traces) for entry in written.sections),
    )


def _of_document(number: str, entry: Entry, report: Report, traces: Callable[[str], Source]) -> Section:
    steps = sorted((step for step in report.steps if _within(step.line, entry)), key=lambda step: step.line or 0)
    of = _Traces(traces, entry.example)
    return Section(
        **_words(entry),
        text=f"{entry.text} {entry.of_example}".strip(),
        shown=tuple(_shown(*of.find(part.name), part.symbol) for part in entry.show),
        compared=tuple(_compared(step, dict(entry.beside).get(step.name, "")) for step in steps),
        claims=tuple(claim for claim in report.claims if _within(claim.line, entry)),
        unfolded=(*(_receipt(*of.find(cell)) for cell in entry.cells), *map(_working, entry.working)),
        figures=tuple(
            _drawing(number, one) if one.drawing else _figure(one, *of.find(one.of)) for one in entry.figures
        ),
    )


@dataclass(frozen=True)
class _Traces:
    """The traces of the worked examples; `usual` is that of a name without its own."""

    traces: Callable[[str], Source]
    usual: str

    def find(self, where: str) -> tuple[Source, str]:
        """The trace of a name, which may begin with example:NAME, and the name in it."""
        if not where.startswith("example:"):
            return self.traces(self.usual), where
        example, _, name = where.removeprefix("example:").partition(" ")
        return self.traces(example), name


def _shown(source: Source, where: str, symbol: str, small: bool = False) -> Shown:
    return shown(source.trace, source.word, symbol, where, small)


def _of_run(entry: Entry, run: Source) -> Section:
    parts = [part for part in entry.show if part.run]
    whole = all(found_in(run.trace, name) for name in entry.needs)
    names = [(part, found_in(run.trace, part.run) if whole else None) for part in parts]
    here = [(part, fitting(run.trace, name)) for part, name in names if name]
    cells = [found_in(run.trace, cell) for cell in entry.run_cells or entry.cells] if here else []
    drawn = [(one, found_in(run.trace, one.run)) for one in entry.figures if one.run and here]
    why = entry.lacks or "this model has no " + ", ".join(_generic(part.run) for part in parts)
    return Section(
        **_words(entry),
        text=entry.text,
        shown=tuple(_shown(run, name, part.symbol, small=True) for part, name in here),
        compared=(),
        claims=(),
        unfolded=tuple(_receipt(run, fitting(run.trace, cell)) for cell in cells if cell),
        figures=tuple(_figure(replace(one, caption=name), run, name) for one, name in drawn if name),
        missing=tuple(_generic(part.run) for part, name in names if not name) if here else (),
        lacking=f"{entry.title}: {why}" if parts and not here else "",
    )


def _words(entry: Entry) -> dict[str, Any]:
    return {
        key: getattr(entry, key)
        for key in (
            "title",
            "level",
            "about",
            "lines",
            "skipped",
            "katas",
            "labs",
            "corrections",
            "commands",
        )
    }


def _generic(names: str) -> str:
    return names.split("|")[0].strip().partition("[")[0]


def _within(line: int | None, entry: Entry) -> bool:
    return line is not None and entry.lines[0] <= line <= entry.lines[1]


def _compared(step: Step, where: str) -> Compared:
    rows: dict[tuple[int, ...], list[Number]] = {}
    for number in step.numbers:
        rows.setdefault(number.index[:-1], []).append(number)
    return Compared(step.name, step.formula, step.line or 0, where, tuple(map(tuple, rows.values())))


def _receipt(source: Source, cell: str) -> Unfolded:
    found = source.trace[cell].why()
    return Unfolded(found.where, tuple(found.lines()), f"pencil why {source.word} '{cell}'")


def _working(name: str) -> Unfolded:
    """The working of an exercise with the document's own numbers."""
    from ..katas import kata

    question = kata(name).make(None)
    answers = ", ".join(f"{blank.label} = {blank.written}" for blank in question.blanks)
    return Unfolded(question.title, (answers, *question.working), f"pencil kata {name}")


def _figure(figure: Figure, source: Source, of: str) -> Drawn:
    from ...tracing import attention_heatmaps

    options = f" --of {of}" + (f" --query {figure.query}" if figure.query else "")
    return Drawn(
        figure.caption,
        f"pencil trace {source.word}{options} --png {of.replace('.', '-')}.png",
        lambda: attention_heatmaps.attention(source.trace, of, figure.query or None),
    )


def _drawing(number: str, figure: Figure) -> Drawn:
    from ..figures import FIGURES, drawn

    made = FIGURES[number][figure.drawing]
    return Drawn(figure.caption, f"pencil figures {number} --out figures", lambda: drawn(made(), "png"))
