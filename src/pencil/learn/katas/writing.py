"""How the numbers of an exercise are written, and how a line of answers is taken apart."""

import math
import re
from collections.abc import Sequence

from .exercise import Blank, Question, Value
from .grader import read

VERDICTS = {"right", "wrong"}  # where one of them is asked for the other may be, too
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


def choices(question: Question) -> list[str]:
    """The words that may be answered where words are asked for; none where they are not known."""
    answers = [[blank.value for blank in question.blanks], *(mistake.values for mistake in question.mistakes)]
    known = {
        word
        for values in answers
        for blank, word in zip(question.blanks, values, strict=False)
        if blank.words and isinstance(word, str)
    }
    known |= VERDICTS if known & VERDICTS else set()
    return sorted(known) if len(known) > 1 else []


def understood(answer: str, blank: Blank, words: Sequence[str]) -> bool:
    """Whether an answer can be read: a number, or one of the words or the beginning of just one of them."""
    if not blank.words or not words:
        return read(answer, blank) is not None
    said = answer.strip().casefold()
    alike = [word.casefold() for word in words if said and word.casefold().startswith(said)]
    return len(alike) == 1 or said in alike


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
