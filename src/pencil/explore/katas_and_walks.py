"""Katas and documents for a page, as plain data.

A question of a kata is sent without its answers; it is graded here as in the terminal, in the same progress file. A
document is walked through with its own example: a sentence about one model never stands beside the numbers of another.
"""

import random
from base64 import b64encode
from dataclasses import dataclass
from typing import Any

from ..console import note
from ..learn.katas import KATAS, kata
from ..learn.katas.document_words import worded
from ..learn.katas.drawings import drawing
from ..learn.katas.exercise import Question, Table
from ..learn.katas.grader import choices, digits, grade, labels, shown, understood
from ..learn.katas.progress import Record
from ..learn.walks import Compared, Section, Shown, Walk, documents, walk
from ..learn.walks.data import document
from ..learn.walks.tables import MASKED
from .lru_cache import Cache
from .requests import UNKNOWN, Refused

TRIES = 3  # as in the terminal
SEEDS = 10_000
MOST_CLIENTS = 100  # pages whose attempts are remembered


@dataclass
class Attempt:
    """A question that a page shows: its wrong answers, and whether it was counted."""

    question: Question
    wrong: int = 0
    counted: bool = False

    @property
    def left(self) -> int:
        return TRIES - self.wrong


class Exercises:
    """The exercises of one learner, who may have several pages open; each page works on one question at a time.

    Or, with `guests`, of a class: each page is another learner, whose progress is forgotten.
    """

    def __init__(self, guests: bool = False):
        self._attempts = Cache[str, Attempt](MOST_CLIENTS)
        self._guests: Cache[str, Record] | None = Cache(MOST_CLIENTS) if guests else None

    def _record(self, client: str) -> Record:
        if self._guests is None:
            return Record(note)
        return self._guests.get_or_make(client, lambda: Record(note, keep=False))

    def listed(self, client: str) -> dict[str, Any]:
        """All exercises and their progress, and the one to do next."""
        record = self._record(client)
        rows = [
            {
                "name": kata.name,
                "title": kata.title,
                "topic": kata.topic,
                "due": record.when(kata.name),
                **{key: getattr(record.of(kata.name), key) for key in ("attempts", "solved", "seen", "wrong")},
            }
            for kata in KATAS.values()
        ]
        return {"katas": rows, "next": record.following(list(KATAS))}

    def question(self, client: str, name: str, seed: int | str | None, words: str = "field") -> dict[str, Any]:
        """A new attempt: the document's numbers, those of a seed, or with the seed "new" fresh ones.

        `words` are those of the field (Q, K, V) or of document 000 (WANT, HAVE, GIVE).
        """
        _check_name(name)
        number = random.SystemRandom().randrange(SEEDS) if seed == "new" else seed
        question = worded(kata(name).make(number), words)
        self._leave(client)
        self._attempts.put(client, Attempt(question))
        return {
            "kata": name,
            "title": question.title,
            "topic": kata(name).topic,
            "seed": question.seed,
            "drawing": drawing(question),
            "given": [_table(table) for table in question.tables],
            "ask": question.ask,
            "digits": digits(question),
            "choices": choices(question),
            "blanks": [
                {"label": label, "decimals": blank.decimals, "words": blank.words}
                for label, blank in zip(labels(question), question.blanks, strict=True)
            ],
            "rows": [list(row) for row in question.rows],
            "across": list(question.across),
            "tries_left": TRIES,
        }

    def answered(self, client: str, name: str, seed: int | None, answers: list[str]) -> dict[str, Any]:
        """Which answers are right, and the mistake that explains the others; what cannot be read does not count."""
        attempt = self._attempt(client, name, seed)
        question, words = attempt.question, choices(attempt.question)
        if len(answers) != len(question.blanks):
            raise Refused(f"{name} has {len(question.blanks)} blanks, and {len(answers)} answers were sent")
        pairs = zip(answers, question.blanks, strict=True)
        unread = [i for i, (answer, blank) in enumerate(pairs) if not understood(answer, blank, words)]
        if unread:
            right, solved, hint, outcome = [], False, None, None
        else:
            graded = grade(question, answers)
            right, solved, hint = list(graded.right), graded.solved, graded.hint
            outcome = self._count(client, name, attempt, solved)
        return {
            "right": right,
            "unread": unread,
            "solved": solved,
            "tries_left": attempt.left,
            "outcome": outcome,
            "hint": None if hint is None else {"name": hint.name, "hint": hint.hint},
            "due": self._record(client).when(name),
        }

    def working(self, client: str, name: str, seed: int | None) -> dict[str, Any]:
        """The answers and how they come about; asked for before an exercise is solved, it counts as seen."""
        attempt = self._attempt(client, name, seed)
        outcome = None if attempt.counted else "seen"
        if outcome:
            attempt.counted = True
            self._record(client).add(name, outcome)
        answers = [f"{blank.label} = {blank.written}" for blank in attempt.question.blanks]
        lines = [str(line) for line in attempt.question.working]
        return {"answers": answers, "working": lines, "outcome": outcome, "due": self._record(client).when(name)}

    def _count(self, client: str, name: str, attempt: Attempt, solved: bool) -> str | None:
        """Count the attempt when it ends: solved, or with the last try."""
        if attempt.counted:
            return None
        attempt.wrong += not solved
        if not solved and attempt.left:
            return None
        attempt.counted = True
        outcome = "wrong" if not solved else "corrected" if attempt.wrong else "solved"
        self._record(client).add(name, outcome)
        return outcome

    def _attempt(self, client: str, name: str, seed: int | None) -> Attempt:
        """The question that the page shows; a page that is older than the server begins a new attempt."""
        _check_name(name)
        attempt = self._attempts.get(client)
        if attempt is None or (attempt.question.kata, attempt.question.seed) != (name, seed):
            self.question(client, name, seed)
        return self._attempts[client]

    def _leave(self, client: str) -> None:
        """A question that is left after a wrong answer was not solved, as where one quits in the terminal."""
        attempt = self._attempts.pop(client)
        if attempt is not None and attempt.wrong and not attempt.counted:
            self._record(client).add(attempt.question.kata, "wrong")


