"""Encoder–decoder: one stack reads a source, another writes a target and looks at it; as the first Transformer did."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..config import UserError
from ..core.cache import Cache, Memory
from ..core.embed import Tokens
from ..core.masks import causal
from ..core.probe import OFF, Off, Probe
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
from .reader import Encoder, seen_whole


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Sizes and choices; `context` is how many target tokens fit, `source_context` how many of the source.

    Both stacks have `depth` blocks. `shared` is one table of words for source and target; `tied`, the target's table
    as the last matrix too; `scaled`, words times √width, as the first Transformer reads them; `head_bias`, a number
    added to each word's logit.
    """

    vocab: int = 512
    source_vocab: int | None = None
    context: int = 64
    source_context: int = 64
    width: int = 128
    depth: int = 2
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    trunk: Trunk = "pre"
    norm: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    activation: Activation = "gelu"
    bias: bool = False
    dropout: float = 0.0
    positions: Scheme = "rope"
    rope_base: float = 10000.0
    rope_share: float = 1.0  # of each head
    reach: int | None = None  # distances beyond it count as it: 16 for shaw and 128 for t5 unless given
    rope_scaling: Scaling | None = None  # to read further than it was trained to: rope_factor times as far
    rope_factor: float = 1.0
    rope_trained: int | None = None  # context/rope_factor unless given
    shared: bool = True
    scaled: bool = False
    tied: bool = True
    head_bias: bool = False

    def __post_init__(self):
        check_sizes(self)
        check_positions(self.positions, self, 1)
        if self.shared and self.source_vocab not in (None, self.vocab):
            raise UserError(
                f"model.source_vocab {self.source_vocab} is not model.vocab {self.vocab}, so the two cannot share one "
                "table: --model.shared false gives the source its own"
            )

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
            "T": self.context, "S": self.context, "s": self.source_context, "V": self.vocab, "D": self.width,
            "h": self.heads, "g": self.kv_heads or self.heads, "d": self.head_width, "d/2": turned(self) // 2,
            "F": self.mlp_width, "a": 1,
        }  # fmt: skip


_PAPER = dict(
    vocab=37000, context=512, source_context=512, depth=6, trunk="post", activation="relu", bias=True,
    positions="sincos", scaled=True,
)  # fmt: skip

# a preset without a context takes both from the data
PRESETS: dict[str, dict] = {
    "nano": dict(width=64, depth=2, heads=4),
    "small": dict(width=256, depth=4, heads=8, dropout=0.1),
    "base": dict(width=512, heads=8, hidden=2048, dropout=0.1, **_PAPER),
    "big": dict(width=1024, heads=16, hidden=4096, dropout=0.3, **_PAPER),
}


