"""Memory in bytes: what training keeps, at its peak and with checkpointing, and what a cache holds.

The formulas say what eager PyTorch keeps for the backward pass on CUDA with fused attention, in float32 or under
bfloat16 autocast with float32 weights. benchmarks/cost.py holds them against what a GPU measures.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from .parts import Product, count_tokens, gated, groups_of, kv_heads, lengths, parts_of, small_reader

BYTES = {"bf16": 2, "fp32": 4}
FULL = 4  # bytes of a float32


@dataclass(frozen=True)
class Training:
    """Bytes of a training step; activations are on top of weights, gradients and the optimizer's state."""

    weights: int
    gradients: int
    adamw: int
    muon: int
    kept: int  # for the backward pass
    peak: int  # what is kept, and what the backward pass needs at its fullest
    checkpointed: int  # the peak, when only the inputs of blocks are kept and each block is run again

    def total(self, optimizer: str, checkpointed: bool = False) -> int:
        state = self.muon if optimizer == "muon" else self.adamw
        return self.weights + self.gradients + state + (self.checkpointed if checkpointed else self.peak)


@dataclass(frozen=True)
class Stack:
    """Blocks alike: how many; the bytes one keeps, those of its input, and the most that pass through it at once."""

    count: int
    kept: int
    entered: int
    forward: int
    backward: int


def training(family: str, config: Any, batch: int, length: int | None = None, dtype: str = "bf16") -> Training:
    """What a training step needs."""
    half, parts = BYTES[dtype], parts_of(family, config, batch, length)
    learned = sum(part.parameters for part in parts)
    inside = sum(p.inside * p.outside * p.times for p in parts if isinstance(p, Product) and p.block)
    stacks = stacks_of(family, config, batch, length, half)
    depth = sum(stack.count for stack in stacks)
    # autocast keeps a half-precision copy of every matrix until the backward pass has used it
    matrices = sum(p.inside * p.outside * p.times for p in parts if isinstance(p, Product))
    copied, inner = (half * matrices, half * inside) if half < FULL else (0, 0)
    before, after, words = _ends(family, config, batch, length, half)
    blocks, inputs = sum(s.count * s.kept for s in stacks), sum(s.count * s.entered for s in stacks)
    # the loss goes back through log-probabilities, their gradient and the logits': three numbers a word
    loss = 3 * FULL * words
    kept = before + blocks + after + copied + FULL * words
    peak = max(kept + loss - FULL * words, before + blocks + copied + max(s.backward for s in stacks))
    logits = ((half if half < FULL else 0) + 2 * FULL) * words
    checkpointed = before + inputs + max(
        after + copied - inner + loss,
        after + copied + logits,
        copied + max(s.forward for s in stacks),
        max(s.kept + s.backward for s in stacks) + inner // depth,
    )  # fmt: skip
    return Training(
        FULL * learned, FULL * learned, 2 * FULL * learned, 2 * FULL * learned - FULL * inside, kept, peak, checkpointed
    )


def stacks_of(family: str, c: Any, batch: int, length: int | None, half: int) -> list[Stack]:
    """The blocks of a model, by kind."""
    if family == "dit":
        stacks = [_ada(c, batch, count, size, times, half) for times, (count, size) in groups_of(c) if times]
        if c.vocab:
            stacks.append(_block(small_reader(c), batch, c.context, c.context, c.reader_depth, half))
        return stacks
    if family == "seq2seq":
        target, source = lengths(family, c, length)
        own, across = _block(c, batch, target, target, c.depth, half), _across(c, batch, target, source, half)
        # the source's keys and values come from outside the block
        own = replace(own, kept=own.kept + across, entered=own.entered + batch * source * _read(c, half))
        return [_block(c, batch, source, source, c.depth, half), own]
    count = count_tokens(family, c, 1, length)
    return [_block(c, batch, count, count, c.depth, half, narrow=family == "vit")]


def _block(c: Any, batch: int, queries: int, keys: int, times: int, half: int, narrow: bool = False) -> Stack:
    """A pre- or post-norm block. `narrow`: the trunk begins as a product, so autocast leaves it in half precision."""
    rows, d = batch * queries, c.head_width
    norms = 2 * (FULL * c.width + 2 * FULL)  # each its input in float32, a mean and a deviation
    # what the first matrix of each part is given; autocast copies it for each of a gated MLP's two
    read = half * c.width * (3 if gated(c) and half < FULL else 2)
    looked = half * (2 * c.heads + 2 * kv_heads(c)) * d + FULL * c.heads  # q, k, v and z, and a sum a query
    if c.positions == "rope":
        # turned copies, while v keeps the joined product from being freed; and z, which lies as q does, laid out anew
        looked += half * (2 * c.heads + kv_heads(c)) * d
    if c.dropout and narrow:
        looked += half * c.heads * d  # v with keys dropped
    dropped = 2 * c.width if c.dropout else 0  # which numbers were dropped, a byte each
    mlp = half * c.mlp_width * (4 if gated(c) else 1 if c.activation == "relu" else 2)
    kept = rows * (norms + read + looked + dropped + mlp) + _bias(c, batch, queries, keys, half)
    trunk, hidden = half if narrow else FULL, half * c.mlp_width
    forward = (trunk + FULL) * c.width + hidden * (4 if gated(c) else 2)
    backward = (trunk + half) * c.width + hidden * (2 if gated(c) else 1)
    return Stack(times, kept, rows * trunk * c.width, rows * forward, rows * backward)


