"""The forward passes of a model with tensors alone as inputs and outputs: what `torch.export` and other runtimes take.

Padding is a mask here (1 is a token, 0 padding), since other programs know no `Span`; a token's index is the number of
tokens before it, as in a `Cache`. The cache is one tensor (2, layers, B, g, P, d) that a step is given and returns with
its own keys and values after it, so prefill is a step whose cache is empty.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..core.cache import Cache, LayerCache, Memory
from ..core.masks import NOWHERE
from ..core.span import Span

Draw = Callable[[Sequence[int], torch.Generator], Tensor]


@dataclass(frozen=True)
class Input:
    """One input: its axes, those of any size by a name (`SIZES`), and how a random one is drawn."""

    axes: tuple[int | str, ...]
    draw: Draw


@dataclass(frozen=True)
class Graph:
    """One forward pass."""

    name: str
    module: "Wrapped"
    inputs: Mapping[str, Input]
    outputs: tuple[str, ...]
    before: int = 0  # tokens of the cache that are no text: those of a picture

    def random(self, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Tensor]:
        """Random inputs of these sizes, by their names."""
        generator = torch.Generator().manual_seed(seed)
        return {
            name: one.draw([size if isinstance(size, int) else sizes[size] for size in one.axes], generator)
            for name, one in self.inputs.items()
        }


@dataclass(frozen=True)
class RuntimeProfile:
    """How another runtime computes a family's models."""

    graphs: Callable[[Any], list[Graph]]  # of a model
    example: Callable[[Any, Any], str]  # of a run and its model's config: lines of Python that use the graphs


def sizes(batch: int, tokens: int, past: int, source: int) -> dict[str, int]:
    """The sizes of the named axes."""
    return dict(batch=batch, tokens=tokens, past=past, all=past + tokens, source=source)


def ids(below: int) -> Draw:
    """Random ids."""
    return lambda shape, generator: torch.randint(below, tuple(shape), generator=generator)


