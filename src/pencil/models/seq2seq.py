"""Encoder–decoder, as the first Transformer: the decoder generates a target, with cross-attention to the source.

A source is encoded once. `Seq2Seq.read` computes every block's keys and values of the source; a `Cache` keeps them as
its `memory`, so generation passes the source with the prefill only, as it does an image. Beams of one source share it:
reordering beams moves only the target's keys.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..config import UserError
from ..core.cache import Cache, Memory
from ..core.embed import Tokens
from ..core.masks import causal
from ..core.probe import OFF, Probe
from ..core.span import Span
from .build import (
    BLOCKS,
    Last,
    Shown,
    block_maker,
    check_length,
    describe,
    initialise,
    initialise_post,
    make_positions,
    norm_maker,
    pick_tokens,
)
from .config import BlockConfig, NormPosition, Scaling, check_positions, check_sizes
from .reader import Encoder, seen_whole


@dataclass(frozen=True)
class Seq2SeqConfig(BlockConfig):
    """Sizes and options of an encoder–decoder."""

    vocab: int = 512  # tokens in the target's vocabulary
    source_vocab: int | None = None  # tokens in the source's vocabulary; vocab unless given
    context: int = 64  # maximum number of target tokens
    source_context: int = 64  # maximum number of source tokens
    width: int = 128  # size of the residual stream (d_model)
    depth: int = 2  # number of blocks, of the encoder and of the decoder
    decoder_depth: int | None = None  # number of blocks of the decoder; depth unless given
    heads: int = 4  # attention heads in a block
    norm_position: NormPosition = "pre"  # before each sublayer (pre) or after it (post)
    buckets: int | None = None  # of the distances of t5 positions; 32 unless given
    rope_scaling: Scaling | None = None  # for contexts longer than the one trained on
    share_embeddings: bool = True  # one token table for source and target
    scale_embeddings: bool = False  # embeddings times √width, as in the first Transformer
    tie_embeddings: bool = True  # the target's token table is also the output matrix
    scale_logits: bool = False  # logits divided by √width, as in T5
    head_bias: bool = False  # a bias on the logits

    RENAMED: ClassVar = BlockConfig.RENAMED | {
        "trunk": "norm_position",
        "tied": "tie_embeddings",
        "shared": "share_embeddings",
        "scaled": "scale_embeddings",
    }

    def __post_init__(self):
        check_sizes(self)
        check_positions(self.positions, self, 1)
        if self.share_embeddings and self.source_vocab not in (None, self.vocab):
            raise UserError(
                f"model.source_vocab {self.source_vocab} is not model.vocab {self.vocab}, so the two cannot share one "
                "table: --model.share_embeddings false gives the source its own"
            )

    @property
    def decoder_blocks(self) -> int:
        return self.decoder_depth or self.depth

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis letter used in shapes."""
        return self.block_sizes(self.context, 1) | {"s": self.source_context, "V": self.vocab}


_PAPER = dict(
    vocab=37000,
    context=512,
    source_context=512,
    depth=6,
    norm_position="post",
    activation="relu",
    bias=True,
    positions="sinusoidal",
    scale_embeddings=True,
)

# a preset without a context takes both from the data
PRESETS: dict[str, dict] = {
    "nano": dict(width=64, depth=2, heads=4),
    "small": dict(width=256, depth=4, heads=8, dropout=0.1),
    "base": dict(width=512, heads=8, dropout=0.1, **_PAPER),
    "big": dict(width=1024, heads=16, dropout=0.3, **_PAPER),
}


