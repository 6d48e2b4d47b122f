"""Claims: sentences of a document that a computation decides. Each is shown, wrong, or not shown.

A claim's formula states what the document states, and is true or false. One without a formula says why it is not shown.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...config import UserError
from .example_file import Known, Tables, one_line
from .formula import COMPARE, by, read, work_out

SHOWN, NOT_SHOWN, WRONG = CLAIM_VERDICTS = "shown", "not shown", "wrong"
SIGNS: dict[type, tuple[str, str]] = {
    ast.Lt: ("<", "≥"),
    ast.LtE: ("≤", ">"),
    ast.Gt: (">", "≤"),
    ast.GtE: ("≥", "<"),
    ast.Eq: ("=", "≠"),
    ast.NotEq: ("≠", "="),
}


@dataclass(frozen=True)
class Claim:
    """One sentence and its verdict."""

    text: str  # what the document says
    line: int | None
    label: str
    formula: str
    verdict: str
    note: str  # what is right, of a wrong claim; why it is not shown, of the others
    values: str  # what was measured: a sentence with the two sides of the comparison that decided it
    command: str  # shows it

    @property
    def evidence(self) -> str:
        """What supports the verdict: what is right or why it is not shown, then what was measured."""
        return " ".join(part for part in (self.note, self.values) if part)


def count_claims(claims: Iterable[Claim]) -> dict[str, int]:
    """The number of verdicts of each kind."""
    found = [claim.verdict for claim in claims]
    return {verdict: found.count(verdict) for verdict in CLAIM_VERDICTS}


def judge(tables: Tables, exact: Known, printed: Known) -> tuple[Claim, ...]:
    """The verdict on each claim of a file, from the exact values of its steps; printed(x) is x as printed."""
    known = exact | {f"printed({name})": value for name, value in printed.items()}
    claims = []
    for i, claim in enumerate(tables.claims):
        tables.on("", "claim", i, _check_keys, claim)
        verdict, values = NOT_SHOWN, ""
        if "formula" in claim:
            holds, sides = tables.on("formula", "claim", i, _decide, claim["formula"], known)
            values = tables.on("measured", "claim", i, _measured, claim.get("measured", ""), sides)
            verdict = SHOWN if holds else WRONG
            if holds and "instead" in claim:
                raise tables.error("this claim holds, so there is nothing to say instead", "instead", "claim", i)
        if "right" in claim:
            if verdict != WRONG:
                raise tables.error("right is the formula of a wrong claim, and this one holds", "right", "claim", i)
            if not tables.on("right", "claim", i, _decide, claim["right"], known)[0]:
                raise tables.error("the formula of what is right does not hold either", "right", "claim", i)
        words = {key: one_line(claim.get(key, "")) for key in ("text", "label", "formula", "command")}
        note = one_line(claim.get("instead") or claim.get("why") or "")
        claims.append(Claim(**words, line=claim.get("line"), verdict=verdict, note=note, values=values))
    return tuple(claims)


def _check_keys(claim: dict[str, Any]) -> None:
    if not claim.get("text", "").strip():
        raise UserError("this claim has no text")
    if "formula" not in claim:
        if not claim.get("why", "").strip():
            raise UserError("this claim has no formula; add one, or say why it is not shown")
        if extra := next((key for key in ("instead", "right", "measured") if key in claim), None):
            raise UserError(f"{extra} is for a claim with a formula{' that is false' * (extra != 'measured')}")
    elif "why" in claim:
        raise UserError("why is for a claim without a formula")
    if "right" in claim and "instead" not in claim:
        raise UserError("this claim has the formula of what is right; say it in words as well, as instead")


def _decide(formula: str, known: Known) -> tuple[bool, tuple[str, str, str] | None]:
    """Whether a formula is true, and the two numbers that it compares with the sign between them, if it does."""
    tree = read(formula)
    match tree:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARE:
            sides = [work_out(side, known) for side in (left, right)]
            if any(np.isnan(side).any() for side in sides):
                raise UserError("one side of the comparison is not a number, so that it decides nothing")
            if all(side.size == 1 for side in sides):
                a, b = (float(side.reshape(())) for side in sides)
                holds = bool(COMPARE[type(op)](a, b))
                plain = a == b and (a == 0 or np.isinf(a))  # 0 = 0 tells nothing
                return holds, None if plain else (_short(a), SIGNS[type(op)][not holds], _short(b))
    value = work_out(tree, known)
    if value.size != 1:
        raise UserError(f"the formula gives {by(value.shape)} numbers, and a claim is true or false; use all(…)")
    if (number := float(value.reshape(()))) not in (0.0, 1.0):
        raise UserError(f"the formula gives {number:g}, and a claim is true (1) or false (0); compare it")
    return bool(number), None


def _measured(sentence: str, sides: tuple[str, str, str] | None) -> str:
    """What a comparison measured: the file's sentence with the two numbers in it, or else the comparison itself."""
    if not sentence:
        return f"Measured: {' '.join(sides)}." if sides else ""
    if sides is None:
        raise UserError("measured is for a formula that compares two numbers, unless both are 0 or infinite")
    if "{a}" not in sentence:
        raise UserError("measured has {a} where the number on the left of the comparison belongs, {b} for the right")
    return one_line(sentence.replace("{a}", sides[0]).replace("{b}", sides[2]))


def _short(value: float) -> str:
    if value.is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}"
