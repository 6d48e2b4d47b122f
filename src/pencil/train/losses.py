"""Losses: models return logits, and these say how wrong they are."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def next_token(
    logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats a token, of each token's successor; targets below zero are not judged.

    With `smoothing` the target has only the rest of the probability, and all tokens share that much evenly.
    """
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), label_smoothing=smoothing)
