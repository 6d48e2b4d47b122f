"""Losses: models return logits, and these say how wrong they are."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def next_token(logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats a token, of each token's successor."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
