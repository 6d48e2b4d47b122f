"""What the families share: parts chosen by a config's words, checks of its sizes, and initialisation."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import UserError
from ..core.attention import Attention
from ..core.biases import T5, Alibi, Shaw
from ..core.blocks import Block, CrossBlock, PostBlock, PostCrossBlock
from ..core.layers import MLP, GatedMLP, LayerNorm, RMSNorm, gelu, gelu_tanh
from ..core.patches import by
from ..core.positions import Learned, Positions, Rope, SinCos, interpolate, llama3, ntk, yarn

Scheme = Literal["learned", "sincos", "sincos-halves", "rope", "alibi", "shaw", "t5", "none"]
Activation = Literal["gelu", "gelu-tanh", "relu", "silu", "swiglu"]
Scaling = Literal["linear", "ntk", "yarn", "llama3"]
Trunk = Literal["pre", "post"]

SIZES = (
    "vocab", "source_vocab", "context", "source_context", "width", "depth", "heads", "hidden", "kv_heads", "channels",
    "classes", "picture_width", "rope_trained", "reach",
)  # fmt: skip


def norm_maker(c: Any) -> Callable[[], nn.Module]:
    """`norm`: layer or rms."""
    if getattr(c, "norm", "layer") == "rms":
        return partial(RMSNorm, c.width, c.eps)
    return partial(LayerNorm, c.width, c.eps, c.bias)


def block_maker(c: Any, cells: bool = False, kind: Callable[..., Any] = Block) -> Callable[[], Any]:
    """A block, by default the pre-norm one, with the config's attention, MLP and norm.

    What dropout takes from the pattern is whole keys, or, as in GPT-2, single `cells`, which a CPU pays dearly for.
    """
    mlp = {
        "gelu": partial(MLP, c.width, c.mlp_width, gelu, c.bias),
        "gelu-tanh": partial(MLP, c.width, c.mlp_width, gelu_tanh, c.bias),
        "relu": partial(MLP, c.width, c.mlp_width, F.relu, c.bias),
        "silu": partial(MLP, c.width, c.mlp_width, F.silu, c.bias),
        "swiglu": partial(GatedMLP, c.width, c.mlp_width, F.silu, c.bias),
    }[c.activation]
    dropped = {"dropout" if cells else "key_dropout": c.dropout}
    attention = partial(Attention, c.width, c.heads, getattr(c, "kv_heads", None), bias=c.bias, **dropped)
    return partial(kind, attention, mlp, norm_maker(c), c.dropout)


# blocks of an encoder and of a decoder, where the norm stands before each part or after it
TRUNKS = {"pre": (Block, CrossBlock), "post": (PostBlock, PostCrossBlock)}


def positions_of(name: str, c: Any, seats: Sequence[int], before: int = 0, both: bool = True) -> Positions:
    """The scheme of that name over a line, a picture's grid or a video's, as many axes as `seats` has sizes.

    `both` says whether a token may look at those after it as well.
    """
    axes, head = len(seats), c.width // c.heads
    return {
        "learned": partial(Learned, seats, c.width, before),
        "sincos": partial(SinCos, c.width, axes),
        "sincos-halves": partial(SinCos, c.width, axes, halves=True),
        "rope": partial(_rope, c, axes, seats[0]),
        "alibi": partial(Alibi, c.heads, axes),
        "shaw": partial(Shaw, head, axes, c.reach or 16),
        "t5": partial(T5, c.heads, axes, both, reach=c.reach or 128),
        "none": Positions,
    }[name]()


def turned(c: Any) -> int:
    """How many channels of a head are turned."""
    return int(c.width // c.heads * getattr(c, "rope_share", 1.0))


def _rope(c: Any, axes: int, context: int) -> Rope:
    scaling, factor, strength = getattr(c, "rope_scaling", None), getattr(c, "rope_factor", 1.0), 1.0
    stretch: Callable[[Tensor], Tensor] = lambda frequency: frequency  # noqa: E731
    if scaling is not None:
        trained = c.rope_trained or max(1, round(context / factor))
        if scaling == "yarn":
            stretch, strength = yarn(factor, trained, c.rope_base)
        else:
            stretch = {"linear": interpolate(factor), "ntk": ntk(factor), "llama3": llama3(factor, trained)}[scaling]
    return Rope(c.width // c.heads, axes, c.rope_base, turned(c), stretch, strength)


def check_sizes(c: Any) -> None:
    """Refuse, in a sentence, what no model can be built of."""
    for name in SIZES:
        value = getattr(c, name, None)
        if value is not None and value < 1:
            raise UserError(f"model.{name} must be at least 1, not {value}")
    for name in ("eps", "rope_base", "rope_factor"):
        if not getattr(c, name, 1.0) > 0:
            raise UserError(f"model.{name} must be above 0, not {getattr(c, name)}")
    if c.width % c.heads:
        near = ", ".join(map(str, _divisors_near(c.width, c.heads)))
        raise UserError(f"model.heads {c.heads} does not divide model.width {c.width}; {near} would")
    kv_heads = getattr(c, "kv_heads", None) or c.heads
    if c.heads % kv_heads:
        raise UserError(f"model.kv_heads {kv_heads} does not divide model.heads {c.heads}")
    if not 0 <= c.dropout < 1:
        raise UserError(f"model.dropout must be at least 0 and under 1, not {c.dropout}")


def check_positions(name: str, c: Any, axes: int) -> None:
    """Whether the widths have the pairs of channels that a scheme of this many axes needs."""
    head = turned(c)
    share = getattr(c, "rope_share", 1.0)
    if not 0 < share <= 1:
        raise UserError(f"model.rope_share must be above 0 and at most 1 (the whole head), not {share}")
    named = "the head width" if share == 1 else f"the part of a head that rope_share {share:g} turns"
    if name == "rope" and head % 2:
        raise UserError(f"rotations turn pairs of channels, so {named} must be even, not {head}")
    if name == "rope" and head < 2 * axes:
        raise UserError(f"rotations along {axes} axes need {named} to be at least {2 * axes}, not {head}")
    if name == "t5" and c.reach is not None and c.reach <= 16:
        raise UserError(
            f"t5 tells 16 distances apart before it groups any, so model.reach must be over 16, not {c.reach}"
        )
    if name.startswith("sincos") and c.width % 2:
        raise UserError(f"sine and cosine come in pairs, so model.width must be even, not {c.width}")
    if name.startswith("sincos") and c.width < 2 * axes:
        raise UserError(f"sine and cosine along {axes} axes need a width of at least {2 * axes}, not {c.width}")


def check_picture(c: Any) -> None:
    """Whether the patch divides the picture; if not, which would."""
    for name in ("image_size", "patch"):
        if min(getattr(c, name)) < 1:
            raise UserError(f"model.{name} must be at least 1, not {by(getattr(c, name))}")
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


def initialise(model: nn.Module, depth: int) -> None:
    """GPT-2's: normal(0.02), zero biases, and what writes to the trunk scaled down by √(2·depth)."""
    for name, parameter in model.named_parameters():
        if name.endswith(("attn.out.weight", "cross.out.weight", "mlp.down.weight")):
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * depth))
        elif parameter.ndim >= 2:
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def initialise_post(model: nn.Module) -> None:
    """The first Transformer's: Glorot's uniform for every matrix of the blocks, each of Q, K and V by itself."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, Attention):
            for matrix in module.qkv.weight.data.split(module.sizes):
                nn.init.xavier_uniform_(matrix)


def parameters(make: Callable[[], nn.Module]) -> int:
    """How many numbers a model learns, without allocating it."""
    with torch.device("meta"):
        return sum(p.numel() for p in make().parameters())


def numbers(picture: UInt8[Tensor, "B C *sides"]) -> Float[Tensor, "B C *sides"]:
    """Bytes as the models read them: from −1 (black) to 1 (white)."""
    return picture.float() / 127.5 - 1
