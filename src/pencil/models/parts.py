"""What the families share: parts chosen by a config's words, checks of its sizes, and initialisation."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import UserError
from ..core.attention import Attention
from ..core.blocks import Block
from ..core.layers import MLP, GatedMLP, LayerNorm, RMSNorm, gelu, gelu_tanh
from ..core.patches import by
from ..core.positions import Learned, Positions, Rope, SinCos

SIZES = ("vocab", "context", "width", "depth", "heads", "hidden", "kv_heads", "channels", "classes", "picture_width")


def norm_maker(c: Any) -> Callable[[], nn.Module]:
    """`norm`: layer or rms."""
    if getattr(c, "norm", "layer") == "rms":
        return partial(RMSNorm, c.width, c.eps)
    return partial(LayerNorm, c.width, c.eps, c.bias)


def block_maker(c: Any, cells: bool = False) -> Callable[[], Block]:
    """The pre-norm block with the config's attention, MLP and norm.

    What dropout takes from the pattern is whole keys, or, as in GPT-2, single `cells`, which a CPU pays dearly for.
    """
    mlp = {
        "gelu": partial(MLP, c.width, c.mlp_width, gelu, c.bias),
        "gelu-tanh": partial(MLP, c.width, c.mlp_width, gelu_tanh, c.bias),
        "swiglu": partial(GatedMLP, c.width, c.mlp_width, F.silu, c.bias),
    }[c.activation]
    dropped = {"dropout" if cells else "key_dropout": c.dropout}
    attention = partial(Attention, c.width, c.heads, getattr(c, "kv_heads", None), bias=c.bias, **dropped)
    return partial(Block, attention, mlp, norm_maker(c), c.dropout)


def positions_of(name: str, c: Any, seats: Sequence[int], before: int = 0) -> Positions:
    """The scheme of that name over a line, a picture's grid or a video's, as many axes as `seats` has sizes."""
    return {
        "learned": partial(Learned, seats, c.width, before),
        "sincos": partial(SinCos, c.width, len(seats)),
        "rope": partial(Rope, c.width // c.heads, len(seats), c.rope_base),
        "none": Positions,
    }[name]()


def check_sizes(c: Any) -> None:
    """Refuse, in a sentence, what no model can be built of."""
    for name in SIZES:
        value = getattr(c, name, None)
        if value is not None and value < 1:
            raise UserError(f"model.{name} must be at least 1, not {value}")
    for name in ("eps", "rope_base"):
        if not getattr(c, name) > 0:
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
    head = c.width // c.heads
    if name == "rope" and head % 2:
        raise UserError(f"rotations turn pairs of channels, so the head width must be even, not {head}")
    if name == "rope" and head < 2 * axes:
        raise UserError(f"rotations along {axes} axes need a head width of at least {2 * axes}, not {head}")
    if name == "sincos" and c.width % 2:
        raise UserError(f"sine and cosine come in pairs, so model.width must be even, not {c.width}")
    if name == "sincos" and c.width < 2 * axes:
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
        if name.endswith(("attn.out.weight", "mlp.down.weight")):
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * depth))
        elif parameter.ndim >= 2:
            nn.init.normal_(parameter, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def parameters(make: Callable[[], nn.Module]) -> int:
    """How many numbers a model learns, without allocating it."""
    with torch.device("meta"):
        return sum(p.numel() for p in make().parameters())


def numbers(picture: UInt8[Tensor, "B C *sides"]) -> Float[Tensor, "B C *sides"]:
    """Bytes as the models read them: from −1 (black) to 1 (white)."""
    return picture.float() / 127.5 - 1
