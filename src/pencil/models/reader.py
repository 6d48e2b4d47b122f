"""The reader: text in, a label's logits out, or those of the words that were hidden; every token sees every other."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..config import UserError
from ..core.embed import Tokens
from ..core.layers import gelu
from ..core.masks import NOWHERE, full, padding
from ..core.probe import OFF, Off
from ..core.span import Span
from .parts import (
    TRUNKS,
    Activation,
    Scaling,
    Scheme,
    Trunk,
    block_maker,
    check_positions,
    check_sizes,
    initialise,
    initialise_post,
    norm_maker,
    positions_of,
    turned,
)


@dataclass(frozen=True)
class ReaderConfig:
    """Sizes and choices of a reader; without `classes` it says which words were hidden.

    `trunk` is where the norms stand: before each part, or after it as in BERT, which also norms its input
    (`embed_norm`). `types` is how many kinds of token there are, where the input says of which kind each is.
    """

    vocab: int = 512
    context: int = 128
    classes: int | None = None
    width: int = 128
    depth: int = 3
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    trunk: Trunk = "pre"
    embed_norm: bool = False
    norm: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    activation: Activation = "gelu"
    bias: bool = True
    dropout: float = 0.0
    positions: Scheme = "rope"
    rope_base: float = 10000.0
    rope_share: float = 1.0  # of each head
    reach: int | None = None  # distances beyond it count as it: 16 for shaw and 128 for t5 unless given
    rope_scaling: Scaling | None = None  # to read further than it was trained to: rope_factor times as far
    rope_factor: float = 1.0
    rope_trained: int | None = None  # context/rope_factor unless given
    types: int = 0
    pool: Literal["class", "mean"] = "class"

    def __post_init__(self):
        check_sizes(self)
        check_positions(self.positions, self, 1)
        if self.types < 0:
            raise UserError(f"model.types cannot be negative, not {self.types}")

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        return self.hidden or 4 * self.width

    @property
    def sizes(self) -> dict[str, int]:
        """What each letter of the shapes stands for here."""
        said = {"V": self.vocab} if self.classes is None else {"K": self.classes}
        return said | {
            "T": self.context, "S": self.context, "D": self.width, "h": self.heads, "g": self.kv_heads or self.heads,
            "d": self.head_width, "d/2": turned(self) // 2, "F": self.mlp_width, "a": 1,
        }  # fmt: skip


_BERT = dict(
    vocab=30522, context=512, trunk="post", embed_norm=True, eps=1e-12, dropout=0.1, positions="learned", types=2
)

PRESETS: dict[str, dict] = {
    "nano": dict(width=128, depth=3, heads=4, dropout=0.1),
    "small": dict(width=256, depth=6, heads=8, dropout=0.1),
    "bert-base": dict(width=768, depth=12, heads=12, **_BERT),
    "bert-large": dict(width=1024, depth=24, heads=16, **_BERT),
}


class Encoder(nn.Module):
    """Embedded tokens to what stands behind them: the stack of a reader, and the first of an encoder–decoder's two."""

    def __init__(self, config: Any, context: int):
        super().__init__()
        c = config
        stamped, last = "E[t] (+ P)", "Norm(X)" if c.trunk == "pre" else "X"
        embed_norm = getattr(c, "embed_norm", False)
        first = f"Norm({stamped})" if embed_norm else stamped
        self.NAMES = {"input": ("B T D", "X⁰", first), "out": ("B T D", "X_f", last)}
        self.positions = positions_of(c.positions, c, (context,))
        self.embed_norm = norm_maker(c)() if embed_norm else None
        self.drop = nn.Dropout(c.dropout)
        block = block_maker(c, cells=True, kind=TRUNKS[c.trunk][0])
        self.blocks = nn.ModuleList(block() for _ in range(c.depth))
        self.norm = norm_maker(c)() if c.trunk == "pre" else None

    def forward(self, x: Float[Tensor, "B T D"], span: Span, probe: Off = OFF) -> Float[Tensor, "B T D"]:
        x, here = self.positions(x, span, probe / "positions")
        here = here.under(seen_whole(span), partial(self.positions.bias, probe=probe / "positions"))
        x = self.drop(probe("input", x if self.embed_norm is None else self.embed_norm(x)))
        for i, block in enumerate(self.blocks):
            x = block(x, here, probe=probe / f"blocks.{i}")
        return probe("out", x if self.norm is None else self.norm(x))


