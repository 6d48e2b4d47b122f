"""Position schemes: how a model learns the position of each token.

A scheme may add an embedding to the input, rotate the queries and keys, or bias the scores. `Positions` itself does
none of these. A model takes any scheme by name. Those that bias the scores, by the distance between query and key, are
ALiBi, Shaw and T5.

One RoPE, two orders of channels. `rope_pairs` says which channels are a pair; a span carries it beside its rotation,
and `rotate` is the only place that reads it. `models/rope_pairs.py` converts a model by reordering rows of W_Q and W_K
(and Shaw's vectors, where a captioner has them beside rotations), so every scheme and checkpoint meets both.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from .probe import OFF, Probe
from .span import Span

# the schemes by the words of a setting; `models/build.py` makes them
Scheme = Literal["learned", "sinusoidal", "sinusoidal-halves", "rope", "alibi", "shaw", "t5", "none"]

# what coordinates are called in formulas, by the number of axes
AXES = {1: ("pos",), 2: ("row", "column"), 3: ("frame", "row", "column")}


class Positions(nn.Module):
    """No positions; and the three methods from which a scheme overrides its own."""

    NAMES: dict[str, tuple[str, str, str]] = {}
    scale: float | None = None  # of the scores, where a scheme sets its own
    strength: float = 1.0  # a factor on the rotated q and k
    adjacent: bool = False  # whether the rotated pairs are neighbouring channels
    beyond_announced = False  # whether the user knows of tokens beyond the context
    bias_by_row = False  # whether each row of the batch has a bias of its own, since it depends on the queries

    @property
    def biases_scores(self) -> bool:
        """Whether a matrix is added to the scores."""
        return type(self).bias is not Positions.bias

    @property
    def rotates_heads(self) -> bool:
        """Whether queries and keys are rotated."""
        return type(self).angles is not Positions.angles

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
        """The table for a grid of another size, by bicubic interpolation, smoothed where it shrinks."""
        first, rest, last = self.table.tensor_split((self.before, self.before + prod(self.grid)))
        if tuple(grid) == self.grid:
            return self.table
        if len(self.grid) != 2:
            raise ValueError("only the table of an image can be resized")
        image = rest.T.unflatten(1, self.grid)[None].float()
        resized = F.interpolate(image, tuple(grid), mode="bicubic", align_corners=False, antialias=True)
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


# A stretch is one of these functions with its numbers bound by `partial`: a closure could not be pickled, nor a model.


def interpolate(factor: float, frequency: Float[Tensor, "p"]) -> Float[Tensor, "p"]:
    """Position interpolation: every position is divided by the factor, so no angle is new to the model."""
    return frequency / factor


def ntk(factor: float, frequency: Float[Tensor, "p"]) -> Float[Tensor, "p"]:
    """NTK-aware scaling: a larger base. The slowest pair rotates slower by the factor, the fastest as before."""
    n = len(frequency)
    return frequency if n < 2 else frequency / factor ** (_numbered(frequency) / (n - 1))


def yarn_strength(factor: float) -> float:
    """YaRN's factor on q and k (the attention scaling)."""
    return 0.1 * math.log(factor) + 1


