"""The parts of a document's page: its sections, and questions that belong to a page alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import KATAS
from .builder import Draws, blanks
from .exercise import Blank, Question, Table

Answer = tuple[str, float, int]  # label, value, decimals


@dataclass(frozen=True)
class Section:
    """A section of a document: what it does, and its exercises."""

    title: str
    about: str
    questions: tuple[Question, ...]


def kata(name: str, seed: int | None, **changes: Any) -> Question:
    """An exercise of the list, with some of its numbers changed."""
    return KATAS[name].make(seed, **changes)


def kata_numbers(name: str, seed: int | None) -> dict[str, Any]:
    """The numbers of an exercise, for others that share them."""
    return KATAS[name].numbers(seed)


def turn(question: Question) -> Question:
    """An exercise that the document leaves to its reader."""
    return replace(question, title=f"YOUR TURN: {question.title}")


def drawn(name: str, seed: int) -> Draws:
    """The fresh numbers of a question that belongs to a page alone."""
    return Draws(f"page {name} {seed}")


def posed(
    name: str,
    title: str,
    seed: int | None,
    ask: str,
    answers: Sequence[Blank],
    working: Callable[[], Iterable[str]],
    given: Sequence[Table] = (),
    rows: Sequence[tuple[str, int]] = (),
    across: Sequence[str] = (),
) -> Question:
    """A question that belongs to a page alone; it has no list of known mistakes."""
    return Question(
        tuple(given),
        ask,
        tuple(answers),
        work=working,
        rows=tuple(rows),
        across=tuple(across),
        kata=name,
        title=title,
        seed=seed,
    )


def numbers(*answers: Answer) -> tuple[Blank, ...]:
    return tuple(Blank(label, float(value), decimals) for label, value, decimals in answers)


def grid(
    down: Sequence[str], across: Sequence[str], values: Any, decimals: int, also: Sequence[Any] = ()
) -> tuple[Blank, ...]:
    """A blank for each cell of a table; `also` are its values with earlier steps rounded."""
    labels = [f"{row}, {column}" for row in down for column in across]
    return blanks(labels, values, decimals, [np.asarray(one) for one in also])


def table(name: str, values: Any, down: Sequence[str] | None = None, across: Sequence[str] | None = None) -> Table:
    rows = np.atleast_2d(np.asarray(values, dtype=float)).tolist()
    return Table(name, rows, None if across is None else list(across), None if down is None else list(down))
