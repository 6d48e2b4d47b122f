"""Worked examples of a diffusion transformer's block: from the timestep to the norms that it sets."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...core.attention import Attention
from ...core.blocks import AdaBlock, AdaNormBlock
from ...core.embed import TimestepEmbedding
from ...core.layers import MLP, LayerNorm, gelu_tanh
from ...core.masks import full
from ...core.probe import OFF, Probe
from ...core.span import Span
from ...tracing.live_trace import LiveTrace, trace
from .by_hand import one_decimal

TIMESTEP = 3


class Conditioned(nn.Module):
    """A timestep to a condition, and two patches through one block whose norms it sets."""

    NAMES = {"condition": ("B D", "c", "c_t")}
    INPUTS = {"timestep": "t", "x": "X"}
    SYMBOLS = {"block": {"Xˡ⁻¹": "X", "Xˡ": "X_out"}}

    def __init__(self, block: Callable[..., nn.Module]):
        super().__init__()
        self.time = TimestepEmbedding(4, frequencies=4)
        self.block = block(
            lambda: Attention(4, 1),
            lambda: MLP(4, 8, gelu_tanh),
            lambda: LayerNorm(4, 1e-6, bias=False, scale=False),
            4,
        )

    def forward(self, x: Tensor, timestep: Tensor, probe: Probe = OFF) -> Tensor:
        condition = probe("condition", self.time(timestep, probe / "time"))
        return self.block(x, Span.whole(x.shape[1]).under(full), condition, probe / "block")


def _conditioned(block: Callable[..., nn.Module]) -> LiveTrace:
    model = one_decimal(Conditioned(block).double(), 5)
    patches = torch.tensor([[[1.0, -0.5, 0.2, 0.8], [0.0, 1.5, -1.0, 0.5]]], dtype=torch.float64)
    return trace(model, patches, torch.tensor([TIMESTEP]), words={"T": ["s1", "s2"], "S": ["s1", "s2"]})


def adaln() -> LiveTrace:
    """adaLN: the timestep's cosines and sines go through an MLP, which gives each norm of a block its γ and β."""
    return _conditioned(AdaNormBlock)


def adaln_zero() -> LiveTrace:
    """adaLN-Zero: the timestep also gates what attention and MLP add; a scale is 1 + γ, and training starts at 0."""
    return _conditioned(AdaBlock)