class Seq2Seq(Shown, nn.Module):
    """Source and target tokens to the target's logits; every target token attends to the whole source."""

    NAMES = {
        "source": ("B s D", "X_src", "{scaled? √D·|}{E_src|E}[s]"),
        "embed": ("B T D", "X_emb", "{scaled? √D·|}E[t]"),
        "input": ("B T D", "X⁰", "X_emb⟨ + P⟩"),
        "norm": ("B T D", "X_f", "{post? Xᴸ|Norm_f(Xᴸ)}"),
        "logits": ("B T V", "Z", "{W_vocab? X_f W_vocab|X_f Eᵀ}{divided? /√D|}⟨ + b_vocab⟩"),
    }
    LETTERS = {"encoder": {"T": "s", "S": "s"}}
    INPUTS = {"tokens": "t", "source": "s"}
    WEIGHTS = {"head.weight": "W_vocab", "head_bias": "b_vocab", "source_tokens.weight": "E_src"}
    # a source may have a vocabulary of its own
    WEIGHT_AXES = {"head.weight": "V D", "head_bias": "V", "source_tokens.weight": ""}

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        self.config = c = config
        self.mask = causal
        self.tokens = Tokens(c.vocab, c.width)
        self.source_tokens = None if c.share_embeddings else Tokens(c.source_vocab or c.vocab, c.width)
        self.encoder = Encoder(c, c.source_context)
        self.positions = make_positions(c.positions, c, (c.context,), both=False)
        facts = {"scaled": c.scale_embeddings, "divided": c.scale_logits, "post": c.norm_position == "post"}
        encoder = {"encoder": {"X_emb": "X_src", "X_f": "X_enc"}}
        describe(self, self.positions, self.mask.words, encoder, [word for word, holds in facts.items() if holds])
        self.drop = nn.Dropout(c.dropout)
        block = block_maker(c, kind=BLOCKS[c.norm_position][1])
        self.blocks = nn.ModuleList(block() for _ in range(c.decoder_blocks))
        self.norm = norm_maker(c)() if c.norm_position == "pre" else None
        self.head = None if c.tie_embeddings else nn.Linear(c.width, c.vocab, bias=False)
        self.head_bias = nn.Parameter(torch.zeros(c.vocab)) if c.head_bias else None
        initialise(self)
        if c.norm_position == "post":
            initialise_post(self)
        if c.scale_embeddings:
            # times √width an embedding is then as large as a position's sinusoids
            for table in (self.tokens, self.source_tokens):
                if table is not None:
                    nn.init.normal_(table.weight, std=c.width**-0.5)

    def new_cache(self, batch: int, length: int | None = None) -> Cache:
        """An empty cache for this model, on its device and in its dtype."""
        c, like = self.config, self.tokens.weight
        length = c.context if length is None else length
        return Cache(
            c.decoder_blocks, batch, c.kv_head_count, length, c.head_width, device=like.device, dtype=like.dtype
        )

    def example(self, batch: int = 1) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B s"]]:
        """Inputs of the largest shape the model takes."""
        c, device = self.config, self.tokens.weight.device
        target, source = (torch.zeros(batch, n, dtype=torch.long, device=device) for n in (c.context, c.source_context))
        return target, source

    def _embed(self, table: Tokens, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        x = table(tokens)
        return x * math.sqrt(self.config.width) if self.config.scale_embeddings else x

    def read(self, source: Int[Tensor, "B s"], span: Span | None = None, probe: Probe = OFF) -> Memory:
        """The source's keys and values for every block, computed once; without a span it has no padding."""
        there = span or Span.whole(source.shape[1], device=source.device)
        x = probe("source", self._embed(self.source_tokens or self.tokens, source))
        states = self.encoder.final(self.encoder(x, there, probe / "encoder"), probe / "encoder")
        blocks: Any = self.blocks
        reads = [block.cross.read(states, probe / f"blocks.{i}.cross") for i, block in enumerate(blocks)]
        return Memory(reads, there)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        source: Int[Tensor, "B s"] | None = None,
        source_span: Span | None = None,
        span: Span | None = None,
        cache: Cache | None = None,
        last: Last = False,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B n V"]:
        """Logits for every target token, or with `last` only for the last one, or for one of each row.

        The source is given with the first call; a cache keeps its keys and values. Spans are needed where target or
        source have padding.
        """
        return probe.checked(self.readout(self.stream(tokens, source, source_span, span, cache, probe), last, probe))

    def readout(self, x: Float[Tensor, "B T D"], last: Last = False, probe: Probe = OFF) -> Float[Tensor, "B n V"]:
        """What the residual stream of the decoder says: the logits of the tokens that `last` chooses."""
        return probe("logits", self.logits(self.final(x, last, probe)))

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        source: Int[Tensor, "B s"] | None = None,
        source_span: Span | None = None,
        span: Span | None = None,
        cache: Cache | None = None,
        last: Last = False,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B n D"]:
        """The final states, divided by √D if the model does so, for `logits`; it takes what `forward` takes."""
        return self.final(self.stream(tokens, source, source_span, span, cache, probe), last, probe)

    def final(self, x: Float[Tensor, "B T D"], last: Last = False, probe: Probe = OFF) -> Float[Tensor, "B n D"]:
        """The final states of a residual stream of the decoder."""
        x = pick_tokens(x, last)
        x = probe("norm", x if self.norm is None else self.norm(x))
        return x * self.config.width**-0.5 if self.config.scale_logits else x

    def stream(
        self,
        tokens: Int[Tensor, "B T"],
        source: Int[Tensor, "B s"] | None = None,
        source_span: Span | None = None,
        span: Span | None = None,
        cache: Cache | None = None,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B T D"]:
        """The residual stream of the decoder after its last block."""
        memory = None if cache is None else cache.memory
        if (memory is None) != (source is not None):
            raise ValueError("the source is read once: give it with the first tokens, and with no later ones")
        if source is not None:
            memory = self.read(source, source_span, probe)
            if cache is not None:
                cache.memory = memory
        assert memory is not None
        count = tokens.shape[1]
        here = span or (Span.whole(count, device=tokens.device) if cache is None else cache.next(count))
        check_length(here, self.config.context, self.positions)
        if cache is not None:
            here = cache.place(here)
        x = probe("embed", self._embed(self.tokens, tokens))
        x, here = self.positions(x, here, probe / "positions")
        across = here.across(memory.span).under(seen_whole(memory.span))
        here = here.under(self.mask, partial(self.positions.bias, probe=probe / "positions"))
        x = self.drop(probe("input", x))
        for i, block in enumerate(self.blocks):
            x = block(x, here, memory.layers[i], across, None if cache is None else cache[i], probe / f"blocks.{i}")
        return x

    def logits(self, x: Float[Tensor, "B n D"]) -> Float[Tensor, "B n V"]:
        """The output matrix: final states to logits."""
        z = self.tokens.logits(x) if self.head is None else self.head(x)
        return z if self.head_bias is None else z + self.head_bias

    @property
    def output_matrix(self) -> tuple[Float[Tensor, "V D"], Float[Tensor, "V"] | None]:
        """The matrix of `logits`, and its bias if it has one."""
        return (self.tokens if self.head is None else self.head).weight, self.head_bias


@torch.no_grad()
def attention_maps(model: Seq2Seq, source: Int[Tensor, "B s"], tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T s"]:
    """The attention to each source token at the step that produced each next token: averaged over blocks and heads."""
    probe = Probe("blocks.*.cross.pattern")
    model(tokens, source, probe=probe)
    return torch.stack(list(probe.values.values())).mean((0, 2))
