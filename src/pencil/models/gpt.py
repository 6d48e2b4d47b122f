"""GPT: tokens in, the next token's logits out; pre-norm, as GPT-2 and nanoGPT.

The output matrix comes last, by itself. In every model over a vocabulary `forward` gives the `logits` of `hidden`, so
that a loss can be fused with the product; `output_matrix` is its weight and bias. Between the residual stream and the
output is `readout`: of the stream after the last block it is the answer, of an earlier one what the model would say
there (the logit lens). Every model has `readout`.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.cache import Cache
from ..core.embed import Tokens
from ..core.masks import causal, window
from ..core.probe import OFF, Probe
from ..core.span import Span
from .build import Last, Shown, block_maker, check_length, describe, initialise, make_positions, norm_maker, pick_tokens
from .config import BlockConfig, check_positions, check_sizes


@dataclass(frozen=True)
class GPTConfig(BlockConfig):
    """Sizes and options of a GPT."""

    vocab: int = 50257  # tokens in the vocabulary
    context: int = 256  # maximum number of tokens in a sequence
    width: int = 128  # size of the residual stream (d_model)
    depth: int = 4  # number of blocks
    heads: int = 4  # attention heads in a block
    qkv_bias: bool | None = None  # biases of queries, keys and values; bias unless given
    qk_norm: bool = False  # RMSNorm over each head's queries and keys
    window: int | None = None  # each token attends to this many, itself included; to all before it unless given
    dropout: float = 0.0  # rate for embeddings, attention weights and the outputs of attention and MLP
    tie_embeddings: bool = True  # the token table is also the output matrix
    head_bias: bool | None = None  # bias of an output matrix of its own; bias unless given

    RENAMED: ClassVar = BlockConfig.RENAMED | {"tied": "tie_embeddings"}

    def __post_init__(self):
        check_sizes(self)
        check_positions(self.positions, self, 1)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis letter used in shapes."""
        return self.block_sizes(self.context, 1) | {"V": self.vocab}


_GPT2 = dict(vocab=50257, context=1024, activation="gelu-tanh", bias=True, positions="learned")

# public sizes, for `pencil shapes` and `pencil cost`
_LLAMA2 = dict(vocab=32000, context=4096, norm="rms", activation="swiglu", tie_embeddings=False)
_LLAMA3 = dict(
    vocab=128256, context=8192, norm="rms", activation="swiglu", tie_embeddings=False, rope_theta=500000.0, kv_heads=8
)

PRESETS: dict[str, dict] = {
    "nano": dict(width=128, depth=4, heads=4, context=64),
    "nanogpt": dict(width=128, depth=4, heads=4, context=64, positions="learned"),
    # as document 001 writes it: one head as wide as the model, an MLP four times as wide, biases
    "seed": dict(width=96, depth=3, heads=1, context=64, positions="learned", bias=True),
    "small": dict(width=256, depth=6, heads=8, context=256),
    "shakespeare": dict(width=384, depth=6, heads=6, context=256, dropout=0.2),
    "llama-nano": dict(
        width=128,
        depth=4,
        heads=4,
        kv_heads=2,
        hidden=344,
        context=64,
        norm="rms",
        activation="swiglu",
        tie_embeddings=False,
    ),
    "gpt2": dict(width=768, depth=12, heads=12, **_GPT2),
    "gpt2-medium": dict(width=1024, depth=24, heads=16, **_GPT2),
    "gpt2-large": dict(width=1280, depth=36, heads=20, **_GPT2),
    "gpt2-xl": dict(width=1600, depth=48, heads=25, **_GPT2),
    "llama2-7b": dict(width=4096, depth=32, heads=32, hidden=11008, **_LLAMA2),
    "llama2-13b": dict(width=5120, depth=40, heads=40, hidden=13824, **_LLAMA2),
    "llama2-70b": dict(width=8192, depth=80, heads=64, kv_heads=8, hidden=28672, **_LLAMA2),
    "llama3-8b": dict(width=4096, depth=32, heads=32, hidden=14336, **_LLAMA3),
    "llama3-70b": dict(width=8192, depth=80, heads=64, hidden=28672, **_LLAMA3),
}


