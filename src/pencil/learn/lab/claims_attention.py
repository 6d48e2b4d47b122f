"""Claims about attention: several heads and their cost, and separate queries, keys and values."""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ...core.attention import Attention
from ...core.blocks import Block
from ...core.layers import MLP, LayerNorm
from ...core.masks import Mask, causal, full
from ...core.probe import OFF, Probe
from ...core.span import Span
from .claim import Claim, Curve, Measured, Prediction, Size
from .recall_task import Blocks, RecallModel, exact_match, held_out_batch, recall_loss, training_batches
from .training import generator, points, seeded, train

HEADS = 8  # of the layer whose cost is measured


def make_blocks(width: int, heads: int, depth: int = 1, mask: Mask = causal, head_width: int | None = None) -> Blocks:
    """Pre-norm blocks with an MLP of twice their width."""
    attention = partial(Attention, width, heads, head_width=head_width)
    norm = partial(LayerNorm, width)
    return Blocks(partial(Block, attention, partial(MLP, width, 2 * width), norm), depth, norm(), mask)


def measure_heads(arm: str, seed: int, size: Size) -> Measured:
    """One block must recall the values of two cards at once."""
    kind = dict(names=size["names"], values=size["values"], shown=size["names"], queries=2)
    heads = 1 if arm == "one head" else size["heads"]

    def make() -> RecallModel:
        return RecallModel(size["names"], size["values"], 2, size["width"], make_blocks(size["width"], heads))

    model, batches = seeded(make, seed), training_batches(seed, size["rows"], **kind)
    losses = train(model, lambda step: recall_loss(model, batches(step)), size["steps"], lr=size["lr"], warmup=20)
    return {
        "accuracy": exact_match(model, held_out_batch(seed, size["held_out"], **kind)),
        "loss by step": points(range(len(losses)), losses),
    }


def attention_pass(width: int, heads: int, length: int, seed: int) -> Callable[[Probe], None]:
    """A function that runs one attention over random tokens, forward and backward."""
    model = seeded(lambda: Attention(width, heads), seed)
    x = torch.randn(1, length, width, generator=generator(seed, length), requires_grad=True)
    span = Span.whole(length).under(full)
    return lambda probe: model(x, span, probe=probe).sum().backward()


def time_ratio(one: Callable[[], None], other: Callable[[], None], times: int) -> float:
    """The time of the first ÷ that of the second; they alternate, so that other load affects both."""
    found = [_seconds(one) / _seconds(other) for _ in range(times + 1)]
    return median(found[1:])  # the first is a warm-up


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure_cost(arm: str, seed: int, size: Size) -> Measured:
    """FLOPs, softmax cells and time of several heads against one head of the same total width."""
    width, heads = size["width"], 1 if arm == "one head" else HEADS
    fused, plain = [], []
    for n in size["lengths"]:
        mine, one = attention_pass(width, heads, n, seed), attention_pass(width, 1, n, seed)
        fused.append(time_ratio(partial(mine, OFF), partial(one, OFF), size["times"]))
        plain.append(time_ratio(partial(mine, Probe("pattern")), partial(one, Probe("pattern")), size["times"]))
    n, probe = size["lengths"][-1], Probe("pattern")
    with FlopCounterMode(display=False) as counter:
        attention_pass(width, heads, n, seed)(probe)
    # the backward pass costs twice the forward pass; a multiplication and its addition are two operations
    formula = 3 * 2 * (4 * n * width * width + 2 * n * n * width)
    return {
        "operations": counter.get_total_flops() / formula,
        "cells": probe.values["pattern"].numel() / n**2,
        "time": fused[-1],
        "plain time": plain[-1],
        "time by length": points(size["lengths"], fused),
        "plain time by length": points(size["lengths"], plain),
    }


class SharedQKV(nn.Module):
    """Replaces the qkv projection of an attention: one vector per token is its Q, its K and its V."""

    def __init__(self, width: int, wide: int):
        super().__init__()
        self.one = nn.Linear(width, wide)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T n"]:
        return self.one(x).repeat(1, 1, 3)


class PointerModel(nn.Module):
    """Each token has a name and points at another token by its name; it must predict where that one points."""

    def __init__(self, count: int, width: int, body: Blocks):
        super().__init__()
        self.names, self.points = nn.Embedding(count, width), nn.Embedding(count, width)
        self.body, self.head = body, nn.Linear(width, count)

    def forward(self, names: Int[Tensor, "B n"], points: Int[Tensor, "B n"]) -> Float[Tensor, "B n n"]:
        return self.head(self.body(self.names(names) + self.points(points)))


def ring_batch(random: torch.Generator, rows: int, count: int) -> list[Int[Tensor, "B n"]]:
    """Names in a ring, each token pointing at the next, shuffled: names, where they point, and where those point."""
    order, mixed = (torch.rand(rows, count, generator=random).argsort(1) for _ in range(2))
    return [order.roll(-ahead, 1).gather(1, mixed) for ahead in range(3)]


def pointer_model(arm: str, seed: int, size: Size) -> PointerModel:
    """With one vector the heads are twice as wide, so that both arms have the same number of parameters."""
    width, heads = size["width"], size["heads"]

    def make() -> PointerModel:
        wide = 2 * width // heads if arm == "one vector" else None
        body = make_blocks(width, heads, mask=full, head_width=wide)
        if arm == "one vector":
            for block in body.blocks:
                block.get_submodule("attn").qkv = SharedQKV(width, 2 * width)
        return PointerModel(size["count"], width, body)

    return seeded(make, seed)


