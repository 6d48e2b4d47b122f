"""Worked examples of position schemes: a small GPT of one block with each."""

from typing import Any

import torch

from ...core.positions import T5
from ...models.gpt import GPT, GPTConfig
from ...tracing.live_trace import LiveTrace, trace
from .by_hand import one_decimal

WORDS = ["the", "cat", "sat", "on"]


def _model(heads: int, **positions: Any) -> GPT:
    return GPT(GPTConfig(vocab=4, context=4, width=4, depth=1, heads=heads, hidden=8, **positions))


def _traced(model: GPT, seed: int) -> LiveTrace:
    words = {"T": WORDS, "S": WORDS, "V": WORDS}
    return trace(one_decimal(model.double(), seed), torch.arange(4)[None], words=words)


def rope() -> LiveTrace:
    """RoPE: queries and keys of four words, each pair of neighbouring channels rotated by an angle that grows with the
    position. Compare q_unrotated with q; the scores depend on the distance alone."""
    return _traced(_model(1, positions="rope", rope_pairs="adjacent"), 6)


def alibi() -> LiveTrace:
    """ALiBi: two heads over four words; each subtracts its slope from a score, once for every step to the key."""
    return _traced(_model(2, positions="alibi"), 7)


def shaw() -> LiveTrace:
    """Shaw's relative positions: a learned vector for each distance is added to the key; distances over 2 are
    clipped."""
    return _traced(_model(1, positions="shaw", max_distance=2), 8)


def t5() -> LiveTrace:
    """T5's relative positions: a learned number for each head and bucket of distances is added to the score, which is
    not divided by √d. Of its four buckets two hold one distance each, the others several."""
    model = _model(2, positions="t5")
    # the 32 buckets of a model of full size hold one distance each, up to 15
    model.positions = T5(2, both=False, buckets=4, max_distance=8)
    return _traced(model, 9)
