"""What turns the world into tokens: words, one row of a table each."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class Tokens(nn.Module):
    """The table E: token id to vector, and, when the head is tied to it, vector back to logits."""

    WEIGHTS = {"weight": "E"}

    def __init__(self, vocab: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return F.embedding(tokens, self.weight)

    def logits(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """X Eᵀ."""
        return F.linear(x, self.weight)
