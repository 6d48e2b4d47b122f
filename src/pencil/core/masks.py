"""Attention masks: elementwise predicates of (query index, key index), combined by &.

The same predicate serves the plain route, a dense mask and FlexAttention's mask_mod. `Mask.over` picks the cheapest
exact form: no mask, the kernel's causal flag, a prefix in two calls, a block mask, the filled slots of a decode step,
or a dense matrix. `seen_by` takes a mask as a caller gives it: a named one, booleans, ones and zeros, or zeros and −∞.

The cheapest exact kernel. A `Mask` knows the kernel form it has over tokens 0…n−1: no mask, the kernel's own causal
flag, or neither. `Mask.over` turns it into no mask, the flag, FlexAttention's blocks (on CUDA, in training), or a dense
matrix; one new token after a full cache needs no mask at all. `pencil bench attention` checks each route against
float64 and times it. A prefix outside CUDA training is two calls: the first tokens among themselves without a mask, and
the rest over all keys up to their own; no square mask is ever built for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

# The index of padding and of empty cache slots. It is larger than every real index, so causal masks exclude it; for
# the other masks `padding` does.
NOWHERE = 1 << 30

Indices = Int[Tensor, "..."]


@dataclass(frozen=True)
class Rows:
    """How much each row of a cache holds, and kernels for steps of one token a row.

    `write(keys, values, k, v, slots)` writes the tokens into the cache. `attend(q, k, v, scale, index, key_index, held,
    first, within)`: a query attends to keys up to its index, or below `first`, that are fewer than `within` steps away.
    """

    held: Int[Tensor, "B"]
    attend: Callable[..., Tensor]
    write: Callable[..., None] | None = None


@dataclass(frozen=True)
class Seen:
    """Which keys each query attends to, in the form the fused route takes."""

    route: str  # "all", "causal", "prefix", "blocks", "rows" or "dense"
    matrix: Callable[[], Bool[Tensor, "#B #h #T S"]]
    allowed: Bool[Tensor, "#B #h #T S"] | None = None
    blind: Bool[Tensor, "#B #h #T 1"] | None = None
    blocks: Any = None
    first: int = 0  # the length of a prefix that attends in both directions; later tokens are causal
    attend: Callable[..., Tensor] | None = None  # (q, k, v, scale): the kernel of a decode step
    given: bool = False  # by a caller, so that keys and values behind it may be anything, NaN too

    @staticmethod
    def dense(allowed: Bool[Tensor, "#B #h #T S"]) -> "Seen":
        """A query whose keys are all masked is `blind`. Kernels differ on it: it attends to all, then is zeroed."""
        blind = ~allowed.any(-1, keepdim=True)
        return Seen("dense", lambda: allowed, allowed | blind, blind)


def _no_form(n: int) -> None:
    return None


@dataclass(frozen=True, eq=False)
class Mask:
    """A named predicate, with the properties that let the cheapest exact form be chosen.

    `kernel_form`: over tokens 0 … n−1 it equals "all", "causal", or neither (None). `behind`: each token attends to all
    before it. `always`: nothing is masked, not even padding. `first`: the length of a prefix that attends in both
    directions, where all later tokens are causal. `bounds`: (first, within) of a mask that `Rows` describes. `within`:
    a window, of so many steps.
    """

    name: str
    sees: Callable[[Indices, Indices], Bool[Tensor, "..."]]
    kernel_form: Callable[[int], str | None] = _no_form
    behind: bool = False
    always: bool = False
    first: int = 0
    bounds: tuple[int, int] | None = None
    within: int | None = None
    words: str = ""  # when query i attends to key j, as formulas write it

    def __call__(self, query: Indices, key: Indices) -> Bool[Tensor, "..."]:
        return self.sees(query, key)

    def __and__(self, other: "Mask") -> "Mask":
        return Mask(
            f"{self.name} & {other.name}",
            partial(_both_see, self, other),
            partial(_joined_form, self, other),
            self.behind and other.behind,
            self.always and other.always,
            bounds=_narrowed(self.bounds, other.within) or _narrowed(other.bounds, self.within),
            words=_joined_words(self.words, other.words),
        )

    def over(
        self,
        index: Int[Tensor, "#B T"],
        key_index: Int[Tensor, "#B S"] | None = None,
        start: int | None = None,
        rows: Rows | None = None,
    ) -> Seen:
        """The cheapest exact form. `start` is given where in every row the queries are start … and the keys 0 …

        `rows` is given in a step of static shapes that has a kernel.
        """
        keys = index if key_index is None else key_index
        count, total = index.shape[1], keys.shape[1]

        def matrix() -> Bool[Tensor, "#B 1 #T S"]:
            return self(index[:, None, :, None], keys[:, None, None, :])

        if self.always:
            return Seen("all", matrix)
        if start is not None:
            kernel_form = self.kernel_form(total)
            # a single query after all keys attends to every one
            if kernel_form == "all" or (self.behind and count == 1):
                return Seen("all", matrix)
            if kernel_form == "causal" and start == 0:
                return Seen("causal", matrix)
            # FlexAttention is compiled for each length, which pays in training, not for one prompt
            if start == 0 and index.is_cuda and torch.is_grad_enabled():
                return Seen("blocks", matrix, blocks=_blocks(self, total, index.device), first=self.first)
            if start == 0 and self.first:
                return Seen("prefix", matrix, first=self.first)
        if rows is not None and self.bounds is not None and count == 1:
            first, within = self.bounds
            at = dict(index=index, key_index=keys, held=rows.held, first=first, within=within)
            return Seen("rows", matrix, attend=partial(rows.attend, **at))
        return Seen.dense(matrix())


# The functions of masks are named, with their numbers bound by `partial`: a lambda could not be pickled, nor a model.


def _both_see(a: Mask, b: Mask, query: Indices, key: Indices) -> Bool[Tensor, "..."]:
    return a.sees(query, key) & b.sees(query, key)


def _joined_form(a: Mask, b: Mask, n: int) -> str | None:
    both = {a.kernel_form(n), b.kernel_form(n)}
    return None if None in both else "causal" if "causal" in both else "all"


def _joined_words(a: str, b: str) -> str:
    """Both conditions; a mask without words has none, and "and" binds tighter than "or"."""
    if not (a and b):
        return a or b
    return " and ".join(f"({words})" if " or " in words else words for words in (a, b))


def _narrowed(bounds: tuple[int, int] | None, within: int | None) -> tuple[int, int] | None:
    """The bounds of a causal mask joined with a window."""
    return None if bounds is None or bounds[0] or within is None else (0, min(bounds[1], within))


@lru_cache(maxsize=32)
def _blocks(mask: Mask, total: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, q, k: mask(q, k), None, None, total, total, device=device)


def _every_key(query: Indices, key: Indices) -> Bool[Tensor, "..."]:
    return key == key


def _up_to_itself(query: Indices, key: Indices) -> Bool[Tensor, "..."]:
    return key <= query


def _real_key(query: Indices, key: Indices) -> Bool[Tensor, "..."]:
    return key < NOWHERE


def _always_all(n: int) -> str:
    return "all"


def _always_causal(n: int) -> str:
    return "causal"


full = Mask("full", _every_key, _always_all, behind=True, always=True)
causal = Mask("causal", _up_to_itself, _always_causal, behind=True, bounds=(0, NOWHERE), words="j ≤ i")
padding = Mask("padding", _real_key, _always_all, behind=True, words="key j is not padding")


@lru_cache
def prefix(count: int) -> Mask:
    """The first `count` tokens attend to one another; every later one to all up to itself."""
    return Mask(
        f"prefix({count})",
        partial(_in_prefix, count),
        partial(_prefix_form, count),
        behind=True,
        first=count,
        bounds=(count, NOWHERE),
        words=f"j ≤ i or j < {count}",
    )


def _in_prefix(count: int, query: Indices, key: Indices) -> Bool[Tensor, "..."]:
    return (key <= query) | (key < count)


def _prefix_form(count: int, n: int) -> str | None:
    return "all" if n and n <= count else "causal" if count < 2 else None


@lru_cache
def window(count: int) -> Mask:
    """A token attends only to those fewer than `count` steps away; with causal, to the last `count` up to itself."""
    return Mask(
        f"window({count})",
        partial(_in_window, count),
        partial(_window_form, count),
        within=count,
        words=f"|i − j| < {count}",
    )


def _in_window(count: int, query: Indices, key: Indices) -> Bool[Tensor, "..."]:
    return (query - key).abs() < count


def _window_form(count: int, n: int) -> str | None:
    return "all" if n <= count else None


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
