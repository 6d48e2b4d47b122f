"""Embeddings: of tokens, of the patches of images and videos, and of the diffusion timestep.

Patches in three named moves. `fold` renames, `swap` brings each square together, `glue` writes it as a row. `Patches`
takes its `swap` as an argument: leaving it out from outside shows what it is for. The product with W_patch is a plain
matrix (its rows in the order channel, down, across), the same numbers as a convolution whose kernel is its stride.

The class token is one position before the first patch, at (0, −1): a learned table has a row for it, and sinusoidal
embeddings and rotations treat it like any other.
"""

from collections.abc import Callable, Sequence
from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from .patches import check_patch, fold, glue, grid_of, swap
from .probe import OFF, Probe


class Tokens(nn.Module):
    """The token table E: token id to vector, and, when the head is tied to it, vector to logits."""

    WEIGHTS = {"weight": "E"}
    WEIGHT_AXES = {"weight": "V D"}

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
    """Patches of an image, each through one matrix: the same as a convolution whose kernel and stride are the patch.

    `swap` is the second of the three steps that cut; it is an argument so that it can be left out, to show what breaks.
    """

    NAMES = {
        "fold": ("B C y u x v", "X_fold", "fold(X_img)"),
        "swap": ("B y x C u v", "X_swap", "swap(X_fold)"),
        "flat": ("B N c", "X_patch", "glue(X_swap)"),
        "out": ("B N D", "I", "X_patch W_patch⟨ + b_patch⟩"),
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
        check_patch(patch)
        self.channels, self.patch, self.swap = channels, tuple(patch), swap
        self.proj = nn.Linear(channels * prod(patch), width, bias=bias)
        if len(self.patch) == 3:
            self.NAMES = type(self).NAMES | {
                "fold": ("B C z k y u x v", "X_fold", "fold(X_img)"),
                "swap": ("B z y x C k u v", "X_swap", "swap(X_fold)"),
            }

    def forward(self, picture: Float[Tensor, "B C *sides"], probe: Probe = OFF) -> Float[Tensor, "B N D"]:
        if picture.shape[1] != self.channels:
            raise ValueError(f"the pictures have {picture.shape[1]} channels, and the model takes {self.channels}")
        folded = probe("fold", fold(picture, self.patch))
        swapped = probe("swap", self.swap(folded))
        flat = probe("flat", glue(swapped, prod(grid_of(picture.shape[2:], self.patch))))
        return probe("out", self.proj(flat.to(self.proj.weight.dtype)))


class Project(nn.Module):
    """A linear map from one width to another."""

    NAMES = {"out": ("B N D", "I′", "I W_proj⟨ + b_proj⟩")}
    WEIGHTS = {"map.weight": "W_proj", "map.bias": "b_proj"}

    def __init__(self, narrow: int, width: int, bias: bool = True):
        super().__init__()
        self.map = nn.Linear(narrow, width, bias=bias)

    def forward(self, x: Float[Tensor, "B N E"], probe: Probe = OFF) -> Float[Tensor, "B N D"]:
        return probe("out", self.map(x))


class ProjectText(Project):
    """Token embeddings to the model's width, by one matrix: with the table a factorised embedding, as ALBERT's."""

    NAMES = {"out": ("B t D", "X_txt", "E[t] W_text")}
    WEIGHTS = {"map.weight": "W_text"}

    def __init__(self, narrow: int, width: int):
        super().__init__(narrow, width, bias=False)


class TiedProjectText(ProjectText):
    """The same with a way back by the transpose, for a head that is tied: E W_text is table and output matrix alike."""

    NAMES = ProjectText.NAMES | {"back": ("B t e", "Y", "X_f,txt W_textᵀ")}

    def back(self, x: Float[Tensor, "B t D"], probe: Probe = OFF) -> Float[Tensor, "B t e"]:
        """X W_textᵀ."""
        return probe("back", F.linear(x, self.map.weight.mT))


class TimestepEmbedding(nn.Module):
    """The diffusion timestep as a vector: its cosines and sines at many frequencies, through two matrices.

    The frequencies fall from 1 towards 1/10,000; with `downscale_freq_shift`, as in diffusers, the last is that.
    """

    NAMES = {
        "sinusoids": ("B f", "φ", ""),
        "pre": ("B D", "U_t", "φ W_t1 + b_t1"),
        "act": ("B D", "G_t", "SiLU(U_t)"),
        "out": ("B D", "c_t", "G_t W_t2 + b_t2"),
    }
    WEIGHTS = {"up.weight": "W_t1", "up.bias": "b_t1", "down.weight": "W_t2", "down.bias": "b_t2"}

    def __init__(self, width: int, frequencies: int = 256, downscale_freq_shift: bool = False):
        super().__init__()
        self.frequencies, self.downscale_freq_shift = frequencies, downscale_freq_shift
        self.up, self.down = nn.Linear(frequencies, width), nn.Linear(width, width)
        angle = f"t·10000^(−i/{frequencies // 2 - downscale_freq_shift})"
        self.NAMES = type(self).NAMES | {"sinusoids": ("B f", "φ", f"[cos({angle}); sin({angle})]")}

    def forward(self, timestep: Num[Tensor, "B"], probe: Probe = OFF) -> Float[Tensor, "B D"]:
        half = self.frequencies // 2
        exact = torch.float32 if timestep.device.type == "mps" else torch.float64
        steps = torch.arange(half, device=timestep.device, dtype=exact) / (half - self.downscale_freq_shift)
        omega = 10000.0**-steps
        angles = timestep[:, None].to(exact) * omega
        sinusoids = torch.cat((angles.cos(), angles.sin()), -1).to(self.up.weight.dtype)
        act = probe("act", F.silu(probe("pre", self.up(probe("sinusoids", sinusoids)))))
        return probe("out", self.down(act))
