"""Attention over given tags: by the models' own `attend`, for the answers; and step by step, for the working."""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ...core.attention import attend
from ...core.masks import Mask
from ...core.probe import OFF, Probe
from .builder import Work, heads, work
from .exercise import Table

FORGOT_SCALE = "forgot ÷√d"
SCALE_HINT = "The match is divided by the root of the tag width before the softmax."
COLUMNS = "column softmax"
COLUMNS_HINT = "Each row is one strip's own portions: the softmax goes along the row, not down the column."
WIDEST = 5.0  # between two scores: e^−5 is the smallest portion that three decimals show well
FUTURE = "future not blocked"
FUTURE_HINT = "A later token is set to −inf before the softmax, so that its portion is 0."


def visible(mask: Mask | None, count: int) -> Tensor | None:
    """Which of `count` keys each of as many queries sees under a mask."""
    index = torch.arange(count)
    return None if mask is None else mask(index[:, None], index)[None, None]


def attention(want, have, give, scale: float | None = None, mask: Mask | None = None) -> Work:
    """The models' own attention over given queries, keys and values."""

    def attended(want: Tensor, have: Tensor, give: Tensor, probe: Probe = OFF) -> Tensor:
        return probe("z", attend(want, have, give, visible(mask, want.shape[2]), scale=scale, probe=probe))

    return work(attended, heads(want), heads(have), heads(give))


def attend_by_hand(
    want: Tensor,
    have: Tensor,
    give: Tensor,
    scale: float | None = None,
    mask: Mask | None = None,
    probe: Probe = OFF,
) -> Tensor:
    """Attention step by step: match, scale, mask, raise e to each, divide by the total, sum."""
    divisor = math.sqrt(want.shape[-1]) if scale is None else 1 / scale if scale else math.inf
    # a tensor, so that a receipt ends at the match, which the exercise gives
    scores = probe("match", want @ have.mT) / want.new_tensor(divisor)
    seen = visible(mask, want.shape[2])
    scores = probe("scores", scores if seen is None else scores.masked_fill(~seen, -torch.inf))
    raised = probe("raised", scores.exp())
    pattern = probe("pattern", raised / probe("total", raised.sum(-1, keepdim=True)))
    return probe("z", pattern @ give)


def by_hand(want, have, give, scale: float | None = None, mask: Mask | None = None) -> Work:
    return work(partial(attend_by_hand, scale=scale, mask=mask), heads(want), heads(have), heads(give))


def columns(want, have, scale: float | None = None) -> np.ndarray:
    """The portions with the softmax taken down the columns instead of along the rows."""
    return attention(have, want, want, scale)["pattern"].T


def informative_row(want, have, scale: float | None = None, zero: bool = True) -> bool:
    """Whether the scores of one WANT are all different, and close enough for every portion to be seen.

    With `zero` False none of them may be 0, which no scaling changes.
    """
    match = np.asarray(have) @ np.asarray(want)
    spread = (match.max() - match.min()) * (1 / math.sqrt(len(want)) if scale is None else scale)
    return len(set(match.tolist())) == len(match) and bool(spread <= WIDEST) and (zero or bool(match.all()))


def strips(count: int) -> list[str]:
    return [f"s{i + 1}" for i in range(count)]


def tags(name: str, rows) -> Table:
    return Table(name, [list(row) for row in rows], None, strips(len(rows)))


def to_3(values: np.ndarray) -> list[list]:
    """A computed table as it is shown: to three decimals."""
    return [[round(float(one), 3) for one in row] for row in values]


def softmax_cells(row: int, count: int) -> list[tuple[str, str]]:
    """The receipts of one row of portions, step by step."""
    cells = [(f"e^score {j + 1}", f"raised[0,0,{row},{j}]") for j in range(count)]
    cells += [("total", f"total[0,0,{row},0]")]
    return cells + [(f"portion {j + 1}", f"pattern[0,0,{row},{j}]") for j in range(count)]
