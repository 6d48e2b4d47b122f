"""A walk through a document: its sections with numbers from traces and verdicts from its check file."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from ...config import UserError, nearest
from ...tracing import trace
from ...tracing.trace_base import TraceBase
from ..check.check import VERDICTS, Number, Report, Step, check, shipped
from ..check.claims import Claim
from ..katas import kata
from ..katas.exercise import Question
from .data import Asked, Document, Entry, Figure, Part, documents
from .data import document as written_walk
from .headings import check_headings
from .questions import exercise, own_question
from .sizes import Unresolved, filled, present
from .tables import LIMITS, MASKED, RUN_LIMITS, Earlier, Limits, Shown, fitting, shown, tensor_of


@dataclass(frozen=True)
class Source:
    """A trace, and the word by which commands name it: example:NAME, a run's folder or a trace file."""

    word: str
    trace: TraceBase


Find = Callable[[str], tuple[Source, str]]  # the trace of a name, and the name in it


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
        verdicts = [number.verdict for row in self.rows for number in row]
        return {verdict: verdicts.count(verdict) for verdict in VERDICTS}

    @property
    def counted(self) -> str:
        """How many of each kind, in words; the numbers of a shape are sizes."""
        found = [(n, verdict) for verdict, n in self.counts.items() if n]
        if self.formula.startswith("shape("):
            return ", ".join(f"{n} size{'s' * (n > 1)} {verdict}" for n, verdict in found)
        return ", ".join(f"{n} {verdict}" for n, verdict in found)


@dataclass(frozen=True)
class Unfolded:
    """The arithmetic of one cell, line by line, and the command that shows it."""

    title: str
    lines: tuple[str, ...]
    command: str
    again: str = ""  # the step of the walk that has shown it before


@dataclass(frozen=True)
class Drawn:
    """A figure: its caption, the command that draws it, and its bytes (PNG) when they are asked for."""

    caption: str
    command: str
    png: Callable[[], bytes]


@dataclass(frozen=True)
class Section:
    """One heading of a document with all that belongs to it.

    `then` and all that follows it may give away the answers to the questions, and is shown after them.
    """

    title: str
    level: int
    about: str
    lines: tuple[int, int]
    text: str
    skipped: str
    katas: tuple[str, ...]
    labs: tuple[str, ...]
    commands: tuple[str, ...]
    questions: tuple[Question, ...] = ()
    then: str = ""
    shown: tuple[Shown, ...] = ()
    compared: tuple[Compared, ...] = ()
    claims: tuple[Claim, ...] = ()
    corrections: tuple[tuple[int, str], ...] = ()
    repeats: tuple[int, ...] = ()  # corrections that a claim of the section says too
    unfolded: tuple[Unfolded, ...] = ()
    figures: tuple[Drawn, ...] = ()
    missing: tuple[str, ...] = ()  # tensors of the section that the run's model does not have
    lacking: str = ""  # why a run has none of the section


@dataclass(frozen=True)
class Walk:
    """A document from its first heading to its last; `run` is the run whose numbers it has.

    `beside` is the reader's own copy of the document, whose lines the sections name.
    """

    number: str
    title: str
    author: str
    date: str
    sections: tuple[Section, ...]
    run: str = ""
    beside: str = ""

    @property
    def groups(self) -> list[tuple[int, list[Section]]]:
        """A step for each section, with its number; sections left out are together, with the number 0."""
        return grouped(self.sections)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return max(step for step, _ in self.groups)

    @property
    def notes(self) -> list[str]:
        """What holds everywhere: the letters of the axes, where indices begin, how a masked weight is written."""
        from ...core.probe import LEGEND  # here, because it loads torch

        axes = {axis for section in self.sections for one in section.shown if not one.again for axis in one.axes}
        letters = [f"{axis} {meaning}" for axis, meaning in LEGEND.items() if axis in axes]
        masked = any(grid.masked for section in self.sections for one in section.shown for grid in one.grids)
        listed = self.number in documents() and any(section.corrections for section in self.sections)
        return [
            "Above a table: the document's symbol, Pencil's name, axes with their sizes (h 2: two heads), formula."
            * bool(letters),
            f"Axes: {' · '.join(letters)}." * bool(letters),
            "Indices and table headings such as h 0 begin at 0; names such as token 1 and A_1 count from 1."
            * any(section.shown for section in self.sections),
            f"A masked token has the score −∞ and the weight 0, written {MASKED} in the tables." * masked,
            "One number is computed again by pencil why; recorded is the model's own. What no table has is printed by "
            "pencil show." * any(section.unfolded for section in self.sections),
            "Claims: shown, a computation confirms it; wrong, it contradicts it; not shown, arithmetic cannot tell."
            * any(section.claims for section in self.sections),
            "Corrections are numbered as in docs/project/seeds.md." * listed,
        ]

    @property
    def credit(self) -> str:
        """Who wrote the document, and when."""
        return f"by {self.author}" * bool(self.author) + (
            "author not named" * (not self.author) + f", {self.date}" * bool(self.date)
        )


