"""Position schemes that bias the scores: the distance between a query and a key, in three ways of counting it."""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor, nn

from .positions import Positions
from .probe import OFF, Off
from .span import Span


def steps(span: Span, axes: int) -> Num[Tensor, "#B T S a"]:
    """How far each key stands from each query, along each axis: below zero behind it, above zero ahead."""
    return span.key_coords[:, None, :, :axes] - span.coords[:, :, None, :axes]


class Alibi(Positions):
    """Each head subtracts a slope of its own for every step between query and key; nothing is learned.

    The slopes of n heads are 2^(−8/n), 2^(−16/n), …, 1/256 where n is a power of two; else those of the power below,
    and every other one of the power above. Along several axes the steps are counted as the crow flies.
    """

    NAMES = {"bias": ("B h T S", "B", "−m_h·|j − i|")}

    def __init__(self, heads: int, axes: int = 1):
        super().__init__()
        self.slopes, self.axes = slopes(heads), axes

    def bias(self, span: Span, probe: Off = OFF) -> Callable[[Tensor], Tensor]:
        apart = steps(span, self.axes).to(torch.float32)
        far = apart[..., 0].abs() if self.axes == 1 else apart.square().sum(-1).sqrt()
        slope = torch.tensor(self.slopes, device=far.device)[:, None, None]
        bias = probe("bias", far[:, None] * -slope)
        return lambda q: bias.to(q.dtype)


def slopes(heads: int) -> list[float]:
    """The slopes of the paper, for any number of heads."""
    power = 1 << (heads.bit_length() - 1)
    first = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-4 * i / power) for i in range(1, 2 * power + 1, 2)]
    return first + between[: heads - power]


class Shaw(Positions):
    """A learned vector for each distance is added to the key: the score gains q·a/√d, so it reads what is asked.

    Distances beyond `reach` count as `reach`. One table serves all heads and blocks; each axis has its own, and the
    vectors are added.
    """

    NAMES = {"distance": ("B T S a", "r", "clip(j − i)")}
    WEIGHTS = {"table": "a_K"}

    def __init__(self, head_width: int, axes: int = 1, reach: int = 16):
        super().__init__()
        self.reach = reach
        self.table = nn.Parameter(torch.empty(axes, 2 * reach + 1, head_width))
        nn.init.normal_(self.table, std=0.02)

    def bias(self, span: Span, probe: Off = OFF) -> Callable[[Tensor], Tensor]:
        apart = steps(span, len(self.table)).long().clamp(-self.reach, self.reach)
        row = probe("distance", apart) + self.reach

        def read(q: Float[Tensor, "B h T d"]) -> Float[Tensor, "B h T S"]:
            shape = (*q.shape[:3], row.shape[2])
            dots = [
                (q @ table.T).gather(-1, row[:, None, :, :, axis].expand(shape))
                for axis, table in enumerate(self.table.to(q.dtype))
            ]
            return _sum(dots) / math.sqrt(q.shape[-1])

        return read


class T5(Positions):
    """A learned number for each head and each bucket of distances; the scores are not divided by √d.

    Half the buckets are one distance each, the others ever wider up to `reach`, where all further ones join the last.
    Keys ahead of the query have buckets of their own if it sees `both` ways. Each axis has its own table.
    """

    NAMES = {"bucket": ("B T S a", "b", "bucket(j − i)"), "bias": ("B h T S", "B", "Σ_a table_a[b]")}
    WEIGHTS = {"table": "B_h"}

    scale = 1.0

    def __init__(self, heads: int, axes: int = 1, both: bool = True, buckets: int = 32, reach: int = 128):
        super().__init__()
        self.both, self.buckets, self.reach = both, buckets // 2 if both else buckets, reach
        self.ladder = ladder(self.buckets, reach)
        self.table = nn.Parameter(torch.empty(axes, buckets, heads))
        nn.init.normal_(self.table, std=0.02)

    def bucket(self, apart: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
        """The bucket of each distance."""
        far = apart.abs() if self.both else -apart.clamp(max=0)
        found = far.new_tensor(self.ladder)[far.clamp(max=self.reach)]
        return found + (apart > 0) * self.buckets if self.both else found

    def bias(self, span: Span, probe: Off = OFF) -> Callable[[Tensor], Tensor]:
        bucket = probe("bucket", self.bucket(steps(span, len(self.table)).long()))
        added = _sum([F.embedding(bucket[..., axis], table) for axis, table in enumerate(self.table)])
        bias = probe("bias", added.permute(0, 3, 1, 2))
        return lambda q: bias.to(q.dtype)


def ladder(buckets: int, reach: int) -> list[int]:
    """The bucket of each distance from 0 to `reach`, in float32 as T5 works it out: its weights were trained so."""
    exact = buckets // 2
    far = torch.arange(reach + 1, device="cpu")
    wide = (far.clamp(min=1).float() / exact).log() / math.log(reach / exact) * (buckets - exact)
    return torch.where(far < exact, far, (exact + wide.long()).clamp(max=buckets - 1)).tolist()


def apart(
    parts: Sequence[tuple[Callable[[Span], Callable[[Tensor], Tensor] | None], int, int]],
) -> Callable[[Span], Callable[[Tensor], Tensor] | None]:
    """Several schemes' biases in one sequence, each among the tokens from its first index to before its last.

    Between tokens of different parts nothing is added.
    """

    def bias(span: Span) -> Callable[[Tensor], Tensor] | None:
        found = []
        for scheme, first, last in parts:
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
