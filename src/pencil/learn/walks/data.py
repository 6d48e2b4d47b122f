"""The walks as they are written down: one TOML file a document, one [[section]] a heading.

docs/teach/write-a-walk.md has the keys.
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from ...config import UserError, nearest
from ...files import check_regular, slow_toml

FOLDER = Path(__file__).parents[2] / "examples" / "walks"
MAX_BYTES = 1_000_000  # of a walk's file


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
class Asked:
    """A question of the document itself: its prompt, and the answers by their labels.

    An answer is a word, a number, or a formula of the names in the check file, rounded to `decimals`.
    """

    prompt: str
    answer: tuple[Any, ...] = ()
    formula: str = ""
    labels: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()  # other words that are right
    decimals: int = 0
    tolerance: float = 0.0  # how far a number may be off
    because: str = ""  # the working, in a sentence


@dataclass(frozen=True)
class Entry:
    """A section as its file describes it."""

    heading: str
    lines: tuple[int, int] = (0, 0)  # from the heading to the line before the next; the first section begins the file
    text: str = ""  # what the document does there
    of_example: str = ""  # what the numbers are of; left out for a run
    then: str = ""  # follows the answers to the questions
    ask: tuple[str, ...] = ()  # exercises that the reader answers, with the document's numbers
    question: tuple[Asked, ...] = ()
    about: str = ""  # tells headings apart that read the same
    skipped: str = ""  # why the section is not about transformers
    example: str = ""
    show: tuple[Part, ...] = ()
    cells: tuple[str, ...] = ()  # whose arithmetic is unfolded
    run_cells: tuple[str, ...] = ()
    beside: tuple[tuple[str, str], ...] = ()  # a step of the check file, and the tensor that has its numbers
    katas: tuple[str, ...] = ()
    labs: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    corrections: tuple[tuple[int, str], ...] = ()
    repeats: tuple[int, ...] = ()  # corrections that a claim of the section says too
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
    """One document: its title, author and date, the check file with its printed numbers, and its sections."""

    number: str
    title: str
    author: str
    date: str
    check: str  # the name of a published example, or the path of a check file
    folder: Path | None  # where a file of one's own lies, and the files that it names; None of the package
    sizes: tuple[tuple[str, str], ...]  # a name in the texts, and the axis of a tensor that it is the size of
    sections: tuple[Entry, ...]

    def error(self, entry: Entry, key: str, sentence: str) -> UserError:
        """An error in the file, with the section and its key."""
        return UserError(f"{self.number}, section {entry.heading!r}, {key}: {sentence}")

    def on(self, entry: Entry, key: str, work: Callable[..., Any], *what: Any) -> Any:
        """`work(*what)`; its errors name the section and the key."""
        try:
            return work(*what)
        except UserError as error:
            raise self.error(entry, key, str(error)) from None


def lessons() -> list[str]:
    """The names of the lessons that are of no document."""
    return sorted(path.stem for path in (FOLDER / "lessons").glob("*.toml"))


def documents() -> list[str]:
    """The numbers of the documents that can be walked."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@cache
def published(number: str) -> Document:
    """The walk of one of the five documents, or of a lesson, as it is written down."""
    if number in documents():
        return _parsed((FOLDER / f"{number}.toml").read_text("utf-8"), number, None)
    folder = FOLDER / "lessons"
    return _parsed((folder / f"{number}.toml").read_text("utf-8"), number, folder)


def document(word: str) -> Document:
    """The walk of a document by its number, of a lesson by its name, or of a file of one's own."""
    if word in (*documents(), *lessons()):
        return published(word)
    path = Path(word)
    if path.suffix == ".toml":
        return _of_file(path)
    listed = ", ".join(f"{one} ({published(one).title})" for one in (*documents(), *lessons()))
    raise UserError(f"there is no document {word} to walk; known: {listed}; a walk of your own is a .toml file")


