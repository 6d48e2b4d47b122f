"""Position schemes: how a model learns the position of each token.

A scheme may add an embedding to the input, rotate the queries and keys, or bias the scores. `Positions` itself does
none of these. A model takes any scheme by name. Those that bias the scores are in `biases.py`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor, nn

from .probe import OFF, Probe
from .span import Span

# what coordinates are called in formulas, by the number of axes
AXES = {1: ("pos",), 2: ("row", "column"), 3: ("frame", "row", "column")}


class Positions(nn.Module):
    """No positions; and the three methods from which a scheme overrides its own."""

    scale: float | None = None  # of the scores, where a scheme sets its own
    strength: float = 1.0  # a factor on the rotated q and k
    adjacent: bool = False  # whether the rotated pairs are neighbouring channels
    beyond_announced = False  # whether the user knows of tokens beyond the context
    bias_by_row = False  # whether each row of the batch has a bias of its own, since it depends on the queries

    @property
    def biases_scores(self) -> bool:
        """Whether a matrix is added to the scores."""
        return type(self).bias is not Positions.bias

    def bias_formula(self, part: str) -> str:
        """The bias as a formula writes it, where the symbols have the name of a part of the sequence: B_txt."""
        return f"B_{part}" if self.biases_scores else ""

    def embedding(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T D"] | None:
        """What is added to the input."""
        return None

    def angles(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T p"] | None:
        """The angle by which each pair of channels of q and k is rotated."""
        return None

    def bias(self, span: Span, probe: Probe = OFF) -> Callable[[Tensor], Tensor] | None:
        """What is added to the scores, as a function of q. The span must already have all its keys."""
        return None

    def forward(
        self, x: Float[Tensor, "B T D"], span: Span | None = None, probe: Probe = OFF
    ) -> tuple[Float[Tensor, "B T D"], Span]:
        """The input with its position embedding, and the span with its rotation computed once for all blocks.

        Without a span the tokens are at 0, 1, …
        """
        span = Span.whole(x.shape[1], device=x.device) if span is None else span
        added = self.embedding(span.coords)
        if added is not None:
            x = x + probe("embedding", added.to(x.dtype))
        return x, self.rotated(span, x.dtype, probe)

    def rotated(self, span: Span, dtype: torch.dtype, probe: Probe = OFF) -> Span:
        """The span with its rotation, for queries and keys of this dtype, and its scale."""
        angles, rotation = self.angles(span.coords), None
        if angles is not None:
            angles, exact = probe("angles", angles)[:, None], torch.promote_types(dtype, torch.float32)
            rotation = angles.cos().to(exact), angles.sin().to(exact)
            if self.strength != 1:
                rotation = rotation[0] * self.strength, rotation[1] * self.strength
        return replace(span, rotation=rotation, key_rotation=rotation, adjacent=self.adjacent, scale=self.scale)


class Learned(Positions):
    """A learned table, one row a position: P in X⁰ = E[t] + P.

    Positions on a grid are numbered in reading order; `before` rows come first and `after` rows last, for tokens that
    are not on the grid (the class token is at −1).
    """

    NAMES = {"embedding": ("B T D", "P", "P_table[pos]")}
    WEIGHTS = {"table": "P_table"}

    def __init__(self, grid: int | Sequence[int], width: int, before: int = 0, after: int = 0):
        super().__init__()
        self.grid, self.before = (grid,) if isinstance(grid, int) else tuple(grid), before
        self.table = nn.Parameter(torch.empty(before + prod(self.grid) + after, width))
        nn.init.normal_(self.table, std=0.02)

    def embedding(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T D"]:
        if coords.shape[1] > len(self.table):
            raise ValueError(
                f"the table of positions has {len(self.table)} rows, and {coords.shape[1]} tokens were given"
            )
        row = coords[..., 0]
        for axis, size in enumerate(self.grid[1:], 1):
            row = row * size + coords[..., axis]
        try:
            # unlike an index, a lookup refuses numbers below zero too, and on no device waits to do so
            return F.embedding(row + self.before if self.before else row, self.table)
        except IndexError:
            raise ValueError(
                f"the table of positions has {len(self.table)} rows, and a token is before or beyond it"
            ) from None

    def resampled(self, grid: Sequence[int]) -> Float[Tensor, "n D"]:
        """The table for a grid of another size, by bicubic interpolation."""
        first, rest, last = self.table.tensor_split((self.before, self.before + prod(self.grid)))
        if tuple(grid) == self.grid:
            return self.table
        if len(self.grid) != 2:
            raise ValueError("only the table of an image can be resized")
        image = rest.T.unflatten(1, self.grid)[None].float()
        resized = F.interpolate(image, tuple(grid), mode="bicubic", align_corners=False)
        return torch.cat((first, resized[0].flatten(1).T.to(rest.dtype), last))


class Sinusoidal(Positions):
    """Sinusoidal embeddings: channel 2i is sin(position/base^(2i/D)), channel 2i+1 its cosine.

    Several axes share the channels evenly. With `halves` all the sines come first, then all the cosines, as in Marian.
    """

    def __init__(self, width: int, axes: int = 1, base: float = 10000.0, halves: bool = False):
        super().__init__()
        if width % 2:
            raise ValueError(f"sine and cosine come in pairs, so the width must be even, not {width}")
        if width // 2 < axes:
            raise ValueError(f"a width of {width} has no pair of channels for each of {axes} axes")
        self.pairs, self.base, self.halves = share(width // 2, axes), base, halves
        self.NAMES = {"embedding": ("B T D", "P", self._formula())}

    def _formula(self) -> str:
        sizes = ["D"] if len(self.pairs) == 1 else [str(2 * n) for n in self.pairs]
        angles = [f"{axis}/{self.base:g}^(2i/{n})" for axis, n in zip(AXES[len(self.pairs)], sizes, strict=True)]
        if self.halves:
            return "[" + "; ".join(f"{wave}({angle})" for wave in ("sin", "cos") for angle in angles) + "]"
        parts = [f"sin({angle}) at 2i, cos({angle}) at 2i+1" for angle in angles]
        return parts[0] if len(parts) == 1 else f"[{'; '.join(parts)}]"

    def embedding(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T D"]:
        angles = rotation_angles(coords, [frequencies(n, self.base, coords.device) for n in self.pairs])
        if self.halves:
            return torch.cat((angles.sin(), angles.cos()), -1)
        return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)


class Rope(Positions):
    """Rotary embeddings: of n pairs, pair i of q and k is rotated by position·base^(−i/n).

    Pair i is the channels i and i + n (halves, as in LLaMA checkpoints), or with `adjacent` the channels 2i and 2i + 1,
    as in the paper; the two differ only in the order of the channels. Several axes share the pairs. Only the first
    `rotary_width` channels of a head are rotated, by default all. `stretch` rescales the frequencies, for contexts
    longer than trained on; `strength` multiplies the rotated q and k.
    """

    def __init__(
        self,
        head_width: int,
        axes: int = 1,
        base: float = 10000.0,
        rotary_width: int | None = None,
        stretch: Callable[[Tensor], Tensor] | None = None,
        strength: float = 1.0,
        adjacent: bool = False,
        scaling: str = "",
    ):
        super().__init__()
        rotary_width = head_width if rotary_width is None else rotary_width
        if rotary_width % 2 or rotary_width // 2 < axes or rotary_width > head_width:
            raise ValueError(
                f"{rotary_width} channels of {head_width} do not give a pair to rotate for each of {axes} axes"
            )
        self.pairs, self.base, self.stretch = share(rotary_width // 2, axes), base, stretch
        self.strength, self.adjacent = strength, adjacent
        sizes = ["d"] if rotary_width == head_width and axes == 1 else [str(2 * n) for n in self.pairs]
        frequency = [f"{base:g}^(−2i/{n})" for n in sizes]
        frequency = [f"{scaling}({one})" for one in frequency] if scaling else frequency
        parts = [f"{axis}·{one}" for axis, one in zip(AXES[axes], frequency, strict=True)]
        self.NAMES = {"angles": ("B T d/2", "θ", parts[0] if axes == 1 else f"[{'; '.join(parts)}]")}

    def angles(self, coords: Num[Tensor, "B T a"]) -> Float[Tensor, "B T p"]:
        per_axis = [frequencies(n, self.base, coords.device) for n in self.pairs]
        return rotation_angles(coords, per_axis if self.stretch is None else [self.stretch(one) for one in per_axis])


def share(pairs: int, axes: int) -> tuple[int, ...]:
    """Pairs of channels per axis, as evenly as they go; the first axes take what is left over."""
    return tuple(pairs // axes + (axis < pairs % axes) for axis in range(axes))


def frequencies(pairs: int, base: float, device: torch.device) -> Float[Tensor, "p"]:
    """base^(−2i/2n) for n pairs, in float64 where the device has it (float32 is 4e-4 off at position 5,000)."""
    exact = torch.float32 if device.type == "mps" else torch.float64
    return base ** (-(2 * torch.arange(pairs, device=device, dtype=exact)) / (2 * pairs))


def rotation_angles(coords: Num[Tensor, "B T a"], per_axis: Sequence[Float[Tensor, "_"]]) -> Float[Tensor, "B T p"]:
    """position·frequency for each axis's frequencies, one axis after another."""
    return torch.cat([coords[..., axis, None].to(omega.dtype) * omega for axis, omega in enumerate(per_axis)], -1)


