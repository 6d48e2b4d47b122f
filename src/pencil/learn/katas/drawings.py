"""Small drawings of exercises: the given tables to scale, what is done with them, and the place of the answer.

A drawing is written as a line of data, one for each exercise. A number is a given table, counted from 0; after it ᵀ
turns it around, # draws the edges of its patches, and | those of its two heads. M is the mask. ? is what is asked for.
Everything else is written as it stands. Where the steps themselves are the question, the line does not have them.
"""

import math
import re
from collections.abc import Sequence
from html import escape

from .exercise import Question, Table

SKETCHES = {
    "cut": "0# → ?",
    "missing-swap": "0# → ?",
    "dot": "0# → ?",
    "stamp": "position ÷ 0 → sin, cos → ?",
    "add-stamp": "0 + 1 → ?",
    "match": "0 × 1ᵀ → ?",
    "scale": "0 ÷√d → ?",
    "softmax": "0 ÷√d → softmax → ?",
    "weighted-sum": "0 × 1 → ?",
    "attention": "0 × 1ᵀ ÷√d → softmax → × 2 → ?",
    "middle": "0 − mean → ?",
    "layernorm": "0 → LN → ?",
    "dials": "0 → LN → ·γ +β 1 → ?",
    "causal": "0 + M → softmax → ?",
    "prefix": "0 + M → softmax → ?",
    "heads": "0| × 1|ᵀ ÷√d → softmax → × 2| → ?",
    "cross": "0 × 3ᵀ ÷√d → softmax → × 4 → ?",
    "seat-table": "0 + 1 → ?",
    "rope": "0 ↻ 1 → ?",
    "alibi": "0 − slope·distance → ?",
    "residual": "0 → LN → × 1ᵀ → + 0 → ?",
    "gelu": "0 × 1ᵀ + 2 → GELU → × 3ᵀ → ?",
    "cross-entropy": "0 → softmax → −ln → ?",
    "kv-cache": "2 , 0 , 1 → attention → ?",
    "cache-bytes": "0 → ?",
    "rnn": "0 × 2ᵀ + 1 × 3ᵀ + 4 → tanh → ?",
    "adaln": "0 → LN → ·γ +β 1 → ?",
    "adaln-zero": "0 , 1 , 2 → ?",
    "ddim": "0 , 1 , 2 → x₀ → ?",
    "one-hot-gradient": "0 → ?",
    "input-gradient": "0 × 1 → y , 2 → ?",
    "weight-gradient": "0 × 1 → y , 2 → ?",
    "norm-gradient": "0 , 1 → ?",
    "residual-gradient": "0 , 1 → ?",
    "adamw-step": "0 , 1 , 2 → ?",
    "muon-step": "0 → ?",
    "wrong-cells": "0 × 0ᵀ ÷√d → 1 → ?",
}
CELL, GAP, LETTER = 18, 12, 8.5  # in pixels: a cell's side, the space between parts, the width of a letter
MOST = 8  # cells of a row or a column that are drawn
PATCH = 2  # pixels along the edge of a patch
TABLE = re.compile(r"(\d)([#|]?)(ᵀ?)")


def drawing(question: Question) -> str:
    """The drawing of an exercise as SVG, in one colour, that of the text; empty where there is none."""
    line = SKETCHES.get(question.kata)
    if line is None:
        return ""
    used = [TABLE.fullmatch(word) for word in line.split()]
    sizes = [(question.tables[int(m[1])].rows, bool(m[3])) for m in used if m]
    tallest = max([len(rows[0]) if turned else len(rows) for rows, turned in sizes], default=1)
    middle = CELL * min(max(tallest, len(question.rows)), MOST) / 2 + 4
    parts, x = [], 0.0
    for word, match in zip(line.split(), used, strict=True):
        label, shape = "", None
        if match:
            table = question.tables[int(match[1])]
            rows = _turned(table.rows) if match[3] else table.rows
            shape, label = _table(rows, match[2], bool(match[3])), _letter(table) + match[3]
        elif word == "M":
            count = len(question.tables[0].rows)
            seen = [[float(_sees(question, i, j)) for j in range(count)] for i in range(count)]
            shape, label = _table(seen, "", False), "mask"
        elif word == "?":
            shape, label = _answer(question), "?"
        wide = LETTER * len(label or word)
        if shape is None:
            parts.append(f'<text x="{x + wide / 2:g}" y="{middle + 6:g}">{escape(word)}</text>')
            x += wide + GAP
            continue
        drawn, width = shape
        wide = max(wide, width)
        parts.append(f'<g transform="translate({x + (wide - width) / 2:g} {middle:g})">{drawn}</g>')
        parts.append(f'<text class="label" x="{x + wide / 2:g}" y="{2 * middle + 16:g}">{escape(label)}</text>')
        x += wide + GAP
    return (
        f'<svg class="drawing" viewBox="-2 0 {x:g} {2 * middle + 26:g}" '
        f'width="{x:g}" height="{2 * middle + 26:g}" role="img" aria-label="{escape(_said(question, line))}" '
        f'fill="currentColor" stroke="none" font-size="15" text-anchor="middle">{"".join(parts)}</svg>'
    )


