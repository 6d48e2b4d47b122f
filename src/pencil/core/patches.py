"""An image or a video cut into patches, and joined again: fold, swap, glue, and their inverses.

FOLD splits each side into (band, offset within the band): a reshape, so nothing moves. SWAP brings the band axes
together and the offset axes together: a permute, which makes each patch a square. GLUE flattens each square into one
row, its values in the order (channel, row, column). Sides may differ, and there may be any number of them.
"""

from collections.abc import Callable, Sequence
from math import prod

import torch
from jaxtyping import Num, Shaped
from torch import Tensor


def fold(picture: Shaped[Tensor, "B C *sides"], patch: Sequence[int]) -> Shaped[Tensor, "B C *bands"]:
    """(B, C, H, W) to (B, C, H/p, p, W/p, p): a reshape."""
    if not isinstance(picture, Tensor):
        kind = type(picture).__name__
        raise ValueError(f"fold takes a tensor (B, C, H, W), not the type {kind}: pencil.listings.fold takes arrays")
    check_patch(patch)
    sides = picture.shape[2:]
    if len(sides) != len(patch) or any(side % p for side, p in zip(sides, patch, strict=False)):
        raise ValueError(f"a picture of {by(sides)} cannot be cut into patches of {by(patch)}")
    bands = [size for side, p in zip(sides, patch, strict=True) for size in (side // p, p)]
    return picture.reshape(*picture.shape[:2], *bands)


def check_patch(patch: Sequence[int]) -> None:
    """Refuse one number for a patch, which has a size along each side."""
    if isinstance(patch, int):
        raise ValueError(f"a patch has a size along each side: ({patch}, {patch}) instead of {patch}")


def swap(folded: Shaped[Tensor, "B C *bands"]) -> Shaped[Tensor, "B *grid"]:
    """(B, C, H/p, p, W/p, p) to (B, H/p, W/p, C, p, p): the band axes first, then those within a patch."""
    axes = range(2, folded.ndim)
    return folded.permute(0, *axes[::2], 1, *axes[1::2])


def glue(swapped: Shaped[Tensor, "B *grid"], count: int) -> Shaped[Tensor, "B N c"]:
    """Flattened into `count` rows: after the swap, one patch a row."""
    return swapped.reshape(swapped.shape[0], count, -1)


def unglue(patches: Shaped[Tensor, "B N c"], grid: Sequence[int], patch: Sequence[int]) -> Shaped[Tensor, "B *grid"]:
    """The inverse of `glue`: rows back to (band, band, channel, row, column)."""
    return patches.reshape(patches.shape[0], *grid, -1, *patch)


def unswap(swapped: Shaped[Tensor, "B *grid"]) -> Shaped[Tensor, "B C *bands"]:
    """The inverse of `swap`."""
    n = (swapped.ndim - 2) // 2
    pairs = [axis for i in range(n) for axis in (1 + i, 2 + n + i)]
    return swapped.permute(0, 1 + n, *pairs)


def unfold(folded: Shaped[Tensor, "B C *bands"]) -> Shaped[Tensor, "B C *sides"]:
    """The inverse of `fold`."""
    sizes = folded.shape[2:]
    return folded.reshape(*folded.shape[:2], *(n * p for n, p in zip(sizes[::2], sizes[1::2], strict=True)))


def cut(
    picture: Shaped[Tensor, "B C *sides"], patch: Sequence[int], swap: Callable[[Tensor], Tensor] = swap
) -> Shaped[Tensor, "B N c"]:
    """The flattened patches of an image, in reading order. Another `swap` can be given, to show what it does."""
    folded = fold(picture, patch)
    return glue(swap(folded), prod(grid_of(picture.shape[2:], patch)))


def join(patches: Shaped[Tensor, "B N c"], sides: Sequence[int], patch: Sequence[int]) -> Shaped[Tensor, "B C *sides"]:
    """The image from its patches: the inverse of `cut`."""
    return unfold(unswap(unglue(patches, grid_of(sides, patch), patch)))


def grid_of(sides: Sequence[int], patch: Sequence[int]) -> tuple[int, ...]:
    """The number of patches along each side."""
    return tuple(side // p for side, p in zip(sides, patch, strict=True))


def patch_sizes(channels: int, grid: Sequence[int], patch: Sequence[int]) -> dict[str, int]:
    """The size of each axis of folded patches, by its letter."""
    letters = zip("zyx"[-len(grid) :], grid, strict=True), zip("kuv"[-len(grid) :], patch, strict=True)
    return {"C": channels, **dict(letters[0]), **dict(letters[1])}


def grid_positions(grid: Sequence[int], device: torch.device | None = None) -> Num[Tensor, "N a"]:
    """The position of each patch: (row, column) in an image, (frame, row, column) in a video; in reading order."""
    lines = [torch.arange(n, device=device) for n in grid]
    return torch.stack(torch.meshgrid(*lines, indexing="ij"), -1).flatten(0, -2)


def by(sizes: Sequence[int]) -> str:
    return "×".join(map(str, sizes))