def _numbered(frequency: Float[Tensor, "p"]) -> Float[Tensor, "p"]:
    """The number of each pair."""
    return torch.arange(len(frequency), device=frequency.device, dtype=frequency.dtype)


# A stretch is a named function with its numbers bound by `partial`: a closure could not be pickled, nor a model.


def interpolate(factor: float) -> Callable[[Tensor], Tensor]:
    """Position interpolation: every position is divided by the factor, so no angle is new to the model."""
    return partial(_interpolated, factor)


def _interpolated(factor: float, frequency: Float[Tensor, "p"]) -> Float[Tensor, "p"]:
    return frequency / factor


def ntk(factor: float) -> Callable[[Tensor], Tensor]:
    """NTK-aware scaling: a larger base. The slowest pair rotates slower by the factor, the fastest as before."""
    return partial(_ntk_scaled, factor)


def _ntk_scaled(factor: float, frequency: Float[Tensor, "p"]) -> Float[Tensor, "p"]:
    n = len(frequency)
    return frequency if n < 2 else frequency / factor ** (_numbered(frequency) / (n - 1))


def yarn(factor: float, trained: int, base: float) -> tuple[Callable[[Tensor], Tensor], float]:
    """YaRN: pairs that rotate more than 32 times within the trained length are kept, those that rotate less than once
    are slowed by the factor, those between are blended. Also returns its factor on q and k (the attention scaling)."""
    return partial(_yarn_scaled, factor, trained, base), 0.1 * math.log(factor) + 1


