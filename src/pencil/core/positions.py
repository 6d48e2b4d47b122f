"""Position schemes: how a model learns where a token stands, at up to three moments.

A scheme may add a stamp to the input, turn the queries and keys, or bias the scores; each moment defaults to nothing,
and `Positions` itself is the scheme that says nothing. A model takes any scheme as data.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor, nn

from .probe import OFF, Off
from .span import Span


class Positions(nn.Module):
    """No positions; and the three moments every scheme chooses from."""

    scale: float | None = None

    def stamp(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T D"] | None:
        """Moment one: what is added to the input."""
        return None

    def angles(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T p"] | None:
        """Moment two: how far each pair of channels of q and k is turned."""
        return None

    def bias(self, span: Span) -> Callable[[Tensor], Tensor] | None:
        """Moment three: what is added to the scores, as a function of q."""
        return None

    def forward(self, x: Float[Tensor, "B T D"], span: Span, probe: Off = OFF) -> tuple[Float[Tensor, "B T D"], Span]:
        """The stamped input, and the span with its turn and bias worked out once for all blocks."""
        stamp, angles = self.stamp(span.coords), self.angles(span.coords)
        if stamp is not None:
            x = x + probe("stamp", stamp.to(x.dtype))
        turn = None
        if angles is not None:
            angles, exact = probe("angles", angles)[:, None], torch.promote_types(x.dtype, torch.float32)
            turn = angles.cos().to(exact), angles.sin().to(exact)
        return x, replace(span, turn=turn, key_turn=turn, bias=self.bias(span), scale=self.scale)


class Learned(Positions):
    """A table of trained stamps, one row a seat: P in X⁰ = E[t] + P.

    Seats on a grid are numbered in reading order; `before` rows stand ahead of the first, for tokens that have no place
    on it (the class token sits at −1).
    """

    NAMES = {"stamp": ("B T D", "P", "table[seat]")}
    WEIGHTS = {"table": "P"}

    def __init__(self, seats: int | Sequence[int], width: int, before: int = 0):
        super().__init__()
        self.grid, self.before = (seats,) if isinstance(seats, int) else tuple(seats), before
        self.table = nn.Parameter(torch.empty(before + prod(self.grid), width))
        nn.init.normal_(self.table, std=0.02)

    def stamp(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T D"]:
        seat = coords[..., 0]
        for axis, size in enumerate(self.grid[1:], 1):
            seat = seat * size + coords[..., axis]
        return self.table[seat + self.before if self.before else seat]

    def resampled(self, grid: Sequence[int]) -> Float[Tensor, "n D"]:
        """The table for a grid of another size: the same stamps, stretched as a picture is, by bicubic curves."""
        first, rest = self.table[: self.before], self.table[self.before :]
        if tuple(grid) == self.grid:
            return self.table
        if len(self.grid) != 2:
            raise ValueError("only the table of a picture can be stretched")
        picture = rest.T.unflatten(1, self.grid)[None].float()
        stretched = F.interpolate(picture, tuple(grid), mode="bicubic", align_corners=False)
        return torch.cat((first, stretched[0].flatten(1).T.to(rest.dtype)))


class SinCos(Positions):
    """Fixed waves: channel 2i is sin(seat/base^(2i/D)), channel 2i+1 its cosine; n axes share the channels evenly."""

    NAMES = {"stamp": ("B T D", "P", "sin, cos of seat·ω_i")}

    def __init__(self, width: int, axes: int = 1, base: float = 10000.0):
        super().__init__()
        if width % 2:
            raise ValueError(f"sine and cosine come in pairs, so the width must be even, not {width}")
        self.pairs, self.base = share(width // 2, axes), base

    def stamp(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T D"]:
        angles = turn_angles(coords, self.pairs, self.base)
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


class Rope(Positions):
    """Rotations: pair i of q and k (channels i and i + d/2) is turned by seat·base^(−i/n); n axes share the pairs."""

    NAMES = {"angles": ("B T d/2", "θ", "seat · base^(−2i/d)")}

    def __init__(self, head_width: int, axes: int = 1, base: float = 10000.0):
        super().__init__()
        if head_width % 2 or head_width // 2 < axes:
            raise ValueError(f"a head of width {head_width} has no pair of channels to turn for each of {axes} axes")
        self.pairs, self.base = share(head_width // 2, axes), base

    def angles(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T p"]:
        return turn_angles(coords, self.pairs, self.base)


def share(pairs: int, axes: int) -> tuple[int, ...]:
    """Pairs of channels per axis, as evenly as they go; the first axes take what is left over."""
    return tuple(pairs // axes + (axis < pairs % axes) for axis in range(axes))


def turn_angles(coords: Num[Tensor, "B T a"], pairs: tuple[int, ...], base: float) -> Float[Tensor, "B T p"]:
    """seat·base^(−i/n) for each axis's n pairs; in float64 where there is one (float32 is 4e-4 off at seat 5,000)."""
    exact = torch.float32 if coords.device.type == "mps" else torch.float64
    parts = []
    for axis, n in enumerate(pairs):
        frequency = base ** (-torch.arange(n, device=coords.device, dtype=exact) / n)
        parts.append(coords[..., axis, None].to(exact) * frequency)
    return torch.cat(parts, -1)


def rotate(
    x: Float[Tensor, "B h T d"], turn: tuple[Float[Tensor, "#B 1 T p"], Float[Tensor, "#B 1 T p"]]
) -> Float[Tensor, "B h T d"]:
    """Turn each pair (x_i, x_{i+p}) by its angle, given as (cosines, sines); later channels stay as they are."""
    cos, sin = turn
    pairs = cos.shape[-1]
    a, b, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned
