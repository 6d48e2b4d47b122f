"""Masks: who may see whom, as elementwise predicates of (query index, key index), joined by &.

The same predicate serves the plain route, a dense mask and FlexAttention's mask_mod. `Mask.over` picks the cheapest
form that says the same thing exactly: no mask at all, the kernel's own causal flag, a prefix in two parts, blocks, or a
dense matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

# The index of a token that stands nowhere: an empty cache slot, or padding. It lies after every real token, so every
# mask that looks backwards refuses it; `padding` refuses it for the masks that do not.
NOWHERE = 1 << 30

Indices = Int[Tensor, "..."]


@dataclass(frozen=True)
class Seen:
    """Which keys each query sees, in the form the fused route wants."""

    route: str  # "all", "causal", "prefix", "blocks" or "dense"
    matrix: Callable[[], Bool[Tensor, "#B #h #T S"]]
    allowed: Bool[Tensor, "#B #h #T S"] | None = None
    blind: Bool[Tensor, "#B #h #T 1"] | None = None
    blocks: Any = None
    first: int = 0  # how many tokens see each other where all the later ones are causal

    @staticmethod
    def dense(allowed: Bool[Tensor, "#B #h #T S"]) -> "Seen":
        """A query that sees nothing is `blind`: kernels differ on it, so it is let see all, and zeroed after."""
        blind = ~allowed.any(-1, keepdim=True)
        return Seen("dense", lambda: allowed, allowed | blind, blind)


@dataclass(frozen=True, eq=False)
class Mask:
    """A named predicate, and what is known of it, so that the cheapest exact form can be chosen.

    `reach` says what it becomes over n tokens 0 … n−1: "all", "causal" or neither (None); `behind`, whether each token
    sees all before it; `always`, whether it refuses nothing at all, not even a token that stands nowhere;
    `first`, how many tokens see one another where all the later ones are causal.
    """

    name: str
    sees: Callable[[Indices, Indices], Bool[Tensor, "..."]]
    reach: Callable[[int], str | None] = lambda n: None
    behind: bool = False
    always: bool = False
    first: int = 0

    def __call__(self, query: Indices, key: Indices) -> Bool[Tensor, "..."]:
        return self.sees(query, key)

    def __and__(self, other: "Mask") -> "Mask":
        def reach(n: int) -> str | None:
            both = {self.reach(n), other.reach(n)}
            return None if None in both else "causal" if "causal" in both else "all"

        return Mask(
            f"{self.name} & {other.name}",
            lambda q, k: self.sees(q, k) & other.sees(q, k),
            reach,
            self.behind and other.behind,
            self.always and other.always,
        )

    def over(
        self, index: Int[Tensor, "#B T"], key_index: Int[Tensor, "#B S"] | None = None, start: int | None = None
    ) -> Seen:
        """The cheapest exact form. `start` is known when the queries are start … and the keys 0 … in every row."""
        keys = index if key_index is None else key_index
        count, total = index.shape[1], keys.shape[1]

        def matrix() -> Bool[Tensor, "#B 1 #T S"]:
            return self(index[:, None, :, None], keys[:, None, None, :])

        if self.always:
            return Seen("all", matrix)
        if start is not None:
            reach = self.reach(total)
            # the last token of all sees everything that stands behind it
            if reach == "all" or (self.behind and count == 1):
                return Seen("all", matrix)
            if reach == "causal" and start == 0:
                return Seen("causal", matrix)
            # the block kernel is compiled for each length, which pays in training, not for one prompt
            if start == 0 and index.is_cuda and torch.is_grad_enabled():
                return Seen("blocks", matrix, blocks=_blocks(self, total, index.device), first=self.first)
            if start == 0 and self.first:
                return Seen("prefix", matrix, first=self.first)
        return Seen.dense(matrix())


@lru_cache(maxsize=32)
def _blocks(mask: Mask, total: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, q, k: mask(q, k), None, None, total, total, device=device)


full = Mask("full", lambda q, k: k == k, lambda n: "all", behind=True, always=True)
causal = Mask("causal", lambda q, k: k <= q, lambda n: "causal", behind=True)
padding = Mask("padding", lambda q, k: k < NOWHERE, lambda n: "all", behind=True)


@lru_cache
def prefix(count: int) -> Mask:
    """The first `count` tokens see each other; every later one sees all before it."""
    few = "causal" if count < 2 else None
    return Mask(
        f"prefix({count})",
        lambda q, k: (k <= q) | (k < count),
        lambda n: "all" if n and n <= count else few,
        behind=True,
        first=count,
    )


@lru_cache
def window(count: int) -> Mask:
    """A token sees only those fewer than `count` steps away; joined with causal, the last `count` up to itself."""
    return Mask(f"window({count})", lambda q, k: (q - k).abs() < count, lambda n: "all" if n <= count else None)
