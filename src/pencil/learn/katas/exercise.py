"""The data of an exercise: given tables, blanks to fill, known mistakes, and the working."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property
from typing import Any

Value = float | str


@dataclass(frozen=True)
class Table:
    """Given values; `across` names the columns, `down` the rows."""

    name: str
    rows: Sequence[Sequence[Value]]
    across: list[str] | None = None
    down: list[str] | None = None


@dataclass(frozen=True)
class Blank:
    """One value to answer: exact, its number of decimals, and what it is when earlier steps are rounded (`also`).

    With `words` the answer is a word, `also` are other right words, and `decimals` is unused. A number within
    `tolerance` of the value is right too.
    """

    label: str
    value: Value
    decimals: int = 0
    also: tuple[Value, ...] = ()
    words: bool = False
    tolerance: float = 0.0

    @property
    def written(self) -> str:
        """The right answer as text."""
        return written(self.value, self.decimals)


@dataclass(frozen=True)
class Mistake:
    """A named mistake, one sentence about it, and the answers it leads to."""

    name: str
    hint: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Question:
    """One exercise with its numbers; `seed` None means the document's own numbers."""

    tables: tuple[Table, ...]
    ask: str
    blanks: tuple[Blank, ...]
    mistakes: tuple[Mistake, ...] = ()
    work: Callable[[], Iterable[str]] = field(default=tuple, compare=False, repr=False)  # gives the working
    rows: tuple[tuple[str, int], ...] = ()  # on paper: the blanks in rows, each with its label and number of blanks
    across: tuple[str, ...] = ()  # on paper: the labels of the columns of these rows
    kata: str = ""
    title: str = ""
    seed: int | None = None

    @cached_property
    def working(self) -> tuple[str, ...]:
        """The working line by line, when it is first read: receipts take longer than answers."""
        return tuple(self.work())


@dataclass(frozen=True)
class Kata:
    """A kind of exercise: each seed gives one question, always the same.

    `make` takes changes of its numbers too, such as another row to ask for; `numbers` are those of a seed.
    """

    name: str
    title: str
    topic: str
    make: Callable[..., Question]
    numbers: Callable[[int | None], dict[str, Any]]


def written(value: Value, decimals: int) -> str:
    """A value to this many decimals, halves rounded away from zero; a word as it is."""
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "−inf" if value < 0 else "inf"
    # moved outwards a little, so that 0.125 stored as 0.12499999999999999 still rounds as a half
    exact = Decimal(value) * (1 + Decimal("1e-12"))
    rounded = exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return f"{abs(rounded) if rounded == 0 else rounded:f}".replace("-", "−")


def numbered(word: str, count: int, between: str = " ", first: int = 1) -> list[str]:
    """Labels: token 1, token 2, …"""
    return [f"{word}{between}{i}" for i in range(first, first + count)]