def _of_file(path: Path) -> Document:
    if not path.exists():
        raise UserError(f"there is no file {path}")
    check_regular(path)
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UserError(f"{path} is larger than the {MAX_BYTES:,} bytes a walk may have")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text") from None
    return _parsed(text, str(path), path.parent)


TEXT, WORDS, WHOLE, NUMBER = "text in quotes", "a list of texts", "a whole number", "a number"
LINES, PARTS = "two line numbers, [first, last]", "a list of [symbol, name] or [symbol, name, name in a run]"
DOCUMENT_KEYS = {"title": TEXT, "author": TEXT, "date": TEXT, "check": TEXT, "example": TEXT}
KINDS = {
    **dict.fromkeys(("heading", "text", "of_example", "then", "about", "skipped", "example", "lacks"), TEXT),
    **dict.fromkeys(("ask", "cells", "run_cells", "katas", "labs", "commands", "needs"), WORDS),
    "lines": LINES,
    "show": PARTS,
    "beside": "a table of step = tensor",
    "corrections": "a list of [number, sentence]",
    "repeats": "a list of the numbers of corrections",
    "figures": "a list of tables",
    "question": "a table, [[section.question]]",
}
QUESTION_KINDS = {
    **dict.fromkeys(("prompt", "formula", "because"), TEXT),
    **dict.fromkeys(("labels", "accept"), WORDS),
    "answer": "a word, a number, or a list of them",
    "decimals": WHOLE,
    "tolerance": NUMBER,
}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_list(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(fits, value))


FITS: dict[str, Callable[[Any], bool]] = {
    TEXT: _is_text,
    WORDS: lambda value: _is_list(value, _is_text),
    WHOLE: lambda value: type(value) is int and value >= 0,
    NUMBER: _is_number,
    LINES: lambda value: _is_list(value, lambda one: type(one) is int) and len(value) == 2 and value[0] <= value[1],
    PARTS: lambda value: _is_list(value, lambda one: _is_list(one, _is_text) and len(one) in (2, 3)),
    KINDS["beside"]: lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    KINDS["corrections"]: lambda value: _is_list(
        value, lambda one: isinstance(one, list) and [type(part) for part in one] == [int, str]
    ),
    KINDS["repeats"]: lambda value: _is_list(value, lambda one: type(one) is int),
    KINDS["figures"]: lambda value: _is_list(value, lambda one: isinstance(one, dict)),
    KINDS["question"]: lambda value: _is_list(value, lambda one: isinstance(one, dict)),
    QUESTION_KINDS["answer"]: lambda value: value not in ("", []) and _is_list(
        value if isinstance(value, list) else [value], lambda one: _is_text(one) or _is_number(one)
    ),
}  # fmt: skip


def _check_keys(where: str, content: dict[str, Any], kinds: dict[str, str]) -> None:
    for key, value in content.items():
        if key not in kinds:
            raise UserError(f"{where}, {key}: not understood here; {nearest(key, kinds)}")
        if not FITS[kinds[key]](value):
            raise UserError(f"{where}, {key}: must be {kinds[key]}")


