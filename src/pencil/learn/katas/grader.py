"""Reads and grades answers: how they are written, which are right, and which known mistake explains the wrong ones."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ...config import UserError
from .exercise import Blank, Mistake, Question, Value

VERDICTS = {"right", "wrong"}  # where one may be the answer, so may the other
MOST_LABELS = 9  # blanks that are named one by one; more are named by row and column
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


def wanted(question: Question) -> tuple[str, list[str], str]:
    """What is to be answered: how the line begins, the blanks (or their rows, where they are many), and the columns."""
    how = digits(question)
    begin = f"Answer{' ' + how if how else ''}"
    if len(question.blanks) <= MOST_LABELS or not question.rows:
        return begin, labels(question), ""
    each = f" (each {' · '.join(question.across)})" if question.across else ""
    return f"{begin}, row by row", [row for row, _ in question.rows], each


def _precision(decimals: int) -> str:
    return "in whole numbers" if decimals == 0 else "to 1 decimal" if decimals == 1 else f"to {decimals} decimals"


def choices(question: Question) -> list[str]:
    """The possible answers of blanks that are words; none if only the right one is known."""
    answers = [[blank.value for blank in question.blanks], *(mistake.values for mistake in question.mistakes)]
    words = {
        word
        for values in answers
        for blank, word in zip(question.blanks, values, strict=False)
        if blank.words and isinstance(word, str)
    }
    words |= VERDICTS if words & VERDICTS else set()
    return sorted(words) if len(words) > 1 else []


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
    answers = []
    for part in loose:
        split = whole or "." in part or part.count(",") > 1
        answers += part.split(",") if split and not THOUSANDS.fullmatch(part) else [part]
    return [part for part in answers if part]


LONGEST = 60  # characters of an answer
WHOLE = re.compile(r"[+-]?\d{1,3}(?:[ _'’,\u00a0\u2009\u202f]\d{3})+")
NUMBER = re.compile(r"[+-]?(?:\d+[.,]?\d*|[.,]\d+)(?:e[+-]?\d{1,3})?", re.I)
NEAR = 1e-9  # of a unit in the last digit: this close to a half counts as a half
TWICE = 0.05  # of a unit in the last digit: rounding to one digit more first may move a value this far
LAST = 1.5  # units of the last digit: rounding of earlier steps may move a mistaken value this far


@dataclass(frozen=True)
class Graded:
    """Which blanks are right, whether all are, the mistake that explains the others, and which could not be read."""

    right: tuple[bool, ...]
    solved: bool
    hint: Mistake | None
    unread: tuple[int, ...]


def grade(question: Question, answers: Sequence[str]) -> Graded:
    """Each answer compared with its blank; missing answers count as unread."""
    blanks = question.blanks
    if len(answers) > len(blanks):
        raise UserError(f"{len(answers)} answers were given to {question.kata}, which has {len(blanks)} blanks")
    answers = [*answers, *[""] * (len(blanks) - len(answers))]
    values = [read(text, blank) for text, blank in zip(answers, blanks, strict=True)]
    unread = tuple(i for i, value in enumerate(values) if value is None)
    right = tuple(value is not None and accepts(blank, value) for value, blank in zip(values, blanks, strict=True))
    hint = _coarse(question, answers, values, right) or _explained(question, values, right)
    return Graded(right, all(right), hint, unread)


def accepts(blank: Blank, answer: Value) -> bool:
    """Whether an answer is right: the exact value, or the value with earlier steps rounded."""
    return any(same(blank, answer, value) for value in (blank.value, *blank.also))


def same(blank: Blank, answer: Value, value: Value) -> bool:
    """Whether an answer is this value to the blank's decimals; a half may be rounded up or down, and so may a value
    that is a half to one digit more, as the working shows it."""
    if isinstance(answer, str) or isinstance(value, str):
        # the beginning of a word is enough
        return isinstance(answer, str) and isinstance(value, str) and value.casefold().startswith(answer.casefold())
    if not (math.isfinite(answer) and math.isfinite(value)):
        return answer == value
    if blank.tolerance and abs(answer - value) <= blank.tolerance * (1 + NEAR):
        return True
    if blank.decimals == 0:
        return abs(answer - value) <= NEAR * max(1.0, abs(value))
    return bool(_roundings(answer, blank.decimals) & _roundings(value, blank.decimals, TWICE))


def read(text: str, blank: Blank) -> Value | None:
    """An answer as a number, or as a word if the blank is one; None if it cannot be read."""
    text = text.strip()
    if not text or len(text) > LONGEST:
        return None
    if blank.words:
        return text
    plain = re.sub("[−–‒]", "-", text).replace("∞", "inf").replace("- ", "-")
    percent = 100 if plain.endswith("%") else 1
    parts = [_number(part, blank.decimals) for part in plain.removesuffix("%").strip().split("/")]
    if None in parts or len(parts) > 2:
        return None
    top, under = parts[0], parts[1] if len(parts) == 2 else 1.0
    if top is None or not under or math.isinf(under):
        return None
    return top / under / percent


def _number(text: str, decimals: int) -> float | None:
    text = text.strip()
    if text.lower().lstrip("+-") in ("inf", "infinity"):
        return -math.inf if text.startswith("-") else math.inf
    # 327,680 is an integer where the blank is one, and has three decimals elsewhere
    if WHOLE.fullmatch(text) and (decimals == 0 or text.count(",") != 1):
        return float(re.sub(r"[^\d+-]", "", text))
    if not NUMBER.fullmatch(text):
        return None
    value = float(text.replace(",", "."))
    return value if math.isfinite(value) else None


def _roundings(value: float, decimals: int, near: float = 0.0) -> set[int]:
    """The value in units of its last digit: one integer, or two where it is within `near` of a half."""
    units = value * 10**decimals
    below = math.floor(units)
    half = units - below - 0.5
    slack = near + NEAR * max(1.0, abs(units))
    return {below, below + 1} if abs(half) <= slack else {below + (half > 0)}


def _coarse(
    question: Question, answers: Sequence[str], values: list[Value | None], right: Sequence[bool]
) -> Mistake | None:
    """The mistake that every wrong answer is right but has too few decimals."""
    wrong = [i for i, fine in enumerate(right) if not fine]
    for i in wrong:
        blank, value = question.blanks[i], values[i]
        if isinstance(value, str) or value is None or isinstance(blank.value, str) or not math.isfinite(value):
            return None
        digits = len(re.sub(r".*[.,]|\D", "", answers[i])) if re.search(r"\d[.,]\d", answers[i]) else 0
        if not 0 < digits < blank.decimals or not _roundings(value, digits) & _roundings(blank.value, digits):
            return None
    if not wrong:
        return None
    most = max(question.blanks[i].decimals for i in wrong)
    places = "decimal" if most == 1 else "decimals"
    return Mistake("too few decimals", f"The digits given are right; write {most} {places}.", ())


def _explained(question: Question, values: list[Value | None], right: Sequence[bool]) -> Mistake | None:
    """The one mistake that leads to the whole answer, exactly or else up to the last digit.

    An answer that fits in part, or that fits two mistakes, is not explained: a wrong name misleads more than none.
    """
    read_values = [value for value in values if value is not None]
    if all(right) or len(read_values) < len(values):
        return None
    for fits in (_leads_to, _nearly_leads_to):
        explaining = [mistake for mistake in question.mistakes if fits(question, mistake, read_values)]
        if explaining:
            return explaining[0] if len(explaining) == 1 else None
    return None


def _leads_to(question: Question, mistake: Mistake, values: Sequence[Value]) -> bool:
    return all(map(same, question.blanks, values, mistake.values))


def _nearly_leads_to(question: Question, mistake: Mistake, values: Sequence[Value]) -> bool:
    """The same up to the last digit; but where the mistake changes the answer, a right one does not fit it."""
    return all(
        same(blank, answer, value)
        or (nearly(blank, answer, value) and (accepts(blank, value) or not accepts(blank, answer)))
        for blank, answer, value in zip(question.blanks, values, mistake.values, strict=True)
    )


def nearly(blank: Blank, answer: Value, value: Value, units: float = LAST) -> bool:
    """The same up to the last digit: after a mistake, earlier steps may have been rounded too."""
    if isinstance(answer, str) or isinstance(value, str) or blank.decimals == 0:
        return same(blank, answer, value)
    return same(blank, answer, value) or abs(answer - value) <= units * 10**-blank.decimals


def apart(question: Question, values: Sequence[Value], others: Sequence[Value]) -> bool:
    """Whether no answer can nearly be both: somewhere they differ by more than both may be rounded."""
    return not all(map(partial(nearly, units=2 * LAST + 0.5), question.blanks, values, others))
