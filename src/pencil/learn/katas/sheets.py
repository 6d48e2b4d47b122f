"""Worksheets: exercises with fresh numbers, or the page of a document; each has a code.

The code holds the topic, the exercises or the document, their number and the seed, so the same sheet can be made again
from the code alone; three letters at its end are a checksum of the exercises, so a mistyped code is noticed.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...config import UserError, refuse
from . import KATAS, PAGES
from . import page as document_page
from .exercise import Kata, Question

MOST_EXERCISES = 100  # on one sheet
SEEDS = 10_000  # of one exercise
SHEET_SEEDS = 1_000_000  # of sheets: few, which keeps codes short
EVERYTHING = "all"
AND = "+"  # between the exercises in a code
FRESH = ".new"  # in the code of a document's page: its numbers are not the document's


@dataclass(frozen=True)
class Sheet:
    """Exercises in their order, and the code to make them again; a document's page has a title and parts.

    A part is its title, a line about it, and its number of exercises.
    """

    code: str
    questions: tuple[Question, ...]
    title: str = "Pencil worksheet"
    parts: tuple[tuple[str, str, int], ...] = ()


def topics() -> list[str]:
    """The topics, in teaching order."""
    return list(dict.fromkeys(kata.topic for kata in KATAS.values()))


def slug(words: str) -> str:
    """Words as written in a code."""
    return re.sub(r"\W+", "-", words.lower()).strip("-")


def topic(words: str) -> str:
    """The topic with this name; its beginning is enough."""
    alike = [name for name in topics() if slug(words) and slug(name).startswith(slug(words))]
    exact = [name for name in alike if slug(name) == slug(words)]
    if len(exact or alike) != 1:
        raise UserError(f"there is no topic {words}; known: {', '.join(topics())}")
    return (exact or alike)[0]


def scope(names: Sequence[str] = (), of: str | None = None) -> str:
    """The contents of a sheet as written in its code: some exercises in teaching order, `all` of a topic, or `all`."""
    named = AND.join(name for name in KATAS if name in names)
    return named or (f"{EVERYTHING}.{slug(topic(of))}" if of else EVERYTHING)


def _pool(what: str) -> list[Kata]:
    names = what.split(AND)
    if set(names) <= set(KATAS):
        return [kata for name, kata in KATAS.items() if name in names]
    return [kata for kata in KATAS.values() if what in (EVERYTHING, scope(of=kata.topic))]


def make(what: str, count: int, seed: int) -> Sheet:
    """A sheet of `count` exercises of a scope."""
    refuse(
        (not 1 <= count <= MOST_EXERCISES, f"a sheet has between 1 and {MOST_EXERCISES} exercises, not {count}"),
        (not 0 <= seed < SHEET_SEEDS, f"a sheet's seed is between 0 and {SHEET_SEEDS - 1:,}, not {seed}"),
    )
    katas = _in_turn(_pool(what), count, seed)
    questions = tuple(kata.make(_number(seed, i, kata.name) % SEEDS) for i, kata in enumerate(katas))
    return Sheet(f"{what}-{count}-{seed}-{_check(questions)}", questions)


def of_document(name: str, seed: int | None) -> Sheet:
    """The page of a document: with its own numbers, or with the fresh ones of a seed."""
    if seed is not None and not 0 <= seed < SHEET_SEEDS:
        raise UserError(f"a sheet's seed is between 0 and {SHEET_SEEDS - 1:,}, not {seed}")
    sections = document_page(name, seed)
    questions = tuple(question for section in sections for question in section.questions)
    code = f"{name}-{len(questions)}-0" if seed is None else f"{name}{FRESH}-{len(questions)}-{seed}"
    parts = tuple((section.title, section.about, len(section.questions)) for section in sections)
    return Sheet(f"{code}-{_check(questions)}", questions, f"{name} · {PAGES[name]}", parts)


def again(code: str) -> Sheet:
    """The sheet with this code, in upper or lower case."""
    parts = re.fullmatch(r"(.+)-(\d{1,3})-(\d{1,6})-(\w+)", code.strip().lower())
    document = parts[1].removesuffix(FRESH) if parts else ""
    if not parts or not (document in PAGES or _pool(parts[1])):
        raise UserError(f"{code.strip()[:40]} is not the code of a sheet; one looks like {EVERYTHING}-12-1234-abc")
    what, count, seed, check = parts.groups()
    if document in PAGES:
        sheet = of_document(document, int(seed) if what.endswith(FRESH) else None)
    else:
        sheet = make(what, int(count), int(seed))
    if sheet.code.rpartition("-")[2] != check:
        raise UserError(f"there is no sheet {code}: either it is mistyped, or another version of pencil printed it")
    return sheet


def _in_turn(katas: list[Kata], count: int, seed: int) -> list[Kata]:
    """`count` of them in teaching order; each is used once before any is used twice."""
    shuffled = sorted(katas, key=lambda kata: _number(seed, kata.name))
    drawn = [shuffled[i % len(shuffled)] for i in range(count)]
    return sorted(drawn, key=katas.index)


def _number(*parts: object) -> int:
    """A large number derived from these; the same on every machine."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:8], "big")


def _check(questions: Iterable[Question]) -> str:
    """Three letters as a checksum of the exercises; of each given value, three digits count."""
    content = [
        [q.kata, q.ask, *(b.label for b in q.blanks), *(_about(v) for t in q.tables for row in t.rows for v in row)]
        for q in questions
    ]
    return base64.b32encode(hashlib.sha256(repr(content).encode()).digest()).decode()[:3].lower()


def _about(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value + 0.0:.3g}"
