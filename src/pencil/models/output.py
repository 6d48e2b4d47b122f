"""The tokens whose logits a model computes."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

# all tokens (False), the last one (True), or one of each row, by its place in the call
Last = bool | Int[Tensor, "B"]


def pick_tokens(x: Float[Tensor, "B T D"], last: Last) -> Float[Tensor, "B t D"]:
    """The states of the tokens that `last` chooses."""
    if isinstance(last, Tensor):
        return x[torch.arange(len(x), device=x.device), last][:, None]
    return x[:, -1:] if last else x
