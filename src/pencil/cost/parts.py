"""A model as a list of what it multiplies and what it keeps in tables: every number of `pencil cost` is a sum over it.

Only products of matrices are listed: all the rest (norms, activations, rotations) is some hundred times less work.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ..config import UserError
from ..models.reader import ReaderConfig

WAVES = 256  # of a dit's clock


@dataclass(frozen=True)
class Product:
    """x W: `rows` vectors of `inside` numbers become `outside` numbers each, in `times` blocks alike.

    `first`: x is given, not computed, so nobody asks for its gradient. `learned`: W is not counted elsewhere.
    `block`: W stands inside a block, where Muon works.
    """

    group: str
    rows: int
    inside: int
    outside: int
    bias: bool = False
    times: int = 1
    first: bool = False
    learned: bool = True
    block: bool = False

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each row and each number of W."""
        return 2 * self.rows * self.inside * self.outside * self.times

    @property
    def parameters(self) -> int:
        return self.learned * self.times * (self.inside + self.bias) * self.outside

    def backward(self, recompute: bool) -> int:
        """The gradient of W, and that of x: each as large a product as the forward one."""
        return self.flops * (1 if self.first else 2)


@dataclass(frozen=True)
class Look:
    """Attention: Q Kᵀ and A V, for `batch` sequences and each head."""

    group: str
    batch: int
    heads: int
    queries: int
    keys: int
    head_width: int
    times: int = 1
    parameters: int = 0

    @property
    def flops(self) -> int:
        """Two products; masked cells are counted, as torch's counter does."""
        return 4 * self.batch * self.heads * self.queries * self.keys * self.head_width * self.times

    def backward(self, recompute: bool) -> int:
        """Four products; a fused kernel kept no scores, and computes them again: five."""
        return self.flops * (5 if recompute else 4) // 2


@dataclass(frozen=True)
class Table:
    """Numbers that are learned, and looked up or added."""

    group: str
    parameters: int
    flops: int = 0

    def backward(self, recompute: bool) -> int:
        return 0


Part = Product | Look | Table


def parts_of(family: str, config: Any, batch: int = 1, length: int | None = None) -> list[Part]:
    """All parts of a forward pass over a batch; `length` is that of a text (and of its source), by default all."""
    makers = {"gpt": _gpt, "vit": _vit, "captioner": _captioner, "reader": _reader, "seq2seq": _seq2seq, "dit": _dit}
    return list(makers[family](config, batch, *lengths(family, config, length)))


def lengths(family: str, c: Any, length: int | None = None) -> tuple[int, ...]:
    """Tokens of a sequence; of a captioner those of its text, of a seq2seq the target's and the source's."""
    if family in ("vit", "dit"):
        if length is not None:
            raise UserError(f"--context is for text: a {family} reads {c.sizes['T']} tokens of a picture")
        return ()
    if length is not None and not 1 <= length <= c.context:
        raise UserError(f"--context must be from 1 to {c.context}, not {length}")
    if family == "seq2seq":
        return length or c.context, min(length or c.source_context, c.source_context)
    return (length or c.context,)


def count_tokens(family: str, c: Any, batch: int, length: int | None = None) -> int:
    """How many tokens run through the blocks: strips and words, a source's too."""
    if family in ("vit", "dit"):
        return batch * c.sizes["T"]
    return batch * (sum(lengths(family, c, length)) + getattr(c, "before", 0))


def stepped(family: str, config: Any, batch: int, held: int, length: int | None = None) -> list[Part]:
    """The parts of one more token a sequence, looking at `held` keys: itself and all that the cache holds."""
    c = config
    parts = [*_attention(c, batch, 1, held, c.depth), *_mlp(c, batch, c.depth)]
    if family == "seq2seq":
        parts += [*_across(c, batch, 1, lengths(family, c, length)[1], again=True)]
        return [*parts, *_shaw(c, c.positions, 1, batch, c.depth), Product("head", batch, c.width, c.vocab)]
    if family == "captioner":
        parts += _shaw(c, c.picture_scheme, 2, batch, c.depth)
    return [*parts, *_shaw(c, c.positions, 1, batch, c.depth), _head(c, batch)]


def _gpt(c: Any, batch: int, length: int) -> Iterator[Part]:
    yield Table("embeddings", c.vocab * c.width)
    yield from _positions(c, c.positions, (c.context,))
    yield from _attention(c, batch, length, length, c.depth)
    yield from _shaw(c, c.positions, 1, batch * length, c.depth)
    yield from _mlp(c, batch * length, c.depth)
    yield _norms(c, 2 * c.depth + 1)
    yield _head(c, batch * length)


