"""What the configs of the models share: the settings of their blocks, and the refusal of sizes that do not fit.

Three dropouts. `dropout` drops embeddings, attention weights and what each block adds, in every family;
`attention_dropout` sets that of the attention weights on its own; `key_dropout` drops whole keys for all queries. A
CPU's fused attention cannot drop single attention weights, and without the fused kernel a step of the small ViT takes a
third longer; dropping a key is a factor on the values, which every kernel can do, so the ViT presets use `key_dropout`.
"""

import math
from collections.abc import Collection
from typing import Any, ClassVar, Literal, dataclass_transform

from ..config import UserError
from ..core.layers import ActivationWord, NormWord
from ..core.patches import by
from ..core.positions import Scheme

RopePairs = Literal["halves", "adjacent"]
Scaling = Literal["linear", "ntk", "yarn", "llama3"]
NormPosition = Literal["pre", "post"]


@dataclass_transform(frozen_default=True)
class Settings:
    """Tells a type checker that the annotations of the classes below are the fields of frozen dataclasses."""


class BlockConfig(Settings):
    """The settings of a model's blocks, with their usual defaults.

    A model's config inherits them, gives some of them defaults of its own, and has settings of its own beside them. A
    setting stands, in every list and file, where the class writes it; those that it does not write come in the order
    they have here, before the next one that it does. `without` names those that a model does not have: for it the
    value below is the only one.
    """

    width: int = 128  # size of the residual stream (d_model)
    depth: int = 4  # number of blocks
    heads: int = 4  # attention heads in a block
    kv_heads: int | None = None  # key-value heads (grouped-query attention); heads unless given
    head_dim: int | None = None  # channels of a head; width/heads unless given
    hidden: int | None = None  # width of the MLP; 4·width unless given
    norm: NormWord = "layer"  # LayerNorm or RMSNorm
    eps: float = 1e-5  # epsilon of the norms
    activation: ActivationWord = "gelu"  # of the MLP; swiglu and geglu are gated
    bias: bool = False  # biases in linear layers and norms
    dropout: float = 0.0  # rate for embeddings, attention weights and the outputs of attention and MLP
    attention_dropout: float | None = None  # rate for attention weights; dropout unless given
    key_dropout: float = 0.0  # rate for whole keys, the same for all queries
    positions: Scheme = "rope"  # position scheme
    rope_theta: float = 10000.0  # base of the RoPE frequencies
    rope_fraction: float = 1.0  # fraction of each head's channels that is rotated
    rope_pairs: RopePairs = "halves"  # channels rotated together: i and i + n (halves), or 2i and 2i + 1 (adjacent)
    max_distance: int | None = None  # of relative positions; larger ones are clipped (unless given: shaw 16, t5 128)
    rope_scaling: Scaling | None = None  # for contexts longer than the one trained on
    rope_factor: float = 1.0  # context divided by the context trained on, for rope_scaling
    rope_original_context: int | None = None  # the context trained on; context/rope_factor unless given

    # What only some models have as a setting; for the others it is so.
    qkv_bias = None
    qk_norm = False
    norm_position = "pre"
    embed_norm = False
    buckets = None
    position_offset = 0
    vocab = 0
    context = 0
    window = None
    frames = 1

    # settings and values of versions before 0.7, and what they are called now
    RENAMED: ClassVar = {
        "rope_base": "rope_theta",
        "rope_share": "rope_fraction",
        "rope_trained": "rope_original_context",
        "reach": "max_distance",
    }
    RENAMED_VALUES: ClassVar = {
        (name, f"sincos{rest}"): f"sinusoidal{rest}"
        for name in ("positions", "image_positions")
        for rest in ("", "-halves")
    }

    def __init_subclass__(cls, without: Collection[str] = ()):
        super().__init_subclass__()
        cls.__annotations__ = _in_order(BlockConfig.__annotations__, cls.__annotations__, without)

    @property
    def kv_head_count(self) -> int:
        """Key-value heads: as many as query heads, unless query heads share them."""
        return self.kv_heads or self.heads

    @property
    def decoder_blocks(self) -> int:
        """The number of blocks that write, and keep their keys and values."""
        return self.depth

    @property
    def head_width(self) -> int:
        return self.head_dim or self.width // self.heads

    @property
    def rotary_width(self) -> int:
        """The number of channels of a head that are rotated."""
        return int(self.head_width * self.rope_fraction)

    @property
    def mlp_width(self) -> int:
        return self.hidden or 4 * self.width

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """The position schemes of the parts of the sequence."""
        return (self.positions,)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis letter used in shapes."""
        raise NotImplementedError

    def block_sizes(self, tokens: int, axes: int) -> dict[str, int]:
        """The size of each axis letter used in the shapes of blocks; positions have so many axes."""
        return {
            "T": tokens,
            "S": tokens,
            "D": self.width,
            "h": self.heads,
            "g": self.kv_head_count,
            "d": self.head_width,
            "d/2": self.rotary_width // 2,
            "F": self.mlp_width,
            "a": axes,
            "h·d": self.heads * self.head_width,
            "1": 1,
        }


def _in_order(shared: dict[str, Any], own: dict[str, Any], without: Collection[str]) -> dict[str, Any]:
    """The annotations of a config: each of its own before the next shared one that it writes, or at the end."""
    shared = {name: kind for name, kind in shared.items() if name not in without}
    places, place = {name: (i, 1) for i, name in enumerate(shared)}, len(shared)
    for name in reversed(own):
        if name in shared:
            place = places[name][0]
        else:
            places[name] = (place, 0)
    return dict(sorted((shared | own).items(), key=lambda setting: places[setting[0]]))


SIZES = (
    "vocab", "source_vocab", "context", "source_context", "width", "depth", "heads", "hidden", "kv_heads", "channels",
    "classes", "image_width", "text_width", "rope_original_context", "max_distance",
    "head_dim", "window", "decoder_depth",
)  # fmt: skip

# beyond every published model, so that a config cannot fill the memory or take minutes before anything is checked
LARGEST = {
    "depth": 1_000, "decoder_depth": 1_000, "text_encoder_depth": 1_000, "width": 1 << 18, "image_width": 1 << 18,
    "text_width": 1 << 18,
    "hidden": 1 << 20, "vocab": 1 << 24, "source_vocab": 1 << 24, "context": 1 << 27, "source_context": 1 << 27,
    "rope_original_context": 1 << 27, "image_size": 1 << 15, "patch": 1 << 15,
}  # fmt: skip
LARGEST_OTHER, MOST_PATCHES = 1 << 20, 1 << 22


def check_largest(name: str, value: object) -> None:
    """Refuse a size that no machine could hold."""
    most = LARGEST.get(name, LARGEST_OTHER)
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, int) and one > most:
            raise UserError(f"model.{name} must be at most {most:,}, not {one}")


def check_sizes(c: BlockConfig) -> None:
    """Refuse sizes that no model can be built with."""
    settings = vars(c)
    for name, value in settings.items():
        check_largest(name, value)
    for name in SIZES:
        if (value := settings.get(name)) is not None and value < 1:
            raise UserError(f"model.{name} must be at least 1, not {value}")
    for name, value in (("eps", c.eps), ("rope_theta", c.rope_theta), ("rope_factor", c.rope_factor)):
        if not value > 0:
            raise UserError(f"model.{name} must be above 0, not {value}")
    if c.width % c.heads and not c.head_dim:
        near = ", ".join(map(str, _divisors_near(c.width, c.heads)))
        raise UserError(f"model.heads {c.heads} does not divide model.width {c.width}; {near} would")
    if c.heads % c.kv_head_count:
        raise UserError(f"model.kv_heads {c.kv_head_count} does not divide model.heads {c.heads}")
    rates = {"dropout": c.dropout, "attention_dropout": c.attention_dropout, "key_dropout": c.key_dropout}
    for name, rate in rates.items():
        if not 0 <= (rate or 0) < 1:
            raise UserError(f"model.{name} must be at least 0 and under 1, not {rate}")


def check_positions(name: Scheme, c: BlockConfig, axes: int) -> None:
    """Refuse widths without the pairs of channels that the scheme needs for this many axes."""
    head, fraction, buckets = c.rotary_width, c.rope_fraction, c.buckets
    if not 0 < fraction <= 1:
        raise UserError(f"model.rope_fraction must be above 0 and at most 1 (the whole head), not {fraction}")
    named = "the head width" if fraction == 1 else f"the part of a head that model.rope_fraction {fraction:g} rotates"
    if name == "rope" and head % 2:
        raise UserError(f"rope rotates pairs of channels, so {named} must be even, not {head}")
    if name == "rope" and head < 2 * axes:
        raise UserError(f"rope along {axes} axes needs {named} to be at least {2 * axes}, not {head}")
    if buckets is not None and name != "t5":
        raise UserError(f"model.buckets is for --model.positions t5, and the positions are {name}")
    if buckets is not None and buckets < 4:
        raise UserError(
            f"t5 needs at least two buckets for each direction: model.buckets must be at least 4, not {buckets}"
        )
    exact = (buckets or 32) // 2
    if name == "t5" and (c.max_distance or 128) <= exact:
        raise UserError(
            f"t5 has a bucket for each of the first {exact} distances, so model.max_distance must be over {exact}, "
            f"not {c.max_distance or 128}"
        )
    if name.startswith("sinusoidal") and c.width % 2:
        raise UserError(f"sines and cosines come in pairs, so model.width must be even, not {c.width}")
    if name.startswith("sinusoidal") and c.width < 2 * axes:
        raise UserError(f"sinusoidal positions along {axes} axes need a width of at least {2 * axes}, not {c.width}")


def check_picture(image_size: tuple[int, int], patch: tuple[int, int], frames: int = 1) -> None:
    """Refuse a patch that does not divide the image, and suggest those that do; `frames` patches lie along time."""
    for name, sizes in (("image_size", image_size), ("patch", patch)):
        if min(sizes) < 1:
            raise UserError(f"model.{name} must be at least 1, not {by(sizes)}")
    across = [max(1, side // max(1, part)) for side, part in zip(image_size, patch, strict=True)]
    if (count := frames * math.prod(across)) > MOST_PATCHES:
        raise UserError(
            f"an image of {by(image_size)} has {count:,} patches of {by(patch)}, more than {MOST_PATCHES:,}"
        )
    if not any(side % part for side, part in zip(image_size, patch, strict=True)):
        return
    if len(set(patch)) == 1:
        near = ", ".join(map(str, _divisors_near(math.gcd(*image_size), patch[0])))
    else:
        near = by([_divisors_near(side, part)[-1] for side, part in zip(image_size, patch, strict=True)])
    sides = [str(-(-side // part) * part) for side, part in zip(image_size, patch, strict=True)]
    larger = "x".join(sides if len(set(sides)) > 1 else sides[:1])
    raise UserError(
        f"model.patch {by(patch)} does not divide a picture of {by(image_size)}; a patch of {near} would, or a "
        f"model.image_size of {larger}"
    )


def _divisors_near(whole: int, wanted: int) -> list[int]:
    fits = [n for n in range(1, whole + 1) if whole % n == 0]
    return sorted(sorted(fits, key=lambda n: abs(n - wanted))[:3])