def gaussian(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Random numbers of a normal distribution."""
    return torch.randn(tuple(shape), generator=generator)


def masks(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """A mask with padding anywhere but at the end."""
    mask = (torch.rand(tuple(shape), generator=generator) > 0.2).long()
    mask[..., -1] = 1
    return mask


def text(vocab: int) -> dict[str, Input]:
    """Tokens alone."""
    return {"tokens": Input(("batch", "tokens"), ids(vocab))}


def masked_text(vocab: int) -> dict[str, Input]:
    """Tokens with padding."""
    return text(vocab) | {"mask": Input(("batch", "tokens"), masks)}


def source_text(vocab: int) -> dict[str, Input]:
    """The tokens of a source, with padding."""
    axes = ("batch", "source")
    return {"source": Input(axes, ids(vocab)), "source_mask": Input(axes, masks)}


def step_inputs(vocab: int, store: Sequence[int], mask: Draw = masks) -> dict[str, Input]:
    """What a step takes: its tokens, which of all tokens are not padding, and the cache, of this many layers, key-value
    heads and channels."""
    layers, heads, width = store
    return text(vocab) | {
        "mask": Input(("batch", "all"), mask),
        "past": Input((2, layers, "batch", heads, "past", width), gaussian),
    }


def index_of(mask: Int[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """The index of each token: how many come before it; NOWHERE for padding."""
    return torch.where(mask > 0, mask.cumsum(1) - 1, NOWHERE)


def consecutive(tokens: Int[Tensor, "B T"]) -> Span:
    """The span of whole sequences without padding, whose length an exporter need not know."""
    return Span.of(torch.arange(tokens.shape[1], device=tokens.device)[None])


class GrowingLayer(LayerCache):
    """One block's keys and values, to which a step's own are appended."""

    def write(
        self, span: Span, k: Float[Tensor, "B g T d"], v: Float[Tensor, "B g T d"]
    ) -> tuple[Float[Tensor, "B g S d"], Float[Tensor, "B g S d"]]:
        self.keys, self.values = torch.cat((self.keys, k), 2), torch.cat((self.values, v), 2)
        return self.keys, self.values


class GrowingCache(Cache):
    """A cache that is given whole, with the positions of all keys, and grows by what is written."""

    def __init__(self, past: Float[Tensor, "2 layers B g P d"], index: Int[Tensor, "#B S"], coords: Tensor):
        self.key_index, self.key_coords, self.memory = index, coords, None
        self.layers = [GrowingLayer(keys, values, index) for keys, values in zip(*past.unbind(0), strict=True)]

    @property
    def unwritten(self) -> bool:
        return False

    def place(self, span: Span) -> Span:
        coords = F.pad(span.coords, (0, self.key_coords.shape[-1] - span.coords.shape[-1]))
        keys = dict(key_index=self.key_index, key_coords=self.key_coords, slots=span.index)
        return replace(span, coords=coords, start=None, **keys)

    @property
    def present(self) -> Float[Tensor, "2 layers B g S d"]:
        """All keys and values."""
        return torch.stack([torch.stack([getattr(one, name) for one in self.layers]) for name in ("keys", "values")])


class Wrapped(nn.Module):
    """A forward pass of a model. A subclass says which."""

    model: Any

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self.eval()


class Plain(Wrapped):
    """The model of its tensors."""

    def forward(self, *given: Tensor) -> Tensor:
        return self.model(*given)


class WholeText(Wrapped):
    """The logits of every token."""

    def forward(self, tokens: Tensor, *given: Tensor) -> Tensor:
        return self.model(tokens, *given, span=consecutive(tokens))


class MaskedText(Wrapped):
    """The logits of a text with padding, or of each of its tokens."""

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.model(tokens, Span.at(index_of(mask)))


class Translated(Wrapped):
    """The logits of a whole target."""

    def forward(self, tokens: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        return self.model(tokens, source, Span.at(index_of(mask)), consecutive(tokens))


class Encoded(Wrapped):
    """The keys and values of a source, for every block of the decoder."""

    def forward(self, source: Tensor, mask: Tensor) -> Tensor:
        layers = self.model.read(source, Span.at(index_of(mask))).layers
        return torch.stack([torch.stack(part) for part in zip(*layers, strict=True)])


class Step(Wrapped):
    """The logits of the next tokens, and the cache with them; an encoder–decoder also takes its memory of a source."""

    def forward(self, tokens: Tensor, mask: Tensor, past: Tensor, *source: Tensor) -> tuple[Tensor, Tensor]:
        index = index_of(mask)
        every = Span.at(index)
        cache = GrowingCache(past, index, every.coords)
        if source:
            memory, source_mask = source
            layers = list(zip(*(part.unbind(0) for part in memory.unbind(0)), strict=True))
            cache.memory = Memory(layers, Span.at(index_of(source_mask)))
        here = Span.at(index[:, past.shape[-2] :])
        return self.model(tokens, span=here, cache=cache), cache.present


class Pictured(Wrapped):
    """The cache of a picture, after which a text begins; no token of a picture attends to the text."""

    def forward(self, picture: Tensor) -> Tensor:
        model = self.model
        c = model.config
        x, here = model.read(picture)
        empty = x.new_zeros(2, c.depth, x.shape[0], c.kv_heads or c.heads, 0, c.head_width)
        cache = GrowingCache(empty, here.index, here.coords)
        here = cache.place(here).under(model.mask, model.bias())
        for i, block in enumerate(model.blocks):
            x = block(x, here, cache[i])
        return cache.present


class PicturedStep(Wrapped):
    """The logits of the next tokens of a text about a picture, and the cache with them."""

    coords: Tensor

    def __init__(self, model: Any):
        super().__init__(model)
        with torch.no_grad():
            self.register_buffer("coords", model.read(*model.example()[1:])[1].coords, persistent=False)

    def forward(self, tokens: Tensor, mask: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        index, before = index_of(mask), self.coords.shape[1]
        within = torch.where(index < NOWHERE, index - before, NOWHERE)  # of the text
        words = F.pad(Span.at(within[:, before:]).coords, (0, self.coords.shape[-1] - 1))
        coords = torch.cat((self.coords.expand(tokens.shape[0], -1, -1), words), 1)
        cache = GrowingCache(past, index, coords)
        here = Span.at(within[:, past.shape[-2] :])
        return self.model(tokens, span=here, cache=cache), cache.present


class Denoised(Wrapped):
    """The prediction for a noised picture; of a text, its mask follows, and last which rows have no condition."""

    def __init__(self, model: Any):
        super().__init__(model)
        self.text = bool(model.config.vocab)

    def forward(self, picture: Tensor, timestep: Tensor, *condition: Tensor) -> Tensor:
        given, places, drop = None, None, None
        if condition:
            given, *rest = condition
            places = Span.at(index_of(rest.pop(0))) if self.text else None
            drop = rest[0] > 0 if rest else None
        return self.model(picture, timestep, given, places, drop)