class Seq2Seq(nn.Module):
    """Source and target tokens to the target's logits; every target token looks at the whole source."""

    NAMES = {
        "source": ("B s D", "E[s]", "rows of E (·√D)"),
        "embed": ("B T D", "E[t]", "rows of E (·√D)"),
        "input": ("B T D", "Y⁰", "E[t] (+ P)"),
        "norm": ("B T D", "X_f", "Norm(X)"),
        "logits": ("B T V", "Z", "X_f Eᵀ or X_f W + b"),
    }
    LETTERS = {"encoder": {"T": "s", "S": "s"}}
    WEIGHTS = {"head.weight": "W_vocab", "head_bias": "b_vocab"}

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.config = c = config
        self.mask = causal
        last = "Norm(X)" if c.trunk == "pre" else "X"
        self.NAMES = type(self).NAMES | {"norm": ("B T D", "X_f", last)}
        self.INNER = {"encoder.out": ("B s D", "E", last)}
        self.tokens = Tokens(c.vocab, c.width)
        self.source_tokens = None if c.shared else Tokens(c.source_vocab or c.vocab, c.width)
        self.encoder = Encoder(c, c.source_context)
        self.positions = positions_of(c.positions, c, (c.context,), both=False)
        self.drop = nn.Dropout(c.dropout)
        block = block_maker(c, cells=True, kind=TRUNKS[c.trunk][1])
        self.blocks = nn.ModuleList(block() for _ in range(c.depth))
        self.norm = norm_maker(c)() if c.trunk == "pre" else None
        self.head = None if c.tied else nn.Linear(c.width, c.vocab, bias=False)
        self.head_bias = nn.Parameter(torch.zeros(c.vocab)) if c.head_bias else None
        initialise(self, c.depth)
        if c.trunk == "post":
            initialise_post(self)
        if c.scaled:
            # times √width a word is then as large as a wave
            for table in (self.tokens, self.source_tokens):
                if table is not None:
                    nn.init.normal_(table.weight, std=c.width**-0.5)

    def new_cache(self, batch: int, length: int | None = None) -> Cache:
        """An empty cache for this model, on its device and in its dtype."""
        c, like = self.config, self.tokens.weight
        heads = c.kv_heads or c.heads
        length = c.context if length is None else length
        return Cache(c.depth, batch, heads, length, c.head_width, device=like.device, dtype=like.dtype)

    def example(self, batch: int = 1) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B s"]]:
        """Inputs of the largest shape the model takes."""
        c, device = self.config, self.tokens.weight.device
        target, source = (torch.zeros(batch, n, dtype=torch.long, device=device) for n in (c.context, c.source_context))
        return target, source

    def _words(self, table: Tokens, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        x = table(tokens)
        return x * math.sqrt(self.config.width) if self.config.scaled else x

    def read(self, source: Int[Tensor, "B s"], span: Span | None = None, probe: Off = OFF) -> Memory:
        """The source's keys and values for every block, once; without a span nothing of it is padding."""
        there = span or Span.whole(source.shape[1], device=source.device)
        x = probe("source", self._words(self.source_tokens or self.tokens, source))
        states = self.encoder(x, there, probe / "encoder")
        blocks: Any = self.blocks
        return Memory([block.cross.read(states) for block in blocks], there)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        source: Int[Tensor, "B s"] | None = None,
        source_span: Span | None = None,
        span: Span | None = None,
        cache: Cache | None = None,
        last: bool = False,
        probe: Off = OFF,
    ) -> Float[Tensor, "B n V"]:
        """Logits for every target token, or with `last` only for the last one.

        The source comes with the first call; a cache remembers its keys and values. A span is the target's, or the
        source's, and tells where there is padding.
        """
        memory = None if cache is None else cache.memory
        if (memory is None) != (source is not None):
            raise ValueError("the source is read once: it comes with the first tokens, and with no later ones")
        if source is not None:
            memory = self.read(source, source_span, probe)
            if cache is not None:
                cache.memory = memory
        assert memory is not None
        count = tokens.shape[1]
        here = span or (Span.whole(count, device=tokens.device) if cache is None else cache.next(count))
        if cache is not None:
            here = cache.place(here)
        x = probe("embed", self._words(self.tokens, tokens))
        x, here = self.positions(x, here, probe / "positions")
        across = here.across(memory.span).under(seen_whole(memory.span))
        here = here.under(self.mask, partial(self.positions.bias, probe=probe / "positions"))
        x = self.drop(probe("input", x))
        for i, block in enumerate(self.blocks):
            x = block(x, here, memory.layers[i], across, None if cache is None else cache[i], probe / f"blocks.{i}")
        x = x[:, -1:] if last else x
        x = probe("norm", x if self.norm is None else self.norm(x))
        z = self.tokens.logits(x) if self.head is None else self.head(x)
        return probe("logits", z if self.head_bias is None else z + self.head_bias)


@torch.no_grad()
def attention_maps(model: Seq2Seq, source: Int[Tensor, "B s"], tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T s"]:
    """Where the model looks in the source as it reads each target token (to say the next): averaged over all heads."""
    probe = Probe("blocks.*.cross.pattern")
    model(tokens, source, probe=probe)
    return torch.stack(list(probe.values.values())).mean((0, 2))
