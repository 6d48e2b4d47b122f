"""The groups of patches in which a DiT attends: which they are, and what its formulas call them."""

from typing import Any

import torch

from ..core.groups import Grouping, frames_and_positions, windows
from ..core.probe import Name, renamed, spelled

_SECOND = {"B": "B₂", "r": "r₂", "b": "b₂", "r_a": "r₂_a", "b_a": "b₂_a"}  # the biases of every other block


def groupings(c: Any, device: torch.device) -> list[Grouping | None]:
    """The attention groups of the blocks, used in rotation: none (all patches); frames, then positions across frames;
    windows, then windows shifted by half their size."""
    if c.attention == "full":
        return [None]
    if c.attention == "factored":
        return [*frames_and_positions(c.grid, device)]
    sizes = [min(c.window, side) for side in c.grid]
    half = [size // 2 if size < side else 0 for size, side in zip(sizes, c.grid, strict=True)]
    return [windows(c.grid, sizes, moved, device) for moved in ([0] * len(half), half)]


def symbols_of_groups(c: Any) -> dict[str, dict[str, str]]:
    """The symbols of every other block, whose groups are others."""
    return {} if c.attention == "full" else {f"blocks.{i}": _SECOND for i in range(1, c.depth, 2)}


def declare_groups(model: Any) -> None:
    """Name the axes of grouped attention, where a group is a row of the batch, in the blocks and in the bias."""
    c = model.config
    if c.attention == "full":
        return
    within = {"B": "B·w", "T": "n", "S": "n"}
    then = {"B": "B·n", "T": "w", "S": "w"} if c.attention == "factored" else within
    model.LETTERS = model.LETTERS | {f"blocks.{i}": then if i % 2 else within for i in range(c.depth)}
    scheme = getattr(model.positions, "NAMES", {})
    biased = {k: Name(*v) for k, v in scheme.items() if k not in ("embedding", "angles")}
    model.INNER = {f"positions.{name}": spelled(entry, within)[:3] for name, entry in biased.items()}
    second = {name: renamed(spelled(entry, then), _SECOND)[:3] for name, entry in biased.items()}
    model.NAMES = model.NAMES | {f"positions.next.{name}": entry for name, entry in second.items()}
    for i in range(c.depth):
        model.NAMES = model.NAMES | {
            f"blocks.{i}.input": ("B T D", "X_in", "regroup(Xˡ⁻¹)"),
            f"blocks.{i}.condition": ("B D", "c_in", "repeat(c)"),
        }
