"""Find the wrong cells: a row of a published page, or of a made-up one, with the values it was computed from."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ...tracing.live_trace import LiveTrace
from ...tracing.receipt_text import format_number
from ..check.check import WRONG, Number, check, shipped
from ..check.example_file import number
from ..worked.examples import vit_4x4
from .attention import FORGOT_SCALE, attention
from .builder import Draws, Maker, Numbers, distinguishable, mistake
from .exercise import Blank, Question, Table, written

TOKENS = ["cls", "patch 1", "patch 2", "patch 3", "patch 4"]


@lru_cache
def _page() -> tuple[dict[str, dict[tuple[int, ...], Number]], LiveTrace]:
    """The verdicts on every number of the published page, and the trace of the same example."""
    report = check(shipped()["004-vit-by-hand"])
    return {step.name: {item.index: item for item in step.numbers} for step in report.steps}, vit_4x4()


def _marked(printed: list[str], values: np.ndarray) -> list[str]:
    """Right or wrong: whether each printed number is its value rounded."""
    fits = (number(text, {}).fits(float(value)) for text, value in zip(printed, values, strict=True))
    return ["right" if fit else "wrong" for fit in fits]


def _question(
    source: Table,
    row: int,
    printed: tuple[str, list[str]],
    ask: str,
    verdicts: list[str],
    where: tuple[Callable[[], LiveTrace], str, int],
    unscaled: np.ndarray | None = None,
) -> Question:
    """A row of printed cells, each right or wrong; `printed` is (what they are, the cells), and `where` the trace,
    the row in it and the digits of the working.

    Mistakes that lead to the right answer are left out: all cells of a row may be right, or all wrong.
    """
    name, cells = printed
    tokens = TOKENS[: len(cells)]

    def working() -> list[str]:
        trace, begin, digits = where
        receipts = [trace()[f"{begin},{j}]"].why() for j in range(len(cells))]
        return [
            f"{token} = {r.formula} = {format_number(r.recorded, digits)}; printed {text}: {verdict}"
            for token, r, text, verdict in zip(tokens, receipts, cells, verdicts, strict=True)
        ]

    trusted = ["right"] * len(cells)
    mistakes = [mistake("trusted the print", "Not every printed cell is right: compute each one.", *trusted)]
    if unscaled is not None:
        mistakes.append(mistake(FORGOT_SCALE, "The scores are divided by √2.", *_marked(cells, unscaled)))
    question = Question(
        (source, Table(name, [list(cells)], tokens, [tokens[row]])),
        f"{ask} For each cell: right or wrong?",
        tuple(Blank(label, verdict, words=True) for label, verdict in zip(tokens, verdicts, strict=True)),
        tuple(mistakes),
        working,
    )
    return replace(question, mistakes=distinguishable(question))


def _pose(head: int, row: int, table: str, queries: list[list[float]] | None = None, planted: str = "") -> Question:
    if queries is not None:
        return _planted(queries, row, planted)
    return _scores(head, row) if table == "scores" else _weights(head, row)


def _published(step: str, row: int) -> tuple[list[str], list[str]]:
    """A row of the published page as printed, and the verdicts on it."""
    cells = [_page()[0][step][row, j] for j in range(len(TOKENS))]
    return [cell.printed for cell in cells], ["wrong" if cell.verdict == WRONG else "right" for cell in cells]


def _scores(head: int, row: int) -> Question:
    """A row of scores as printed on the page."""
    (printed, verdicts), trace = _published(f"scores{head + 1}", row), _page()[1]
    queries = trace["attn.q"].value[0, head]
    return _question(
        _queries(queries, f"Q = K, head {head + 1}"),
        row,
        ("printed scores", printed),
        f"A published page prints the scores of {TOKENS[row]} in head {head + 1}: Q·Kᵀ/√2, Q and K the same. "
        f"Compute them to three decimals.",
        verdicts,
        (lambda: trace, f"attn.scores[0,{head},{row}", 7),
        attention(queries, queries, queries, 1.0)["scores"][row],
    )


def _weights(head: int, row: int) -> Question:
    """A row of attention weights as printed on the page, with the right scores."""
    (printed, verdicts), trace = _published(f"attn{head + 1}", row), _page()[1]
    scores = trace["attn.scores"].value[0, head, row]
    return _question(
        Table("scores", [scores.round(4).tolist()], TOKENS, [TOKENS[row]]),
        row,
        ("printed weights", printed),
        f"A published page prints these attention weights of {TOKENS[row]} in head {head + 1}. The scores above them "
        f"are right; take their softmax to three decimals.",
        verdicts,
        (lambda: trace, f"attn.pattern[0,{head},{row}", 4),
    )


def _planted(queries: list[list[float]], row: int, planted: str) -> Question:
    """A made-up page; `planted` has a letter per cell: `.` right, `u` not scaled, `n` the next cell's value."""
    done, raw = attention(queries, queries, queries), attention(queries, queries, queries, 1.0)["scores"][row]
    exact = done["scores"][row]
    sources = {".": exact, "u": raw, "n": np.roll(exact, -1)}
    printed = [written(float(sources[letter][j]), 3) for j, letter in enumerate(planted)]
    return _question(
        _queries(np.asarray(queries), "Q = K"),
        row,
        ("printed scores", printed),
        f"A made-up page prints the scores of {TOKENS[row]}: Q·Kᵀ/√2, Q and K the same, to three decimals.",
        _marked(printed, exact),
        (lambda: done.trace, f"scores[0,0,{row}", 4),
        raw,
    )


def _queries(queries: np.ndarray, name: str) -> Table:
    return Table(name, queries.round(6).tolist(), None, TOKENS[: len(queries)])


def _draw(d: Draws) -> Numbers:
    """A third of the questions are from the page, the others are made up."""
    if d.whole(0, 2) == 0:
        return {"head": d.whole(0, 1), "row": d.whole(0, 4), "table": d.pick(["scores", "weights"])}
    queries = [[d.tenths(5, 40), d.tenths(5, 40)] for _ in range(4)]
    planted = "".join(d.pick("..un") for _ in range(4))
    return {"head": 0, "row": d.whole(0, 3), "table": "", "queries": queries, "planted": planted}


MAKES = {"wrong-cells": Maker("wrong-cells", {"head": 0, "row": 1, "table": "scores"}, _draw, _pose)}
