"""Shared by the models: parts chosen by a config, checks of its sizes, and initialisation."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import UserError
from ..core.attention import Attention
from ..core.blocks import Block, CrossBlock, PostBlock, PostCrossBlock
from ..core.layers import MLP, GatedMLP, LayerNorm, RMSNorm, gelu, gelu_tanh
from ..core.masks import NOWHERE
from ..core.patches import by
from ..core.positions import T5, Alibi, Learned, Positions, Rope, Shaw, Sinusoidal, interpolate, llama3, ntk, yarn
from ..core.span import Span

Model = TypeVar("Model", bound=nn.Module)
Scheme = Literal["learned", "sinusoidal", "sinusoidal-halves", "rope", "alibi", "shaw", "t5", "none"]
Activation = Literal["gelu", "gelu-tanh", "relu", "silu", "swiglu", "geglu", "geglu-tanh"]
RopePairs = Literal["halves", "adjacent"]
Scaling = Literal["linear", "ntk", "yarn", "llama3"]
NormPosition = Literal["pre", "post"]

# settings and values of versions before 0.7, and what they are called now
RENAMED = {
    "rope_base": "rope_theta", "rope_share": "rope_fraction", "rope_trained": "rope_original_context",
    "reach": "max_distance",
}  # fmt: skip
RENAMED_VALUES = {
    (name, f"sincos{rest}"): f"sinusoidal{rest}"
    for name in ("positions", "image_positions")
    for rest in ("", "-halves")
}

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


def check_largest(name: str, value: Any) -> None:
    """Refuse a size that no machine could hold."""
    most = LARGEST.get(name, LARGEST_OTHER)
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(one, int) and one > most:
            raise UserError(f"model.{name} must be at most {most:,}, not {one}")


def norm_maker(c: Any) -> Callable[[], nn.Module]:
    """`norm`: layer or rms."""
    if getattr(c, "norm", "layer") == "rms":
        return partial(RMSNorm, c.width, c.eps)
    return partial(LayerNorm, c.width, c.eps, c.bias)


def block_maker(c: Any, kind: Callable[..., Any] = Block) -> Callable[[], Any]:
    """A factory of blocks, by default pre-norm, with the config's attention, MLP and norm.

    `attention_dropout` zeroes single attention weights, at the rate of `dropout` unless given. `key_dropout` zeroes
    whole keys for all queries, which every fused kernel can do.
    """
    mlp = {
        "gelu": partial(MLP, c.width, c.mlp_width, gelu, c.bias),
        "gelu-tanh": partial(MLP, c.width, c.mlp_width, gelu_tanh, c.bias),
        "relu": partial(MLP, c.width, c.mlp_width, F.relu, c.bias),
        "silu": partial(MLP, c.width, c.mlp_width, F.silu, c.bias),
        "swiglu": partial(GatedMLP, c.width, c.mlp_width, F.silu, c.bias),
        "geglu": partial(GatedMLP, c.width, c.mlp_width, gelu, c.bias),
        "geglu-tanh": partial(GatedMLP, c.width, c.mlp_width, gelu_tanh, c.bias),
    }[c.activation]
    dropout = c.dropout if c.attention_dropout is None else c.attention_dropout
    attention = partial(Attention, c.width, c.heads, getattr(c, "kv_heads", None), c.head_width, bias=c.bias)
    if getattr(c, "qk_norm", False):
        attention = partial(attention, qk_norm=c.eps)
    attention = partial(attention, qkv_bias=getattr(c, "qkv_bias", None))
    attention = partial(attention, dropout=dropout, key_dropout=c.key_dropout)
    return partial(kind, attention, mlp, norm_maker(c), c.dropout)


# the block of an encoder and of a decoder, pre-norm or post-norm
BLOCKS = {"pre": (Block, CrossBlock), "post": (PostBlock, PostCrossBlock)}


def make_positions(
    name: str, c: Any, grid: Sequence[int], before: int = 0, both: bool = True, after: int = 0
) -> Positions:
    """The named scheme for a text, an image or a video: one axis for each size of `grid`.

    `before`, `after`: tokens before and after the grid. `both`: tokens attend in both directions.
    """
    axes, head = len(grid), c.head_width
    return {
        "learned": partial(Learned, grid, c.width, before, after),
        "sinusoidal": partial(Sinusoidal, c.width, axes),
        "sinusoidal-halves": partial(Sinusoidal, c.width, axes, halves=True),
        "rope": partial(_rope, c, axes, grid[0]),
        "alibi": partial(Alibi, c.heads, axes),
        "shaw": partial(Shaw, head, axes, c.max_distance or 16),
        "t5": partial(T5, c.heads, axes, both, getattr(c, "buckets", None) or 32, c.max_distance or 128),
        "none": Positions,
    }[name]()


def describe(
    model: Any,
    positions: Positions,
    seen: str,
    symbols: dict[str, dict[str, str]] | None = None,
    facts: Sequence[str] = (),
) -> None:
    """Tell the formulas of a model's blocks what its positions do to the scores, and which keys j a query i sees.

    `symbols` and `facts` are added to the model's own (`core/notation.py`).
    """
    shaw = {"shaw" if len(positions.table) == 1 else "shaw_axes"} if isinstance(positions, Shaw) else set()
    model.FACTS = shaw | ({"unscaled"} if positions.scale == 1 else set()) | set(facts)
    words = {"SEEN": seen} | ({"R": f"{positions.strength!r}·R"} if positions.strength != 1 else {})
    model.SYMBOLS = {"blocks": words} | (symbols or {})


def check_length(span: Span, context: int, positions: Positions, before: int = 0) -> None:
    """Refuse tokens beyond a table of positions; under other schemes, warn once a model of tokens beyond the context.

    `before`: tokens of the index that come before the text. The last position is known without the device where tokens
    are in order. Else the index is read if it is on a CPU; on another device that would wait for it, so it is not.
    """
    length, compiling = 0, torch.compiler.is_compiling()
    if span.start is not None:
        length = span.start + span.index.shape[1] - before
    elif span.index.device.type == "cpu" and span.index.numel() and not compiling:
        length = int(span.index.masked_fill(span.index >= NOWHERE, before - 1).max()) + 1 - before
    if length <= context:
        return
    if isinstance(positions, Learned):
        raise UserError(
            f"the text has {length} tokens and the model's table of positions has {context}: give at most {context}"
        )
    if not (compiling or positions.beyond_announced):
        positions.beyond_announced = True  # Python's own filters forget what they have shown
        warnings.warn(
            f"the model's context is {context} tokens and the text is longer: it was not trained on such positions",
            stacklevel=3,
        )


def rotary_width(c: Any) -> int:
    """The number of channels of a head that are rotated."""
    return int(c.head_width * getattr(c, "rope_fraction", 1.0))


def _rope(c: Any, axes: int, context: int) -> Rope:
    scaling, factor, strength = getattr(c, "rope_scaling", None), getattr(c, "rope_factor", 1.0), 1.0
    stretch = None
    if scaling is not None:
        trained = c.rope_original_context or max(1, round(context / factor))
        if scaling == "yarn":
            stretch, strength = yarn(factor, trained, c.rope_theta)
        else:
            stretch = {"linear": interpolate(factor), "ntk": ntk(factor), "llama3": llama3(factor, trained)}[scaling]
    adjacent = c.rope_pairs == "adjacent"
    return Rope(c.head_width, axes, c.rope_theta, rotary_width(c), stretch, strength, adjacent, scaling or "")


def check_sizes(c: Any) -> None:
    """Refuse sizes that no model can be built with."""
    for field in fields(c):
        check_largest(field.name, getattr(c, field.name))
    for name in SIZES:
        value = getattr(c, name, None)
        if value is not None and value < 1:
            raise UserError(f"model.{name} must be at least 1, not {value}")
    for name in ("eps", "rope_theta", "rope_factor"):
        if not getattr(c, name, 1.0) > 0:
            raise UserError(f"model.{name} must be above 0, not {getattr(c, name)}")
    if c.width % c.heads and not getattr(c, "head_dim", None):
        near = ", ".join(map(str, _divisors_near(c.width, c.heads)))
        raise UserError(f"model.heads {c.heads} does not divide model.width {c.width}; {near} would")
    kv_heads = getattr(c, "kv_heads", None) or c.heads
    if c.heads % kv_heads:
        raise UserError(f"model.kv_heads {kv_heads} does not divide model.heads {c.heads}")
    for name in ("dropout", "attention_dropout", "key_dropout"):
        if not 0 <= (getattr(c, name, 0) or 0) < 1:
            raise UserError(f"model.{name} must be at least 0 and under 1, not {getattr(c, name)}")


def check_positions(name: str, c: Any, axes: int) -> None:
    """Refuse widths without the pairs of channels that the scheme needs for this many axes."""
    head = rotary_width(c)
    fraction = getattr(c, "rope_fraction", 1.0)
    if not 0 < fraction <= 1:
        raise UserError(f"model.rope_fraction must be above 0 and at most 1 (the whole head), not {fraction}")
    named = "the head width" if fraction == 1 else f"the part of a head that model.rope_fraction {fraction:g} rotates"
    if name == "rope" and head % 2:
        raise UserError(f"rope rotates pairs of channels, so {named} must be even, not {head}")
    if name == "rope" and head < 2 * axes:
        raise UserError(f"rope along {axes} axes needs {named} to be at least {2 * axes}, not {head}")
    buckets = getattr(c, "buckets", None)
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


def check_picture(c: Any) -> None:
    """Refuse a patch that does not divide the image, and suggest those that do."""
    for name in ("image_size", "patch"):
        if min(getattr(c, name)) < 1:
            raise UserError(f"model.{name} must be at least 1, not {by(getattr(c, name))}")
    sides, patches = (getattr(c, "frames", 1), *c.image_size), (getattr(c, "patch_frames", 1), *c.patch)
    if (count := math.prod(max(1, s // max(1, p)) for s, p in zip(sides, patches, strict=True))) > MOST_PATCHES:
        raise UserError(
            f"an image of {by(c.image_size)} has {count:,} patches of {by(c.patch)}, more than {MOST_PATCHES:,}"
        )
    if not any(side % patch for side, patch in zip(c.image_size, c.patch, strict=True)):
        return
    if len(set(c.patch)) == 1:
        near = ", ".join(map(str, _divisors_near(math.gcd(*c.image_size), c.patch[0])))
    else:
        near = by([_divisors_near(side, patch)[-1] for side, patch in zip(c.image_size, c.patch, strict=True)])
    sides = [str(-(-side // patch) * patch) for side, patch in zip(c.image_size, c.patch, strict=True)]
    larger = "x".join(sides if len(set(sides)) > 1 else sides[:1])
    raise UserError(
        f"model.patch {by(c.patch)} does not divide a picture of {by(c.image_size)}; a patch of {near} would, or a "
        f"model.image_size of {larger}"
    )


def _divisors_near(whole: int, wanted: int) -> list[int]:
    fits = [n for n in range(1, whole + 1) if whole % n == 0]
    return sorted(sorted(fits, key=lambda n: abs(n - wanted))[:3])


def initialise(model: nn.Module) -> None:
    """GPT-2's: normal(0.02), zero biases, and output projections into the residual stream scaled by 1/√(2·depth).

    The depth is that of the stack of blocks: an encoder and a decoder may have different ones.
    """
    for name, parameter in model.named_parameters():
        if name.endswith(("attn.out.weight", "cross.out.weight", "mlp.down.weight")):
            stack: Any = model.get_submodule(name.rsplit(".", 4)[0])  # of blocks.0.attn.out.weight
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * len(stack)))
        elif parameter.ndim >= 2:
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def initialise_post(model: nn.Module) -> None:
    """The first Transformer's: Xavier uniform for every matrix of the blocks, W_Q, W_K and W_V each by itself."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, Attention):
            for matrix in module.qkv.weight.data.split(module.sizes):
                nn.init.xavier_uniform_(matrix)