def _yarn_scaled(factor: float, trained: int, base: float, frequency: Float[Tensor, "p"]) -> Float[Tensor, "p"]:
    n = len(frequency)

    def pair_that_rotates(times: float) -> float:
        return n * math.log(trained / (times * 2 * math.pi)) / math.log(base)

    low, high = max(math.floor(pair_that_rotates(32)), 0), min(math.ceil(pair_that_rotates(1)), 2 * n - 1)
    slow = ((_numbered(frequency) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return frequency / factor * slow + frequency * (1 - slow)


def llama3(factor: float, trained: int) -> Callable[[Tensor], Tensor]:
    """Llama 3: wavelengths above the trained length are slowed by the factor, those below a quarter of it are kept."""
    return partial(_llama3_scaled, factor, trained)


def _llama3_scaled(factor: float, trained: int, frequency: Float[Tensor, "p"]) -> Float[Tensor, "p"]:
    rotations = trained * frequency / (2 * math.pi)
    kept = ((rotations - 1) / 3).clamp(0, 1)
    return frequency / factor * (1 - kept) + frequency * kept


def rotate(
    x: Float[Tensor, "B h T d"],
    rotation: tuple[Float[Tensor, "#B 1 T p"], Float[Tensor, "#B 1 T p"]],
    adjacent: bool = False,
) -> Float[Tensor, "B h T d"]:
    """Rotate each of p pairs by its angle, given as (cosines, sines); later channels are unchanged.

    A pair is (x_i, x_{i+p}), or with `adjacent` (x_{2i}, x_{2i+1}).
    """
    cos, sin = rotation
    pairs = cos.shape[-1]
    rest = x[..., 2 * pairs :]
    if adjacent:
        a, b = x[..., : 2 * pairs].unflatten(-1, (pairs, 2)).unbind(-1)
        rotated = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)
    else:
        a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
        rotated = torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)
    return torch.cat((rotated, rest), -1) if rest.shape[-1] else rotated
