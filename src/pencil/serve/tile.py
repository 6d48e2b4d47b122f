"""A tile: a fixed number of rows that take their decode steps together, over one preallocated cache.

**The same answer at any load.** Sums in floating point depend on their order, and a kernel's order on the shapes it is
given: torch multiplies one row by other code than several, so a batch that grows and shrinks changes the last bits of
every row, and sometimes a token. Here no shape depends on the load. A step is always over all rows of a tile, whether
they are used or not; more requests are more tiles of the same size, not a larger one. A prompt is read by itself, in
pieces at fixed multiples from token 0, each padded to a length that follows from its own length alone; a picture is
read with the first piece, and what a source became is kept padded to the longest one. What is left is the number of
keys, those of the tile's fullest row: masked keys add zeros to a sum, and in multiples of `KEYS` they do not change its
order. That, and that a row's place in the tile does not matter, is how torch's kernels behave, not what
they promise: `steady` measures it on this machine, with this model, before the server starts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..core.cache import Cache, Memory
from ..core.masks import NOWHERE
from ..core.span import Span
from ..inference.decode_step import row_kernels

KEYS = 64  # the keys of a step are a multiple of this
SMALLEST_PIECE = 8  # tokens that a shorter last piece of a prompt is padded to


class Newest(NamedTuple):
    """The newest token of a row, at this position of its text: its keys are not in the cache yet."""

    place: int
    token: int
    position: int


class Tile:
    """Rows of one model."""

    def __init__(self, model: Any, rows: int, length: int, piece: int, all_keys: bool = False):
        self.model, self.rows, self.piece, self.all_keys = model, rows, piece, all_keys
        self.before = int(getattr(model.config, "before", 0))  # tokens of a picture, before each text
        self.cache: Cache = model.new_cache(rows, whole_keys(self.before + length) - self.before)
        self.memory = _memory_of(model, rows)
        self.device = self.cache.store.device
        self.kernels = row_kernels(self.cache.store)

    def clear(self, place: int) -> Cache:
        """Give a row to another sequence: its cache, by itself, for the prompt's pieces."""
        self.cache.empty(torch.tensor([place], device=self.device))
        return self.cache.row(place)

    def restore(self, row: Cache, kept: Float[Tensor, "2 layers g P d"]) -> None:
        """Give a row the keys and values of its next tokens, as if they had been computed in it."""
        first, count = row.filled, kept.shape[-2]
        row.store[:, :, 0, :, first : first + count] = kept
        self._count(row, count)

    def _count(self, row: Cache, count: int) -> None:
        index = torch.arange(row.filled, row.filled + count, device=self.device)
        row.index[0, row.filled : row.filled + count] = index
        row.coords[0, row.filled : row.filled + count, 0] = index.to(row.coords.dtype)
        row.used.add_(count)
        row.filled += count

    def disturb(self, place: int, count: int, random: torch.Generator) -> None:
        """Fill a row with so many tokens of noise, as neighbours of a row that is measured."""
        row, count = self.clear(place), self.before + count
        noise = torch.randn(*row.store.shape[:-2], count, row.store.shape[-1], generator=random)
        row.store[..., :count, :] = noise.to(row.store)
        self._count(row, count)
        if self.memory is not None:
            for store in (one for layer in self.memory.layers for one in layer):
                store[place] = torch.randn(store.shape[1:], generator=random).to(store)
            self.memory.span.index[place] = torch.arange(self.memory.span.index.shape[1], device=self.device)

    def read(self, row: Cache) -> int:
        """How many tokens of a row's text were read."""
        return max(0, row.filled - self.before)

    @torch.no_grad()
    def prefill(
        self, place: int, row: Cache, tokens: Sequence[int], given: Mapping[str, Any] | None = None
    ) -> Float[Tensor, "V"]:
        """Read a row's next piece, with the first one its picture or source; the logits after its last token."""
        first, count, before = self.read(row), len(tokens), 0 if row.filled else self.before
        padded = self.piece if count == self.piece else max(SMALLEST_PIECE, 1 << (count - 1).bit_length())
        padded = max(count, min(padded, self.piece, row.length - row.filled - before))
        pad = padded - count
        index = torch.tensor([[*range(first, first + count), *[NOWHERE] * pad]], device=self.device)
        last = torch.tensor([count - 1], device=self.device)
        ids = torch.tensor([[*tokens, *[0] * pad]], device=self.device)
        filled, more = row.filled + before + count, {} if first else given or {}
        logits = self.model(ids, span=Span.at(index), cache=row, last=last, **more)[0, -1]
        row.filled = filled
        if row.memory is not None and not first:
            self._keep(place, row.memory)
        return logits

    def _keep(self, place: int, memory: Memory) -> None:
        """Keep what a row's source became."""
        assert self.memory is not None
        count = memory.span.index.shape[1]
        for stores, news in zip(self.memory.layers, memory.layers, strict=True):
            for store, new in zip(stores, news, strict=True):
                store[place] = 0  # 0 times one that is not finite is not 0
                store[place, :, :count] = new[0]
        self.memory.span.index[place] = NOWHERE
        self.memory.span.index[place, :count] = memory.span.index[0]

    @torch.no_grad()
    def step(self, newest: Sequence[Newest]) -> Float[Tensor, "B V"]:
        """The logits of every row after its newest token; those of the other rows mean nothing."""
        tokens, index, longest = [[0] for _ in range(self.rows)], [[NOWHERE] for _ in range(self.rows)], 0
        for place, token, position in newest:
            tokens[place], index[place], longest = [token], [position], max(longest, position + 1)
        keys = self.cache.length if self.all_keys else whole_keys(self.before + longest)
        if self.cache.bucket != keys:
            self.cache.fix(keys, *self.kernels)
        self.cache.memory = self.memory
        span = Span.at(torch.tensor(index, device=self.device))
        return self.model(torch.tensor(tokens, device=self.device), span=span, cache=self.cache, last=True)[:, -1]


