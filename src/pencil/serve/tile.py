"""A tile: a fixed number of rows that take their decode steps together, over one preallocated cache.

**The same answer at any load.** Sums in floating point depend on their order, and a kernel's order on the shapes it is
given: torch multiplies one row by other code than several, so a batch that grows and shrinks changes the last bits of
every row, and sometimes a token. Here no shape depends on the load. A step is always over all rows of a tile, whether
they are used or not; more requests are more tiles of the same size, not a larger one. How a prompt is read depends on
itself alone (`prompt_reader.py`); what a source became is kept padded to the longest one. What is left is the number of
keys, those of the tile's fullest row: masked keys add zeros to a sum, and in multiples of `KEYS` they do not change its
order. That, and that a row's place in the tile does not matter, is how torch's kernels behave, not what they promise:
`steady` measures it on this machine, with this model, before the server starts.

What a step reads and writes stays on the device, so that several steps can follow one another before the host knows
their tokens. A step is recorded for each number of keys, and the first piece of a prompt for each length: on CUDA as a
captured graph, on a CPU as a list of operations, which all tiles share.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..core.cache import Cache, Memory
from ..core.masks import NOWHERE
from ..core.span import Span
from ..inference.cpu_replay import Program, Replayed
from ..inference.cuda_graph import Captured
from ..inference.decode_step import bucket_of, newest_logits, row_kernels
from .prompt_reader import PromptReader

KEYS = 64  # on a CPU the keys of a step are a multiple of this
READERS = 8  # prompts that a GPU reads at once
MOST_PLACES = 8  # of a tile in which a text is continued to measure whether its place matters


class Tile:
    """Rows of one model, and a reader beside them in which a prompt is read before it takes its place."""

    def __init__(
        self,
        model: Any,
        rows: int,
        length: int,
        piece: int,
        all_keys: bool = False,
        programs: dict[str, Program] | None = None,
    ):
        self.model, self.rows, self.all_keys = model, rows, all_keys
        self.context = length
        self.before = int(getattr(model.config, "before", 0))  # tokens of a picture, before each text
        room = whole_keys(self.before + length) - self.before
        self.cache: Cache = model.new_cache(rows, room)
        self.memory = _memory_of(model, rows)
        self.device = self.cache.store.device
        self.kernels = row_kernels(self.cache.store)
        self.tokens = torch.zeros(rows, 1, dtype=torch.long, device=self.device)  # the newest of each row
        self.index = torch.full((rows, 1), NOWHERE, device=self.device)  # its position; NOWHERE in a row without one
        self._programs = {} if programs is None else programs  # of steps and pieces on a CPU
        self._steps: dict[int, Captured | Replayed] = {}  # by the number of keys
        self.reader = PromptReader(model, prompts_at_once(model, self.device), room, piece, self._recorded)
        self._places = torch.arange(rows, device=self.device)

    def seat(self, place: int, row: int = 0) -> None:
        """Give the prompt that was read in a row of the reader a row of the tile."""
        count, reader, cache = self.reader.filled(row), self.reader.cache, self.cache
        cache.empty(self._places[place : place + 1])
        cache.store[:, :, place, :, :count] = reader.store[:, :, row, :, :count]
        cache.index[place, :count], cache.coords[place, :count] = reader.index[row, :count], reader.coords[row, :count]
        cache.used[place] = count
        if reader.memory is not None:
            self._keep(place, reader.memory)

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

    def disturb(self, place: int, random: torch.Generator) -> None:
        """Noise in the place of what a source became, for a neighbour of a row that is measured."""
        if self.memory is not None:
            for store in (one for layer in self.memory.layers for one in layer):
                store[place] = torch.randn(store.shape[1:], generator=random).to(store)
            self.memory.span.index[place] = torch.arange(self.memory.span.index.shape[1], device=self.device)

    # ---- steps

    def put(self, place: int, token: Int[Tensor, ""] | int, position: int) -> None:
        """The newest token of a row, at this position of its text: its keys are not in the cache yet."""
        self.tokens[place], self.index[place] = token, position if position < self.context else NOWHERE

    def put_at(self, place: Int[Tensor, "1"], token: Int[Tensor, "1"], position: Int[Tensor, "1"]) -> None:
        """As `put`, where the host knows none of them."""
        self.tokens.index_copy_(0, place, token[:, None].clamp(min=0))
        self.index.index_copy_(0, place, position.masked_fill(position >= self.context, NOWHERE)[:, None])

    def leave(self, place: int) -> None:
        """A row takes no more steps."""
        self.index[place] = NOWHERE

    def fix(self, longest: int) -> int:
        """Prepare for a step where the longest text has so many tokens: how many keys it has."""
        if self.all_keys:
            keys = self.cache.length
        elif self.cache.store.is_cuda:
            keys = bucket_of(self.before + longest, self.cache.length)
        else:
            keys = whole_keys(self.before + longest)
        if self.cache.bucket != keys:
            self.cache.fix(keys, *self.kernels)
        self.cache.memory = self.memory
        return keys

    @torch.no_grad()
    def step(self, longest: int) -> Float[Tensor, "B V"]:
        """The logits of every row after its newest token, the longest text having so many; others mean nothing."""
        keys = self.fix(longest)
        if keys not in self._steps:  # its inputs and its cache keep their addresses
            self._steps[keys] = self._recorded(self.logits)
        return self._steps[keys]()

    @torch.no_grad()
    def logits(self) -> Float[Tensor, "B V"]:
        """As `step`, with the number of keys of the last `fix`, and not recorded."""
        return newest_logits(self.model, self, self.cache)

    def _recorded(self, function: Callable[..., Tensor]) -> Captured | Replayed:
        return Captured(function) if self.cache.store.is_cuda else Replayed(function, self._programs)

    def span(self) -> Span:
        """Where the newest tokens are."""
        return Span.at(self.index)

    def advance(self, tokens: Int[Tensor, "B"]) -> None:
        """Make these the newest tokens; a row whose context is full takes no more steps."""
        self.tokens.copy_(tokens[:, None].clamp(min=0))
        self.index.add_(self.index < NOWHERE).masked_fill_(self.index >= self.context, NOWHERE)


def prompts_at_once(model: Any, device: torch.device) -> int:
    """How many prompts of a tile are read at once; a picture and a source are read with the text that follows them."""
    return READERS if device.type == "cuda" and len(model.INPUTS) == 1 else 1


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

    One text is continued in several places, alone and beside longer ones, and the logits of each step are compared; so
    are those of its prompt, which is read in every row of the reader.
    """
    reader = tile.reader
    context = min(tile.context, tile.cache.length - tile.before)
    count, steps = max(1, min(5, context - 2)), min(2, context - 1)
    random = torch.Generator().manual_seed(0)
    asked = torch.randint(vocab, (count + steps,), generator=random).tolist()
    given = example_inputs(tile.model, vocab, random)
    noise = torch.randn(reader.kept(0, tile.before + context).shape, generator=random).to(tile.cache.store)

    def prompt(row: int, others: Mapping[int, int]) -> Tensor:
        for other in range(reader.rows):
            reader.begin(other)
        pieces = {row: asked[:count]}
        for other, length in others.items():
            reader.restore(noise[..., : tile.before + length, :], other)
            pieces[other] = asked[:1]
        return reader.prefill(pieces, given)[row]

    def logits(place: int, others: Mapping[int, int]) -> Tensor:
        for other in range(tile.rows):
            tile.leave(other)
        for other, length in others.items():
            reader.begin()
            reader.restore(noise[..., : tile.before + length, :])
            tile.seat(other)
            tile.disturb(other, random)
            tile.put(other, asked[0], length)
        seen = [prompt(0, {})]
        tile.seat(place)
        tile.put(place, asked[count], count)
        newest = torch.full((tile.rows,), asked[-1], device=tile.device)
        for i in range(steps):
            seen.append(tile.step(max([count, *others.values()]) + i + 1)[place])
            tile.advance(newest)
        return torch.stack(seen)

    alone = logits(0, {})
    lengths = sorted({1, min(KEYS, context - steps), context - steps})
    good = True
    for place in range(0, tile.rows, max(1, tile.rows // MOST_PLACES)):
        near = {at: lengths[(at + place) % len(lengths)] for at in range(tile.rows) if at != place}
        good = good and all(torch.equal(logits(place, others), alone) for others in ({}, near))
    for row in range(1, reader.rows):
        near = {at: lengths[(at + row) % len(lengths)] for at in range(reader.rows) if at != row}
        good = good and all(torch.equal(prompt(row, others), alone[0]) for others in ({}, near))
    for place in range(tile.rows):
        tile.leave(place)
    tile.cache.reset()
    return good
