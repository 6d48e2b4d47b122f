"""Inputs on which attention heads are scored: windows of a text, texts, images."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ..config import UserError
from ..inference.attention_layouts import Inputs
from ..inference.text_batches import text_ids
from ..models.parts import normalize

COUNT = 32  # inputs, spread evenly over what there is
LONGEST_INPUT_TOKENS = 256  # tokens of an input
SHORTEST_TEXT_TOKENS = 8  # tokens of a text, where the model can read as many
PARTS = 8  # a short text is cut into, so that there is an interval


def windows(ids: np.ndarray, context: int, before: Sequence[int] = (), after: Sequence[int] = ()) -> list[Inputs]:
    """Parts of a long text, spread evenly over it; a short one is cut smaller, so that there are several.

    Special tokens stand `before` and `after` each.
    """
    context -= len(before) + len(after)
    length = min(context, LONGEST_INPUT_TOKENS, max(SHORTEST_TEXT_TOKENS, len(ids) // PARTS))
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
    """Which examples to take: all, or COUNT of them, evenly spaced."""
    return np.linspace(0, total - 1, min(total, COUNT)).astype(int)


def row(ids: Any) -> torch.Tensor:
    """Tokens as a batch of one."""
    return torch.from_numpy(np.asarray(ids, np.int64)[None])


def whole_texts(texts: Sequence[str], tokenizer: Any, context: int) -> list[Inputs]:
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
