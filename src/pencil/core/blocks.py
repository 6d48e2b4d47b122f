"""Blocks, each written out, so that the residual stream can be followed line by line.

`Block` and `CrossBlock` are pre-norm: the residual stream itself is never normed. `PostBlock` and `PostCrossBlock` are
post-norm, as the first Transformer was. In `AdaBlock` and `AdaNormBlock` a condition sets the norms (adaLN).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .attention import Attention
from .cache import LayerCache
from .probe import OFF, Probe
from .span import Span

# what cross-attention computes over a source of s tokens
CROSS = {
    "cross.q": ("B h T d", "Q_src", "X̃′ W_Q"),
    "cross.k": ("B g s d", "K_src", "E W_K"),
    "cross.v": ("B g s d", "V_src", "E W_V"),
    "cross.scores": ("B h T s", "S_src", "Q_src K_srcᵀ/√d"),
    "cross.pattern": ("B h T s", "A_src", "softmax(S_src)"),
    "cross.z": ("B h T d", "H_src", "A_src V_src"),
    "cross.out": ("B T D", "O_src", "H_src W_O"),
}


class Block(nn.Module):
    """The pre-norm block of GPT and ViT; its attention, MLP and norm are given as factories."""

    NAMES = {
        "attn_norm": ("B T D", "X̃", "Norm(X)"),
        "mid": ("B T D", "X′", "X + O"),
        "mlp_norm": ("B T D", "X̂", "Norm(X′)"),
        "post": ("B T D", "X", "X′ + M"),
    }

    def __init__(
        self,
        attention: Callable[[], Attention],
        mlp: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
        dropout: float = 0.0,
    ):
        super().__init__()
        self.attn_norm, self.attn = norm(), attention()
        self.mlp_norm, self.mlp = norm(), mlp()
        self.drop = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "B T D"], span: Span, cache: LayerCache | None = None, probe: Probe = OFF
    ) -> Float[Tensor, "B T D"]:
        normed = probe("attn_norm", self.attn_norm(x))
        x = probe("mid", x + self.drop(self.attn(normed, span, cache=cache, probe=probe / "attn")))
        normed = probe("mlp_norm", self.mlp_norm(x))
        return probe("post", x + self.drop(self.mlp(normed, probe=probe / "mlp")))


Source = Float[Tensor, "B S D"] | tuple[Float[Tensor, "B g S d"], Float[Tensor, "B g S d"]]


class CrossBlock(nn.Module):
    """The pre-norm block with cross-attention: self-attention, cross-attention to the source, then the MLP."""

    NAMES = {
        "attn_norm": ("B T D", "X̃", "Norm(X)"),
        "mid": ("B T D", "X′", "X + O"),
        "cross_norm": ("B T D", "X̃′", "Norm(X′)"),
        "cross_mid": ("B T D", "X″", "X′ + O_src"),
        "mlp_norm": ("B T D", "X̂", "Norm(X″)"),
        "post": ("B T D", "X", "X″ + M"),
    }
    INNER = CROSS

    def __init__(
        self,
        attention: Callable[[], Attention],
        mlp: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
        dropout: float = 0.0,
    ):
        super().__init__()
        self.attn_norm, self.attn = norm(), attention()
        self.cross_norm, self.cross = norm(), attention()
        self.mlp_norm, self.mlp = norm(), mlp()
        self.drop = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        span: Span,
        source: Source,
        across: Span,
        cache: LayerCache | None = None,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B T D"]:
        normed = probe("attn_norm", self.attn_norm(x))
        x = probe("mid", x + self.drop(self.attn(normed, span, cache=cache, probe=probe / "attn")))
        normed = probe("cross_norm", self.cross_norm(x))
        x = probe("cross_mid", x + self.drop(self.cross(normed, across, source=source, probe=probe / "cross")))
        normed = probe("mlp_norm", self.mlp_norm(x))
        return probe("post", x + self.drop(self.mlp(normed, probe=probe / "mlp")))


class PostBlock(nn.Module):
    """The post-norm block of the first encoders: a norm after each residual addition."""

    NAMES = {
        "mid": ("B T D", "X′", "Norm(X + O)"),
        "post": ("B T D", "X", "Norm(X′ + M)"),
    }
    INNER = {
        "attn.q": ("B h T d", "Q", "X W_Q"),
        "attn.k": ("B g S d", "K", "X W_K"),
        "attn.v": ("B g S d", "V", "X W_V"),
        "mlp.pre": ("B T F", "U", "X′ W₁ (+ b₁)"),
    }

    def __init__(
        self,
        attention: Callable[[], Attention],
        mlp: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
        dropout: float = 0.0,
    ):
        super().__init__()
        self.attn, self.attn_norm = attention(), norm()
        self.mlp, self.mlp_norm = mlp(), norm()
        self.drop = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "B T D"], span: Span, cache: LayerCache | None = None, probe: Probe = OFF
    ) -> Float[Tensor, "B T D"]:
        x = probe("mid", self.attn_norm(x + self.drop(self.attn(x, span, cache=cache, probe=probe / "attn"))))
        return probe("post", self.mlp_norm(x + self.drop(self.mlp(x, probe=probe / "mlp"))))


class PostCrossBlock(nn.Module):
    """The post-norm block of the first decoders: self-attention, cross-attention, the MLP, and a norm after each."""

    NAMES = {
        "mid": ("B T D", "X′", "Norm(X + O)"),
        "cross_mid": ("B T D", "X″", "Norm(X′ + O_src)"),
        "post": ("B T D", "X", "Norm(X″ + M)"),
    }
    INNER = (
        CROSS | PostBlock.INNER | {"cross.q": ("B h T d", "Q_src", "X′ W_Q"), "mlp.pre": ("B T F", "U", "X″ W₁ (+ b₁)")}
    )

    def __init__(
        self,
        attention: Callable[[], Attention],
        mlp: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
        dropout: float = 0.0,
    ):
        super().__init__()
        self.attn, self.attn_norm = attention(), norm()
        self.cross, self.cross_norm = attention(), norm()
        self.mlp, self.mlp_norm = mlp(), norm()
        self.drop = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        span: Span,
        source: Source,
        across: Span,
        cache: LayerCache | None = None,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B T D"]:
        x = probe("mid", self.attn_norm(x + self.drop(self.attn(x, span, cache=cache, probe=probe / "attn"))))
        crossed = self.cross(x, across, source=source, probe=probe / "cross")
        x = probe("cross_mid", self.cross_norm(x + self.drop(crossed)))
        return probe("post", self.mlp_norm(x + self.drop(self.mlp(x, probe=probe / "mlp"))))


class AdaBlock(nn.Module):
    """The block of a diffusion transformer (adaLN-Zero): a condition shifts and scales the norms before attention
    and MLP, and gates their outputs. Its matrix is initialised to zero: a fresh block is the identity."""

    NAMES = {
        "modulation": ("B m", "β γ α", "SiLU(c) W_ada + b_ada"),
        "attn_norm": ("B T D", "X̃", "Norm(X)·(1 + γ₁) + β₁"),
        "mid": ("B T D", "X′", "X + α₁·O"),
        "mlp_norm": ("B T D", "X̂", "Norm(X′)·(1 + γ₂) + β₂"),
        "post": ("B T D", "X", "X′ + α₂·M"),
    }
    WEIGHTS = {"ada.weight": "W_ada", "ada.bias": "b_ada"}

    def __init__(
        self,
        attention: Callable[[], Attention],
        mlp: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
        width: int,
    ):
        super().__init__()
        self.attn_norm, self.attn = norm(), attention()
        self.mlp_norm, self.mlp = norm(), mlp()
        self.ada = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.ada.weight)
        nn.init.zeros_(self.ada.bias)

    def forward(
        self, x: Float[Tensor, "B T D"], span: Span, condition: Float[Tensor, "B D"], probe: Probe = OFF
    ) -> Float[Tensor, "B T D"]:
        ada = probe("modulation", self.ada(F.silu(condition)))[:, None]
        shift_attn, scale_attn, gate_attn, shift_mlp, scale_mlp, gate_mlp = ada.chunk(6, -1)
        normed = probe("attn_norm", self.attn_norm(x) * (1 + scale_attn) + shift_attn)
        x = probe("mid", x + gate_attn * self.attn(normed, span, probe=probe / "attn"))
        normed = probe("mlp_norm", self.mlp_norm(x) * (1 + scale_mlp) + shift_mlp)
        return probe("post", x + gate_mlp * self.mlp(normed, probe=probe / "mlp"))


class AdaNormBlock(nn.Module):
    """Plain adaLN: the condition gives each norm its γ and β, without gates; a fresh block is a pre-norm block."""

    NAMES = {
        "modulation": ("B m", "γ β", "SiLU(c) W_ada + b_ada"),
        "attn_norm": ("B T D", "X̃", "γ₁·Norm(X) + β₁"),
        "mid": ("B T D", "X′", "X + O"),
        "mlp_norm": ("B T D", "X̂", "γ₂·Norm(X′) + β₂"),
        "post": ("B T D", "X", "X′ + M"),
    }
    WEIGHTS = {"ada.weight": "W_ada", "ada.bias": "b_ada"}

    def __init__(
        self,
        attention: Callable[[], Attention],
        mlp: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
        width: int,
    ):
        super().__init__()
        self.attn_norm, self.attn = norm(), attention()
        self.mlp_norm, self.mlp = norm(), mlp()
        self.ada = nn.Linear(width, 4 * width)
        nn.init.zeros_(self.ada.weight)
        with torch.no_grad():
            self.ada.bias.copy_(torch.tensor([1.0, 0.0, 1.0, 0.0]).repeat_interleave(width))

    def forward(
        self, x: Float[Tensor, "B T D"], span: Span, condition: Float[Tensor, "B D"], probe: Probe = OFF
    ) -> Float[Tensor, "B T D"]:
        ada = probe("modulation", self.ada(F.silu(condition)))[:, None]
        scale_attn, shift_attn, scale_mlp, shift_mlp = ada.chunk(4, -1)
        normed = probe("attn_norm", self.attn_norm(x) * scale_attn + shift_attn)
        x = probe("mid", x + self.attn(normed, span, probe=probe / "attn"))
        normed = probe("mlp_norm", self.mlp_norm(x) * scale_mlp + shift_mlp)
        return probe("post", x + self.mlp(normed, probe=probe / "mlp"))
