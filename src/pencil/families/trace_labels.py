"""Labels along the axes of a trace: patches of an image, words of a text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..config import UserError


def grid_labels(name: str, grid: Sequence[int]) -> list[str]:
    """A label for each cell of a grid, in reading order, counted from 1: "patch 1,2" is in row 1 and column 2."""
    return [f"{name} {','.join(str(i + 1) for i in at)}" for at in np.ndindex(*grid)]


def patch_facts(first: int, grid: Sequence[int]) -> dict[str, Any]:
    """What pictures of the attention need: the first token that is a patch, and the grid of patches."""
    return {"first_patch": first, "grid": list(grid)}


def check_context(ids: Sequence[int], context: int, what: str) -> None:
    if len(ids) > context:
        raise UserError(f"the {what} has {len(ids)} tokens and the context is {context}; shorten it")