def _bias(c: Any, batch: int, queries: int, keys: int, half: int) -> int:
    """A scheme that biases the scores hands each block a matrix of them; Shaw's differs from row to row."""
    if c.positions not in ("alibi", "t5", "shaw"):
        return 0
    return half * c.heads * queries * keys * (batch if c.positions == "shaw" else 1)


def _across(c: Any, batch: int, queries: int, keys: int, half: int) -> int:
    """What a block keeps of looking at a source: of each target token, and of each source token."""
    target = FULL * c.width + 2 * FULL + half * 3 * c.width + FULL * c.heads + (c.width if c.dropout else 0)
    return batch * (queries * target + keys * _read(c, half))


def _read(c: Any, half: int) -> int:
    """Bytes of a source's token for one block: its key and value, and what they were read from if that was copied."""
    return half * 2 * kv_heads(c) * c.head_width + (half * c.width if half < FULL else 0)


def _ada(c: Any, batch: int, count: int, size: int, times: int, half: int) -> Stack:
    """A dit's block: what is normed is kept to be scaled, and what each part says to be gated."""
    rows, gates = batch * count * size, 2 if c.ada == "zero" else 0
    norms = 2 * (2 * FULL * c.width + 2 * FULL)
    looked = half * 4 * c.width + FULL * c.heads + (half * 3 * c.width if c.positions == "rope" else 0)
    each = norms + half * 2 * c.width + looked + half * 2 * c.mlp_width + half * gates * c.width
    told = half * ((6 if gates else 4) + 3) * c.width + (FULL * c.width if count > 1 else 0)
    kept = rows * each + batch * count * told + _bias(c, batch * count, size, size, half)
    forward = (half + FULL) * c.width + 2 * half * c.mlp_width
    return Stack(times, kept, rows * half * c.width, rows * forward, rows * half * (3 * c.width + c.mlp_width))


def _ends(family: str, c: Any, batch: int, length: int | None, half: int) -> tuple[int, int, int]:
    """Bytes kept before the blocks and after them, and how many logits there are to go back through."""
    rows, normed = count_tokens(family, c, batch, length), FULL * c.width + 2 * FULL
    strips = batch * half * c.sizes["c"] * prod(c.grid) if family in ("vit", "captioner", "dit") else 0
    if family == "dit":
        return strips, rows * (normed + FULL * c.width + half * c.width + 2 * FULL * c.sizes["o"]), 0
    before = strips + (rows * c.width if c.dropout else 0)
    # a vector that is cut out of all tokens' holds them all, unless autocast copies it
    pooled = rows * FULL * c.width if half == FULL and getattr(c, "pool", "mean") == "class" else 0
    if family == "vit":
        return before, rows * normed + pooled, 0
    said = batch * lengths(family, c, length)[0]
    if family == "reader":
        before, norm = before + rows * normed * c.embed_norm, rows * normed * (c.trunk == "pre")
        if c.classes:
            return before, norm + pooled, 0
        return before, norm + rows * (3 * half * c.width + normed), rows * c.vocab
    if family == "seq2seq":
        source = (rows - said) * (FULL * c.width if half == FULL else 0)
        return before, rows * normed * (c.trunk == "pre") + source + said * half * c.width, said * c.vocab
    return before, said * (normed + half * c.width), said * c.vocab


def cache(c: Any, batch: int, held: int, dtype: str = "bf16", heads: int | None = None, source: int = 0) -> int:
    """2·L·n·g·d numbers a sequence: a key and a value for each block, token and key-value head; a source's too."""
    return 2 * c.depth * batch * (held + source) * (heads or kv_heads(c)) * c.head_width * BYTES[dtype]


def shared(c: Any) -> dict[str, int]:
    """Ways to share keys and values among the heads, by how many heads of them each has."""
    own = kv_heads(c)
    grouped = own if 1 < own < c.heads else next((n for n in (8, 4, 2, 3, 5) if c.heads % n == 0 and n < c.heads), None)
    found = {"full": c.heads, "grouped": grouped, "multi-query": 1 if c.heads > 1 else None}
    return {name: count for name, count in found.items() if count}