def corrections(section: Section) -> list[str]:
    """The corrections in lines, without those that a claim says too."""
    return [f"{number}. {words}" for number, words in section.corrections if number not in section.repeats]


def grouped(sections: Sequence[Section]) -> list[tuple[int, list[Section]]]:
    """The sections of each step with its number; those left out for one reason are together, and are no step."""
    groups: list[tuple[int, list[Section]]] = []
    step = 0
    for section in sections:
        if section.skipped and groups and groups[-1][1][0].skipped == section.skipped:
            groups[-1][1].append(section)
            continue
        step += not section.skipped
        groups.append((0 if section.skipped else step, [section]))
    return groups


def walk(number: str, run: Source | None = None, beside: str | Path | None = None) -> Walk:
    """The walk of one document, or of a file of one's own: with the document's numbers, or with those of a run.

    `beside` is the reader's copy of the document; one with other headings is refused.
    """
    document = written_walk(number)
    if beside is not None:
        check_headings(document, Path(beside))
    if run is None:
        sections = _published(document)
    else:
        sections = tuple(_of_run(document, entry, run) for entry in document.sections)
        if not any(section.shown for section in sections):
            raise UserError(
                f"{run.word} has no tensor that a section of {number} is about; pencil show lists what it has"
            )
    return Walk(
        document.number,
        document.title,
        document.author,
        document.date,
        _each_once(sections, LIMITS if run is None else RUN_LIMITS),
        "" if run is None else run.word,
        "" if beside is None else str(beside),
    )


def _each_once(sections: Sequence[Section], limits: Limits) -> tuple[Section, ...]:
    """A tensor, or the arithmetic of a cell, that an earlier step has shown names that step."""
    earlier, made = Earlier(), []
    unfolded: dict[str, str] = {}  # the step that first shows what a command does
    for step, group in grouped(sections):
        for section in group:
            again = [replace(one, again=earlier.add(one, step, limits)) for one in section.shown]
            receipts = [replace(one, again=unfolded.get(one.command, "")) for one in section.unfolded]
            for one in receipts:
                unfolded.setdefault(one.command, f"step {step}")
            made.append(replace(section, shown=tuple(again), unfolded=tuple(receipts)))
    return tuple(made)


def _published(document: Document) -> tuple[Section, ...]:
    report = _report(document)
    traces = _Traces(document)
    return tuple(_of_document(document, entry, report, traces) for entry in document.sections)


def _report(document: Document) -> Report:
    if not document.check:
        return Report(document.number, document.title, ())
    path = shipped().get(document.check) or Path(document.check)
    if not path.exists():
        raise UserError(f"{document.number}, check: there is no file {path}, nor a published example of that name")
    return check(path)


def _of_document(document: Document, entry: Entry, report: Report, traces: "_Traces") -> Section:
    of = partial(traces.find, entry)
    on = partial(document.on, entry)
    steps = sorted((step for step in report.steps if _within(step.line, entry)), key=lambda step: step.line or 0)
    beside = dict(entry.beside)
    if unknown := [name for name in beside if name not in {step.name for step in steps}]:
        raise document.error(entry, "beside", f"{unknown[0]} is no step of the check file within the section's lines")
    for name in entry.katas:
        on("katas", kata, name)
    if entry.labs:
        from ..lab import claims

        for name in entry.labs:
            on("labs", _check_lab, name, claims())
    return Section(
        **_words(entry),
        text=_together(traces.text(entry, "text"), traces.text(entry, "of_example")),
        then=traces.text(entry, "then"),
        questions=(
            *(on("ask", exercise, document.number, name) for name in entry.ask),
            *(on("question", _own_question, entry, one, report, traces) for one in entry.question),
        ),
        shown=tuple(on("show", _shown, of, part) for part in entry.show),
        compared=tuple(_compared(step, beside.get(step.name, "")) for step in steps),
        claims=tuple(claim for claim in report.claims if _within(claim.line, entry)),
        corrections=entry.corrections,
        repeats=entry.repeats,
        unfolded=tuple(on("cells", _receipt_of, of, cell) for cell in entry.cells),
        figures=tuple(
            _drawing(document, entry, one) if one.drawing else on("figures", _figure_of, of, one)
            for one in entry.figures
        ),
    )


def _together(text: str, of_example: str) -> str:
    """Both in one paragraph, unless the first has several."""
    return f"{text}{chr(10) if chr(10) in text else ' '}{of_example}".strip()


