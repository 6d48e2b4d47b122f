"""Sampling rules: from the logits of the next token to the distribution it is sampled from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..config import UserError


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
        def within(name: str, low: float, high: float) -> None:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                upper = "" if high == math.inf else f" and at most {high:g}"
                raise UserError(f"{name.replace('_', '-')} must be at least {low:g}{upper}, not {value}")

        within("temperature", 0, 1e6)
        within("top_k", 1, math.inf)
        within("top_p", 1e-9, 1)
        within("seed", 0, math.inf)
        within("min_p", 0, 1)
        within("repetition_penalty", 1e-9, math.inf)


def probabilities(logits: Float[Tensor, "B V"], how: Sampling) -> Float[Tensor, "B V"]:
    """The distribution the next token is sampled from, after temperature, top-k, top-p and min-p."""
    logits = logits.double()
    p = ((logits - logits.amax(-1, keepdim=True)) / how.temperature).softmax(-1)
    order = p.sort(-1, descending=True)
    sorted_p, keep = order.values, torch.ones_like(order.values, dtype=torch.bool)
    if how.top_k is not None:
        keep[:, how.top_k :] = False
    if how.top_p is not None:
        kept = sorted_p * keep
        kept = kept / kept.sum(-1, keepdim=True)
        # the token that crosses the line is kept, so at least one always is
        keep &= kept.cumsum(-1) - kept < how.top_p
    if how.min_p is not None:
        keep &= sorted_p >= how.min_p * sorted_p[:, :1]
    p = torch.zeros_like(p).scatter(-1, order.indices, sorted_p * keep)
    return p / p.sum(-1, keepdim=True)


def penalize(logits: Float[Tensor, "B V"], rows: Sequence[Sequence[int]], penalty: float) -> Float[Tensor, "B V"]:
    """Make tokens a row already contains less likely: positive logits are divided, negative ones multiplied."""
    logits = logits.clone()
    for i, row in enumerate(rows):
        seen = torch.tensor(sorted(set(row)), device=logits.device, dtype=torch.long)
        values = logits[i, seen]
        logits[i, seen] = torch.where(values > 0, values / penalty, values * penalty)
    return logits
