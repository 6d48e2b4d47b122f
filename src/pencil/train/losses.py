"""Losses, computed from the logits a model returns."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def next_token(
    logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats a token, of each token's successor; targets below zero are ignored.

    `smoothing` is the probability spread evenly over all tokens (label smoothing).
    """
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), label_smoothing=smoothing)
