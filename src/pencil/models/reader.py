"""The reader, an encoder: text in, the logits of a class or of masked tokens out; attention in both directions."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..config import UserError
from ..core.embed import Tokens
from ..core.layers import gelu
from ..core.masks import NOWHERE, full, padding
from ..core.positions import Learned
from ..core.probe import OFF, Probe
from ..core.span import Span
from .build import (
    BLOCKS,
    Shown,
    block_maker,
    check_length,
    describe,
    initialise,
    initialise_post,
    make_positions,
    norm_maker,
)
from .config import BlockConfig, NormPosition, check_positions, check_sizes

Head = Literal["words", "label", "pool", "states"]


@dataclass(frozen=True)
class ReaderConfig(BlockConfig, without=("head_dim",)):
    """Sizes and options of a reader (an encoder like BERT); without `classes` it predicts masked tokens."""

    vocab: int = 512  # tokens in the vocabulary
    context: int = 128  # maximum number of tokens in a sequence
    classes: int | None = None  # number of classes; unset, the model predicts masked tokens
    width: int = 128  # size of the residual stream (d_model)
    depth: int = 3  # number of blocks
    norm_position: NormPosition = "pre"  # before each sublayer (pre) or after it (post)
    embed_norm: bool = False  # a norm after the embeddings, as in BERT
    bias: bool = True  # biases in linear layers and norms
    token_types: int = 0  # number of token types (segments); 0 for none
    pool: Literal["class", "mean"] = "class"  # the class is read from the first token, or from the mean of all
    head: Head | None = None  # words (masked), label, pool (one vector) or states (all); label with classes, else words
    position_offset: int = 0  # rows of the table of positions before the first token's, as RoBERTa has two

    RENAMED: ClassVar = BlockConfig.RENAMED | {"trunk": "norm_position", "types": "token_types"}

    def __post_init__(self):
        check_sizes(self)
        check_positions(self.positions, self, 1)
        if self.token_types < 0:
            raise UserError(f"model.token_types must be at least 0, not {self.token_types}")
        if self.head is not None and (self.head == "label") != (self.classes is not None):
            raise UserError(f"model.head {self.head} does not fit model.classes {self.classes}: leave model.head out")
        if self.position_offset < 0 or (self.position_offset and self.positions != "learned"):
            raise UserError(
                "model.position_offset is a number of rows of a table of positions, at least 0, and only for "
                f"model.positions learned: not {self.position_offset} with {self.positions}"
            )

    @property
    def output(self) -> Head:
        """What the head gives."""
        return self.head or ("words" if self.classes is None else "label")

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis letter used in shapes."""
        output = {"words": {"V": self.vocab}, "label": {"K": self.classes or 0}}.get(self.output, {})
        return output | self.block_sizes(self.context, 1)


_BERT = dict(
    vocab=30522,
    context=512,
    norm_position="post",
    embed_norm=True,
    eps=1e-12,
    dropout=0.1,
    positions="learned",
    token_types=2,
)

PRESETS: dict[str, dict] = {
    "nano": dict(width=128, depth=3, heads=4, dropout=0.1),
    "small": dict(width=256, depth=6, heads=8, dropout=0.1),
    "bert-base": dict(width=768, depth=12, heads=12, **_BERT),
    "bert-large": dict(width=1024, depth=24, heads=16, **_BERT),
}


