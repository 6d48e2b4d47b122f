"""Blocks, each written out: the residual trunk as visible lines.

`Block` and `CrossBlock` norm what a part reads, and the trunk itself is never normed; `PostBlock` and `PostCrossBlock`
norm the trunk after each part has added to it, as the first Transformer did; `AdaBlock` and `AdaNormBlock` have their
norms set by a condition.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .attention import Attention
from .cache import LayerCache
from .probe import OFF, Off
from .span import Span

# what attention computes where it looks at a source of s tokens
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
    """The pre-norm block of GPT and ViT, handed its attention, its MLP and its norm as makers."""

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
        self, x: Float[Tensor, "B T D"], span: Span, cache: LayerCache | None = None, probe: Off = OFF
    ) -> Float[Tensor, "B T D"]:
        seen = probe("attn_norm", self.attn_norm(x))
        x = probe("mid", x + self.drop(self.attn(seen, span, cache=cache, probe=probe / "attn")))
        seen = probe("mlp_norm", self.mlp_norm(x))
        return probe("post", x + self.drop(self.mlp(seen, probe=probe / "mlp")))


Source = Float[Tensor, "B S D"] | tuple[Float[Tensor, "B g S d"], Float[Tensor, "B g S d"]]


class CrossBlock(nn.Module):
    """The pre-norm block that also looks at a source: itself, then the source, then the MLP."""

    NAMES = {
        "attn_norm": ("B T D", "X̃", "Norm(X)"),
        "mid": ("B T D", "X′", "X + O"),
        "cross_norm": ("B T D", "X̃′", "Norm(X′)"),
        "looked": ("B T D", "X″", "X′ + O_src"),
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
        probe: Off = OFF,
    ) -> Float[Tensor, "B T D"]:
        seen = probe("attn_norm", self.attn_norm(x))
        x = probe("mid", x + self.drop(self.attn(seen, span, cache=cache, probe=probe / "attn")))
        seen = probe("cross_norm", self.cross_norm(x))
        x = probe("looked", x + self.drop(self.cross(seen, across, source=source, probe=probe / "cross")))
        seen = probe("mlp_norm", self.mlp_norm(x))
        return probe("post", x + self.drop(self.mlp(seen, probe=probe / "mlp")))


class PostBlock(nn.Module):
    """The block of the first encoders: each part reads the trunk as it is, and the trunk is normed after it."""

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
        self, x: Float[Tensor, "B T D"], span: Span, cache: LayerCache | None = None, probe: Off = OFF
    ) -> Float[Tensor, "B T D"]:
        x = probe("mid", self.attn_norm(x + self.drop(self.attn(x, span, cache=cache, probe=probe / "attn"))))
        return probe("post", self.mlp_norm(x + self.drop(self.mlp(x, probe=probe / "mlp"))))


class PostCrossBlock(nn.Module):
    """The block of the first decoders: itself, the source, the MLP, and a norm after each."""

    NAMES = {
        "mid": ("B T D", "X′", "Norm(X + O)"),
        "looked": ("B T D", "X″", "Norm(X′ + O_src)"),
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
        probe: Off = OFF,
    ) -> Float[Tensor, "B T D"]:
        x = probe("mid", self.attn_norm(x + self.drop(self.attn(x, span, cache=cache, probe=probe / "attn"))))
        looked = self.cross(x, across, source=source, probe=probe / "cross")
        x = probe("looked", self.cross_norm(x + self.drop(looked)))
        return probe("post", self.mlp_norm(x + self.drop(self.mlp(x, probe=probe / "mlp"))))


class AdaBlock(nn.Module):
    """The block of a diffusion transformer (adaLN-Zero): a condition shifts and scales what each part reads, and gates
    what it adds. The matrix that does so begins at zero: a fresh block changes nothing."""

    NAMES = {
        "set": ("B m", "β γ α", "SiLU(c) W_ada + b_ada"),
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
        self, x: Float[Tensor, "B T D"], span: Span, condition: Float[Tensor, "B D"], probe: Off = OFF
    ) -> Float[Tensor, "B T D"]:
        ada = probe("set", self.ada(F.silu(condition)))[:, None]
        shift_attn, scale_attn, gate_attn, shift_mlp, scale_mlp, gate_mlp = ada.chunk(6, -1)
        seen = probe("attn_norm", self.attn_norm(x) * (1 + scale_attn) + shift_attn)
        x = probe("mid", x + gate_attn * self.attn(seen, span, probe=probe / "attn"))
        seen = probe("mlp_norm", self.mlp_norm(x) * (1 + scale_mlp) + shift_mlp)
        return probe("post", x + gate_mlp * self.mlp(seen, probe=probe / "mlp"))


class AdaNormBlock(nn.Module):
    """The plain adaLN: the condition gives each norm its γ and β, and nothing is gated; at first a pre-norm block."""

    NAMES = {
        "set": ("B m", "γ β", "SiLU(c) W_ada + b_ada"),
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
        self, x: Float[Tensor, "B T D"], span: Span, condition: Float[Tensor, "B D"], probe: Off = OFF
    ) -> Float[Tensor, "B T D"]:
        scale_attn, shift_attn, scale_mlp, shift_mlp = probe("set", self.ada(F.silu(condition)))[:, None].chunk(4, -1)
        seen = probe("attn_norm", self.attn_norm(x) * scale_attn + shift_attn)
        x = probe("mid", x + self.attn(seen, span, probe=probe / "attn"))
        seen = probe("mlp_norm", self.mlp_norm(x) * scale_mlp + shift_mlp)
        return probe("post", x + self.mlp(seen, probe=probe / "mlp"))