def rebuilt(model: Model, config: Any, tensors: Mapping[str, Tensor]) -> Model:
    """A model of another config with copies of these tensors, in their dtypes and on their devices.

    What a state dict does not hold is that of the model: which parameters are frozen, the mode of each module, and
    where its other buffers are.
    """
    with torch.device("meta"):
        made = type(model)(config)
    made.load_state_dict({name: tensor.detach().clone() for name, tensor in tensors.items()}, assign=True)
    for name, parameter in model.named_parameters():
        made.get_parameter(name).requires_grad_(parameter.requires_grad)
    for name, module in model.named_modules():
        made.get_submodule(name).training = module.training
    for name, buffer in model.named_buffers():
        owner, _, last = name.rpartition(".")
        setattr(made.get_submodule(owner), last, made.get_buffer(name).to(buffer.device))
    return made


def parameters(make: Callable[[], nn.Module]) -> int:
    """The number of parameters of a model, without allocating it."""
    with torch.device("meta"):
        return sum(p.numel() for p in make().parameters())


def normalize(
    picture: UInt8[Tensor, "B C *sides"], mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Float[Tensor, "B C *sides"]:
    """Bytes to floats, from −1 (black) to 1 (white); or (pixel/255 − mean)/std of each channel."""
    if mean is None or std is None:
        return picture.float() / 127.5 - 1
    shape = (-1, *[1] * (picture.ndim - 2))
    mean_, std_ = (torch.tensor(values, device=picture.device).view(shape) for values in (mean, std))
    return (picture.float() / 255 - mean_) / std_
