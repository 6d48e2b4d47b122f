"""Span: the positions of the tokens of one call, and what they may attend to.

A token has an index and coordinates. Its `index` is its position in the sequence (masks and the cache read it); its
`coords` are its position on a line, a grid or a video (position embeddings and rotations read them). An empty cache
slot and padding have the index `NOWHERE`, which is larger than every real one: causal masks exclude it by themselves,
and `padding` excludes it for the others. So prefill, chunked prefill, decode and batches of mixed lengths are one path,
and causality is never guessed from shapes.

One Span for all blocks. A forward pass computes its rotation (`positions(x, span)`), then, when every key is known, its
mask and its bias (`span.under(mask, positions.bias)`), and passes the same frozen object to every block. The bias comes
last because it needs the keys: those in a cache, and those of the other part of a joined sequence. A bias is a function
of q, since Shaw's depends on the query; the others are computed once.

The plain case has no span. Without one, attention and blocks take whole sequences and an optional mask, which is
checked there; a model passes its span, and its path is the same.

Padding is an index. `Span.at(index)` has NOWHERE where a row is padded; without a span nothing is padding, and there is
no mask at all. Everything that pools or attends reads the index, so a padded batch gives the same numbers as one by
one, wherever the padding is.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor

from .masks import NOWHERE, Mask, Rows, Seen


@dataclass(frozen=True)
class Span:
    """The positions of the queries, and of the keys they attend to.

    `index` is a token's place in the sequence, used by masks and the cache. `coords` is its position, used by position
    embeddings, rotations and biases: one axis for text, two for images, three for video.
    """

    index: Int[Tensor, "#B T"]
    coords: Num[Tensor, "#B T a"]
    key_index: Int[Tensor, "#B S"]
    key_coords: Num[Tensor, "#B S a"]
    start: int | None = None  # set where every row is start, start+1, … and its keys are 0, 1, …
    slots: Int[Tensor, "#B T"] | None = None  # of the cache, for these tokens
    reach: int = 0  # of the cache, the number of slots that are keys
    rows: Rows | None = None  # of the cache, where it has a kernel for decode steps
    seen: Seen | None = None
    rotation: tuple[Float[Tensor, "#B 1 T p"], Float[Tensor, "#B 1 T p"]] | None = None  # of the queries
    key_rotation: tuple[Float[Tensor, "#B 1 n p"], Float[Tensor, "#B 1 n p"]] | None = None  # of this call's own keys
    adjacent: bool = False  # the rotated pairs are channels (2i, 2i+1), not (i, i + n)
    bias: Callable[[Tensor], Float[Tensor, "#B #h T S"]] | None = None
    scale: float | None = None

    @staticmethod
    def whole(
        length: int, *, coords: Num[Tensor, "#B T a"] | None = None, device: torch.device | None = None
    ) -> "Span":
        """A whole sequence that attends to itself; by default its coords are its index."""
        return Span.of(torch.arange(length, device=device)[None], coords, start=0)

    @staticmethod
    def of(index: Int[Tensor, "#B T"], coords: Num[Tensor, "#B T a"] | None = None, start: int | None = None) -> "Span":
        """Tokens with these indices that attend to one another."""
        coords = index[..., None] if coords is None else coords
        return Span(index, coords, index, coords, start)

    @staticmethod
    def at(index: Int[Tensor, "B T"]) -> "Span":
        """Text tokens with these indices; padding (NOWHERE) has coordinate 0."""
        return Span.of(index, index.masked_fill(index >= NOWHERE, 0)[..., None])

    def across(self, keys: "Span") -> "Span":
        """Cross-attention from these tokens to another sequence, without rotation or bias."""
        return Span(self.index, self.coords, keys.index, keys.coords, scale=self.scale)

    def then(self, other: "Span") -> "Span":
        """These tokens and, after them, the other's, as one sequence, with the other's scale of the scores.

        Coordinates with fewer axes are padded with zeros.
        """
        index = _side_by_side(self.index, other.index)
        axes = max(self.coords.shape[-1], other.coords.shape[-1])
        own, theirs = (F.pad(s.coords, (0, axes - s.coords.shape[-1])) for s in (self, other))
        coords = _side_by_side(own, theirs)
        rotated, rotation = self.rotation or other.rotation, None
        if rotated is not None:
            own, theirs = self.rotation_like(rotated), other.rotation_like(rotated)
            cos, sin = (_side_by_side(a, b, 2) for a, b in zip(own, theirs, strict=True))
            rotation = cos, sin
        # set only where the other's first token follows this one's last
        follows = self.start is not None and other.start == self.start + self.index.shape[1]
        start = self.start if follows else None
        joined = Span(index, coords, index, coords, start, rotation=rotation, key_rotation=rotation, scale=other.scale)
        return replace(joined, adjacent=self.adjacent or other.adjacent)

    def rotation_like(self, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """This span's rotation; where it has none, the identity, with as many pairs of channels as `rotation`."""
        if self.rotation is not None:
            return self.rotation
        like = rotation[0][:1, :, :1].expand(-1, -1, self.index.shape[1], -1)
        return torch.ones_like(like), torch.zeros_like(like)

    def pick(self, rows: Int[Tensor, "b"]) -> "Span":
        """The positions of these rows of the batch, without mask, rotation and bias; one row for all stays one."""
        index, coords = (t if len(t) == 1 else t[rows] for t in (self.index, self.coords))
        return Span.of(index, coords, self.start)

    def under(
        self, mask: Mask, bias: Callable[["Span"], Callable[[Tensor], Float[Tensor, "#B #h T S"]] | None] | None = None
    ) -> "Span":
        """The same span with the mask and a scheme's bias, computed once for all blocks."""
        seen = mask.over(self.index, self.key_index, self.start, self.rows)
        added = bias(self) if bias is not None else None
        # a bias is added to a dense mask, so that is computed here too, once
        if added is not None and seen.route not in ("all", "dense"):
            seen = Seen.dense(seen.matrix())
        return replace(self, seen=seen, bias=added)


def _side_by_side(a: Tensor, b: Tensor, dim: int = 1) -> Tensor:
    """Joined along `dim`; a batch of one is broadcast."""
    rows = max(a.shape[0], b.shape[0])
    return torch.cat([t.expand(rows, *t.shape[1:]) for t in (a, b)], dim)