def _vit(c: Any, batch: int) -> Iterator[Part]:
    tokens = c.sizes["T"]
    yield Product("embeddings", batch * c.sizes["N"], c.sizes["c"], c.width, bias=True, first=True)
    if c.pool == "class":
        yield Table("embeddings", c.width)
    yield from _positions(c, c.positions, c.grid, before=int(c.pool == "class"))
    yield from _attention(c, batch, tokens, tokens, c.depth)
    yield from _shaw(c, c.positions, 2, batch * tokens, c.depth)
    yield from _mlp(c, batch * tokens, c.depth)
    yield _norms(c, 2 * c.depth + 1)
    yield Product("head", batch, c.width, c.classes, bias=True)


def _captioner(c: Any, batch: int, length: int) -> Iterator[Part]:
    strips, tokens, narrow = prod(c.grid), c.before + length, c.picture_width or c.width
    yield Product("embeddings", batch * strips, c.sizes["c"], narrow, bias=True, first=True)
    if narrow != c.width:
        yield Product("embeddings", batch * strips, narrow, c.width, bias=True)
    yield Table("embeddings", (c.vocab + 2 * c.types + 2 * c.delimiters) * c.width)
    yield from _positions(c, c.picture_scheme, c.grid)
    yield from _positions(c, c.positions, (c.context,))
    looks: list[Part] = list(_attention(c, batch, tokens, tokens, c.depth))
    if c.mask == "prefix" and c.before > 1 and not {c.positions, c.picture_scheme} & {"alibi", "shaw", "t5"}:
        # the picture among itself, then the words over all that stands behind them
        looks = [part for part in looks if not isinstance(part, Look)]
        for queries, keys in ((c.before, c.before), (length, tokens)):
            yield Look("attention", batch, c.heads, queries, keys, c.head_width, c.depth)
    yield from looks
    yield from _shaw(c, c.positions, 1, batch * tokens, c.depth)
    yield from _shaw(c, c.picture_scheme, 2, batch * tokens, c.depth)
    yield from _mlp(c, batch * tokens, c.depth)
    yield _norms(c, 2 * c.depth + 1)
    yield _head(c, batch * length)


def _reader(c: Any, batch: int, length: int) -> Iterator[Part]:
    yield Table("embeddings", (c.vocab + c.types) * c.width)
    yield from _encoder(c, batch, length, c.context)
    if c.classes is None:
        yield Product("head", batch * length, c.width, c.width, bias=True)
        yield replace(_norms(c, 1), group="head")
        yield Product("head", batch * length, c.width, c.vocab, learned=False)
        yield Table("head", c.vocab)
    else:
        if c.pool == "class":
            yield Product("head", batch, c.width, c.width, bias=True)
        yield Product("head", batch, c.width, c.classes, bias=True)


def _encoder(c: Any, batch: int, length: int, context: int) -> Iterator[Part]:
    yield from _positions(c, c.positions, (context,))
    yield from _attention(c, batch, length, length, c.depth)
    yield from _shaw(c, c.positions, 1, batch * length, c.depth)
    yield from _mlp(c, batch * length, c.depth)
    yield _norms(c, 2 * c.depth + (c.trunk == "pre") + getattr(c, "embed_norm", False))


def _seq2seq(c: Any, batch: int, length: int, source: int) -> Iterator[Part]:
    tables = c.vocab + (0 if c.shared else c.source_vocab or c.vocab)
    yield Table("embeddings", tables * c.width)
    yield from _encoder(c, batch, source, c.source_context)
    yield from _positions(c, c.positions, (c.context,))
    yield from _attention(c, batch, length, length, c.depth)
    yield from _shaw(c, c.positions, 1, batch * length, c.depth)
    yield from _across(c, batch, length, source)
    yield from _mlp(c, batch * length, c.depth)
    yield _norms(c, 3 * c.depth + (c.trunk == "pre"))
    yield Product("head", batch * length, c.width, c.vocab, learned=not c.tied)
    yield Table("head", c.vocab * c.head_bias)


def _dit(c: Any, batch: int) -> Iterator[Part]:
    strips, ada = prod(c.grid), 6 if c.ada == "zero" else 4
    yield Product("embeddings", batch * strips, c.sizes["c"], c.width, bias=True, first=True)
    yield from _positions(c, c.positions, c.grid)
    yield Product("condition", batch, WAVES, c.width, bias=True, first=True)
    yield Product("condition", batch, c.width, c.width, bias=True)
    if c.classes:
        yield Table("condition", (c.classes + c.null) * c.width)
    if c.vocab:
        yield Table("condition", (c.vocab + c.null) * c.width)
        for part in _encoder(small_reader(c), batch, c.context, c.context):
            yield replace(part, group="condition")
    for times, (count, size) in groups_of(c):
        yield from _attention(c, batch * count, size, size, times)
        yield Product("condition", batch * count, c.width, ada * c.width, bias=True, times=times, block=True)
    yield from _shaw(c, c.positions, len(c.grid), batch * strips, c.depth)
    yield from _mlp(c, batch * strips, c.depth)
    yield Product("condition", batch, c.width, 2 * c.width, bias=True)
    yield Product("head", batch * strips, c.width, c.sizes["o"], bias=True)


