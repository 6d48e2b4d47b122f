"""A picture or a video cut into strips, one a patch, and joined again: fold, swap, glue, and each move undone.

FOLD gives every dot a longer address: each side is read as (band, place within the band). SWAP brings the bands
together and the places together; it is what makes a strip a square. GLUE writes each square as one row, its numbers in
the order (channel, place down, place across). Sides may differ, and there may be any number of them.
"""

from collections.abc import Callable, Sequence
from math import prod

import torch
from jaxtyping import Num, Shaped
from torch import Tensor


def fold(picture: Shaped[Tensor, "B C *sides"], patch: Sequence[int]) -> Shaped[Tensor, "B C *bands"]:
    """(B, C, H, W) to (B, C, H/p, p, W/p, p): nothing moves, each dot is renamed."""
    sides = picture.shape[2:]
    if len(sides) != len(patch) or any(side % p for side, p in zip(sides, patch, strict=False)):
        raise ValueError(f"a picture of {by(sides)} cannot be cut into patches of {by(patch)}")
    bands = [size for side, p in zip(sides, patch, strict=True) for size in (side // p, p)]
    return picture.reshape(*picture.shape[:2], *bands)


def swap(folded: Shaped[Tensor, "B C *bands"]) -> Shaped[Tensor, "B *grid"]:
    """(B, C, H/p, p, W/p, p) to (B, H/p, W/p, C, p, p): the bands side by side, then what is within them."""
    axes = range(2, folded.ndim)
    return folded.permute(0, *axes[::2], 1, *axes[1::2])


def glue(swapped: Shaped[Tensor, "B *grid"], count: int) -> Shaped[Tensor, "B N c"]:
    """`count` rows, each read straight off: with the swap before it, one square a row."""
    return swapped.reshape(swapped.shape[0], count, -1)


def unglue(strips: Shaped[Tensor, "B N c"], grid: Sequence[int], patch: Sequence[int]) -> Shaped[Tensor, "B *grid"]:
    """Undoes `glue`: rows back to (band, band, channel, place, place)."""
    return strips.reshape(strips.shape[0], *grid, -1, *patch)


def unswap(swapped: Shaped[Tensor, "B *grid"]) -> Shaped[Tensor, "B C *bands"]:
    """Undoes `swap`."""
    n = (swapped.ndim - 2) // 2
    pairs = [axis for i in range(n) for axis in (1 + i, 2 + n + i)]
    return swapped.permute(0, 1 + n, *pairs)


def unfold(folded: Shaped[Tensor, "B C *bands"]) -> Shaped[Tensor, "B C *sides"]:
    """Undoes `fold`."""
    sizes = folded.shape[2:]
    return folded.reshape(*folded.shape[:2], *(n * p for n, p in zip(sizes[::2], sizes[1::2], strict=True)))


def cut(
    picture: Shaped[Tensor, "B C *sides"], patch: Sequence[int], swap: Callable[[Tensor], Tensor] = swap
) -> Shaped[Tensor, "B N c"]:
    """The strips of a picture, in the order of reading. Handing over another `swap` shows what it is for."""
    folded = fold(picture, patch)
    return glue(swap(folded), prod(grid_of(picture.shape[2:], patch)))


def join(strips: Shaped[Tensor, "B N c"], sides: Sequence[int], patch: Sequence[int]) -> Shaped[Tensor, "B C *sides"]:
    """The picture of its strips: undoes `cut`."""
    return unfold(unswap(unglue(strips, grid_of(sides, patch), patch)))


def grid_of(sides: Sequence[int], patch: Sequence[int]) -> tuple[int, ...]:
    """How many patches stand along each side."""
    return tuple(side // p for side, p in zip(sides, patch, strict=True))


def seats(grid: Sequence[int], device: torch.device | None = None) -> Num[Tensor, "N a"]:
    """Where each strip stands: (row, column) for a picture, (frame, row, column) for a video; in reading order."""
    lines = [torch.arange(n, device=device) for n in grid]
    return torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).flatten(0, -2)


def by(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes))
