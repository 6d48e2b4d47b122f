"""Attention layouts: the keys a token may attend to, and those that count for a score of a head.

And the inputs on which heads are scored: windows of a text, texts, images.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..config import UserError
from ..core.masks import Mask
from ..data.tokenizers.tokenizer import Tokenizer
from ..models.build import normalize
from .text_batches import text_ids

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
    counted = {}
    for name, target in layout.targets.items():
        target = target & layout.allowed
        rows = layout.rows & target.any(-1) & (target.sum(-1) < layout.allowed.sum(-1))
        if rows.any():
            counted[name] = target, rows
    return counted


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


MAX_INPUTS = 32  # inputs, spread evenly over what there is
LONGEST_INPUT_TOKENS = 256  # tokens of an input
SHORTEST_TEXT_TOKENS = 8  # tokens of a text, where the model can read as many
SHORT_TEXT_PARTS = 8  # a short text is cut into, so that there is an interval


def windows(ids: np.ndarray, context: int, before: Sequence[int] = (), after: Sequence[int] = ()) -> list[Inputs]:
    """Parts of a long text, spread evenly over it; a short one is cut smaller, so that there are several.

    Special tokens stand `before` and `after` each.
    """
    context -= len(before) + len(after)
    length = min(context, LONGEST_INPUT_TOKENS, max(SHORTEST_TEXT_TOKENS, len(ids) // SHORT_TEXT_PARTS))
    if length < 3:
        raise UserError(f"a context of {context} tokens leaves a head nothing to choose between")
    if len(ids) < 2 * length:
        raise UserError(
            f"the text has {len(ids)} tokens, and at least {2 * length} are needed: two parts of {length}, so that the "
            "scores have an interval"
        )
    starts = spread(len(ids) // length) * length
    return [(row([*before, *ids[at : at + length], *after]),) for at in starts.tolist()]


def spread(total: int) -> np.ndarray:
    """Which examples to take: all, or MAX_INPUTS of them, evenly spaced."""
    return np.linspace(0, total - 1, min(total, MAX_INPUTS)).astype(int)


def row(ids: Any) -> torch.Tensor:
    """Tokens as a batch of one."""
    return torch.from_numpy(np.asarray(ids, np.int64)[None])


def whole_texts(texts: Sequence[str], tokenizer: Tokenizer, context: int) -> list[Inputs]:
    """Texts as a classifier reads them, cut where they are too long."""
    rows = [text_ids(tokenizer, text, min(context, LONGEST_INPUT_TOKENS)) for text in texts]
    rows = [ids for ids in rows if len(ids) > 2]
    if len(rows) < 2:
        raise UserError("at least two texts of two tokens are needed, one a line")
    return [(row(rows[i]),) for i in spread(len(rows)).tolist()]


def held_out_images(task: Any) -> tuple[list[torch.Tensor], list[Any]]:
    """Held-out images, each as a batch of one, and their targets."""
    which = spread(len(task.data.test)).tolist()
    pictures, targets = task.data.test.take(which, task.transform.without_augmentation)
    one = partial(normalize, mean=task.transform.mean, std=task.transform.std)
    return [one(torch.from_numpy(np.array(picture[None]))) for picture in pictures], targets
