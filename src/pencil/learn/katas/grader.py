"""What is right in an answer, and which mistake explains what is not; knows no terminal."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...config import UserError
from .exercise import Blank, Mistake, Question, Value

LONGEST = 60  # letters of an answer
WHOLE = re.compile(r"[+-]?\d{1,3}(?:[ _'’,\u00a0\u2009\u202f]\d{3})+")
NUMBER = re.compile(r"[+-]?(?:\d+[.,]?\d*|[.,]\d+)(?:e[+-]?\d{1,3})?", re.I)
NEAR = 1e-9  # of a unit: how near a half counts as one
TWICE = 0.05  # of a unit: what a value may seem nearer to a half when it was first rounded to one digit more


@dataclass(frozen=True)
class Graded:
    """Which blanks are right, whether all are, the mistake that explains the rest, and what could not be read."""

    right: tuple[bool, ...]
    solved: bool
    hint: Mistake | None
    unread: tuple[int, ...]


def grade(question: Question, answers: Sequence[str]) -> Graded:
    """Each answer held against its blank; answers that are missing are unread."""
    blanks = question.blanks
    if len(answers) > len(blanks):
        raise UserError(f"{len(answers)} answers were given to {question.kata}, which asks for {len(blanks)}")
    answers = [*answers, *[""] * (len(blanks) - len(answers))]
    said = [read(text, blank) for text, blank in zip(answers, blanks, strict=True)]
    unread = tuple(i for i, one in enumerate(said) if one is None)
    right = tuple(one is not None and accepts(blank, one) for one, blank in zip(said, blanks, strict=True))
    hint = _coarse(question, answers, said, right) or _explained(question, said, right)
    return Graded(right, all(right), hint, unread)


def accepts(blank: Blank, said: Value) -> bool:
    """Whether an answer is right: exactly, or as one who rounds along the way has it."""
    return any(same(blank, said, value) for value in (blank.value, *blank.also))


def same(blank: Blank, said: Value, value: Value) -> bool:
    """Whether an answer is this value to the digits asked for; a half may be rounded either way, and so may what is a
    half to one digit more, as the working shows it."""
    if isinstance(said, str) or isinstance(value, str):
        # the beginning of a word is enough
        return isinstance(said, str) and isinstance(value, str) and value.casefold().startswith(said.casefold())
    if not (math.isfinite(said) and math.isfinite(value)):
        return said == value
    if blank.decimals == 0:
        return abs(said - value) <= NEAR * max(1.0, abs(value))
    return bool(_roundings(said, blank.decimals) & _roundings(value, blank.decimals, TWICE))


def read(text: str, blank: Blank) -> Value | None:
    """An answer as a number, or as words where words are asked for; None where it is neither."""
    text = text.strip()
    if not text or len(text) > LONGEST:
        return None
    if blank.words:
        return text
    plain = re.sub("[−–‒]", "-", text).replace("∞", "inf").replace("- ", "-")
    share = 100 if plain.endswith("%") else 1
    parts = [_number(part, blank.decimals) for part in plain.removesuffix("%").strip().split("/")]
    if None in parts or len(parts) > 2:
        return None
    top, under = parts[0], parts[1] if len(parts) == 2 else 1.0
    if top is None or not under or math.isinf(under):
        return None
    return top / under / share


def _number(text: str, decimals: int) -> float | None:
    text = text.strip()
    if text.lower().lstrip("+-") in ("inf", "infinity"):
        return -math.inf if text.startswith("-") else math.inf
    # 327,680 is a whole number where one is asked for, and has decimals elsewhere
    if WHOLE.fullmatch(text) and (decimals == 0 or text.count(",") != 1):
        return float(re.sub(r"[^\d+-]", "", text))
    if not NUMBER.fullmatch(text):
        return None
    value = float(text.replace(",", "."))
    return value if math.isfinite(value) else None


def _roundings(value: float, decimals: int, near: float = 0.0) -> set[int]:
    """In units of the last digit: one number, or two where the value lies half way, or as near to that as said."""
    units = value * 10**decimals
    below = math.floor(units)
    half = units - below - 0.5
    slack = near + NEAR * max(1.0, abs(units))
    return {below, below + 1} if abs(half) <= slack else {below + (half > 0)}


def _coarse(
    question: Question, answers: Sequence[str], said: list[Value | None], right: Sequence[bool]
) -> Mistake | None:
    """Every wrong answer is the right one with fewer decimals than were asked for."""
    wrong = [i for i, fine in enumerate(right) if not fine]
    for i in wrong:
        blank, one = question.blanks[i], said[i]
        if isinstance(one, str) or one is None or isinstance(blank.value, str) or not math.isfinite(one):
            return None
        digits = len(re.sub(r".*[.,]|\D", "", answers[i])) if re.search(r"\d[.,]\d", answers[i]) else 0
        if not 0 < digits < blank.decimals or not _roundings(one, digits) & _roundings(blank.value, digits):
            return None
    if not wrong:
        return None
    most = max(question.blanks[i].decimals for i in wrong)
    places = "decimal" if most == 1 else "decimals"
    return Mistake("too few decimals", f"It is right as far as it goes; write {most} {places}.", ())


def _explained(question: Question, said: list[Value | None], right: Sequence[bool]) -> Mistake | None:
    """The mistake that gives every wrong answer, or else most of them; exactly first, then to a last digit.

    Of two that explain as many, the one that gives more of the right answers too. Where all answers are words, such as
    right or wrong, one that explains only some of them says nothing.
    """
    alike = len(said) if all(blank.words for blank in question.blanks) else 0
    wrong = sum(one is not None and not fine for one, fine in zip(said, right, strict=True))
    if not wrong:
        return None
    for near in (same, _nearly):
        best, most = None, (0, 0)
        for mistake in question.mistakes:
            fits = [
                one is not None and near(blank, one, value)
                for blank, one, value in zip(question.blanks, said, mistake.values, strict=True)
            ]
            # where the mistake leaves the right answer as it is, it explains nothing
            changed = [not accepts(*pair) for pair in zip(question.blanks, mistake.values, strict=True)]
            explained = sum(fit and new and not fine for fit, new, fine in zip(fits, changed, right, strict=True))
            if (explained, sum(fits)) > most and 2 * explained >= wrong and sum(fits) >= alike:
                best, most = mistake, (explained, sum(fits))
        if best is not None and (most[0] == wrong or near is _nearly):
            return best
    return None


def _nearly(blank: Blank, said: Value, value: Value) -> bool:
    """The same but for the last digit: who made a mistake may have rounded along the way too."""
    if isinstance(said, str) or isinstance(value, str) or blank.decimals == 0:
        return same(blank, said, value)
    return same(blank, said, value) or abs(said - value) <= 1.5 * 10**-blank.decimals
