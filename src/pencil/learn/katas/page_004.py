"""The page of document 004: the whole worked example, table by table; the answers come from its trace."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ...tracing.live_trace import LiveTrace, trace
from ...tracing.writing import format_number
from ..worked.examples import VitByHand, vit_4x4
from .exercise import Blank, Question, Table
from .page_questions import Section, counting, drawn, grid, kata, numbers, posed, table

TOKENS = ["cls", "patch 1", "patch 2", "patch 3", "patch 4"]
DIMS = [f"dim {i}" for i in range(4)]


@lru_cache(maxsize=4)
def _worked(seed: int | None) -> LiveTrace:
    """The document's picture, or one with fresh dots, through the document's weights."""
    if seed is None:
        return vit_4x4()
    dots = drawn("photo", seed).distinct(16, 1, 16)
    return trace(VitByHand(), torch.tensor(dots, dtype=torch.float64).reshape(1, 1, 4, 4))


def _cell(trace: LiveTrace, name: str, *at: int) -> str:
    """How one cell was computed."""
    receipt = trace[f"{name}[{','.join(map(str, (0, *at)))}]"].why()
    return f"{receipt.formula} = {format_number(receipt.recorded, 6)}"


def _table_to_fill(
    seed: int | None,
    title: str,
    ask: str,
    values: tuple[str, tuple[int, ...], int],
    labels: tuple[Sequence[str], Sequence[str]],
    tables: Sequence[Table],
) -> Question:
    """A table to fill in: (name, its leading index, decimals); its working shows the first cell of each row."""
    (name, first, decimals), (down, across) = values, labels
    part = _value(seed, name, *first)

    def working() -> Iterator[str]:
        for i, row in enumerate(down):
            yield f"{row}, {across[0]} = {_cell(_worked(seed), name, *first, i, 0)}"
            yield f"  {row}: {'  '.join(format_number(float(one), decimals + 2) for one in part[i])}"

    return posed(
        "worked",
        title,
        seed,
        ask,
        grid(down, across, part, decimals),
        working,
        tables,
        [(row, len(across)) for row in down],
        across,
    )


def _value(seed: int | None, name: str, *at: int) -> Any:
    return _worked(seed)[name].value[(0, *at)]


def _head(seed: int | None, head: int) -> Section:
    """All steps of one head."""
    which, dims = f"head {head + 1}", DIMS[2 * head : 2 * head + 2]
    q = table(f"Q = K = V, {which}", _value(seed, "attn.q", head), TOKENS)
    scores = table("scores", _value(seed, "attn.scores", head), TOKENS, TOKENS)
    pattern = table("attention", _value(seed, "attn.pattern", head), TOKENS, TOKENS)
    return Section(
        f"4) Attention, {which}",
        "S = Q Kᵀ/√2, A = softmax of each row of S, and the head's output is A V.",
        (
            _table_to_fill(
                seed,
                f"Scores of {which}",
                "Every Q row dotted with every K row, divided by √2.",
                ("attn.scores", (head,), 3),
                (TOKENS, TOKENS),
                [q],
            ),
            _softmax_row(seed, head),
            _table_to_fill(
                seed,
                f"Attention of {which}",
                "The softmax of each row of the scores.",
                ("attn.pattern", (head,), 4),
                (TOKENS, TOKENS),
                [scores],
            ),
            _table_to_fill(
                seed,
                f"Output of {which}",
                "A V: each row of the attention times V.",
                ("attn.z", (head,), 3),
                (TOKENS, dims),
                [pattern, q],
            ),
        ),
    )


def _softmax_row(seed: int | None, head: int) -> Question:
    """The softmax of the class token's row in the document's four steps."""
    row = np.asarray(_value(seed, "attn.scores", head, 0))
    less = row - row.max()
    powers = np.exp(less)
    parts = (less, powers, [powers.sum()], _value(seed, "attn.pattern", head, 0))
    names = ("minus the largest", "e to each", "sum", "divided by the sum")
    labels = [f"{name}, {token}" for name in names for token in (["all"] if name == "sum" else TOKENS)]
    flat = np.concatenate(parts)
    return posed(
        "worked",
        f"The softmax of cls, head {head + 1}",
        seed,
        "Step by step: subtract the row's largest score, raise e to each, add the results, divide each by the sum.",
        [Blank(label, float(value), 4) for label, value in zip(labels, flat, strict=True)],
        lambda: [
            f"{name}: {'  '.join(format_number(float(one), 6) for one in part)}"
            for name, part in zip(names, parts, strict=True)
        ],
        [table("scores", row, ["cls"], TOKENS)],
        [(name, len(part)) for name, part in zip(names, parts, strict=True)],
        TOKENS,
    )


def _reading(seed: int | None) -> Question:
    """Which token the class token attends to most, in each head."""
    rows = [np.asarray(_value(seed, "attn.pattern", head, 0)) for head in (0, 1)]
    best = [int(row.argmax()) for row in rows]
    return posed(
        "worked",
        "What the class token attends to",
        seed,
        "In each head: the index of the token that cls attends to most (cls is 0), and how many percent it gets.",
        numbers(
            *(
                one
                for head, row in enumerate(rows)
                for one in (
                    (f"head {head + 1}: token", best[head], 0),
                    (f"head {head + 1}: percent", 100 * row.max(), 1),
                )
            )
        ),
        lambda: [f"head {head + 1}: {TOKENS[best[head]]}, {100 * row.max():.2f} %" for head, row in enumerate(rows)],
        [table(f"cls, head {head + 1}", row, None, TOKENS) for head, row in enumerate(rows)],
    )


def sections(seed: int | None) -> list[Section]:
    model: Any = _worked(seed).traced_model.model
    photo = _value(seed, "picture", 0)
    weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    strips = _value(seed, "patches.flat")
    columns = [f"col {i}" for i in range(4)]
    z, z0, out = (_value(seed, name) for name in ("patches.out", "input", "attn.out"))
    cls = table("z_cls", weights["cls"][0], ["cls"], DIMS)
    both = [
        table(f"output of head {h + 1}", _value(seed, "attn.z", h), TOKENS, DIMS[2 * h : 2 * h + 2]) for h in (0, 1)
    ]
    return [
        Section(
            "1) Image to patches",
            "4 × 4 dots in patches of 2 × 2, each written as a row: top-left, top-right, bottom-left, bottom-right.",
            (
                counting(seed, 4, 4, 2),
                _table_to_fill(
                    seed,
                    "The patches",
                    "Write the four dots of each patch.",
                    ("patches.flat", (), 0),
                    (TOKENS[1:], [f"dot {i + 1}" for i in range(4)]),
                    [table("image", photo, [f"row {i}" for i in range(4)], columns)],
                ),
            ),
        ),
        Section(
            "2) Patch embedding",
            "z = patch Eᵀ: each row of E is one output. Then the class token comes first, "
            "and every token has its position added: Z⁰ = [z_cls; z] + P.",
            (
                _table_to_fill(
                    seed,
                    "Embed each patch",
                    "z = patch Eᵀ.",
                    ("patches.out", (), 2),
                    (TOKENS[1:], DIMS),
                    [table("patches", strips, TOKENS[1:]), table("E", weights["patches.proj.weight"], DIMS)],
                ),
                _table_to_fill(
                    seed,
                    "Add class token and positions",
                    "Z⁰ = [z_cls; z] + P.",
                    ("input", (), 2),
                    (TOKENS, DIMS),
                    [cls, table("z", z, TOKENS[1:], DIMS), table("P", weights["positions"], TOKENS, DIMS)],
                ),
            ),
        ),
        Section(
            "3) Q, K and V of two heads",
            "Head 1 takes dims 0 and 1, head 2 dims 2 and 3; Q = K = V.",
            tuple(
                _table_to_fill(
                    seed,
                    f"Q of head {head + 1}",
                    f"Q = Z⁰ W_Q, where W_Q picks dims {2 * head} and {2 * head + 1}.",
                    ("attn.q", (head,), 2),
                    (TOKENS, DIMS[2 * head : 2 * head + 2]),
                    [table("Z⁰", z0, TOKENS, DIMS)],
                )
                for head in (0, 1)
            ),
        ),
        _head(seed, 0),
        _head(seed, 1),
        Section("4) Checking printed numbers", "Not every number in print is right.", (kata("wrong-cells", seed),)),
        Section(
            "5) Concatenate the heads",
            "Head 1's two numbers, then head 2's; W_O is the identity.",
            (
                _table_to_fill(
                    seed,
                    "MSA output",
                    "The two outputs of each token side by side.",
                    ("attn.out", (), 3),
                    (TOKENS, DIMS),
                    both,
                ),
            ),
        ),
        Section(
            "6) Residual connection",
            "Z′ = Z⁰ + MSA.",
            (
                _table_to_fill(
                    seed,
                    "Add it to Z⁰",
                    "Z′ = Z⁰ + MSA.",
                    ("out", (), 3),
                    (TOKENS, DIMS),
                    [table("Z⁰", z0, TOKENS, DIMS), table("MSA", out, TOKENS, DIMS)],
                ),
            ),
        ),
        Section(
            "7) Reading it",
            "Each row of the attention says how much of every token goes into one output.",
            (_reading(seed),),
        ),
    ]


PAGES = {"004": sections}