def whole_keys(count: int) -> int:
    """So many keys, or the next multiple of `KEYS`."""
    return -(-count // KEYS) * KEYS


@torch.no_grad()
def _memory_of(model: Any, rows: int) -> Memory | None:
    """Room for what the rows' sources become; None for a model without sources."""
    longest = getattr(model.config, "source_context", None)
    if longest is None:
        return None
    device = next(model.parameters()).device
    one = model.read(torch.zeros(1, 1, dtype=torch.long, device=device))
    layers = [tuple(new.new_zeros(rows, new.shape[1], longest, new.shape[3]) for new in layer) for layer in one.layers]
    return Memory(layers, Span.at(torch.full((rows, longest), NOWHERE, device=device)))  # pyright: ignore[reportArgumentType]


def example_inputs(model: Any, vocab: int, random: torch.Generator) -> dict[str, Tensor]:
    """What a model reads beside the tokens, at random."""
    inputs = {}
    for name, like in zip([*model.INPUTS][1:], model.example()[1:], strict=True):
        drawn = torch.randn if like.is_floating_point() else lambda shape, generator: torch.randint(
            vocab, shape, generator=generator
        )  # fmt: skip
        inputs[name] = drawn(like.shape, generator=random).to(like)
    return inputs


def steady(tile: Tile, vocab: int) -> bool:
    """Whether a row's logits have the same bits in every place, beside any neighbours, with any number of keys.

    One text is continued in each place, alone and beside longer ones, and the logits of each step are compared.
    """
    context = min(int(tile.model.config.context), tile.cache.length)
    count, steps = max(1, min(5, context - 2)), min(2, context - 1)
    random = torch.Generator().manual_seed(0)

    asked = torch.randint(vocab, (count + steps,), generator=random).tolist()
    given = example_inputs(tile.model, vocab, random)

    def logits(place: int, others: dict[int, int]) -> Tensor:
        for other, length in others.items():
            tile.disturb(other, length, random)
        seen = [tile.prefill(place, tile.clear(place), asked[:count], given)]
        for i in range(steps):
            near = [Newest(other, asked[i], length + i) for other, length in others.items()]
            seen.append(tile.step([Newest(place, asked[count + i], count + i), *near])[place])
        return torch.stack(seen)

    alone = logits(0, {})
    lengths = sorted({1, min(KEYS, context - steps), context - steps})
    for place in range(tile.rows):
        near = {at: lengths[(at + place) % len(lengths)] for at in range(tile.rows) if at != place}
        for others in ({}, near):
            if not torch.equal(logits(place, others), alone):
                return False
    return True
