"""Masks as a caller gives them: a named mask, booleans, ones and zeros, or zeros and −∞."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor

from .masks import Mask, Seen

GivenMask = Mask | Bool[Tensor, "..."] | Num[Tensor, "..."]


def seen_by(mask: GivenMask, q: Float[Tensor, "..."], scores: tuple[int, int, int, int]) -> Seen:
    """A mask over scores of these sizes (B, h, T, S), for the queries as the caller gave them.

    A mask with three axes is one for each row of the batch. Where the queries have heads, that could as well be one for
    each head, so it is refused there.
    """
    if isinstance(mask, Mask):
        return replace(_over(mask, scores[2], scores[3], q.device), given=True)
    allowed = booleans(mask)
    if allowed.ndim == 3 and q.ndim == 4:
        raise ValueError(
            f"a mask of shape {tuple(allowed.shape)} could be one for each row of the batch or for each head: "
            "give mask[:, None] for the rows, mask[None] for the heads"
        )
    if allowed.ndim in (2, 3):
        allowed = allowed[None, None] if allowed.ndim == 2 else allowed[:, None]
    fits = allowed.ndim == 4 and allowed.shape[-1] == scores[-1]
    if not (fits and all(have in (1, want) for have, want in zip(allowed.shape, scores, strict=True))):
        rows, heads, count, total = scores
        raise ValueError(
            f"a mask of shape {tuple(mask.shape)} does not fit {count} queries and {total} keys in {rows} rows and "
            f"{heads} heads: give ({count}, {total}) or ({rows}, {heads}, {count}, {total}), 1 where all are alike"
        )
    return replace(Seen.dense(allowed), given=True)


def booleans(mask: Num[Tensor, "..."] | Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """True where a query attends to a key: booleans as they are, 1 of ones and zeros, 0 of zeros and −∞."""
    if mask.dtype == torch.bool:
        return mask
    zero = mask == 0
    if mask.is_floating_point() and mask.numel() and bool(zero.all()):
        raise ValueError("a mask of zeros alone masks every key as 1 and 0, and none as 0 and −∞: give it as booleans")
    if bool((zero | (mask == 1)).all()):
        return ~zero
    if bool((zero | (mask == -torch.inf)).all()):
        return zero
    other = mask[~zero & (mask != 1) & (mask != -torch.inf)]
    has = f"has {other[0].item():g}" if len(other) else "mixes 1 and −∞"
    raise ValueError(
        f"a mask holds True and False, 1 and 0 (1 attends), or 0 and −∞ (added), and this one {has}; what else is to "
        "be added to the scores is a bias"
    )


def _over(mask: Mask, count: int, total: int, device: torch.device) -> Seen:
    """A named mask; fewer queries than keys are the last of the sequence, as in decoding with a cache."""
    if mask.kernel_form(max(count, total)) == "all":
        return Seen("all", lambda: torch.ones(1, 1, count, total, dtype=torch.bool, device=device))
    if count > total:
        raise ValueError(f"{mask.name} over {count} queries and {total} keys: there is no key for the first of them")
    keys = torch.arange(total, device=device)[None]
    return mask.over(keys[:, total - count :], keys, total - count)