class GPT(Shown, nn.Module):
    """Tokens to logits; the config chooses the parts, and the blocks run in the loop of `hidden`."""

    NAMES = {
        "embed": ("B T D", "E[t]", "rows t of E"),
        "input": ("B T D", "X⁰", "E[t]⟨ + P⟩"),
        "norm": ("B T D", "X_f", "Norm_f(Xᴸ)"),
        "logits": ("B T V", "Z", "{W_vocab? X_f W_vocab⟨ + b_vocab⟩|X_f Eᵀ}"),
    }

    INPUTS = {"tokens": "t"}
    WEIGHTS = {"head.weight": "W_vocab", "head.bias": "b_vocab"}
    WEIGHT_AXES = {"head.weight": "V D", "head.bias": "V"}

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = c = config
        self.mask = causal if c.window is None else causal & window(c.window)
        self.tokens = Tokens(c.vocab, c.width)
        self.positions = make_positions(c.positions, c, (c.context,), both=False)
        describe(self, self.positions, self.mask.words)
        self.drop = nn.Dropout(c.dropout)
        block = block_maker(c)
        self.blocks = nn.ModuleList(block() for _ in range(c.depth))
        self.norm = norm_maker(c)()
        biased = c.bias if c.head_bias is None else c.head_bias
        self.head = None if c.tie_embeddings else nn.Linear(c.width, c.vocab, bias=biased)
        initialise(self)

    def new_cache(self, batch: int, length: int | None = None) -> Cache:
        """An empty cache for this model, on its device and in its dtype."""
        c, like = self.config, self.tokens.weight
        length = c.context if length is None else length
        return Cache(c.depth, batch, c.kv_head_count, length, c.head_width, device=like.device, dtype=like.dtype)

    def example(self, batch: int = 1) -> tuple[Int[Tensor, "B T"]]:
        """Inputs of the largest shape the model takes."""
        return (torch.zeros(batch, self.config.context, dtype=torch.long, device=self.tokens.weight.device),)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        span: Span | None = None,
        cache: Cache | None = None,
        last: Last = False,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B t V"]:
        """Logits for every token, or with `last` only for the last one, or for one of each row.

        Without a span the tokens are consecutive, and follow those in the cache.
        """
        return probe.checked(self.readout(self.stream(tokens, span, cache, probe), last, probe))

    def readout(self, x: Float[Tensor, "B T D"], last: Last = False, probe: Probe = OFF) -> Float[Tensor, "B t V"]:
        """What the residual stream says: the logits of the tokens that `last` chooses."""
        return probe("logits", self.logits(self.final(x, last, probe)))

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        span: Span | None = None,
        cache: Cache | None = None,
        last: Last = False,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B t D"]:
        """The final states, X_f, whose `logits` the model returns; it takes what `forward` takes."""
        return self.final(self.stream(tokens, span, cache, probe), last, probe)

    def final(self, x: Float[Tensor, "B T D"], last: Last = False, probe: Probe = OFF) -> Float[Tensor, "B t D"]:
        """The final states of a residual stream."""
        return probe("norm", self.norm(pick_tokens(x, last)))

    def stream(
        self, tokens: Int[Tensor, "B T"], span: Span | None = None, cache: Cache | None = None, probe: Probe = OFF
    ) -> Float[Tensor, "B T D"]:
        """The residual stream after the last block."""
        count = tokens.shape[1]
        here = span or (Span.whole(count, device=tokens.device) if cache is None else cache.next(count))
        check_length(here, self.config.context, self.positions)
        if cache is not None:
            here = cache.place(here)
        x = probe("embed", self.tokens(tokens))
        x, here = self.positions(x, here, probe / "positions")
        here = here.under(self.mask, partial(self.positions.bias, probe=probe / "positions"))
        x = self.drop(probe("input", x))
        for i, block in enumerate(self.blocks):
            x = block(x, here, None if cache is None else cache[i], probe / f"blocks.{i}")
        return x

    def logits(self, x: Float[Tensor, "B t D"]) -> Float[Tensor, "B t V"]:
        """The output matrix: final states to logits."""
        return self.tokens.logits(x) if self.head is None else self.head(x)

    @property
    def output_matrix(self) -> tuple[Float[Tensor, "V D"], Float[Tensor, "V"] | None]:
        """The matrix of `logits`, and its bias if it has one."""
        return (self.tokens.weight, None) if self.head is None else (self.head.weight, self.head.bias)
