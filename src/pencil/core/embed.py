"""What turns the world into tokens: words, one row of a table each; pictures and videos, one strip a patch."""

from collections.abc import Callable, Sequence
from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from .patches import cut, swap
from .probe import OFF, Off


class Tokens(nn.Module):
    """The table E: token id to vector, and, when the head is tied to it, vector back to logits."""

    WEIGHTS = {"weight": "E"}

    def __init__(self, vocab: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, tokens: Int[Tensor, "B *T"]) -> Float[Tensor, "B *T D"]:
        return F.embedding(tokens, self.weight)

    def logits(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """X Eᵀ."""
        return F.linear(x, self.weight)


class Patches(nn.Module):
    """Strips of a picture, each through one matrix: the same as a convolution whose kernel and stride are the patch.

    `swap` is the second of the three moves that cut; it is an argument so that it can be left out, to see what breaks.
    """

    NAMES = {
        "strips": ("B N c", "X_patch", "glue(swap(fold(picture)))"),
        "out": ("B N D", "I", "X_patch W_patch + b_patch"),
    }
    WEIGHTS = {"proj.weight": "W_patch", "proj.bias": "b_patch"}

    def __init__(
        self,
        channels: int,
        patch: Sequence[int],
        width: int,
        bias: bool = True,
        swap: Callable[[Tensor], Tensor] = swap,
    ):
        super().__init__()
        self.channels, self.patch, self.swap = channels, tuple(patch), swap
        self.proj = nn.Linear(channels * prod(patch), width, bias=bias)

    def forward(self, picture: Float[Tensor, "B C *sides"], probe: Off = OFF) -> Float[Tensor, "B N D"]:
        if picture.shape[1] != self.channels:
            raise ValueError(f"the pictures have {picture.shape[1]} channels and the model takes {self.channels}")
        strips = probe("strips", cut(picture, self.patch, self.swap))
        return probe("out", self.proj(strips))


class Project(nn.Module):
    """One matrix from one width to another."""

    NAMES = {"out": ("B N D", "I′", "I W_proj + b_proj")}
    WEIGHTS = {"map.weight": "W_proj", "map.bias": "b_proj"}

    def __init__(self, narrow: int, width: int, bias: bool = True):
        super().__init__()
        self.map = nn.Linear(narrow, width, bias=bias)

    def forward(self, x: Float[Tensor, "B N E"], probe: Off = OFF) -> Float[Tensor, "B N D"]:
        return probe("out", self.map(x))


class Time(nn.Module):
    """What the clock shows as a vector: cosines and sines of it at many speeds, through two matrices.

    The speeds fall from 1 towards 1/10,000; with `closed` the slowest is exactly that.
    """

    NAMES = {"waves": ("B f", "φ", "cos, sin of t·ω_i"), "out": ("B D", "c_t", "SiLU(φ W₁ + b₁) W₂ + b₂")}
    WEIGHTS = {"up.weight": "W_t1", "up.bias": "b_t1", "down.weight": "W_t2", "down.bias": "b_t2"}

    def __init__(self, width: int, waves: int = 256, closed: bool = False):
        super().__init__()
        self.waves, self.closed = waves, closed
        self.up, self.down = nn.Linear(waves, width), nn.Linear(width, width)

    def forward(self, clock: Num[Tensor, "B"], probe: Off = OFF) -> Float[Tensor, "B D"]:
        half = self.waves // 2
        exact = torch.float32 if clock.device.type == "mps" else torch.float64
        speeds = 10000.0 ** (-torch.arange(half, device=clock.device, dtype=exact) / (half - self.closed))
        angles = clock[:, None].to(exact) * speeds
        waves = torch.cat((angles.cos(), angles.sin()), -1).to(self.up.weight.dtype)
        return probe("out", self.down(F.silu(self.up(probe("waves", waves)))))
