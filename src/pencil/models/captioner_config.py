"""Sizes and options of a captioner, and its presets."""

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal

from ..config import UserError
from ..core.patches import grid_of, patch_sizes
from .parts import (
    RENAMED,
    RENAMED_VALUES,
    Activation,
    RopePairs,
    Scheme,
    check_picture,
    check_positions,
    check_sizes,
    rotary_width,
)

Delimiters = Literal["none", "begin", "end", "both"]


@dataclass(frozen=True)
class CaptionerConfig:
    """Sizes and options of a captioner; text has one axis of positions, the image two."""

    image_size: tuple[int, int] = (16, 16)  # height and width
    channels: int = 1  # 1 grey, 3 colour
    patch: tuple[int, int] = (4, 4)  # height and width of a patch
    vocab: int = 512  # tokens in the vocabulary
    context: int = 32  # maximum number of text tokens after the image
    width: int = 96  # size of the residual stream (d_model)
    depth: int = 3  # number of blocks
    heads: int = 4  # attention heads in a block
    kv_heads: int | None = None  # key-value heads (grouped-query attention); heads unless given
    hidden: int | None = None  # width of the MLP; 4·width unless given
    image_width: int | None = None  # width of the patch embeddings, projected to width; width unless given
    text_width: int | None = None  # width of the token embeddings, projected to width; width unless given
    norm: Literal["layer", "rms"] = "layer"  # LayerNorm or RMSNorm
    eps: float = 1e-5  # epsilon of the norms
    activation: Activation = "gelu"  # of the MLP; swiglu and geglu are gated
    bias: bool = False  # biases in norms, blocks and head; the patch projection always has one
    dropout: float = 0.0  # rate for embeddings, attention weights and the outputs of attention and MLP
    attention_dropout: float | None = None  # rate for attention weights; dropout unless given
    key_dropout: float = 0.0  # rate for whole keys, the same for all queries
    mask: Literal["causal", "prefix"] = "prefix"  # prefix: the image attends to itself in both directions
    positions: Scheme = "rope"  # position scheme of the text
    image_positions: Scheme | None = None  # position scheme of the image; positions unless given
    rope_theta: float = 100.0  # base of the RoPE frequencies
    rope_fraction: float = 1.0  # fraction of each head's channels that is rotated
    rope_pairs: RopePairs = "halves"  # channels rotated together: i and i + n (halves), or 2i and 2i + 1 (adjacent)
    max_distance: int | None = None  # of relative positions; larger ones are clipped (unless given: shaw 16, t5 128)
    type_embeddings: bool = True  # one for patches, one for text tokens
    delimiters: Delimiters = "both"  # begin: [IMG] before the patches; end: [/IMG] after them
    delimiter_positions: bool = False  # delimiters have a position: [IMG] before the first patch, [/IMG] after the last
    tie_embeddings: bool = True  # the token table, with its projection, is also the output matrix

    RENAMED: ClassVar = RENAMED | {
        "tied": "tie_embeddings",
        "types": "type_embeddings",
        "picture_positions": "image_positions",
        "picture_width": "image_width",
    }
    RENAMED_VALUES: ClassVar = RENAMED_VALUES
    FORMER_VALUES: ClassVar = {("delimiters", True): "both", ("delimiters", False): "none"}

    def __post_init__(self):
        former: Any = self.delimiters
        object.__setattr__(self, "delimiters", self.FORMER_VALUES.get(("delimiters", former), former))
        check_sizes(self)
        check_picture(self)
        check_positions(self.positions, self, 1)
        check_positions(self.image_scheme, self, 2)
        if self.delimiter_positions and self.delimiters == "none":
            raise UserError(
                "model.delimiter_positions is of delimiters, and model.delimiters is none; begin, end or both has them"
            )
        if self.delimiter_positions and self.image_scheme == "none":
            raise UserError(
                "model.delimiter_positions needs positions in the image, and its scheme is none; choose another "
                "model.image_positions"
            )

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        return self.hidden or 4 * self.width

    @property
    def image_scheme(self) -> str:
        return self.image_positions or self.positions

    @property
    def grid(self) -> tuple[int, ...]:
        """Patches down and across."""
        return grid_of(self.image_size, self.patch)

    @property
    def begin_marks(self) -> int:
        """Delimiters before the patches: one or none."""
        return int(self.delimiters in ("begin", "both"))

    @property
    def end_marks(self) -> int:
        """Delimiters after the patches: one or none."""
        return int(self.delimiters in ("end", "both"))

    @property
    def before(self) -> int:
        """Tokens before the text: the patches, and the delimiters around them."""
        return self.begin_marks + prod(self.grid) + self.end_marks

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis letter used in shapes."""
        tokens, patches = self.before + self.context, prod(self.grid)
        return {
            "T": tokens,
            "S": tokens,
            "N": patches,
            "M": self.before,
            "t": self.context,
            "c": self.channels * prod(self.patch),
            "E": self.image_width or self.width,
            "e": self.text_width or self.width,
            "V": self.vocab,
            "D": self.width,
            "h": self.heads,
            "g": self.kv_heads or self.heads,
            "d": self.head_width,
            "d/2": rotary_width(self) // 2,
            "F": self.mlp_width,
            "a": 2,
            "h·d": self.width,
            "1": 1,
            **patch_sizes(self.channels, self.grid, self.patch),
        }


# a preset without an image_size takes size, channels and patch from the data
PRESETS: dict[str, dict] = {
    "nano": dict(width=80, depth=3, heads=4, hidden=160),
    "seed": dict(mask="causal", positions="learned", delimiters="none", type_embeddings=False, bias=True, heads=1),
    "small": dict(width=192, depth=6, heads=6, dropout=0.3),
    "base": dict(image_size=(224, 224), channels=3, patch=(16, 16), width=768, depth=12, heads=12, context=64),
}