class Encoder(nn.Module):
    """Embedded tokens to the residual stream after the last block, of which `final` makes the hidden states.

    It is the blocks of a reader, and the encoder of an encoder–decoder.
    """

    def __init__(self, config: BlockConfig, context: int):
        super().__init__()
        c = config
        first, last = "X_emb⟨ + P⟩", "Norm_f(Xᴸ)" if c.norm_position == "pre" else "Xᴸ"
        self.NAMES = {
            "input": ("B T D", "X⁰", f"Norm_embed({first})" if c.embed_norm else first),
            "out": ("B T D", "X_f", last),
        }
        self.context, self.positions = context, make_positions(c.positions, c, (context,), c.position_offset)
        if isinstance(self.positions, Learned) and c.position_offset:
            self.positions.NAMES = {"embedding": ("B T D", "P", f"P_table[pos + {c.position_offset}]")}
        describe(self, self.positions, padding.words)
        self.embed_norm = norm_maker(c)() if c.embed_norm else None
        self.drop = nn.Dropout(c.dropout)
        block = block_maker(c, kind=BLOCKS[c.norm_position][0])
        self.blocks = nn.ModuleList(block() for _ in range(c.depth))
        self.norm = norm_maker(c)() if c.norm_position == "pre" else None

    def forward(self, x: Float[Tensor, "B T D"], span: Span, probe: Probe = OFF) -> Float[Tensor, "B T D"]:
        check_length(span, self.context, self.positions)
        x, here = self.positions(x, span, probe / "positions")
        here = here.under(seen_whole(span), partial(self.positions.bias, probe=probe / "positions"))
        x = self.drop(probe("input", x if self.embed_norm is None else self.embed_norm(x)))
        for i, block in enumerate(self.blocks):
            x = block(x, here, probe=probe / f"blocks.{i}")
        return x

    def final(self, x: Float[Tensor, "B T D"], probe: Probe = OFF) -> Float[Tensor, "B T D"]:
        """The hidden states of a residual stream."""
        return probe("out", x if self.norm is None else self.norm(x))


def seen_whole(span: Span):
    """The mask of attention in both directions: only padding is masked, where there may be any."""
    return padding if span.start is None else full


def mean_of(x: Float[Tensor, "B T D"], span: Span) -> Float[Tensor, "B D"]:
    """The mean over all tokens but padding."""
    if span.start is not None:
        return x.mean(1)
    real = (span.index < NOWHERE)[..., None].to(x.dtype)
    return (x * real).sum(1) / real.sum(1).clamp(min=1)  # zeros for a row of padding alone


def first_of(x: Float[Tensor, "B T D"], span: Span) -> Float[Tensor, "B D"]:
    """The first token; padding may come before it."""
    return x[:, 0] if span.start is not None else (x * (span.index == 0)[..., None].to(x.dtype)).sum(1)


class LabelHead(nn.Module):
    """Logits from one vector of the text: its first token, through a matrix and tanh as in BERT, or the mean of all.

    Without classes the vector itself.
    """

    NAMES = {"pooled": ("B D", "y", "{W_pool? tanh(X_f[0] W_pool + b_pool)|mean(X_f)}")}
    WEIGHTS = {
        "pool.weight": "W_pool",
        "pool.bias": "b_pool",
        "label.weight": "W_class",
        "label.bias": "b_class",
    }
    WEIGHT_AXES = {"label.weight": "K D", "label.bias": "K"}

    def __init__(self, width: int, classes: int | None, first: bool, dropout: float):
        super().__init__()
        self.pool = nn.Linear(width, width) if first else None
        self.drop = nn.Dropout(dropout)
        self.label = nn.Linear(width, classes) if classes else None

    def forward(self, x: Float[Tensor, "B T D"], span: Span, probe: Probe = OFF) -> Float[Tensor, "B K"]:
        pooled = mean_of(x, span) if self.pool is None else torch.tanh(self.pool(first_of(x, span)))
        pooled = probe("pooled", pooled)
        return pooled if self.label is None else self.label(self.drop(pooled))


class WordHead(nn.Module):
    """The masked-token head: a matrix, an activation and a norm; and the bias of the product with the token table."""

    NAMES = {"guess": ("B T D", "Y", "Norm_f(GELU(X_f W_map + b_map))")}
    WEIGHTS = {"map.weight": "W_map", "map.bias": "b_map", "bias": "b_vocab"}
    WEIGHT_AXES = {"bias": "V"}

    def __init__(self, width: int, vocab: int, norm: nn.Module):
        super().__init__()
        self.map, self.norm = nn.Linear(width, width), norm
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, x: Float[Tensor, "B T D"], probe: Probe = OFF) -> Float[Tensor, "B T D"]:
        return probe("guess", self.norm(gelu(self.map(x))))


