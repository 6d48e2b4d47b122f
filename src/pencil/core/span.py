"""Span: where the tokens of one call stand, and what they may look at."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor

from .masks import NOWHERE, Mask, Seen


@dataclass(frozen=True)
class Span:
    """Queries and the keys they face.

    `index` is a token's place in the sequence (read by masks and the cache); `coords` its place in the world, one axis
    for text, two for pictures, three for video (read by stamps, rotations and biases).
    """

    index: Int[Tensor, "#B T"]
    coords: Num[Tensor, "#B T a"]
    key_index: Int[Tensor, "#B S"]
    key_coords: Num[Tensor, "#B S a"]
    start: int | None = None  # known when every row is start, start+1, … and its keys are 0, 1, …
    slots: slice | None = None  # where a cache keeps these tokens
    seen: Seen | None = None
    turn: tuple[Float[Tensor, "#B 1 T p"], Float[Tensor, "#B 1 T p"]] | None = None  # of the queries
    key_turn: tuple[Float[Tensor, "#B 1 n p"], Float[Tensor, "#B 1 n p"]] | None = None  # of the keys this call makes
    bias: Callable[[Tensor], Float[Tensor, "#B #h T S"]] | None = None
    scale: float | None = None

    @staticmethod
    def whole(
        length: int, *, coords: Num[Tensor, "#B T a"] | None = None, device: torch.device | None = None
    ) -> "Span":
        """A sequence seen from its first token to its last; by default its coords are its index."""
        return Span.of(torch.arange(length, device=device)[None], coords, start=0)

    @staticmethod
    def of(index: Int[Tensor, "#B T"], coords: Num[Tensor, "#B T a"] | None = None, start: int | None = None) -> "Span":
        """Tokens at these places that look at one another."""
        coords = index[..., None] if coords is None else coords
        return Span(index, coords, index, coords, start)

    @staticmethod
    def at(index: Int[Tensor, "B T"]) -> "Span":
        """Tokens of a line at these places; those that stand nowhere are padding, and have no place in the world."""
        return Span.of(index, index.masked_fill(index >= NOWHERE, 0)[..., None])

    def across(self, keys: "Span") -> "Span":
        """These tokens looking at another sequence: cross-attention; no turn or bias comes along."""
        return Span(self.index, self.coords, keys.index, keys.coords, scale=self.scale)

    def then(self, other: "Span") -> "Span":
        """These tokens and, after them, the other's, as one sequence, with the other's scale of the scores.

        A world of fewer axes is filled up with zeros.
        """
        index = _side_by_side(self.index, other.index)
        axes = max(self.coords.shape[-1], other.coords.shape[-1])
        mine, theirs = (F.pad(s.coords, (0, axes - s.coords.shape[-1])) for s in (self, other))
        coords = _side_by_side(mine, theirs)
        known, turn = self.turn or other.turn, None
        if known is not None:
            cos, sin = (
                _side_by_side(a, b, 2) for a, b in zip(self.turned_like(known), other.turned_like(known), strict=True)
            )
            turn = cos, sin
        # known only when the other's first token is the one after this one's last
        on = self.start is not None and other.start == self.start + self.index.shape[1]
        start = self.start if on else None
        return Span(index, coords, index, coords, start, turn=turn, key_turn=turn, scale=other.scale)

    def turned_like(self, known: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """This span's turn; where it has none, an angle of 0 for as many pairs of channels as another's has."""
        if self.turn is not None:
            return self.turn
        still = known[0][:1, :, :1].expand(-1, -1, self.index.shape[1], -1)
        return torch.ones_like(still), torch.zeros_like(still)

    def pick(self, rows: Int[Tensor, "b"]) -> "Span":
        """Where these rows of the batch stand, and nothing worked out from it; one row for all stays one."""
        index, coords = (t if len(t) == 1 else t[rows] for t in (self.index, self.coords))
        return Span.of(index, coords, self.start)

    def under(
        self, mask: Mask, bias: Callable[["Span"], Callable[[Tensor], Float[Tensor, "#B #h T S"]] | None] | None = None
    ) -> "Span":
        """The same span with the mask, and a scheme's bias, worked out once for all blocks."""
        seen, added = mask.over(self.index, self.key_index, self.start), bias(self) if bias is not None else None
        # a bias is added to a dense mask, so that is worked out here too, once
        if added is not None and seen.route not in ("all", "dense"):
            seen = Seen.dense(seen.matrix())
        return replace(self, seen=seen, bias=added)


def _side_by_side(a: Tensor, b: Tensor, dim: int = 1) -> Tensor:
    """Joined along `dim`; a batch of one stands for all."""
    rows = max(a.shape[0], b.shape[0])
    return torch.cat([t.expand(rows, *t.shape[1:]) for t in (a, b)], dim)