def small_reader(c: Any) -> ReaderConfig:
    """The encoder that reads a dit's texts."""
    return ReaderConfig(vocab=c.vocab, context=c.context, width=c.width, depth=c.reader_depth, heads=c.heads,
                        hidden=c.hidden, rope_share=c.rope_share)  # fmt: skip


def groups_of(c: Any) -> list[tuple[int, tuple[int, int]]]:
    """How many of a dit's blocks look in which groups: their count and their size."""
    strips = prod(c.grid)
    if c.attention == "full":
        return [(c.depth, (1, strips))]
    if c.attention == "factored":
        frames, seats = c.grid[0], strips // c.grid[0]
        return [(c.depth - c.depth // 2, (frames, seats)), (c.depth // 2, (seats, frames))]
    size = prod(min(c.window, side) for side in c.grid)
    return [(c.depth, (strips // size, size))]


def kv_heads(c: Any) -> int:
    """Heads of keys and values: as many as of queries, unless they are shared."""
    return getattr(c, "kv_heads", None) or c.heads


def gated(c: Any) -> bool:
    """Whether the MLP has a third matrix, the gate."""
    return getattr(c, "activation", "gelu") == "swiglu"


def _bias(c: Any) -> bool:
    return getattr(c, "bias", True)


def _attention(c: Any, batch: int, queries: int, keys: int, times: int) -> Iterator[Part]:
    """Self-attention in so many blocks: the joined product for Q, K and V, the look, the output's product."""
    inside: Any = dict(bias=_bias(c), times=times, block=True)
    yield Product("attention", batch * queries, c.width, (c.heads + 2 * kv_heads(c)) * c.head_width, **inside)
    yield Look("attention", batch, c.heads, queries, keys, c.head_width, times)
    yield Product("attention", batch * queries, c.heads * c.head_width, c.width, **inside)


def _across(c: Any, batch: int, queries: int, keys: int, again: bool = False) -> Iterator[Part]:
    """Cross-attention in every block; where it looks `again`, the source's keys and values are there already."""
    inside: Any = dict(bias=c.bias, times=c.depth, block=True)
    yield Product("cross-attention", batch * queries, c.width, c.heads * c.head_width, **inside)
    if not again:
        yield Product("cross-attention", batch * keys, c.width, 2 * kv_heads(c) * c.head_width, **inside)
    yield Look("cross-attention", batch, c.heads, queries, keys, c.head_width, c.depth)
    yield Product("cross-attention", batch * queries, c.heads * c.head_width, c.width, **inside)


def _mlp(c: Any, rows: int, times: int) -> Iterator[Part]:
    yield Product("MLP", rows, c.width, c.mlp_width, _bias(c), times * (2 if gated(c) else 1), block=True)
    yield Product("MLP", rows, c.mlp_width, c.width, _bias(c), times, block=True)


def _norms(c: Any, times: int) -> Table:
    shifted = getattr(c, "norm", "layer") == "layer" and c.bias
    return Table("norms", times * c.width * (1 + shifted))


def _positions(c: Any, scheme: str, seats: tuple[int, ...], before: int = 0) -> Iterator[Part]:
    """What a scheme has to learn."""
    axes = len(seats)
    learned = {
        "learned": (before + prod(seats)) * c.width,
        "shaw": axes * (2 * (c.reach or 16) + 1) * c.head_width,
        "t5": axes * 32 * c.heads,
    }
    yield Table("positions", learned.get(scheme, 0))


def _shaw(c: Any, scheme: str, axes: int, rows: int, times: int) -> Iterator[Part]:
    """Shaw's scheme multiplies each query with its tables of distances, one an axis."""
    if scheme == "shaw":
        wide = 2 * (c.reach or 16) + 1
        yield Product("positions", rows * c.heads, c.head_width, wide, times=times * axes, learned=False)


def _head(c: Any, rows: int) -> Product:
    """To the words' logits; tied, its matrix is the table of words."""
    return Product("head", rows, c.width, c.vocab, bias=c.bias and not c.tied, learned=not c.tied)