class Reader(Shown, nn.Module):
    """Tokens to the logits of the classes, or of the token at each position; without a head, to hidden states."""

    INPUTS = {"tokens": "t", "types": "type"}
    WEIGHTS = {"types.weight": "T_type"}

    def __init__(self, config: ReaderConfig):
        super().__init__()
        self.config = c = config
        logits = {
            "words": {"logits": ("B T V", "Z", "Y Eᵀ + b_vocab")},
            "label": {"logits": ("B K", "Z", "y W_class + b_class")},
        }
        self.NAMES = {"embed": ("B T D", "X_emb", "E[t]{T_type? + T_type[type]|}")} | logits.get(c.output, {})
        self.tokens = Tokens(c.vocab, c.width)
        self.types = Tokens(c.token_types, c.width) if c.token_types else None
        self.encoder = Encoder(c, c.context)
        self.head = None
        if c.output == "words":
            self.head = WordHead(c.width, c.vocab, norm_maker(c)())
        elif c.output != "states":
            self.head = LabelHead(c.width, c.classes, c.pool == "class", c.dropout)
        initialise(self)
        if c.norm_position == "post":
            initialise_post(self)

    def example(self, batch: int = 1) -> tuple[Int[Tensor, "B T"]]:
        """Inputs of the largest shape the model takes."""
        return (torch.zeros(batch, self.config.context, dtype=torch.long, device=self.tokens.weight.device),)

    def states(
        self,
        tokens: Int[Tensor, "B T"],
        span: Span,
        types: Int[Tensor, "B T"] | None = None,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B T D"]:
        """The hidden states X_f, which a head reads."""
        return self.encoder.final(self.stream(tokens, span, types, probe), probe / "encoder")

    def stream(
        self,
        tokens: Int[Tensor, "B T"],
        span: Span,
        types: Int[Tensor, "B T"] | None = None,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B T D"]:
        """The residual stream after the last block."""
        x = self.tokens(tokens)
        if self.types is not None:
            x = x + (self.types.weight[0] if types is None else self.types(types))
        elif types is not None:
            raise ValueError("the model has no token types: model.token_types is 0")
        return self.encoder(probe("embed", x), span, probe / "encoder")

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        span: Span | None = None,
        types: Int[Tensor, "B T"] | None = None,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B *T n"]:
        """Logits of the label, or of every token; of a reader without a head the hidden states.

        Without a span there is no padding; without types all tokens are of type 0.
        """
        here = span or Span.whole(tokens.shape[1], device=tokens.device)
        return probe.checked(self.readout(self.stream(tokens, here, types, probe), here, probe))

    def readout(self, x: Float[Tensor, "B T D"], span: Span, probe: Probe = OFF) -> Float[Tensor, "B *T n"]:
        """What the residual stream says: the logits of the label or of every token; without a head the states."""
        x = self.encoder.final(x, probe / "encoder")
        if isinstance(self.head, WordHead):
            return probe("logits", self.logits(self.head(x, probe / "head")))
        if self.head is None:
            return x
        z = self.head(x, span, probe / "head")
        return z if self.config.output == "pool" else probe("logits", z)

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        span: Span | None = None,
        types: Int[Tensor, "B T"] | None = None,
        probe: Probe = OFF,
    ) -> Float[Tensor, "B T D"]:
        """The states of the masked-token head whose `logits` the model returns; takes what `forward` takes."""
        here = span or Span.whole(tokens.shape[1], device=tokens.device)
        return self._words(self.states(tokens, here, types, probe), probe / "head")

    def logits(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """The output matrix: states of the masked-token head to logits."""
        return self.tokens.logits(x) + self._words.bias

    @property
    def output_matrix(self) -> tuple[Float[Tensor, "V D"], Float[Tensor, "V"] | None]:
        """The matrix of `logits`, and its bias if it has one."""
        return self.tokens.weight, self._words.bias

    @property
    def _words(self) -> WordHead:
        if not isinstance(self.head, WordHead):
            raise ValueError(f"the model has no masked-token head: its output is {self.config.output}")
        return self.head
