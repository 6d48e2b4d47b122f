"""The text of an exercise: how its numbers are written, and how a line of answers is split."""

import math
import re
from collections.abc import Sequence

from .exercise import Blank, Question, Value
from .grader import read

VERDICTS = {"right", "wrong"}  # where one may be the answer, so may the other
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")


def shown(value: Value) -> str:
    """A given number as short text; a word as it is."""
    if isinstance(value, str):
        return value
    whole = math.isfinite(value) and value == int(value)
    return (f"{value + 0.0:.0f}" if whole else f"{value:.6g}").replace("-", "−")


def digits(question: Question) -> str:
    """The precision of the answers, in words; blanks with fewer decimals have it in their label."""
    decimals = [blank.decimals for blank in question.blanks if not blank.words]
    return _precision(max(decimals)) if decimals else ""


def labels(question: Question) -> list[str]:
    """The labels of the blanks, each with its precision where it differs from that of the others."""
    usual = digits(question)
    pairs = [(b.label, usual if b.words else _precision(b.decimals)) for b in question.blanks]
    return [label if how == usual else f"{label} ({how})" for label, how in pairs]


def _precision(decimals: int) -> str:
    return "in whole numbers" if decimals == 0 else "to 1 decimal" if decimals == 1 else f"to {decimals} decimals"


def choices(question: Question) -> list[str]:
    """The possible answers of blanks that are words; none if only the right one is known."""
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
    """Whether an answer can be read: a number, one of the words, or the beginning of exactly one of them."""
    if not blank.words or not words:
        return read(answer, blank) is not None
    text = answer.strip().casefold()
    alike = [word.casefold() for word in words if text and word.casefold().startswith(text)]
    return len(alike) == 1 or text in alike


def parts(line: str, blanks: Sequence[Blank]) -> list[str]:
    """A line of answers, split at spaces and semicolons, and at commas that cannot be decimal commas.

    So "0,119 0,881" is two numbers, and so is "0.119, 0.881"; "1,2,5,6" is four where the blanks are integers. If there
    is one blank and the line can be read as its answer, it is not split.
    """
    if len(blanks) == 1 and read(line, blanks[0]) is not None:
        return [line.strip()]
    loose = [part.strip(",") for part in re.split(r"[\s;]+", re.sub(r"[\[\](){}]", " ", line))]
    whole = all(blank.decimals == 0 for blank in blanks)
    found = []
    for part in loose:
        split = whole or "." in part or part.count(",") > 1
        found += part.split(",") if split and not THOUSANDS.fullmatch(part) else [part]
    return [part for part in found if part]
