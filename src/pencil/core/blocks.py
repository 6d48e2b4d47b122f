"""Blocks, each written out, so that the residual stream can be followed line by line.

`Block` and `CrossBlock` are pre-norm: the residual stream itself is never normed. `PostBlock` and `PostCrossBlock` are
post-norm, as the first Transformer was. In `AdaBlock` and `AdaNormBlock` a condition sets the norms (adaLN).

Pre-norm and post-norm are different blocks. `norm_position = "post"` uses other blocks, written out; no block has a
flag for it. A post-norm model has no norm at its end and, in BERT, one at its beginning. Its matrices are initialised
as Glorot's, the pre-norm ones as GPT-2's: each as it was first trained.

`BRANCHES` of a block are what hangs from its residual stream, in the order of computing: each submodule that adds to
the stream, with the name of the stream after it. Two that add at the same place, as in a parallel block, have the same
name. `core/probe.py`: `branches` joins them for a model, and pictures of a model are drawn from that.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .attention import Attention
from .cache import LayerCache
from .masks import GivenMask
from .probe import OFF, Probe
from .span import Span

# how the formulas of a submodule call what it is given, and which keys it sees
_SELF = {"X_q": "X̃", "X_kv": "X̃"}
_CROSS = {
    "X_q": "X̃′", "X_kv": "X_enc", "SEEN": "key j is not padding", "Q": "Q_src", "K": "K_src",
    "V": "V_src", "S_raw": "S_raw,src", "M": "M_src", "S": "S_src", "A": "A_src", "H": "H_src", "H_cat": "H_cat,src",
    "O": "O_src", "W_Q": "W_Q,src", "W_K": "W_K,src", "W_V": "W_V,src", "W_O": "W_O,src", "b_Q": "b_Q,src",
    "b_K": "b_K,src", "b_V": "b_V,src", "b_O": "b_O,src", "[W_Q W_K W_V]": "[W_Q,src W_K,src W_V,src]",
    "[b_Q b_K b_V]": "[b_Q,src b_K,src b_V,src]",
}  # fmt: skip
_SOURCE = {"S": "s"}


class Block(nn.Module):
    """The pre-norm block of GPT and ViT; its attention, MLP and norm are given as factories."""

    NAMES = {
        "attn_norm": ("B T D", "X̃", "Norm_attn(Xˡ⁻¹)"),
        "mid": ("B T D", "X′", "Xˡ⁻¹ + O"),
        "mlp_norm": ("B T D", "X̂", "Norm_mlp(X′)"),
        "post": ("B T D", "Xˡ", "X′ + M_mlp"),
    }
    BRANCHES = {"attn": "mid", "mlp": "post"}
    SYMBOLS = {"attn": _SELF}

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
        self,
        x: Float[Tensor, "B T D"],
        span: Span | None = None,
        cache: LayerCache | None = None,
        probe: Probe = OFF,
        mask: GivenMask | None = None,
    ) -> Float[Tensor, "B T D"]:
        normed = probe("attn_norm", self.attn_norm(x))
        x = probe("mid", x + self.drop(self.attn(normed, span, mask=mask, cache=cache, probe=probe / "attn")))
        normed = probe("mlp_norm", self.mlp_norm(x))
        return probe.checked(probe("post", x + self.drop(self.mlp(normed, probe=probe / "mlp"))))


Source = Float[Tensor, "B S D"] | tuple[Float[Tensor, "B g S d"], Float[Tensor, "B g S d"]]


class CrossBlock(nn.Module):
    """The pre-norm block with cross-attention: self-attention, cross-attention to the source, then the MLP."""

    NAMES = {
        "attn_norm": ("B T D", "X̃", "Norm_attn(Xˡ⁻¹)"),
        "mid": ("B T D", "X′", "Xˡ⁻¹ + O"),
        "cross_norm": ("B T D", "X̃′", "Norm_cross(X′)"),
        "cross_mid": ("B T D", "X″", "X′ + O_src"),
        "mlp_norm": ("B T D", "X̂", "Norm_mlp(X″)"),
        "post": ("B T D", "Xˡ", "X″ + M_mlp"),
    }
    BRANCHES = {"attn": "mid", "cross": "cross_mid", "mlp": "post"}
    SYMBOLS = {"attn": _SELF, "cross": _CROSS}
    LETTERS = {"cross": _SOURCE}

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
        span: Span | None = None,
        source: Source | None = None,
        across: Span | None = None,
        cache: LayerCache | None = None,
        probe: Probe = OFF,
        mask: GivenMask | None = None,
    ) -> Float[Tensor, "B T D"]:
        if source is None:
            raise ValueError("a block with cross-attention needs source=, the sequence it attends to")
        normed = probe("attn_norm", self.attn_norm(x))
        x = probe("mid", x + self.drop(self.attn(normed, span, mask=mask, cache=cache, probe=probe / "attn")))
        normed = probe("cross_norm", self.cross_norm(x))
        x = probe("cross_mid", x + self.drop(self.cross(normed, across, source=source, probe=probe / "cross")))
        normed = probe("mlp_norm", self.mlp_norm(x))
        return probe.checked(probe("post", x + self.drop(self.mlp(normed, probe=probe / "mlp"))))


class PostBlock(nn.Module):
    """The post-norm block of the first encoders: a norm after each residual addition."""

    NAMES = {
        "mid": ("B T D", "X′", "Norm_attn(Xˡ⁻¹ + O)"),
        "post": ("B T D", "Xˡ", "Norm_mlp(X′ + M_mlp)"),
    }
    BRANCHES = {"attn": "mid", "mlp": "post"}
    SYMBOLS = {"attn": {"X_q": "Xˡ⁻¹", "X_kv": "Xˡ⁻¹"}, "mlp": {"X̂": "X′"}}

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
        self,
        x: Float[Tensor, "B T D"],
        span: Span | None = None,
        cache: LayerCache | None = None,
        probe: Probe = OFF,
        mask: GivenMask | None = None,
    ) -> Float[Tensor, "B T D"]:
        attended = self.attn(x, span, mask=mask, cache=cache, probe=probe / "attn")
        x = probe("mid", self.attn_norm(x + self.drop(attended)))
        return probe.checked(probe("post", self.mlp_norm(x + self.drop(self.mlp(x, probe=probe / "mlp")))))


class PostCrossBlock(nn.Module):
    """The post-norm block of the first decoders: self-attention, cross-attention, the MLP, and a norm after each."""

    NAMES = {
        "mid": ("B T D", "X′", "Norm_attn(Xˡ⁻¹ + O)"),
        "cross_mid": ("B T D", "X″", "Norm_cross(X′ + O_src)"),
        "post": ("B T D", "Xˡ", "Norm_mlp(X″ + M_mlp)"),
    }
    BRANCHES = {"attn": "mid", "cross": "cross_mid", "mlp": "post"}
    SYMBOLS = {"attn": PostBlock.SYMBOLS["attn"], "cross": _CROSS | {"X_q": "X′"}, "mlp": {"X̂": "X″"}}
    LETTERS = {"cross": _SOURCE}

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
        span: Span | None = None,
        source: Source | None = None,
        across: Span | None = None,
        cache: LayerCache | None = None,
        probe: Probe = OFF,
        mask: GivenMask | None = None,
    ) -> Float[Tensor, "B T D"]:
        if source is None:
            raise ValueError("a block with cross-attention needs source=, the sequence it attends to")
        attended = self.attn(x, span, mask=mask, cache=cache, probe=probe / "attn")
        x = probe("mid", self.attn_norm(x + self.drop(attended)))
        crossed = self.cross(x, across, source=source, probe=probe / "cross")
        x = probe("cross_mid", self.cross_norm(x + self.drop(crossed)))
        return probe.checked(probe("post", self.mlp_norm(x + self.drop(self.mlp(x, probe=probe / "mlp")))))


class AdaBlock(nn.Module):
    """The block of a diffusion transformer (adaLN-Zero): a condition shifts and scales the norms before attention
    and MLP, and gates their outputs. Its matrix is initialised to zero: a fresh block is the identity."""

    NAMES = {
        "modulation": ("B m", "m", "SiLU({c_in|c}) W_ada + b_ada"),
        "shift_attn": ("B 1 D", "β₁", "m[0:D]"),
        "scale_attn": ("B 1 D", "γ₁", "m[D:2D]"),
        "gate_attn": ("B 1 D", "α₁", "m[2D:3D]"),
        "shift_mlp": ("B 1 D", "β₂", "m[3D:4D]"),
        "scale_mlp": ("B 1 D", "γ₂", "m[4D:5D]"),
        "gate_mlp": ("B 1 D", "α₂", "m[5D:6D]"),
        "attn_norm": ("B T D", "X̃", "LN({X_in|Xˡ⁻¹})·(1 + γ₁) + β₁"),
        "mid": ("B T D", "X′", "{X_in|Xˡ⁻¹} + α₁·O"),
        "mlp_norm": ("B T D", "X̂", "LN(X′)·(1 + γ₂) + β₂"),
        "post": ("B T D", "Xˡ", "X′ + α₂·M_mlp"),
    }
    BRANCHES = {"attn": "mid", "mlp": "post"}
    SYMBOLS = {"attn": _SELF}
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
        self,
        x: Float[Tensor, "B T D"],
        span: Span | None = None,
        condition: Float[Tensor, "B D"] | None = None,
        probe: Probe = OFF,
        mask: GivenMask | None = None,
    ) -> Float[Tensor, "B T D"]:
        if condition is None:
            raise ValueError("a block with adaLN needs condition=, a vector for each row of the batch")
        ada = probe("modulation", self.ada(F.silu(condition)))[:, None].chunk(6, -1)
        names = "shift_attn", "scale_attn", "gate_attn", "shift_mlp", "scale_mlp", "gate_mlp"
        named = [probe(name, part) for name, part in zip(names, ada, strict=True)]
        shift_attn, scale_attn, gate_attn, shift_mlp, scale_mlp, gate_mlp = named
        normed = probe("attn_norm", self.attn_norm(x) * (1 + scale_attn) + shift_attn)
        x = probe("mid", x + gate_attn * self.attn(normed, span, mask=mask, probe=probe / "attn"))
        normed = probe("mlp_norm", self.mlp_norm(x) * (1 + scale_mlp) + shift_mlp)
        return probe.checked(probe("post", x + gate_mlp * self.mlp(normed, probe=probe / "mlp")))


class AdaNormBlock(nn.Module):
    """Plain adaLN: the condition gives each norm its γ and β, without gates; a fresh block is a pre-norm block."""

    NAMES = {
        "modulation": ("B m", "m", "SiLU({c_in|c}) W_ada + b_ada"),
        "scale_attn": ("B 1 D", "γ₁", "m[0:D]"),
        "shift_attn": ("B 1 D", "β₁", "m[D:2D]"),
        "scale_mlp": ("B 1 D", "γ₂", "m[2D:3D]"),
        "shift_mlp": ("B 1 D", "β₂", "m[3D:4D]"),
        "attn_norm": ("B T D", "X̃", "γ₁·LN({X_in|Xˡ⁻¹}) + β₁"),
        "mid": ("B T D", "X′", "{X_in|Xˡ⁻¹} + O"),
        "mlp_norm": ("B T D", "X̂", "γ₂·LN(X′) + β₂"),
        "post": ("B T D", "Xˡ", "X′ + M_mlp"),
    }
    BRANCHES = {"attn": "mid", "mlp": "post"}
    SYMBOLS = {"attn": _SELF}
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
        self,
        x: Float[Tensor, "B T D"],
        span: Span | None = None,
        condition: Float[Tensor, "B D"] | None = None,
        probe: Probe = OFF,
        mask: GivenMask | None = None,
    ) -> Float[Tensor, "B T D"]:
        if condition is None:
            raise ValueError("a block with adaLN needs condition=, a vector for each row of the batch")
        ada = probe("modulation", self.ada(F.silu(condition)))[:, None].chunk(4, -1)
        names = "scale_attn", "shift_attn", "scale_mlp", "shift_mlp"
        scale_attn, shift_attn, scale_mlp, shift_mlp = [probe(n, part) for n, part in zip(names, ada, strict=True)]
        normed = probe("attn_norm", self.attn_norm(x) * scale_attn + shift_attn)
        x = probe("mid", x + self.attn(normed, span, mask=mask, probe=probe / "attn"))
        normed = probe("mlp_norm", self.mlp_norm(x) * scale_mlp + shift_mlp)
        return probe.checked(probe("post", x + self.mlp(normed, probe=probe / "mlp")))