def yarn(factor: float, trained: int, base: float, frequency: Float[Tensor, "p"]) -> Float[Tensor, "p"]:
    """YaRN: pairs that rotate more than 32 times within the trained length are kept, those that rotate less than once
    are slowed by the factor, those between are blended."""
    n = len(frequency)

    def pair_that_rotates(times: float) -> float:
        return n * math.log(trained / (times * 2 * math.pi)) / math.log(base)

    low, high = max(math.floor(pair_that_rotates(32)), 0), min(math.ceil(pair_that_rotates(1)), 2 * n - 1)
    slow = ((_numbered(frequency) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return frequency / factor * slow + frequency * (1 - slow)


def llama3(factor: float, trained: int, frequency: Float[Tensor, "p"]) -> Float[Tensor, "p"]:
    """Llama 3: wavelengths above the trained length are slowed by the factor, those below a quarter of it are kept."""
    rotations = trained * frequency / (2 * math.pi)
    unslowed = ((rotations - 1) / 3).clamp(0, 1)
    return frequency / factor * (1 - unslowed) + frequency * unslowed


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


def steps(span: Span, axes: int) -> Num[Tensor, "#B T S a"]:
    """The signed distance from each query to each key along each axis: negative before it, positive after."""
    return span.key_coords[:, None, :, :axes] - span.coords[:, :, None, :axes]


def _steps(axes: int) -> str:
    """The signed distances, as formulas write them."""
    parts = [f"{axis}_j − {axis}_i" for axis in AXES[axes]]
    return parts[0] if axes == 1 else f"[{'; '.join(parts)}]"


class Alibi(Positions):
    """Each head subtracts a slope of its own for every step between query and key; nothing is learned.

    The slopes of n heads are 2^(−8/n), 2^(−16/n), …, 1/256 where n is a power of two; else those of the power below,
    and every other one of the power above. Along several axes the distance is Euclidean.
    """

    slopes: Float[Tensor, "h"]

    def __init__(self, heads: int, axes: int = 1):
        super().__init__()
        self.axes = axes
        # also of a model that is built without memory, on the meta device
        self.register_buffer("slopes", torch.tensor(slopes(heads), device="cpu"), persistent=False)
        far = " + ".join(f"({axis}_j − {axis}_i)²" for axis in AXES[axes])
        self.NAMES = {"bias": ("B h T S", "B", "−m_h·|pos_j − pos_i|" if axes == 1 else f"−m_h·√({far})")}

    def bias(self, span: Span, probe: Probe = OFF) -> Callable[[Tensor], Tensor]:
        distance = steps(span, self.axes).to(torch.float32)
        far = distance[..., 0].abs() if self.axes == 1 else distance.square().sum(-1).sqrt()
        bias = probe("bias", far[:, None] * -self.slopes.to(far.device)[:, None, None])
        return lambda q: bias.to(q.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Alibi":
        """A model in half precision has its slopes in single precision all the same."""
        exact = self.slopes
        super()._apply(fn, recurse)
        self.slopes = exact.to(self.slopes.device)
        return self


def slopes(heads: int) -> list[float]:
    """The slopes of the paper, for any number of heads."""
    power = 1 << (heads.bit_length() - 1)
    first = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-4 * i / power) for i in range(1, 2 * power + 1, 2)]
    return first + between[: heads - power]


class Shaw(Positions):
    """A learned vector for each distance is added to the key: the score gains q·a/√d, so it depends on the query.

    Distances are clipped to `max_distance`. One table serves all heads and blocks; each axis has its own, and their
    vectors are added.
    """

    WEIGHTS = {"table": "a_K"}
    bias_by_row = True

    def __init__(self, head_width: int, axes: int = 1, max_distance: int = 16):
        super().__init__()
        self.max_distance = max_distance
        self.NAMES = {"distance": ("B T S a", "r", f"clip({_steps(axes)}, −{max_distance}, {max_distance})")}
        self.table = nn.Parameter(torch.empty(axes, 2 * max_distance + 1, head_width))
        nn.init.normal_(self.table, std=0.02)

    def bias_formula(self, part: str) -> str:
        many = len(self.table) > 1
        return f"Q Σ_a a_K,{part}[a, r_{part},a]ᵀ/√d" if many else f"Q a_K,{part}[r_{part}]ᵀ/√d"

    def bias(self, span: Span, probe: Probe = OFF) -> Callable[[Tensor], Tensor]:
        distance = steps(span, len(self.table)).long().clamp(-self.max_distance, self.max_distance)
        row = probe("distance", distance) + self.max_distance

        def added(q: Float[Tensor, "B h T d"]) -> Float[Tensor, "B h T S"]:
            shape = (*q.shape[:3], row.shape[2])
            products = [
                (q @ table.T).gather(-1, row[:, None, :, :, axis].expand(shape))
                for axis, table in enumerate(self.table.to(q.dtype))
            ]
            return _sum(products) / math.sqrt(q.shape[-1])

        return added


class T5(Positions):
    """A learned scalar for each head and each bucket of distances; the scores are not divided by √d.

    Half the buckets hold one distance each. The others grow wider up to `max_distance`; larger distances share the
    last. With `both` directions, keys after the query have buckets of their own. Each axis has its own table.
    """

    WEIGHTS = {"table": "B_table"}

    scale = 1.0
    ladder: Int[Tensor, "_"]

    def __init__(self, heads: int, axes: int = 1, both: bool = True, buckets: int = 32, max_distance: int = 128):
        super().__init__()
        self.both, self.buckets, self.max_distance = both, buckets // 2 if both else buckets, max_distance
        # also of a model that is built without memory, on the meta device
        self.register_buffer("ladder", torch.tensor(ladder(self.buckets, max_distance), device="cpu"), persistent=False)
        self.NAMES = {
            "bucket": ("B T S a", "b", f"bucket({_steps(axes)})"),
            "bias": ("B h T S", "B", "B_table[b]" if axes == 1 else "Σ_a B_table[a, b_a]"),
        }
        self.table = nn.Parameter(torch.empty(axes, buckets, heads))
        nn.init.normal_(self.table, std=0.02)

    def bucket(self, distance: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The bucket of each distance."""
        far = distance.abs() if self.both else -distance.clamp(max=0)
        bucket = self.ladder.to(far.device)[far.clamp(max=self.max_distance)]
        return bucket + (distance > 0) * self.buckets if self.both else bucket

    def bias(self, span: Span, probe: Probe = OFF) -> Callable[[Tensor], Tensor]:
        bucket = probe("bucket", self.bucket(steps(span, len(self.table)).long()))
        added = _sum([F.embedding(bucket[..., axis], table) for axis, table in enumerate(self.table)])
        bias = probe("bias", added.permute(0, 3, 1, 2))
        return lambda q: bias.to(q.dtype)


def ladder(buckets: int, max_distance: int) -> list[int]:
    """The bucket of each distance from 0 to `max_distance`, computed in float32 as T5 does, to fit its weights."""
    exact = buckets // 2
    far = torch.arange(max_distance + 1, device="cpu")
    wide = (far.clamp(min=1).float() / exact).log() / math.log(max_distance / exact) * (buckets - exact)
    return torch.where(far < exact, far, (exact + wide.long()).clamp(max=buckets - 1)).tolist()


def within_segments(
    segments: Sequence[tuple[Callable[[Span], Callable[[Tensor], Tensor] | None], int, int]],
) -> Callable[[Span], Callable[[Tensor], Tensor] | None]:
    """The biases of several schemes in one sequence, each within its own segment of tokens [first, last).

    Between tokens of different segments nothing is added.
    """

    def bias(span: Span) -> Callable[[Tensor], Tensor] | None:
        biases = []
        for scheme, first, last in segments:
            if (added := scheme(span)) is not None:
                query = (span.index >= first) & (span.index < last)
                key = (span.key_index >= first) & (span.key_index < last)
                biases.append((added, query[:, None, :, None] & key[:, None, None, :]))
        if not biases:
            return None
        return lambda q: _sum([added(q).masked_fill(~inside, 0) for added, inside in biases])

    return bias


def _sum(terms: list[Tensor]) -> Tensor:
    first, *rest = terms
    for term in rest:
        first = first + term
    return first
