"""The KV cache: preallocated keys and values, with the index and coordinates of each slot. The caller owns it."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor

from .masks import NOWHERE
from .span import Span


class LayerCache:
    """One block's keys and values."""

    def __init__(self, keys: Float[Tensor, "B g L d"], values: Float[Tensor, "B g L d"]):
        self.keys, self.values = keys, values

    def write(
        self, slots: slice, k: Float[Tensor, "B g T d"], v: Float[Tensor, "B g T d"]
    ) -> tuple[Float[Tensor, "B g S d"], Float[Tensor, "B g S d"]]:
        """Write k and v into these slots; return everything written so far."""
        # the cache takes part in no backward pass
        self.keys[:, :, slots] = k.detach()
        self.values[:, :, slots] = v.detach()
        return self.keys[:, :, : slots.stop], self.values[:, :, : slots.stop]


@dataclass(frozen=True)
class Memory:
    """What cross-attention reads: each block's keys and values of a source, computed once, and the source's span."""

    layers: list[tuple[Float[Tensor, "B g S d"], Float[Tensor, "B g S d"]]]
    span: Span

    def pick(self, rows: Int[Tensor, "b"]) -> "Memory":
        """These rows of the batch, in this order; a row may come several times."""
        return Memory([(k[rows], v[rows]) for k, v in self.layers], self.span.pick(rows))


class Cache:
    """All blocks' keys and values, and the position of each slot's token; for a model with a source, its memory too."""

    def __init__(
        self,
        layers: int,
        batch: int,
        kv_heads: int,
        length: int,
        head_width: int,
        *,
        axes: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ):
        self._hold(torch.zeros(2, layers, batch, kv_heads, length, head_width, device=device, dtype=dtype))
        self.index = torch.full((batch, length), NOWHERE, device=device)
        self.coords: Num[Tensor, "B L a"] = torch.zeros(batch, length, axes, device=device)
        self.memory: Memory | None = None
        self.used = 0  # slots filled, the same in every row
        self.even = True  # every row holds tokens 0 … used−1: no padding anywhere

    def __getitem__(self, layer: int) -> LayerCache:
        return self.layers[layer]

    @property
    def length(self) -> int:
        return self.index.shape[1]

    def _hold(self, store: Float[Tensor, "2 layers B g L d"]) -> None:
        self.store = store
        self.layers = [LayerCache(*both) for both in store.unbind(1)]

    def pick(self, rows: Int[Tensor, "b"], sources: bool = True) -> None:
        """Keep these rows of the batch, in this order; a row may come several times. `sources`: of the memory too."""
        self._hold(self.store[:, :, rows])
        self.index, self.coords = self.index[rows], self.coords[rows]
        if self.memory is not None and sources:
            self.memory = self.memory.pick(rows)

    def next(self, count: int) -> Span:
        """The span of the next `count` tokens: each row continues after its own last token."""
        steps = torch.arange(count, device=self.index.device)
        if self.even:
            return Span.of((self.used + steps)[None], start=self.used)
        held = self.index[:, : self.used]
        last = held.masked_fill(held >= NOWHERE, -1).amax(1, keepdim=True)
        return Span.of(last + 1 + steps)

    def place(self, span: Span) -> Span:
        """Give the span's tokens the next free slots, and all filled slots as keys."""
        count = span.index.shape[1]
        slots = slice(self.used, self.used + count)
        if slots.stop > self.length:
            raise ValueError(
                f"the cache has room for {self.length} tokens: {self.used} are in it, and {count} more were given"
            )
        # coordinates with fewer axes are padded with zeros, as when spans are joined
        coords = F.pad(span.coords, (0, self.coords.shape[-1] - span.coords.shape[-1]))
        self.index[:, slots] = span.index
        self.coords[:, slots] = coords.to(self.coords.dtype)
        self.even = self.even and span.start == self.used
        self.used = slots.stop
        return replace(
            span,
            coords=coords,
            key_index=self.index[:, : slots.stop],
            key_coords=self.coords[:, : slots.stop],
            start=span.start if self.even else None,
            slots=slots,
        )