def _turned(rows: Sequence[Sequence[float | str]]) -> list[list[float | str]]:
    return [list(row) for row in zip(*rows, strict=True)]


def _letter(table: Table) -> str:
    """Q of "queries (Q)"; a short name is its own."""
    found = re.search(r"\((\w+)\)", table.name)
    return found[1] if found else table.name if len(table.name) <= 16 else table.name.split()[0]


def _sees(question: Question, i: int, j: int) -> bool:
    """Whether a query sees a key under the mask that the exercise describes."""
    first = re.search(r"first (\d+) tokens", question.ask)
    return j <= i or bool(first and max(i, j) < int(first[1]))


def _table(rows: Sequence[Sequence[float | str]], edges: str, turned: bool) -> tuple[str, float]:
    """A table, each cell the darker the larger its number is, with the edges of patches or heads; and its width."""
    rows = [row[:MOST] for row in rows[:MOST]]
    width, height = CELL * len(rows[0]), CELL * len(rows)
    top = -height / 2
    numbers = [abs(v) for row in rows for v in row if isinstance(v, int | float) and math.isfinite(v)]
    largest = max(numbers, default=0) or 1
    cells = []
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            dark = abs(value) / largest if isinstance(value, int | float) and math.isfinite(value) else 0
            cells.append(
                f'<rect x="{CELL * j}" y="{top + CELL * i:g}" width="{CELL}" height="{CELL}" '
                f'fill-opacity="{0.55 * dark:.2f}" stroke="currentColor" stroke-width=".6"/>'
            )
    lines = [f"M0 {top:g}h{width}v{height}h{-width}z"]
    if edges == "#":
        lines += [f"M0 {top + CELL * i:g}h{width}" for i in range(PATCH, len(rows), PATCH)]
        lines += [f"M{CELL * j} {top:g}v{height}" for j in range(PATCH, len(rows[0]), PATCH)]
    elif edges == "|":
        lines.append(f"M0 0h{width}" if turned else f"M{width / 2:g} {top:g}v{height}")
    return f'{"".join(cells)}<path d="{"".join(lines)}" fill="none" stroke="currentColor" stroke-width="2"/>', width


def _answer(question: Question) -> tuple[str, float]:
    """The place of what is asked for: as many dashed cells as there are blanks; and its width."""
    counts = [count for _, count in question.rows] or [len(question.blanks)]
    count, columns = min(len(counts), MOST), min(max(counts), MOST)
    cells = "".join(
        f'<rect x="{CELL * j}" y="{CELL * (i - count / 2):g}" width="{CELL}" height="{CELL}"/>'
        for i in range(count)
        for j in range(columns)
    )
    return f'<g fill="none" stroke="currentColor" stroke-dasharray="3 2">{cells}</g>', CELL * columns


def _said(question: Question, line: str) -> str:
    """The drawing in words, for those who do not see it."""

    def named(match: re.Match[str]) -> str:
        table = question.tables[int(match[1])]
        return f"{table.name}, {len(table.rows)} by {len(table.rows[0])}{', transposed' if match[3] else ''}"

    return TABLE.sub(named, line).replace("M", "the mask").replace("?", f"{len(question.blanks)} answers")
