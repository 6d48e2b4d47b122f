"""GPT: text in, the next token's logits out; pre-norm, as GPT-2 and nanoGPT write it."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import UserError
from ..core.attention import Attention
from ..core.blocks import Block
from ..core.cache import Cache
from ..core.embed import Tokens
from ..core.layers import MLP, GatedMLP, LayerNorm, RMSNorm, gelu, gelu_tanh
from ..core.masks import causal
from ..core.positions import Learned, Positions, Rope, SinCos
from ..core.probe import OFF, Off
from ..core.span import Span


@dataclass(frozen=True)
class GPTConfig:
    """Sizes and choices of a GPT; `hidden` and `kv_heads` follow from the others when not given."""

    vocab: int = 50257
    context: int = 256
    width: int = 128
    depth: int = 4
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    norm: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    activation: Literal["gelu", "gelu-tanh", "swiglu"] = "gelu"
    bias: bool = False
    dropout: float = 0.0
    positions: Literal["learned", "sincos", "rope", "none"] = "rope"
    rope_base: float = 10000.0
    tied: bool = True

    def __post_init__(self):
        for name in ("vocab", "context", "width", "depth", "heads", "hidden", "kv_heads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"model.{name} must be at least 1, not {value}")
        for name in ("eps", "rope_base"):
            if not getattr(self, name) > 0:
                raise UserError(f"model.{name} must be above 0, not {getattr(self, name)}")
        if self.width % self.heads:
            fits = [n for n in range(1, self.width + 1) if self.width % n == 0]
            near = sorted(sorted(fits, key=lambda n: abs(n - self.heads))[:3])
            raise UserError(
                f"model.heads {self.heads} does not divide model.width {self.width}; {', '.join(map(str, near))} would"
            )
        if self.heads % (self.kv_heads or self.heads):
            raise UserError(f"model.kv_heads {self.kv_heads} does not divide model.heads {self.heads}")
        if self.positions == "rope" and self.head_width % 2:
            raise UserError(f"rotations turn pairs of channels, so the head width must be even, not {self.head_width}")
        if self.positions == "sincos" and self.width % 2:
            raise UserError(f"sine and cosine come in pairs, so model.width must be even, not {self.width}")
        if not 0 <= self.dropout < 1:
            raise UserError(f"model.dropout must be at least 0 and under 1, not {self.dropout}")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        return self.hidden or 4 * self.width

    @property
    def sizes(self) -> dict[str, int]:
        """What each letter of the shapes stands for here."""
        return {
            "T": self.context, "S": self.context, "V": self.vocab, "D": self.width, "h": self.heads,
            "g": self.kv_heads or self.heads, "d": self.head_width, "d/2": self.head_width // 2, "F": self.mlp_width,
        }  # fmt: skip


_GPT2 = dict(vocab=50257, context=1024, activation="gelu-tanh", bias=True, positions="learned")

PRESETS: dict[str, dict] = {
    "nano": dict(width=128, depth=4, heads=4, context=64),
    "nanogpt": dict(width=128, depth=4, heads=4, context=64, positions="learned"),
    "small": dict(width=256, depth=6, heads=8, context=256),
    "shakespeare": dict(width=384, depth=6, heads=6, context=256, dropout=0.2),
    "llama-nano": dict(
        width=128, depth=4, heads=4, kv_heads=2, hidden=344, context=64, norm="rms", activation="swiglu", tied=False
    ),
    "gpt2": dict(width=768, depth=12, heads=12, **_GPT2),
    "gpt2-medium": dict(width=1024, depth=24, heads=16, **_GPT2),
    "gpt2-large": dict(width=1280, depth=36, heads=20, **_GPT2),
    "gpt2-xl": dict(width=1600, depth=48, heads=25, **_GPT2),
}


class GPT(nn.Module):
    """Tokens to logits; the parts are chosen by the config's data, the trunk is the loop in `forward`."""

    NAMES = {
        "embed": ("B T D", "E[t]", "rows of E"),
        "input": ("B T D", "X⁰", "E[t] (+ P)"),
        "norm": ("B T D", "X_f", "Norm(X)"),
        "logits": ("B T V", "Z", "X_f Eᵀ or X_f W + b"),
    }

    WEIGHTS = {"head.weight": "W_vocab", "head.bias": "b_vocab"}

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = c = config
        norm = {
            "layer": partial(LayerNorm, c.width, c.eps, c.bias),
            "rms": partial(RMSNorm, c.width, c.eps),
        }[c.norm]
        mlp = {
            "gelu": partial(MLP, c.width, c.mlp_width, gelu, c.bias),
            "gelu-tanh": partial(MLP, c.width, c.mlp_width, gelu_tanh, c.bias),
            "swiglu": partial(GatedMLP, c.width, c.mlp_width, F.silu, c.bias),
        }[c.activation]
        attention = partial(Attention, c.width, c.heads, c.kv_heads, bias=c.bias, dropout=c.dropout)
        self.mask = causal
        self.tokens = Tokens(c.vocab, c.width)
        self.positions = {
            "learned": partial(Learned, c.context, c.width),
            "sincos": partial(SinCos, c.width),
            "rope": partial(Rope, c.head_width, base=c.rope_base),
            "none": Positions,
        }[c.positions]()
        self.drop = nn.Dropout(c.dropout)
        self.blocks = nn.ModuleList(Block(attention, mlp, norm, c.dropout) for _ in range(c.depth))
        self.norm = norm()
        self.head = None if c.tied else nn.Linear(c.width, c.vocab, bias=c.bias)
        self.initialise()

    def initialise(self) -> None:
        """GPT-2's: normal(0.02), zero biases, and what writes to the trunk scaled down by √(2·depth)."""
        for name, parameter in self.named_parameters():
            if name.endswith(("attn.out.weight", "mlp.down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.config.depth))
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def new_cache(self, batch: int, length: int | None = None) -> Cache:
        """An empty cache for this model, on its device and in its dtype."""
        c, like = self.config, self.tokens.weight
        heads = c.kv_heads or c.heads
        length = c.context if length is None else length
        return Cache(c.depth, batch, heads, length, c.head_width, device=like.device, dtype=like.dtype)

    def example(self, batch: int = 1) -> tuple[Int[Tensor, "B T"]]:
        """Inputs of the largest shape the model takes."""
        return (torch.zeros(batch, self.config.context, dtype=torch.long, device=self.tokens.weight.device),)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        span: Span | None = None,
        cache: Cache | None = None,
        last: bool = False,
        probe: Off = OFF,
    ) -> Float[Tensor, "B t V"]:
        """Logits for every token, or with `last` only for the last one.

        Without a span the tokens stand one after another, after what the cache holds.
        """
        count = tokens.shape[1]
        here = span or (Span.whole(count, device=tokens.device) if cache is None else cache.next(count))
        if cache is not None:
            here = cache.place(here)
        x = probe("embed", self.tokens(tokens))
        x, here = self.positions(x, here, probe / "positions")
        here = here.under(self.mask)
        x = self.drop(probe("input", x))
        for i, block in enumerate(self.blocks):
            x = block(x, here, None if cache is None else cache[i], probe / f"blocks.{i}")
        x = probe("norm", self.norm(x[:, -1:] if last else x))
        return probe("logits", self.tokens.logits(x) if self.head is None else self.head(x))


def parameters(config: GPTConfig) -> int:
    """How many numbers the model learns, without allocating it."""
    with torch.device("meta"):
        return sum(p.numel() for p in GPT(config).parameters())
