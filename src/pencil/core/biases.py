"""Position schemes that bias the scores by the distance between query and key: ALiBi, Shaw and T5."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from .positions import AXES, Positions
from .probe import OFF, Probe
from .span import Span


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
        found = self.ladder.to(far.device)[far.clamp(max=self.max_distance)]
        return found + (distance > 0) * self.buckets if self.both else found

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
        found = []
        for scheme, first, last in segments:
            if (added := scheme(span)) is not None:
                query = (span.index >= first) & (span.index < last)
                key = (span.key_index >= first) & (span.key_index < last)
                found.append((added, query[:, None, :, None] & key[:, None, None, :]))
        if not found:
            return None
        return lambda q: _sum([added(q).masked_fill(~inside, 0) for added, inside in found])

    return bias


def _sum(terms: list[Tensor]) -> Tensor:
    first, *rest = terms
    for term in rest:
        first = first + term
    return first