def seen_whole(span: Span):
    """The mask under which all of a text is seen: nothing is refused but padding, where there may be some."""
    return padding if span.start is None else full


def mean_of(x: Float[Tensor, "B T D"], span: Span) -> Float[Tensor, "B D"]:
    """The mean over the tokens that are no padding."""
    if span.start is not None:
        return x.mean(1)
    real = (span.index < NOWHERE)[..., None].to(x.dtype)
    return (x * real).sum(1) / real.sum(1)


class LabelHead(nn.Module):
    """One vector for the whole text: its first token's, through a matrix and tanh as in BERT, or the mean of all."""

    NAMES = {"pooled": ("B D", "y", "tanh(X_f[0] W_pool + b_pool) or mean X_f")}
    WEIGHTS = {
        "pool.weight": "W_pool",
        "pool.bias": "b_pool",
        "label.weight": "W_class",
        "label.bias": "b_class",
    }

    def __init__(self, width: int, classes: int, first: bool, dropout: float):
        super().__init__()
        self.pool = nn.Linear(width, width) if first else None
        self.drop = nn.Dropout(dropout)
        self.label = nn.Linear(width, classes)

    def forward(self, x: Float[Tensor, "B T D"], span: Span, probe: Off = OFF) -> Float[Tensor, "B K"]:
        if self.pool is not None:
            # where there is padding, it may stand before the first token
            first = x[:, 0] if span.start is not None else (x * (span.index == 0)[..., None].to(x.dtype)).sum(1)
            pooled = torch.tanh(self.pool(first))
        else:
            pooled = mean_of(x, span)
        return self.label(self.drop(probe("pooled", pooled)))


class WordHead(nn.Module):
    """Each token's vector through a matrix, an activation and a norm, ready to be compared with the table of words."""

    NAMES = {"guess": ("B T D", "Y", "Norm(GELU(X_f W + b))")}
    WEIGHTS = {"map.weight": "W", "map.bias": "b", "bias": "b_vocab"}

    def __init__(self, width: int, vocab: int, norm: nn.Module):
        super().__init__()
        self.map, self.norm = nn.Linear(width, width), norm
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, x: Float[Tensor, "B T D"], tokens: Tokens, probe: Off = OFF) -> Float[Tensor, "B T V"]:
        return tokens.logits(probe("guess", self.norm(gelu(self.map(x))))) + self.bias


class Reader(nn.Module):
    """Tokens to one label, or to the words that stand at each place."""

    WEIGHTS = {"types.weight": "T"}

    def __init__(self, config: ReaderConfig):
        super().__init__()
        self.config = c = config
        said = ("B K", "Z", "y W_class + b_class") if c.classes else ("B T V", "Z", "Y Eᵀ + b_vocab")
        self.NAMES = {"embed": ("B T D", "E[t]", "rows of E (+ T)"), "logits": said}
        self.tokens = Tokens(c.vocab, c.width)
        self.types = Tokens(c.types, c.width) if c.types else None
        self.encoder = Encoder(c, c.context)
        self.head = (
            LabelHead(c.width, c.classes, c.pool == "class", c.dropout)
            if c.classes
            else WordHead(c.width, c.vocab, norm_maker(c)())
        )
        initialise(self, c.depth)
        if c.trunk == "post":
            initialise_post(self)

    def example(self, batch: int = 1) -> tuple[Int[Tensor, "B T"]]:
        """Inputs of the largest shape the model takes."""
        return (torch.zeros(batch, self.config.context, dtype=torch.long, device=self.tokens.weight.device),)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        span: Span | None = None,
        types: Int[Tensor, "B T"] | None = None,
        probe: Off = OFF,
    ) -> Float[Tensor, "B *T n"]:
        """Logits of the label, or of every token.

        Without a span nothing is padding; without types all tokens are of the first.
        """
        here = span or Span.whole(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens)
        if self.types is not None:
            x = x + (self.types.weight[0] if types is None else self.types(types))
        elif types is not None:
            raise ValueError("the model knows no types of tokens: its config has types 0")
        x = self.encoder(probe("embed", x), here, probe / "encoder")
        inner = probe / "head"
        said = self.head(x, here, inner) if isinstance(self.head, LabelHead) else self.head(x, self.tokens, probe=inner)
        return probe("logits", said)