def _check_name(name: str) -> None:
    if name not in KATAS:
        raise Refused(f"there is no kata of that name; known: {', '.join(KATAS)}", UNKNOWN)


def _table(table: Table) -> dict[str, Any]:
    rows = [[shown(value) for value in row] for row in table.rows]
    return {"name": table.name, "rows": rows, "across": table.across, "down": table.down}


# ---- documents


def list_documents() -> dict[str, Any]:
    """The documents, and how many sections each has."""
    every = [document(number) for number in documents()]
    return {"documents": [{"number": one.number, "title": one.title, "sections": len(one.sections)} for one in every]}


class Documents:
    """Walks through the documents with their own numbers, which never change: each is made once."""

    def __init__(self):
        self._made: dict[str, Walk] = {}

    def document(self, number: str) -> dict[str, Any]:
        made = self._walk(number)
        head = {key: getattr(made, key) for key in ("number", "title", "credit")}
        return {**head, "sections": [_section(section) for section in made.sections]}

    def figure(self, number: str, section: int, figure: int) -> dict[str, Any]:
        """One figure, drawn when it is asked for."""
        sections = self._walk(number).sections
        if section >= len(sections) or figure >= len(sections[section].figures):
            raise Refused(f"document {number} has no figure {figure} in section {section}", UNKNOWN)
        picture = b64encode(sections[section].figures[figure].png()).decode()
        return {"picture": f"data:image/png;base64,{picture}"}

    def _walk(self, number: str) -> Walk:
        if number not in documents():
            raise Refused(f"there is no document of that number; known: {', '.join(documents())}", UNKNOWN)
        if number not in self._made:
            self._made[number] = walk(number)
        return self._made[number]


def _section(section: Section) -> dict[str, Any]:
    plain = ("title", "level", "about", "text", "then", "skipped")
    return {
        **{key: getattr(section, key) for key in plain},
        "katas": list(section.katas),
        "corrections": [list(correction) for correction in section.corrections],
        "shown": [_shown(shown) for shown in section.shown],
        "compared": [_compared(compared) for compared in section.compared],
        "claims": [dict(vars(claim)) for claim in section.claims],
        "unfolded": [{**vars(receipt), "lines": list(receipt.lines)} for receipt in section.unfolded],
        "figures": [{"caption": figure.caption, "command": figure.command} for figure in section.figures],
    }


def _shown(shown: Shown) -> dict[str, Any]:
    grids = [
        {
            "where": grid.where,
            "rows": [
                [MASKED if (i, j) in grid.masked else value for j, value in enumerate(row)]
                for i, row in enumerate(grid.rows)
            ],
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
    rows = [[{key: getattr(number, key) for key in keys} for number in row] for row in compared.rows]
    plain = {key: getattr(compared, key) for key in ("name", "formula", "line", "where")}
    return {**plain, "counts": compared.counts, "rows": rows}
