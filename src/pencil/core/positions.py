"""Position schemes: how a model learns where a token stands, at up to three moments.

A scheme may add a stamp to the input, turn the queries and keys, or bias the scores; each moment defaults to nothing,
and `Positions` itself is the scheme that says nothing. A model takes any scheme as data. Those that bias stand in
`biases.py`.
"""

import math
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

    scale: float | None = None  # of the scores, where a scheme brings its own
    strength: float = 1.0  # of what is turned

    def stamp(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T D"] | None:
        """Moment one: what is added to the input."""
        return None

    def angles(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T p"] | None:
        """Moment two: how far each pair of channels of q and k is turned."""
        return None

    def bias(self, span: Span, probe: Off = OFF) -> Callable[[Tensor], Tensor] | None:
        """Moment three: what is added to the scores, as a function of q; of a span whose keys are all in place."""
        return None

    def forward(self, x: Float[Tensor, "B T D"], span: Span, probe: Off = OFF) -> tuple[Float[Tensor, "B T D"], Span]:
        """The stamped input, and the span with its turn worked out once for all blocks."""
        stamp = self.stamp(span.coords)
        if stamp is not None:
            x = x + probe("stamp", stamp.to(x.dtype))
        return x, self.turned(span, x.dtype, probe)

    def turned(self, span: Span, dtype: torch.dtype, probe: Off = OFF) -> Span:
        """The span with its turn, for queries and keys of this dtype, and its scale."""
        angles, turn = self.angles(span.coords), None
        if angles is not None:
            angles, exact = probe("angles", angles)[:, None], torch.promote_types(dtype, torch.float32)
            turn = angles.cos().to(exact), angles.sin().to(exact)
            if self.strength != 1:
                turn = turn[0] * self.strength, turn[1] * self.strength
        return replace(span, turn=turn, key_turn=turn, scale=self.scale)


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
        if coords.shape[1] > len(self.table):
            raise ValueError(f"the table of positions has {len(self.table)} seats, and {coords.shape[1]} tokens came")
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
    """Fixed waves: channel 2i is sin(seat/base^(2i/D)), channel 2i+1 its cosine; n axes share the channels evenly.

    With `halves` all the sines stand first and all the cosines after them, as Marian keeps them.
    """

    NAMES = {"stamp": ("B T D", "P", "sin, cos of seat·ω_i")}

    def __init__(self, width: int, axes: int = 1, base: float = 10000.0, halves: bool = False):
        super().__init__()
        if width % 2:
            raise ValueError(f"sine and cosine come in pairs, so the width must be even, not {width}")
        if width // 2 < axes:
            raise ValueError(f"a width of {width} has no pair of channels for each of {axes} axes")
        self.pairs, self.base, self.halves = share(width // 2, axes), base, halves

    def stamp(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T D"]:
        angles = turn_angles(coords, [frequencies(n, self.base, coords.device) for n in self.pairs])
        if self.halves:
            return torch.cat((angles.sin(), angles.cos()), -1)
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


class Rope(Positions):
    """Rotations: pair i of q and k (channels i and i + n) is turned by seat·base^(−i/n); n axes share the pairs.

    Only the first `turned` channels of a head are, all of them unless it is given. `stretch` changes the frequencies of
    a model that shall read further than it was trained to; `strength` is a factor on what is turned that goes with it.
    """

    NAMES = {"angles": ("B T d/2", "θ", "seat · base^(−2i/d)")}

    def __init__(
        self,
        head_width: int,
        axes: int = 1,
        base: float = 10000.0,
        turned: int | None = None,
        stretch: Callable[[Tensor], Tensor] = lambda frequency: frequency,
        strength: float = 1.0,
    ):
        super().__init__()
        turned = head_width if turned is None else turned
        if turned % 2 or turned // 2 < axes or turned > head_width:
            raise ValueError(f"{turned} channels of {head_width} are no pairs to turn for each of {axes} axes")
        self.pairs, self.base, self.stretch = share(turned // 2, axes), base, stretch
        self.strength = strength

    def angles(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T p"]:
        return turn_angles(coords, [self.stretch(frequencies(n, self.base, coords.device)) for n in self.pairs])


def share(pairs: int, axes: int) -> tuple[int, ...]:
    """Pairs of channels per axis, as evenly as they go; the first axes take what is left over."""
    return tuple(pairs // axes + (axis < pairs % axes) for axis in range(axes))


def frequencies(pairs: int, base: float, device: torch.device) -> Float[Tensor, "p"]:
    """base^(−i/n) for n pairs; in float64 where there is one (float32 is 4e-4 off at seat 5,000)."""
    exact = torch.float32 if device.type == "mps" else torch.float64
    return base ** (-torch.arange(pairs, device=device, dtype=exact) / pairs)


def turn_angles(coords: Num[Tensor, "B T a"], waves: Sequence[Float[Tensor, "_"]]) -> Float[Tensor, "B T p"]:
    """seat·frequency for each axis's frequencies, one axis after another."""
    return torch.cat([coords[..., axis, None].to(wave.dtype) * wave for axis, wave in enumerate(waves)], -1)


def interpolate(factor: float) -> Callable[[Tensor], Tensor]:
    """Every seat is a factor nearer: no angle is met that was not met in training."""
    return lambda frequency: frequency / factor


def ntk(factor: float) -> Callable[[Tensor], Tensor]:
    """The base is raised: the slowest pair turns a factor slower, the fastest not at all."""

    def stretch(frequency: Tensor) -> Tensor:
        n = len(frequency)
        return frequency if n < 2 else frequency / factor ** (torch.arange(n).to(frequency) / (n - 1))

    return stretch


def yarn(factor: float, trained: int, base: float) -> tuple[Callable[[Tensor], Tensor], float]:
    """Pairs that turned more than 32 times within the trained length stay, those that turned less than once are a
    factor slower, those between in between; and the factor on q and k that keeps their scores apart."""

    def stretch(frequency: Tensor) -> Tensor:
        n = len(frequency)

        def pair_that_turns(times: float) -> float:
            return n * math.log(trained / (times * 2 * math.pi)) / math.log(base)

        low, high = max(math.floor(pair_that_turns(32)), 0), min(math.ceil(pair_that_turns(1)), 2 * n - 1)
        slow = ((torch.arange(n).to(frequency) - low) / max(high - low, 1e-3)).clamp(0, 1)
        return frequency / factor * slow + frequency * (1 - slow)

    return stretch, 0.1 * math.log(factor) + 1


def llama3(factor: float, trained: int) -> Callable[[Tensor], Tensor]:
    """Waves longer than the trained length are a factor slower, those shorter than a quarter of it stay."""

    def stretch(frequency: Tensor) -> Tensor:
        turns = trained * frequency / (2 * math.pi)
        kept = ((turns - 1) / 3).clamp(0, 1)
        return frequency / factor * (1 - kept) + frequency * kept

    return stretch


def rotate(
    x: Float[Tensor, "B h T d"], turn: tuple[Float[Tensor, "#B 1 T p"], Float[Tensor, "#B 1 T p"]]
) -> Float[Tensor, "B h T d"]:
    """Turn each pair (x_i, x_{i+p}) by its angle, given as (cosines, sines); later channels stay as they are."""
    cos, sin = turn
    pairs = cos.shape[-1]
    a, b, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    turned = torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned
