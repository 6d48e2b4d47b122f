"""The KV cache: preallocated keys and values, with the index and coordinates of each slot. The caller owns it.

Each row of the cache fills from slot 0. `Cache.used` is a tensor, the tokens of each row; a token's slot follows from
it, and padding goes to one slot more, which is never read. So prompts of different lengths are padded on the right, and
a row that has ended, or is empty, takes nothing from the others; `empty(rows)` gives rows to new sequences while the
others go on. The keys of a call are the first `filled` slots, a Python int that is known without asking the device;
where all rows are even, a decode step needs no mask. `fix(bucket)` makes the shapes static: the keys are always the
first `bucket` slots, masked by their index, and no Python number is read or changed, so one compiled or captured step
serves until the bucket is full. `pick` with as many rows as there are reorders them in the same storage, for beams: the
rows of a finished prompt stay in the batch, as padding.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Num
from torch import Tensor

from .masks import NOWHERE, Rows
from .span import Span


class LayerCache:
    """One block's keys and values; their last slot is the one that padding is written to."""

    def __init__(self, keys: Float[Tensor, "B g L d"], values: Float[Tensor, "B g L d"], rows: Int[Tensor, "B 1"]):
        self.keys, self.values, self.rows = keys, values, rows

    def write(
        self, span: Span, k: Float[Tensor, "B g T d"], v: Float[Tensor, "B g T d"]
    ) -> tuple[Float[Tensor, "B g S d"], Float[Tensor, "B g S d"]]:
        """Write k and v into the slots of a placed span; return all the keys and values it attends to."""
        if span.slots is None:
            raise ValueError("the span has no slots: cache.place(span) gives it some")
        write = None if span.rows is None or k.shape[2] > 1 else span.rows.write
        if write is not None and not torch.compiler.is_compiling():  # the compiler joins it with what comes before
            write(self.keys, self.values, k, v, span.slots)
            return self.keys[:, :, : span.reach], self.values[:, :, : span.reach]
        for store, new in ((self.keys, k), (self.values, v)):
            new = new.detach().to(store.dtype)  # the cache takes part in no backward pass
            if len(span.slots) == 1:  # the same in every row, and faster
                store.index_copy_(2, span.slots[0], new)
            else:
                store[self.rows, :, span.slots] = new.transpose(1, 2)
        return self.keys[:, :, : span.reach], self.values[:, :, : span.reach]


@dataclass(frozen=True)
class Memory:
    """What cross-attention reads: each block's keys and values of a source, computed once, and the source's span."""

    layers: list[tuple[Float[Tensor, "B g S d"], Float[Tensor, "B g S d"]]]
    span: Span

    def pick(self, rows: Int[Tensor, "b"]) -> "Memory":
        """These rows of the batch, in this order; a row may come several times."""
        return Memory([(k[rows], v[rows]) for k, v in self.layers], self.span.pick(rows))


class Cache:
    """All blocks' keys and values, and the position of each slot's token; for a model with a source, its memory too.

    Each row fills from slot 0 upwards, without gaps: padding goes to one slot more, which is never read. A span that is
    placed has the filled slots as its keys. After `fix(bucket)` the shapes are static: it always has the first `bucket`
    slots, the rest of them masked, so that one compiled or captured step serves every step until the bucket is full.
    """

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
        self._hold(torch.zeros(2, layers, batch, kv_heads, length + 1, head_width, device=device, dtype=dtype))
        self.index = torch.full((batch, length + 1), NOWHERE, device=device)
        self.coords: Num[Tensor, "B L a"] = torch.zeros(batch, length + 1, axes, device=device)
        self.used = torch.zeros(batch, dtype=torch.long, device=device)  # tokens in each row
        self.memory: Memory | None = None
        self.filled = 0  # at least as many tokens as the fullest row has: known without waiting for the device
        self.even = True  # every row holds tokens 0 … filled−1: no padding anywhere
        self.bucket: int | None = None  # the number of key slots of every step, where shapes are static
        self.kernels: tuple[Callable[..., Tensor], Callable[..., None] | None] | None = None  # as `Rows` has them

    def __getitem__(self, layer: int) -> LayerCache:
        return self.layers[layer]

    @property
    def length(self) -> int:
        """The number of tokens a row has room for."""
        return self.index.shape[1] - 1

    @property
    def unwritten(self) -> bool:
        """Whether nothing was ever written; static shapes are for steps after that."""
        return self.bucket is None and self.filled == 0

    @property
    def nbytes(self) -> int:
        """The bytes of keys and values of a full cache."""
        return self.store[..., 1:, :].nbytes

    def _hold(self, store: Float[Tensor, "2 layers B g L d"]) -> None:
        self.store, self.rows = store, torch.arange(store.shape[2], device=store.device)[:, None]
        self.layers = [LayerCache(keys, values, self.rows) for keys, values in zip(*store, strict=True)]

    def row(self, i: int, filled: int = 0) -> "Cache":
        """Row i by itself, in the same storage, to prefill it beside the others; its first `filled` slots are full.

        What is written through it is in this cache too.
        """
        view = Cache.__new__(Cache)
        view._hold(self.store[:, :, i : i + 1])
        view.index, view.coords, view.used = (one[i : i + 1] for one in (self.index, self.coords, self.used))
        view.memory, view.bucket, view.kernels = None, None, None
        view.filled, view.even = filled, False
        return view

    def pick(self, rows: Int[Tensor, "b"], sources: bool = True) -> None:
        """Keep these rows of the batch, in this order; a row may come several times. `sources`: of the memory too.

        As many rows as there are stay in the same storage.
        """
        if len(rows) == len(self.index):
            filled = self.store[..., : self.filled if self.bucket is None else self.bucket, :]
            filled.copy_(filled[:, :, rows])
            for tensor in (self.index, self.coords, self.used):
                tensor.copy_(tensor[rows])
        else:
            self._hold(self.store[:, :, rows])
            self.index, self.coords, self.used = self.index[rows], self.coords[rows], self.used[rows]
        if self.memory is not None and sources:
            self.memory = self.memory.pick(rows)

    def empty(self, rows: Int[Tensor, "b"]) -> None:
        """Forget all tokens of these rows of the batch: another sequence begins there while the others go on."""
        # the old keys and values are masked, but 0 times one that is not finite is not 0
        self.store.index_fill_(2, rows, 0)
        self.index.index_fill_(0, rows, NOWHERE)
        self.used.index_fill_(0, rows, 0)
        self.even = False

    def reset(self) -> None:
        """Forget everything: other sequences begin, in the same storage."""
        self.store.zero_()
        self.index.fill_(NOWHERE)
        self.used.zero_()
        self.filled, self.even, self.bucket, self.memory, self.kernels = 0, True, None, None, None

    def fix(
        self,
        bucket: int | None,
        attend: Callable[..., Tensor] | None = None,
        write: Callable[..., None] | None = None,
    ) -> None:
        """Static shapes from here on, with the first `bucket` slots as keys; None: as many as are filled, as before.

        `attend` and `write` are kernels for steps of one token a row (see `Rows`).
        """
        if bucket is not None and not self.filled <= bucket <= self.length:
            raise ValueError(
                f"a bucket has {self.filled} to {self.length} slots here, those filled to all, not {bucket}"
            )
        self.bucket, self.even, self.kernels = bucket, False, None if attend is None else (attend, write)

    def advance(self, count: int) -> None:
        """Announce the next `count` tokens of each row, before a step of static shapes, which counts on the device."""
        self._fill(count, count)

    def _fill(self, count: int, real: int | Int[Tensor, "#B"]) -> None:
        """Count `count` more tokens, of which `real` are not padding; refuse more than there is room for."""
        limit = self.length if self.bucket is None else self.bucket
        self.filled += count
        if self.filled > limit:  # perhaps only by padding, or by rows that ended: ask the device
            used = int(self.used.max())
            self.filled = int((self.used + real).max())
            if self.filled > limit:
                self.filled = used
                raise ValueError(
                    f"the cache has room for {limit} tokens: {used} are in it, and {count} more were given"
                )

    def next(self, count: int) -> Span:
        """The span of the next `count` tokens: each row continues after its own last token."""
        steps = torch.arange(count, device=self.index.device)
        if self.even:
            return Span.of((self.filled + steps)[None], start=self.filled)
        return Span.of(self.used[:, None] + steps)

    def place(self, span: Span) -> Span:
        """Give the span's tokens the next free slots, and all filled slots as keys; padding gets none."""
        count = span.index.shape[1]
        even = self.even and span.start == self.filled
        if even:
            slots, real = span.index, count
        else:
            token = span.index < NOWHERE
            rank = token.cumsum(1)
            slots, real = torch.where(token, self.used[:, None] + rank - 1, self.length), rank[:, -1]
        if self.bucket is None:
            self._fill(count, real)
            self.even = even
        reach = self.filled if self.bucket is None else self.bucket
        # coordinates with fewer axes are padded with zeros, as when spans are joined
        coords = F.pad(span.coords, (0, self.coords.shape[-1] - span.coords.shape[-1]))
        self.index[self.rows, slots] = span.index
        self.coords[self.rows, slots] = coords.to(self.coords.dtype)
        self.used.add_(real)
        return replace(
            span,
            coords=coords,
            key_index=self.index[:, :reach],
            key_coords=self.coords[:, :reach],
            start=span.start if even else None,
            slots=slots,
            reach=reach,
            rows=None if self.kernels is None else Rows(self.used, *self.kernels),
        )
