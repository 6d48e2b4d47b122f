"""The single-stream picture→text model: strips first, then words, one sequence through one stack of blocks."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.biases import apart
from ..core.cache import Cache
from ..core.embed import Patches, Project, Tokens
from ..core.masks import NOWHERE, causal, prefix
from ..core.patches import grid_of, seats
from ..core.probe import OFF, Off, Probe
from ..core.span import Span
from .parts import (
    Activation,
    Scheme,
    block_maker,
    check_picture,
    check_positions,
    check_sizes,
    initialise,
    norm_maker,
    positions_of,
    turned,
)
from .vit import check_shape


@dataclass(frozen=True)
class CaptionerConfig:
    """Sizes and choices; `context` is how many text tokens fit after the picture.

    `positions` are the text's; `picture_positions` the picture's, the same scheme along two axes unless given. `bias`
    is that of norms, blocks and head; the strips' projection always has one.
    """

    image_size: tuple[int, int] = (16, 16)
    channels: int = 1
    patch: tuple[int, int] = (4, 4)
    vocab: int = 512
    context: int = 32
    width: int = 96
    depth: int = 3
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    picture_width: int | None = None
    norm: Literal["layer", "rms"] = "layer"
    eps: float = 1e-5
    activation: Activation = "gelu"
    bias: bool = False
    dropout: float = 0.0
    mask: Literal["causal", "prefix"] = "prefix"
    positions: Scheme = "rope"
    picture_positions: Scheme | None = None
    rope_base: float = 100.0
    rope_share: float = 1.0  # of each head
    reach: int | None = None  # distances beyond it count as it: 16 for shaw and 128 for t5 unless given
    types: bool = True
    delimiters: bool = True
    tied: bool = True

    def __post_init__(self):
        check_sizes(self)
        check_picture(self)
        check_positions(self.positions, self, 1)
        check_positions(self.picture_scheme, self, 2)

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        return self.hidden or 4 * self.width

    @property
    def picture_scheme(self) -> str:
        return self.picture_positions or self.positions

    @property
    def grid(self) -> tuple[int, ...]:
        """Strips down and across."""
        return grid_of(self.image_size, self.patch)

    @property
    def before(self) -> int:
        """Tokens before the text: the strips, and the delimiters around them."""
        return prod(self.grid) + 2 * self.delimiters

    @property
    def sizes(self) -> dict[str, int]:
        """What each letter of the shapes stands for here."""
        tokens, strips = self.before + self.context, prod(self.grid)
        return {
            "T": tokens, "S": tokens, "N": strips, "M": self.before, "t": self.context,
            "c": self.channels * prod(self.patch), "E": self.picture_width or self.width, "V": self.vocab,
            "D": self.width, "h": self.heads, "g": self.kv_heads or self.heads, "d": self.head_width,
            "d/2": turned(self) // 2, "F": self.mlp_width, "a": 2, "1": 1,
        }  # fmt: skip


# a preset without an image_size takes size, channels and patch from the data
PRESETS: dict[str, dict] = {
    "nano": dict(width=80, depth=3, heads=4, hidden=160),
    "seed": dict(mask="causal", positions="learned", delimiters=False, types=False, bias=True, heads=1),
    "small": dict(width=192, depth=6, heads=6, dropout=0.3),
    "base": dict(image_size=(224, 224), channels=3, patch=(16, 16), width=768, depth=12, heads=12, context=64),
}


class Captioner(nn.Module):
    """Picture and text tokens to the text's logits; the picture stands first, so that every word can look at it."""

    NAMES = {
        "picture": ("B M D", "I⁰", "I + P_img + T_img"),
        "embed": ("B t D", "E[t]", "rows of E"),
        "text": ("B t D", "X_txt⁰", "E[t] + P_txt + T_txt"),
        "input": ("B T D", "X⁰", "[I⁰; X_txt⁰]"),
        "norm": ("B t D", "X_f,txt", "Norm(X)[M:]"),
        "logits": ("B t V", "Z", "X_f,txt Eᵀ or X_f,txt W + b"),
    }
    INNER = {
        "positions.stamp": ("B t D", "P_txt", "stamp of each seat of the text"),
        "positions.angles": ("B t d/2", "θ_txt", "seat · base^(−2i/d)"),
        "positions.distance": ("B T S 1", "r_txt", "clip(j − i)"),
        "positions.bucket": ("B T S 1", "b_txt", "bucket(j − i)"),
        "picture_positions.stamp": ("B N D", "P_img", "stamp of each row and column"),
        "picture_positions.angles": ("B N d/2", "θ_img", "row, column · base^(−4i/d)"),
        "patches.out": ("B N E", "I", "X_patch W_patch + b_patch"),
    }
    WEIGHTS = {"types": "T_img T_txt", "marks": "[IMG] [/IMG]", "head.weight": "W_vocab", "head.bias": "b_vocab"}

    def __init__(self, config: CaptionerConfig):
        super().__init__()
        self.config = c = config
        self.mask = {"causal": causal, "prefix": prefix(c.before)}[c.mask]
        narrow = c.picture_width or c.width
        self.patches = Patches(c.channels, c.patch, narrow)
        self.project = Project(narrow, c.width) if narrow != c.width else None
        self.tokens = Tokens(c.vocab, c.width)
        self.picture_positions = positions_of(c.picture_scheme, c, c.grid)
        self.positions = positions_of(c.positions, c, (c.context,), both=False)
        self.types = nn.Parameter(torch.empty(2, c.width)) if c.types else None
        self.marks = nn.Parameter(torch.empty(2, c.width)) if c.delimiters else None
        self.drop = nn.Dropout(c.dropout)
        block = block_maker(c, cells=True)
        self.blocks = nn.ModuleList(block() for _ in range(c.depth))
        self.norm = norm_maker(c)()
        self.head = None if c.tied else nn.Linear(c.width, c.vocab, bias=c.bias)
        initialise(self, c.depth)

    def new_cache(self, batch: int, length: int | None = None) -> Cache:
        """An empty cache for the picture and `length` text tokens."""
        c, like = self.config, self.tokens.weight
        length = c.before + (c.context if length is None else length)
        heads = c.kv_heads or c.heads
        return Cache(c.depth, batch, heads, length, c.head_width, axes=2, device=like.device, dtype=like.dtype)

    def example(self, batch: int = 1) -> tuple[Int[Tensor, "B t"], Float[Tensor, "B C H W"]]:
        c, device = self.config, self.tokens.weight.device
        text = torch.zeros(batch, c.context, dtype=torch.long, device=device)
        return text, torch.zeros(batch, c.channels, *c.image_size, device=device)

    def forward(
        self,
        tokens: Int[Tensor, "B t"],
        picture: Float[Tensor, "B C H W"] | None = None,
        span: Span | None = None,
        cache: Cache | None = None,
        last: bool = False,
        probe: Off = OFF,
    ) -> Float[Tensor, "B n V"]:
        """Logits for every text token, or with `last` only for the last one.

        The picture comes with the first call; a cache remembers it. The span, if given, is the text's alone.
        """
        c, begins = self.config, cache is None or cache.used == 0
        if begins != (picture is not None):
            raise ValueError("the picture is read once: it comes with the first tokens, and with no later ones")
        count = tokens.shape[1]
        if span is not None or begins:
            here = span or Span.whole(count, device=tokens.device)
            start = None if here.start is None else here.start + c.before
            here = replace(here, index=here.index + c.before, start=start)
        else:
            here = cache.next(count)  # pyright: ignore[reportOptionalMemberAccess]
            here = replace(here, coords=here.coords - c.before)
        x = probe("embed", self.tokens(tokens))
        x, here = self.positions(x, here, probe / "positions")
        x = probe("text", x if self.types is None else x + self.types[1])
        if picture is not None:
            strips, there = self.read(picture, probe)
            x, here = torch.cat((strips, x), 1), there.then(here)
        if cache is not None:
            here = cache.place(here)
        here = here.under(self.mask, self.bias(probe))
        x = self.drop(probe("input", x))
        for i, block in enumerate(self.blocks):
            x = block(x, here, None if cache is None else cache[i], probe / f"blocks.{i}")
        x = probe("norm", self.norm(x[:, -1:] if last else x[:, -count:]))
        return probe("logits", self.tokens.logits(x) if self.head is None else self.head(x))

    def bias(self, probe: Off = OFF) -> Callable[[Span], Callable[[Tensor], Tensor] | None]:
        """Each part's bias among its own tokens; a word and a strip are at no distance from each other."""
        c = self.config
        return apart(
            (
                (
                    partial(self.picture_positions.bias, probe=probe / "picture_positions"),
                    int(c.delimiters),
                    c.before - int(c.delimiters),
                ),
                (partial(self.positions.bias, probe=probe / "positions"), c.before, NOWHERE),
            )
        )

    def read(self, picture: Float[Tensor, "B C H W"], probe: Off = OFF) -> tuple[Float[Tensor, "B M D"], Span]:
        """The picture as tokens, stamped and marked, and where they stand."""
        check_shape(picture, self.config)
        x = self.patches(picture, probe / "patches")
        if self.project is not None:
            x = self.project(x, probe / "project")
        coords = seats(self.config.grid, x.device)[None]
        x, here = self.picture_positions(
            x, Span.whole(x.shape[1], coords=coords, device=x.device), probe / "picture_positions"
        )
        if self.marks is not None:
            # the delimiters stand before the first strip and after the last, at no place of the picture
            begin, end = (mark.to(x.dtype).expand(len(x), 1, -1) for mark in self.marks[:, None])
            x = torch.cat((begin, x, end), 1)
            one = Span.whole(1, coords=torch.zeros_like(coords[:, :1]), device=x.device)
            here = one.then(here).then(one)
            here = replace(
                Span.whole(x.shape[1], coords=here.coords, device=x.device), turn=here.turn, key_turn=here.turn
            )
        return probe("picture", x if self.types is None else x + self.types[0]), here


@torch.no_grad()
def attention_maps(
    model: Captioner, picture: Float[Tensor, "B C H W"], tokens: Int[Tensor, "B t"]
) -> Float[Tensor, "B t rows columns"]:
    """Where the model looks as it reads each text token (to say the next): averaged over blocks and heads."""
    probe = Probe("blocks.*.attn.pattern")
    model(tokens, picture, probe=probe)
    pattern = torch.stack(list(probe.values.values())).mean((0, 2))
    first = int(model.config.delimiters)
    looks = pattern[:, model.config.before :, first : first + prod(model.config.grid)]
    return looks.unflatten(-1, model.config.grid)
