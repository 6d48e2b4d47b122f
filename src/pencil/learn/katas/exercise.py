"""What an exercise is: tables that are given, blanks to fill, the mistakes people make, and the working."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal

Value = float | str


@dataclass(frozen=True)
class Table:
    """Numbers shown as given; `across` names the columns, `down` the rows."""

    name: str
    rows: Sequence[Sequence[Value]]
    across: list[str] | None = None
    down: list[str] | None = None


@dataclass(frozen=True)
class Blank:
    """One thing to answer: the exact value, the digits asked for, and what rounding along the way gives instead.

    With `words` the value is a word, and `decimals` says nothing.
    """

    label: str
    value: Value
    decimals: int = 0
    also: tuple[float, ...] = ()
    words: bool = False

    @property
    def written(self) -> str:
        """The right answer as one would write it down."""
        return written(self.value, self.decimals)


@dataclass(frozen=True)
class Mistake:
    """A mistake by name, one sentence about it, and what the blanks would then be."""

    name: str
    hint: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Question:
    """One exercise with its numbers; `seed` None means the page's own numbers.

    `working` is worked out when it is looked at: receipts take longer than answers.
    """

    kata: str
    seed: int | None
    title: str
    given: tuple[Table, ...]
    ask: str
    blanks: tuple[Blank, ...]
    mistakes: tuple[Mistake, ...] = ()
    working: Sequence = field(default=(), compare=False, repr=False)  # of lines, which a checker must not read
    page_words: str | None = None


@dataclass(frozen=True)
class Kata:
    """A kind of exercise: any seed gives a question, the same one for ever."""

    name: str
    title: str
    topic: str
    make: Callable[[int | None], Question]


def written(value: Value, decimals: int) -> str:
    """A value to so many decimals, halves rounded up in size; a word as it is."""
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "−inf" if value < 0 else "inf"
    # a hair outwards, so that 0.125 kept as 0.12499999999999999 is a half all the same
    exact = Decimal(value) * (1 + Decimal("1e-12"))
    rounded = exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    return f"{abs(rounded) if rounded == 0 else rounded:f}".replace("-", "−")
