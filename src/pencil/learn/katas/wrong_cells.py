"""Find the wrong cells: a row of a published page, or of a made-up one, with the values it was computed from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ...tracing.live_trace import LiveTrace
from ...tracing.writing import format_number
from ..check.check import WRONG, Number, check, shipped
from ..check.published import number
from ..worked.examples import vit_4x4
from .attention_by_hand import attention
from .builder import Draws, LazyLines, Numbers, distinguishable, maker, mistake
from .exercise import Blank, Mistake, Question, Table, written

FORGOT = "forgot ÷√d"
TOKENS = ["cls", "patch 1", "patch 2", "patch 3", "patch 4"]
ANSWERS = "right", "wrong"


@lru_cache
def _page() -> tuple[dict[str, dict[tuple[int, ...], Number]], LiveTrace]:
    """The verdicts on every number of the published page, and the trace of the same example."""
    report = check(shipped()["004-vit-by-hand"])
    return {step.name: {one.index: one for one in step.numbers} for step in report.steps}, vit_4x4()


def _verdicts(wrong: Sequence[bool]) -> list[str]:
    return [ANSWERS[bool(one)] for one in wrong]


def _marked(printed: list[str], values: np.ndarray) -> list[str]:
    """Right or wrong: whether each printed number is its value rounded."""
    return _verdicts([not number(text, {}).fits(float(value)) for text, value in zip(printed, values, strict=True)])


def _question(
    given: tuple[Table, ...],
    ask: str,
    verdicts: list[str],
    mistakes: tuple[Mistake, ...],
    lines: Callable[[], list[str]],
) -> Question:
    """Mistakes that lead to the right answer are left out: all cells of a row may be right, or all wrong."""
    blanks = tuple(
        Blank(label, verdict, words=True) for label, verdict in zip(TOKENS[: len(verdicts)], verdicts, strict=True)
    )
    question = Question(
        "", None, "", given, f"{ask} For each cell: right or wrong?", blanks, mistakes, LazyLines(lines)
    )
    return replace(question, mistakes=tuple(distinguishable(question)))


def _pose(head: int, row: int, table: str, queries: list[list[float]] | None = None, planted: str = "") -> Question:
    if queries is not None:
        return _planted(queries, row, planted)
    return _scores(head, row) if table == "scores" else _portions(head, row)


def _scores(head: int, row: int) -> Question:
    """A row of scores as printed on the page."""
    checked, trace = _page()
    cells = [checked[f"scores{head + 1}"][row, j] for j in range(5)]
    printed = [cell.printed for cell in cells]
    verdicts = _verdicts([cell.verdict == WRONG for cell in cells])
    queries = trace["attn.q"].value[0, head]
    raw = attention(queries, queries, queries, 1.0).run("scores")[row]

    def lines() -> list[str]:
        receipts = [trace[f"attn.scores[0,{head},{row},{j}]"].why() for j in range(5)]
        return [
            f"{token} = {r.formula} = {format_number(r.recorded, 7)}; printed {text}: {verdict}"
            for token, r, text, verdict in zip(TOKENS, receipts, printed, verdicts, strict=True)
        ]

    return _question(
        (_queries(queries, f"Q = K, head {head + 1}"), Table("printed scores", [list(printed)], TOKENS, [TOKENS[row]])),
        f"A published page prints the scores of {TOKENS[row]} in head {head + 1}: Q·Kᵀ/√2, Q and K the same. "
        f"Compute them to three decimals.",
        verdicts,
        (*_trusting(5), mistake(FORGOT, "The scores are divided by √2.", *_marked(printed, raw))),
        lines,
    )


def _portions(head: int, row: int) -> Question:
    """A row of portions as printed on the page, with the right scores."""
    checked, trace = _page()
    cells = [checked[f"attn{head + 1}"][row, j] for j in range(5)]
    printed, verdicts = [cell.printed for cell in cells], _verdicts([cell.verdict == WRONG for cell in cells])
    scores = trace["attn.scores"].value[0, head, row]

    def lines() -> list[str]:
        receipts = [trace[f"attn.pattern[0,{head},{row},{j}]"].why() for j in range(5)]
        return [
            f"{token} = {r.formula} = {format_number(r.recorded, 4)}; printed {text}: {verdict}"
            for token, r, text, verdict in zip(TOKENS, receipts, printed, verdicts, strict=True)
        ]

    return _question(
        (
            Table("scores", [scores.round(4).tolist()], TOKENS, [TOKENS[row]]),
            Table("printed portions", [list(printed)], TOKENS, [TOKENS[row]]),
        ),
        f"A published page prints these portions of {TOKENS[row]} in head {head + 1}. The scores above them are right; "
        f"take their softmax to three decimals.",
        verdicts,
        _trusting(5),
        lines,
    )


def _planted(queries: list[list[float]], row: int, planted: str) -> Question:
    """A made-up page; `planted` has a letter a cell: `.` right, `u` not scaled, `n` the next cell's value."""
    done, raw = attention(queries, queries, queries), attention(queries, queries, queries, 1.0).run("scores")[row]
    exact = done["scores"][row]
    shown = {".": exact, "u": raw, "n": np.roll(exact, -1)}
    printed = [written(float(shown[how][j]), 3) for j, how in enumerate(planted)]
    verdicts = _marked(printed, exact)

    def lines() -> list[str]:
        receipts = [done.trace[f"scores[0,0,{row},{j}]"].why() for j in range(len(planted))]
        return [
            f"{token} = {r.formula} = {format_number(r.recorded)}; printed {text}: {verdict}"
            for token, r, text, verdict in zip(TOKENS, receipts, printed, verdicts, strict=False)
        ]

    tokens = TOKENS[: len(planted)]
    return _question(
        (
            _queries(np.asarray(queries), "Q = K"),
            Table("printed scores", [list(printed)], tokens, [tokens[row]]),
        ),
        f"A made-up page prints the scores of {tokens[row]}: Q·Kᵀ/√2, Q and K the same, to three decimals.",
        verdicts,
        (*_trusting(len(planted)), mistake(FORGOT, "The scores are divided by √2.", *_marked(printed, raw))),
        lines,
    )


def _trusting(count: int) -> tuple[Mistake, ...]:
    return (mistake("trusted the print", "Not every printed cell is right: compute each one.", *["right"] * count),)


def _queries(queries: np.ndarray, name: str) -> Table:
    return Table(name, queries.round(6).tolist(), None, TOKENS[: len(queries)])


def _draw(d: Draws) -> Numbers:
    """A third of the questions are from the page, the others are made up."""
    if d.whole(0, 2) == 0:
        return {"head": d.whole(0, 1), "row": d.whole(0, 4), "table": d.pick(["scores", "portions"])}
    queries = [[d.tenths(5, 40), d.tenths(5, 40)] for _ in range(4)]
    planted = "".join(d.pick("..un") for _ in range(4))
    return {"head": 0, "row": d.whole(0, 3), "table": "", "queries": queries, "planted": planted}


MAKES = {"wrong-cells": maker("wrong-cells", {"head": 0, "row": 1, "table": "scores"}, _draw, _pose)}
