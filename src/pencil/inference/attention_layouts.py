"""Attention layouts: the keys a token may attend to, and those that count for a score of a head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..core.masks import Mask

Inputs = tuple[Tensor, ...]  # the inputs of one forward pass, a batch of one
SELF_ATTENTION = "blocks.{}.attn.pattern"


class Layout(NamedTuple):
    """The attention of one sequence: the keys a token may see, those a score counts, and which queries count."""

    allowed: Bool[Tensor, "T S"]
    targets: dict[str, Bool[Tensor, "T S"]]
    rows: Bool[Tensor, "T"]


class AttentionGroup(NamedTuple):
    """Blocks with the same layout: their name, the trace name of their patterns, and the layout."""

    name: str
    pattern: str
    layout: Layout


@dataclass(frozen=True)
class HeadProfile:
    """What `pencil heads` needs of a family."""

    groups: Callable[[Any, Inputs], list[AttentionGroup]]  # of a model and its inputs
    held_out: Callable[[Any, Any], list[Inputs]]  # inputs from a loaded run and its task
    from_text: Callable[[Any, str], list[Inputs]] | None = None  # inputs from a text, where a text is all it reads
    unit: str = "texts"  # what the inputs are
    # first tokens and first text index of a sequence written twice; without it induction is not measured
    induction: Callable[[Any, Sequence[Inputs]], tuple[list[int], int]] | None = None


def choices(layout: Layout) -> dict[str, tuple[Bool[Tensor, "T S"], Bool[Tensor, "T"]]]:
    """For each score the keys that count and the queries that could attend to them or elsewhere."""
    found = {}
    for name, target in layout.targets.items():
        target = target & layout.allowed
        rows = layout.rows & target.any(-1) & (target.sum(-1) < layout.allowed.sum(-1))
        if rows.any():
            found[name] = target, rows
    return found


def shares(pattern: Float[Tensor, "h T S"], layout: Layout) -> dict[str, Float[Tensor, "h"]]:
    """The share of each head's attention that falls on the keys that count."""
    return {name: (pattern * target).sum(-1)[:, rows].mean(-1) for name, (target, rows) in choices(layout).items()}


def chances(layout: Layout) -> dict[str, float]:
    """The same for weights spread at random over the allowed keys: the share of the keys themselves."""
    seen = layout.allowed.sum(-1)
    return {
        name: float((target.sum(-1) / seen)[rows].double().mean()) for name, (target, rows) in choices(layout).items()
    }


def breadth(pattern: Float[Tensor, "h T S"], layout: Layout) -> Float[Tensor, "h"]:
    """The entropy of each query's attention as a share of the largest possible; 1 is uniform."""
    seen = layout.allowed.sum(-1)
    rows = layout.rows & (seen > 1)
    return (torch.special.entr(pattern).sum(-1)[:, rows] / seen[rows].to(pattern).log()).mean(-1)


def all_scores(pattern: Float[Tensor, "h T S"], layout: Layout) -> dict[str, Float[Tensor, "h"]]:
    """Every share, and the breadth."""
    return shares(pattern, layout) | {"broad": breadth(pattern, layout)}


def line(mask: Mask, length: int, start: int = 0) -> Layout:
    """Tokens in a line; those before `start` are no text, and only the text's queries count."""
    at = torch.arange(length)
    gap, key = at[:, None] - at, at.expand(length, -1)
    text = key >= start
    targets = {"previous": (gap == 1) & text, "next": gap == -1, "first": (key == start) & (gap != 0), "own": gap == 0}
    return Layout(_allowed(mask, at), targets, at >= start)


def every(queries: int, keys: int, targets: dict[str, Bool[Tensor, "T S"]]) -> Layout:
    """Every query may see every key."""
    return Layout(torch.ones(queries, keys, dtype=torch.bool), targets, torch.ones(queries, dtype=torch.bool))


def repeated(mask: Mask, count: int, start: int) -> Layout:
    """A sequence written twice: each token of the second half may attend to what came after it in the first."""
    at = torch.arange(start + 2 * count)
    key, second = at.expand(len(at), -1), at >= start + count
    after = (at[:, None] - at == count - 1) & (key > start) & (key < start + count)
    return Layout(_allowed(mask, at), {"induction": after}, second)


def _allowed(mask: Mask, at: Int[Tensor, "T"]) -> Bool[Tensor, "T T"]:
    return mask(at[:, None], at[None]).expand(len(at), len(at))