def _check_lab(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise UserError(f"there is no experiment {name}; {nearest(name, known)}")


def _own_question(entry: Entry, asked: Asked, report: Report, traces: "_Traces") -> Question:
    """A question of the document, with the sizes and numbers of the section's example in its words."""
    asked = replace(
        asked,
        prompt=traces.filled(entry, "question", asked.prompt),
        because=traces.filled(entry, "question", asked.because),
    )
    return own_question(asked, report.values, entry.title)


class _Traces:
    """The traces of the worked examples, and of the trace files that a walk of one's own names."""

    def __init__(self, document: Document):
        self.document = document
        self.opened = cache(self._open)

    def _open(self, name: str) -> Source:
        from ..worked.examples import example

        if Path(name).suffix and self.document.folder is not None:
            path = self.document.folder / name
            return Source(str(path), trace.read(path))
        return Source(f"example:{name}", example(name))

    def find(self, entry: Entry, where: str) -> tuple[Source, str]:
        """The trace of a name, which may begin with example:NAME, and the name in it."""
        example, name = entry.example, where
        if where.startswith("example:"):
            example, _, name = where.removeprefix("example:").partition(" ")
        if not example:
            raise UserError(f"{where} has no trace; name the section's example")
        return self.document.on(entry, "example", self.opened, example), name

    def text(self, entry: Entry, key: str) -> str:
        """A text of a section with the sizes of its example."""
        return self.filled(entry, key, getattr(entry, key))

    def filled(self, entry: Entry, key: str, text: str) -> str:
        """The text that stands under this key, with the sizes of the section's example."""
        if "{" not in text:
            return text
        source = self.document.on(entry, "example", self.opened, entry.example) if entry.example else None
        try:
            return filled(text, dict(self.document.sizes), source and source.trace)
        except (Unresolved, UserError) as error:
            raise self.document.error(entry, key, str(error)) from None


def _shown(of: Find, part: Part) -> Shown:
    source, name = of(part.name)
    return shown(source.trace, source.word, part.symbol, name)


def _receipt_of(of: Find, cell: str) -> Unfolded:
    return _receipt(*of(cell))


def _figure_of(of: Find, figure: Figure) -> Drawn:
    return _figure(figure, *of(figure.of))


def _of_run(document: Document, entry: Entry, run: Source) -> Section:
    parts = [part for part in entry.show if part.run]
    whole = all(present(run.trace, name) for name in entry.needs)
    names = [(part, present(run.trace, part.run) if whole else None) for part in parts]
    here = [(part, fitting(run.trace, name)) for part, name in names if name]
    cells = [present(run.trace, cell) for cell in entry.run_cells or entry.cells] if here else []
    drawn = [(one, present(run.trace, one.run)) for one in entry.figures if one.run and here]
    why = entry.lacks or "this model has no " + ", ".join(tensor_of(part.run) for part in parts)
    sizes = dict(document.sizes)
    return Section(
        **_words(entry),
        text=filled(entry.text, sizes, run.trace, leave_out=True),
        shown=tuple(shown(run.trace, run.word, part.symbol, name, RUN_LIMITS) for part, name in here),
        unfolded=tuple(_receipt(run, fitting(run.trace, cell)) for cell in cells if cell),
        figures=tuple(_figure(replace(one, caption=name), run, name) for one, name in drawn if name),
        missing=tuple(tensor_of(part.run) for part, name in names if not name) if here else (),
        lacking=f"{entry.title}: {why}" if parts and not here else "",
    )


def _words(entry: Entry) -> dict[str, Any]:
    keys = ("title", "level", "about", "lines", "skipped", "katas", "labs", "commands")
    return {key: getattr(entry, key) for key in keys}


def _within(line: int | None, entry: Entry) -> bool:
    return line is not None and entry.lines[0] <= line <= entry.lines[1]


def _compared(step: Step, where: str) -> Compared:
    rows: dict[tuple[int, ...], list[Number]] = {}
    for number in step.numbers:
        rows.setdefault(number.index[:-1], []).append(number)
    return Compared(step.name, step.formula, step.line or 0, where, tuple(map(tuple, rows.values())))


def _receipt(source: Source, cell: str) -> Unfolded:
    receipt = source.trace[cell].why()
    return Unfolded(receipt.where, tuple(receipt.lines()), f"pencil why {source.word} '{cell}'")


def _figure(figure: Figure, source: Source, of: str) -> Drawn:
    from ...tracing import attention_heatmaps

    options = f" --of {of}" + (f" --query {figure.query}" if figure.query else "")
    return Drawn(
        figure.caption,
        f"pencil trace {source.word}{options} --png {of.replace('.', '-')}.png",
        lambda: attention_heatmaps.attention(source.trace, of, figure.query or None),
    )


def _drawing(document: Document, entry: Entry, figure: Figure) -> Drawn:
    from ..figures import FIGURES, drawn

    made = FIGURES.get(document.number, {}).get(figure.drawing)
    if made is None:
        raise document.error(entry, "figures", f"there is no drawing {figure.drawing}; name a tensor as of instead")
    return Drawn(figure.caption, f"pencil figures {document.number} --out figures", lambda: drawn(made(), "png"))
