"""Tokens that look only at one another: groups of them, each a row of a batch, so that no mask is needed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from .span import Span


@dataclass(frozen=True)
class Grouping:
    """Tokens that look only at one another: `count` groups of `size`, in this order of the strips, and back."""

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
        """Where the tokens of each group stand, in the world they all share; and their part of its turn."""

        def part(t: Num[Tensor, "1 *h N k"]) -> Num[Tensor, "b *h n k"]:
            groups = t[..., self.order, :].unflatten(-2, (self.count, self.size)).movedim(-3, 1)
            return groups.expand(rows, *groups.shape[1:]).flatten(0, 1)

        turn = None if span.turn is None else (part(span.turn[0]), part(span.turn[1]))
        within = Span.whole(self.size, coords=part(span.coords), device=span.coords.device)
        return replace(within, turn=turn, key_turn=turn, scale=span.scale)


def frames_and_seats(grid: Sequence[int], device: torch.device) -> tuple[Grouping, Grouping]:
    """The strips of each frame of a video; and those that stand at one seat in all frames."""
    frames, there = grid[0], torch.arange(prod(grid), device=device)
    across, back = there.unflatten(0, (frames, -1)).T.flatten(), there.unflatten(0, (-1, frames)).T.flatten()
    return Grouping(there, there, frames), Grouping(across, back, prod(grid[1:]))


def windows(grid: Sequence[int], sizes: Sequence[int], moved: Sequence[int], device: torch.device) -> Grouping:
    """The strips of each window of these sizes, the windows moved by so much along each side, around the edge."""
    there, axes = torch.arange(prod(grid), device=device), list(range(len(grid)))
    counts = [side // size for side, size in zip(grid, sizes, strict=True)]
    bands = [n for pair in zip(counts, sizes, strict=True) for n in pair]
    order = there.reshape(grid).roll([-n for n in moved], axes).reshape(bands)
    order = order.permute([*range(0, len(bands), 2), *range(1, len(bands), 2)]).flatten()
    back = there.reshape(*counts, *sizes).permute([i for axis in axes for i in (axis, axis + len(grid))])
    return Grouping(order, back.reshape(grid).roll(list(moved), axes).flatten(), prod(counts))
