"""How the numbers of an exercise are written, and how a line of answers is taken apart."""

import math
import re
from collections.abc import Sequence

from .exercise import Blank, Question, Value
from .grader import read

THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")


def shown(value: Value) -> str:
    """A given number as short as it can be said; words as they are."""
    if isinstance(value, str):
        return value
    whole = math.isfinite(value) and value == int(value)
    return (f"{value + 0.0:.0f}" if whole else f"{value:.6g}").replace("-", "−")


def digits(question: Question) -> str:
    """How precisely to answer, in words; a blank that wants fewer digits says so in its label."""
    asked = [blank.decimals for blank in question.blanks if not blank.words]
    return _precisely(max(asked)) if asked else ""


def labels(question: Question) -> list[str]:
    """The names of the blanks, each with how precisely to answer where that is not as for the others."""
    usual = digits(question)
    said = [(b.label, usual if b.words else _precisely(b.decimals)) for b in question.blanks]
    return [label if how == usual else f"{label} ({how})" for label, how in said]


def _precisely(decimals: int) -> str:
    return "in whole numbers" if decimals == 0 else "to 1 decimal" if decimals == 1 else f"to {decimals} decimals"


def parts(line: str, blanks: Sequence[Blank]) -> list[str]:
    """A line of answers taken apart: at spaces and semicolons, and at commas where they cannot be decimal commas.

    So "0,119 0,881" is two numbers, and so is "0.119, 0.881"; "1,2,5,6" is four where whole numbers are asked for. What
    can be read as the one answer that is asked for is never taken apart.
    """
    if len(blanks) == 1 and read(line, blanks[0]) is not None:
        return [line.strip()]
    loose = [part.strip(",") for part in re.split(r"[\s;]+", re.sub(r"[\[\](){}]", " ", line))]
    whole = all(blank.decimals == 0 for blank in blanks)
    found = []
    for part in loose:
        apart = whole or "." in part or part.count(",") > 1
        found += part.split(",") if apart and not THOUSANDS.fullmatch(part) else [part]
    return [part for part in found if part]