def _parsed(text: str, file: str, folder: Path | None) -> Document:
    """The walk that a file's text describes; `folder` has the files that it names, None those of the package."""
    if why := slow_toml(text):
        raise UserError(f"{file} cannot be read: {why}")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not TOML: {error}") from None
    sections, sizes = table.pop("section", []), table.pop("sizes", {})
    _check_keys(file, table, DOCUMENT_KEYS)
    if not isinstance(sizes, dict) or not all(map(_is_text, sizes.values())):
        raise UserError(f"{file}, sizes: must be a table, [sizes], of a name and 'tensor:axis'")
    if "title" not in table:
        raise UserError(f"{file}: title is missing; a walk begins with the title of its document")
    if not _is_list(sections, lambda one: isinstance(one, dict)) or not sections:
        raise UserError(f"{file}: there is no [[section]]; a walk has one for each heading of its document")
    usual, check = table.get("example", ""), table.get("check", "")
    if check and folder is not None and (folder / check).suffix == ".toml":
        check = str(folder / check)
    return Document(
        file,
        table["title"],
        table.get("author", ""),
        table.get("date", ""),
        check,
        folder,
        tuple(sizes.items()),
        tuple(_entry(file, number, section, usual) for number, section in enumerate(sections, 1)),
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _paragraphs(text: str) -> str:
    """Each paragraph on one line, and each line that begins with a dash."""
    return "\n".join(_one_line(part) for part in re.split(r"\n\s*\n|\n(?=- )", text.strip()))


def _entry(file: str, number: int, section: dict[str, Any], example: str) -> Entry:
    if not _is_text(section.get("heading")):
        raise UserError(f"{file}, section {number}, heading: must be {TEXT}, as it stands in the document")
    where = f"{file}, section {section['heading']!r}"
    _check_keys(where, section, KINDS)
    made: dict[str, Any] = {"example": example, **section}
    for key in ("text", "of_example", "then"):
        made[key] = _paragraphs(section.get(key, ""))
    made["show"] = tuple(Part(one[0], one[1], one[2] if len(one) > 2 else one[1]) for one in section.get("show", ()))
    made["beside"] = tuple(section.get("beside", {}).items())
    made["figures"] = tuple(_figure(where, one) for one in section.get("figures", ()))
    made["corrections"] = tuple((number, words) for number, words in section.get("corrections", ()))
    made["question"] = tuple(_question(where, one) for one in section.get("question", ()))
    if unknown := [one for one in section.get("repeats", ()) if one not in dict(made["corrections"])]:
        raise UserError(f"{where}, repeats: {unknown[0]} is no number of its corrections")
    for key in ("ask", "cells", "run_cells", "katas", "labs", "commands", "needs", "repeats"):
        made[key] = tuple(section.get(key, ()))
    made["lines"] = tuple(section.get("lines", (0, 0)))
    return Entry(**made)


def _figure(where: str, table: dict[str, Any]) -> Figure:
    _check_keys(f"{where}, figures", table, dict.fromkeys((field.name for field in fields(Figure)), TEXT))
    if "caption" not in table or not (table.get("of") or table.get("drawing")):
        raise UserError(f"{where}, figures: a figure has a caption, and a tensor that it is of")
    return Figure(**table)


def _question(where: str, table: dict[str, Any]) -> Asked:
    where = f"{where}, question"
    _check_keys(where, table, QUESTION_KINDS)
    if not table.get("prompt", "").strip():
        raise UserError(f"{where}, prompt: a question needs the words in which it is asked")
    if ("answer" in table) == ("formula" in table):
        raise UserError(f"{where}, answer: a question has an answer, or a formula that gives it, and not both")
    answer = table.get("answer", ())
    answers = tuple(answer) if isinstance(answer, list) else (answer,) if "answer" in table else ()
    words = [one for one in answers if isinstance(one, str)]
    if "accept" in table and (len(answers) != 1 or not words):
        raise UserError(f"{where}, accept: other right words are for a question with one word as its answer")
    if "tolerance" in table and words:
        raise UserError(f"{where}, tolerance: a word has none; list other right words in accept")
    if "labels" in table and answers and len(table["labels"]) != len(answers):
        raise UserError(f"{where}, labels: {len(table['labels'])} labels for {len(answers)} answers")
    if len(answers) > 1 and "labels" not in table:
        raise UserError(f"{where}, labels: several answers need a label each")
    made: dict[str, Any] = {**table, "answer": answers, "prompt": _one_line(table["prompt"])}
    made["labels"], made["accept"] = tuple(table.get("labels", ())), tuple(table.get("accept", ()))
    made["because"] = _one_line(table.get("because", ""))
    return Asked(**made)
