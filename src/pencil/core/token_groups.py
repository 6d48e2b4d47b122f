"""Groups of tokens that attend only to one another. Each group is a row of the batch, so that no mask is needed.

Attention in groups is a batch of groups. Factored and windowed attention reorder the patches and run each group as a
row of a batch (`Grouping`), so no block knows of them and no mask is built; the coordinates go with the patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from .span import Span


@dataclass(frozen=True)
class Grouping:
    """`count` groups of `size` tokens that attend only to one another: the order that gathers them, and its inverse."""

    order: Int[Tensor, "N"]
    back: Int[Tensor, "N"]
    count: int

    @property
    def size(self) -> int:
        return len(self.order) // self.count

    def gather(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "b n D"]:
        """Each group as a row of a batch."""
        return x[:, self.order].unflatten(1, (self.count, self.size)).flatten(0, 1)

    def scatter(self, x: Float[Tensor, "b n D"]) -> Float[Tensor, "B N D"]:
        """Undoes `gather`."""
        return x.unflatten(0, (-1, self.count)).flatten(1, 2)[:, self.back]

    def within(self, span: Span, rows: int) -> Span:
        """The span of each group, in the coordinates of the whole; with its part of the rotation."""

        def part(t: Num[Tensor, "1 *h N k"]) -> Num[Tensor, "b *h n k"]:
            groups = t[..., self.order, :].unflatten(-2, (self.count, self.size)).movedim(-3, 1)
            return groups.expand(rows, *groups.shape[1:]).flatten(0, 1)

        rotation = None if span.rotation is None else (part(span.rotation[0]), part(span.rotation[1]))
        within = Span.whole(self.size, coords=part(span.coords), device=span.coords.device)
        return replace(within, rotation=rotation, key_rotation=rotation, adjacent=span.adjacent, scale=span.scale)


def frames_and_positions(grid: Sequence[int], device: torch.device) -> tuple[Grouping, Grouping]:
    """Two groupings of a video: the patches of each frame, and the patches at one position across all frames."""
    frames, order = grid[0], torch.arange(prod(grid), device=device)
    across, back = order.unflatten(0, (frames, -1)).T.flatten(), order.unflatten(0, (-1, frames)).T.flatten()
    return Grouping(order, order, frames), Grouping(across, back, prod(grid[1:]))


def windows(grid: Sequence[int], sizes: Sequence[int], moved: Sequence[int], device: torch.device) -> Grouping:
    """Windows of these sizes, cyclically shifted by `moved` patches along each side."""
    patches, axes = torch.arange(prod(grid), device=device), list(range(len(grid)))
    counts = [side // size for side, size in zip(grid, sizes, strict=True)]
    bands = [n for pair in zip(counts, sizes, strict=True) for n in pair]
    order = patches.reshape(grid).roll([-n for n in moved], axes).reshape(bands)
    order = order.permute([*range(0, len(bands), 2), *range(1, len(bands), 2)]).flatten()
    back = patches.reshape(*counts, *sizes).permute([i for axis in axes for i in (axis, axis + len(grid))])
    return Grouping(order, back.reshape(grid).roll(list(moved), axes).flatten(), prod(counts))
