"""Exercises on multi-head attention and on cross-attention."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...core.attention import Attention
from ...core.masks import full
from ...core.probe import OFF, Probe
from ...core.span import Span
from .attention_by_hand import (
    FORGOT_SCALE,
    SCALE_HINT,
    attend_by_hand,
    attention,
    by_hand,
    informative_row,
    softmax_cells,
    strips,
    tags,
)
from .builder import Draws, Maker, Numbers, Work, blanks, mistake, rows, tensor, work
from .exercise import Question, Table

Rows = list[list[float]]


def glued_heads(want: Rows, have: Rows, give: Rows, count: int, scale: float | None = None) -> Work:
    """The models' multi-head attention over given tags, side by side in its input; its matrices are identities."""
    width = len(want[0])
    module = Attention(3 * width, count, head_width=width // count, bias=False)
    module.qkv.weight.data, module.out.weight.data = torch.eye(3 * width), torch.eye(3 * width, width)

    def glued(given: Tensor, probe: Probe = OFF) -> Tensor:
        span = replace(Span.whole(given.shape[1]).under(full), scale=scale)
        return probe("glued", module(given, span, probe=probe / "attn")[..., :width])

    return work(glued, torch.cat([tensor(rows) for rows in (want, have, give)], -1)[None], modules=[module])


def heads_by_hand(want: Tensor, have: Tensor, give: Tensor, probe: Probe = OFF) -> Tensor:
    """Two heads step by step, each in its own columns, and their results concatenated."""
    parts = zip(*(one[None, None].chunk(2, -1) for one in (want, have, give)), strict=True)
    results = [attend_by_hand(*part, probe=probe / f"head {i + 1}") for i, part in enumerate(parts)]
    return probe("glued", torch.cat(results, -1)[0])


def _two(want: Rows, have: Rows, give: Rows, row: int) -> Question:
    done, hand = glued_heads(want, have, give, 2), work(heads_by_hand, tensor(want), tensor(have), tensor(give))
    slots = [f"slot {i + 1}" for i in range(4)]
    wide, forgot = (glued_heads(want, have, give, 2, scale)["glued"][row] for scale in (1 / math.sqrt(4), 1.0))
    one = glued_heads(want, have, give, 1)["glued"][row]
    cells = [
        (f"head {h}: {label}", f"head {h}.{where}")
        for h in (1, 2)
        for label, where in [(f"score {j + 1}", f"scores[0,0,{row},{j}]") for j in (0, 1)] + softmax_cells(row, 2)
    ]
    sums = [(f"head {h}: slot {i + 1}", f"head {h}.z[0,0,{row},{i}]") for h in (1, 2) for i in (0, 1)]
    return Question(
        (tags("WANT", want), tags("HAVE", have), tags("GIVE", give)),
        f"Two heads: head 1 has slots 1–2 of every tag, head 2 slots 3–4, each 2 wide. Each matches, divides by √2, "
        f"softmaxes and sums its own slots; their results are glued, head 1 first. s{row + 1}'s new numbers?",
        blanks(slots, done["glued"][row], 2, rows(hand.roundings("glued", 2), row)),
        (
            mistake("one head", "Each head matches only its own slots, and has its own portions.", one),
            mistake(
                "divided by the root of the whole width", "The root is that of a head's width, 2, not of all 4.", wide
            ),
            mistake(FORGOT_SCALE, SCALE_HINT, forgot),
            mistake("glued the other way round", "Head 1's numbers come first.", done["glued"][row, [2, 3, 0, 1]]),
        ),
        lambda: hand.lines(*cells, *sums),
    )


def _cross(want: Rows, own: Rows, own_give: Rows, have: Rows, give: Rows, row: int) -> Question:
    done, hand, width = attention(want, have, give), by_hand(want, have, give), len(want[0])
    slots = [f"slot {i + 1}" for i in range(len(give[0]))]
    words = [f"word {i + 1}" for i in range(len(want))]
    cells = [(f"score {j + 1}", f"scores[0,0,{row},{j}]") for j in range(len(have))]
    sums = [(slot, f"z[0,0,{row},{i}]") for i, slot in enumerate(slots)]
    plain = attention(want, have, give, 0.0)["z"][row]
    return Question(
        (
            Table("WANT of the words", want, None, words),
            Table("HAVE of the words", own, None, words),
            Table("GIVE of the words", own_give, None, words),
            Table("HAVE of the strips", have, None, strips(len(have))),
            Table("GIVE of the strips", give, None, strips(len(have))),
        ),
        f"Cross-attention: the words attend to the strips. Match, ÷√{width}, softmax, weighted sum: the result for "
        f"word {row + 1}?",
        blanks(slots, done["z"][row], 2, rows(hand.roundings("z", 2), row)),
        (
            mistake(
                "self-attention",
                "In cross-attention HAVE and GIVE come from the other sequence, the strips.",
                attention(want, own, own_give)["z"][row],
            ),
            mistake(FORGOT_SCALE, SCALE_HINT, attention(want, have, give, 1.0)["z"][row]),
            mistake("plain average", "Each GIVE is weighted by its portion, not equally.", plain),
        ),
        lambda: hand.lines(*cells, *softmax_cells(row, len(have)), *sums),
    )


def _draw_two(d: Draws) -> Numbers:
    return {name: d.tags(2, 4, 0, 3) for name in ("want", "have", "give")} | {"row": d.whole(0, 1)}


def _informative_two(numbers: Numbers) -> bool:
    """Each head's scores differ, and so do the GIVEs in every slot."""
    want, (one, other) = numbers["want"][numbers["row"]], numbers["give"]
    halves = (slice(0, 2), slice(2, 4))
    return all(informative_row(want[half], [have[half] for have in numbers["have"]]) for half in halves) and all(
        a != b for a, b in zip(one, other, strict=True)
    )


def _draw_cross(d: Draws) -> Numbers:
    words = {"want": d.tags(2, 4, 0, 2), "own": d.tags(2, 4, 0, 2), "own_give": d.tags(2, 2, 0, 5)}
    return words | {"have": d.tags(3, 4, 0, 2), "give": d.tags(3, 2, 0, 5), "row": d.whole(0, 1)}


def _informative_cross(numbers: Numbers) -> bool:
    return informative_row(numbers["want"][numbers["row"]], numbers["have"])


_PAGE = {"want": [[2, 0, 1, 0], [0, 0, 2, 0]], "have": [[1, 0, 0, 0], [3, 0, 2, 0]]}
_GIVE = [[2, 0, 0, 1], [0, 3, 1, 0]]
_CROSS = {
    "want": [[1, 0, 1, 0], [0, 2, 0, 0]], "own": [[2, 0, 0, 0], [0, 1, 0, 1]], "own_give": [[1, 1], [0, 2]],
    "have": [[2, 0, 0, 0], [0, 2, 2, 0], [0, 0, 0, 1]], "give": [[4, 0], [0, 4], [2, 2]],
}  # fmt: skip

MAKES = {
    "heads": Maker("heads", _PAGE | {"give": _GIVE, "row": 0}, _draw_two, _two, _informative_two),
    "cross": Maker("cross", _CROSS | {"row": 1}, _draw_cross, _cross, _informative_cross),
}
