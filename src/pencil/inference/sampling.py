"""Sampling rules: from the logits of the next token to the distribution it is sampled from, and to the token.

Ties are broken by the id. Devices order equal logits differently, and in bfloat16 many are equal. Top-k and top-p sort
integers in which a larger logit is larger, then a lower id: the same logits give the same token everywhere.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..config import UserError

NOT_FINITE = -2  # in place of a token, where the logits are NaN or infinite


# the least and the largest value of each setting, in the order in which they are checked
LIMITS = {
    "temperature": (0, 1e6),
    "top_k": (1, math.inf),
    "top_p": (1e-9, 1),
    "seed": (0, math.inf),
    "min_p": (0, 1),
    "repetition_penalty": (1e-9, 1e6),
}


@dataclass(frozen=True)
class Sampling:
    """How the next token is sampled: repetition penalty, temperature, top-k, top-p, min-p; temperature 0 is greedy."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self):
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                upper = "" if high == math.inf else f" and at most {high:g}"
                raise UserError(f"{name.replace('_', '-')} must be at least {low:g}{upper}, not {value}")


class Candidates(NamedTuple):
    """The tokens of each row after temperature and top-k, with what top-p and min-p keep of them.

    With top-k or top-p these are the most likely tokens first; else all tokens in the order of their ids, since sorting
    a vocabulary takes longer than everything else here.
    """

    ids: Int[Tensor, "B n"] | None  # None: every token, in the order of ids
    probabilities: Float[Tensor, "B n"]  # among these tokens, float64
    within_top_p: Bool[Tensor, "B n"] | None  # None where the rule is off
    within_min_p: Bool[Tensor, "B n"] | None


def candidates(logits: Float[Tensor, "B V"], how: Sampling) -> Candidates:
    """Apply temperature and top-k, and say which of the tokens left top-p and min-p keep."""
    ids = None if how.top_k is None and how.top_p is None else most_likely(logits, how.top_k)
    p = _softmax(logits if ids is None else logits.gather(-1, ids), how.temperature)
    # the token that crosses the line of top-p is kept, so at least one always is
    within_top_p = None if how.top_p is None else p.cumsum(-1) - p < how.top_p
    within_min_p = None
    if how.min_p is not None:
        # sorted, the first token is the most likely one
        most = p.amax(-1, keepdim=True) if ids is None else p[:, :1]
        within_min_p = p >= how.min_p * most
    return Candidates(ids, p, within_top_p, within_min_p)


def probabilities(logits: Float[Tensor, "B V"], how: Sampling) -> Float[Tensor, "B V"]:
    """The distribution the next token is sampled from, after temperature, top-k, top-p and min-p; float64."""
    ids, p, *rules = candidates(logits, how)
    for keep in rules:
        if keep is not None:
            p = p * keep
    p = p / p.sum(-1, keepdim=True)
    if ids is None:
        return p
    return torch.zeros(logits.shape, dtype=p.dtype, device=p.device).scatter(-1, ids, p)


def penalize(logits: Float[Tensor, "B V"], seen: Bool[Tensor, "B V"], penalty: float) -> Float[Tensor, "B V"]:
    """Make tokens a row already contains less likely: positive logits are divided, negative ones multiplied."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def choose(
    logits: Float[Tensor, "B V"],
    how: Sampling,
    uniforms: Float[Tensor, "B"] | None,
    seen: Bool[Tensor, "B V"] | None = None,
) -> Int[Tensor, "B"]:
    """The next token of each row, by a random number in [0, 1) of its own, which greedy decoding does without.

    `seen` are the tokens that the repetition penalty makes less likely. A row whose largest logit is not finite has no
    next token: NOT_FINITE. Everything is computed on the logits' device, and nothing waits for it.
    """
    if seen is not None:
        logits = penalize(logits, seen, how.repetition_penalty)
    if how.temperature == 0:
        largest, token = logits.max(-1)
        return torch.where(largest.abs() < torch.inf, token, NOT_FINITE)
    assert uniforms is not None
    cumulative = probabilities(logits, how).cumsum(-1)
    # in single precision the largest numbers would round to 1, which is beyond the last token with a probability
    drawn = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)
    # the largest of numbers with a NaN among them is NaN
    return torch.where(logits.amax(-1).abs() < torch.inf, drawn[:, 0].clamp(max=logits.shape[1] - 1), NOT_FINITE)


def _softmax(logits: Float[Tensor, "B n"], temperature: float) -> Float[Tensor, "B n"]:
    logits = logits.double()
    return ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)


def most_likely(logits: Float[Tensor, "B V"], count: int | None) -> Int[Tensor, "B n"]:
    """The ids of so many tokens, or of all, the most likely first; of equally likely ones the lower id is first.

    Devices differ in how they order equal numbers, and bfloat16 has many. So each token has one integer, in which a
    larger logit is larger, then a lower id.
    """
    bits = logits.float().masked_fill(logits == 0, 0).view(torch.int32)  # −0 equals 0
    rank = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    key = (rank << 32) - torch.arange(logits.shape[-1], device=logits.device)
    return key.sort(-1, descending=True).indices if count is None else key.topk(min(count, key.shape[-1])).indices