def measure_qkv(arm: str, seed: int, size: Size) -> Measured:
    """Each token must find the one it points at, and predict where that one points."""
    model = pointer_model(arm, seed, size)

    def loss_of(step: int) -> Tensor:
        names, ahead, answers = ring_batch(generator(seed, step, 1), size["rows"], size["count"])
        return F.cross_entropy(model(names, ahead).flatten(0, 1), answers.flatten())

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)
    names, ahead, answers = ring_batch(generator(seed, 0, 2), size["held_out"], size["count"])
    with torch.no_grad():
        right = model(names, ahead).argmax(-1) == answers
    return {"accuracy": float(right.float().mean()), "loss by step": points(range(len(losses)), losses)}


_HEADS = dict(names=8, values=8, width=32, heads=4, rows=64, steps=400, lr=3e-3, held_out=1000)
_COST = dict(width=256, lengths=(64, 256, 512), times=7)
_POINTERS = dict(count=8, width=32, heads=2, rows=32, steps=300, lr=3e-3, held_out=500)
_LOSS = Curve("loss by step", "step", "training loss (nats)")

CLAIMS = (
    Claim(
        name="heads",
        title="Several heads",
        hypothesis="One softmax must concentrate: a single head cannot attend to two things at once for two reasons.",
        removed="Attention(width, heads=1) instead of Attention(width, heads=4): same width, same number of parameters",
        arms=("four heads", "one head"),
        measure=measure_heads,
        predictions=(
            Prediction(
                "queried for two cards at once, it mixes them up",
                "accuracy",
                "both values right and in order, held-out cards (fraction)",
                "four heads",
                "one head",
                by=0.2,
            ),
        ),
        quick=_HEADS,
        full=_HEADS | dict(names=16, values=16, width=64, steps=3000, held_out=4000),
        tiny=dict(names=5, values=3, width=4, heads=2, rows=2, steps=1, lr=1e-3, held_out=7),
        curves=(_LOSS,),
        caveat="One block. A second block can attend a second time, and one head of full width could in principle give "
        "two cards unequal weights and distinguish them by that; it does not learn this in the steps given. Where "
        "every pair of name and value had its own embedding (one trial, width 64) one head answered all: a mixture of "
        "two cards then still shows which two they were.",
        source="002, Why One Head Is Not Enough; 003, part 2",
    ),
    Claim(
        name="heads-cost",
        title="The cost of several heads",
        hypothesis="h heads of width d/h cost the same as one head of width d.",
        removed="Attention(256, heads=1) instead of Attention(256, heads=8); forward and backward, one thread",
        arms=("eight heads", "one head"),
        measure=measure_cost,
        predictions=(
            Prediction(
                "the matrix products cost the same",
                "operations",
                "FLOPs counted ÷ 3·2·(4nd² + 2n²d)",
                "eight heads",
                "",
                near=1.0,
                by=1e-9,
            ),
            Prediction(
                "but the softmax has h·n² cells, not n²",
                "cells",
                "cells of the pattern ÷ n²",
                "eight heads",
                "",
                near=float(HEADS),
                by=1e-9,
            ),
            Prediction(
                "the fused kernel takes the same time",
                "time",
                "time for the longest text ÷ that of one head",
                "eight heads",
                "",
                near=1.0,
                by=0.1,
            ),
            Prediction(
                "with the scores materialised, it takes longer",
                "plain time",
                "time for the longest text, scores materialised ÷ that of one head",
                "eight heads",
                "one head",
                by=0.1,
            ),
        ),
        quick=_COST,
        full=_COST | dict(lengths=(64, 128, 256, 512, 1024, 2048), times=15),
        tiny=dict(width=8, lengths=(3, 5), times=1),
        curves=(
            Curve("time by length", "tokens", "time ÷ that of one head, fused", log_x=True),
            Curve("plain time by length", "tokens", "time ÷ that of one head, scores materialised", log_x=True),
        ),
        alone=True,
        caveat="The times are of this machine and these sizes; kernels differ. Only the FLOPs of matrix products are "
        "counted, not the h·n² exponentials of the softmax.",
        source="002, The Computational Cost Trick; 003, part 2",
    ),
    Claim(
        name="qkv",
        title="Separate queries, keys and values",
        hypothesis="What a token looks for (query), what it offers (key) and what it gives (value) are three things; "
        "with one vector for all three, attention only measures similarity.",
        removed="attn.qkv is replaced by one projection that is Q, K and V; twice as wide, for the same number of "
        "parameters",
        arms=("three vectors", "one vector"),
        measure=measure_qkv,
        predictions=(
            Prediction(
                "it cannot follow a pointer, only find which tokens are linked",
                "accuracy",
                "right answers on held-out rings (fraction)",
                "three vectors",
                "one vector",
                by=0.2,
            ),
        ),
        quick=_POINTERS,
        full=_POINTERS | dict(count=16, width=64, steps=2000, held_out=2000),
        tiny=dict(count=5, width=4, heads=2, rows=2, steps=1, lr=1e-3, held_out=3),
        curves=(_LOSS,),
        caveat="One block without positions. Scores of a vector with itself are symmetric, x_i·x_j = x_j·x_i, so "
        "attention from a token to the one it points at is as strong as back. Several blocks, or positions, can make "
        "up for some of it.",
        source="002, Queries, Keys, and Values",
    ),
)
