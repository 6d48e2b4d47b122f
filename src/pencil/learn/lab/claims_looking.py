"""Claims about looking: several heads and what they cost, and the three roles of a token."""

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
from ...core.probe import OFF, Off, Probe
from ...core.span import Span
from .cards import Cards, Stack, all_right, card_loss, dealer, unseen
from .claim import Claim, Curve, Measured, Prediction, Size
from .practice import built, dice, points, train

HEADS = 8  # of the layer whose cost is measured


def stack(width: int, heads: int, depth: int = 1, mask: Mask = causal, head_width: int | None = None) -> Stack:
    """Pre-norm blocks whose MLP is twice as wide as they are."""
    attention = partial(Attention, width, heads, head_width=head_width)
    norm = partial(LayerNorm, width)
    return Stack(partial(Block, attention, partial(MLP, width, 2 * width), norm), depth, norm(), mask)


def two_looks(arm: str, seed: int, size: Size) -> Measured:
    """One block is asked for the values of two cards at once."""
    kind = dict(names=size["names"], values=size["values"], shown=size["names"], asked=2)
    heads = 1 if arm == "one head" else size["heads"]

    def make() -> Cards:
        return Cards(size["names"], size["values"], 2, size["width"], stack(size["width"], heads))

    model, hands = built(make, seed), dealer(seed, size["rows"], **kind)
    losses = train(model, lambda step: card_loss(model, hands(step)), size["steps"], lr=size["lr"], warmup=20)
    return {
        "accuracy": all_right(model, unseen(seed, size["judged"], **kind)),
        "loss by step": points(range(len(losses)), losses),
    }


def looking(width: int, heads: int, length: int, seed: int) -> Callable[[Off], None]:
    """One attention over random tokens, forward and backward, ready to be run."""
    model = built(lambda: Attention(width, heads), seed)
    x = torch.randn(1, length, width, generator=dice(seed, length), requires_grad=True)
    span = Span.whole(length).under(full)
    return lambda probe: model(x, span, probe=probe).sum().backward()


def ratio(one: Callable[[], None], other: Callable[[], None], times: int) -> float:
    """How much longer the first takes than the second; in turn, so that what else the machine does meets both."""
    found = [_seconds(one) / _seconds(other) for _ in range(times + 1)]
    return median(found[1:])  # the first warms up


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cost(arm: str, seed: int, size: Size) -> Measured:
    """Operations, cells of the softmax and time of several heads against one of the same width in all."""
    width, heads = size["width"], 1 if arm == "one head" else HEADS
    fused, plain = [], []
    for n in size["lengths"]:
        mine, one = looking(width, heads, n, seed), looking(width, 1, n, seed)
        fused.append(ratio(partial(mine, OFF), partial(one, OFF), size["times"]))
        plain.append(ratio(partial(mine, Probe("pattern")), partial(one, Probe("pattern")), size["times"]))
    n, probe = size["lengths"][-1], Probe("pattern")
    with FlopCounterMode(display=False) as counter:
        looking(width, heads, n, seed)(probe)
    # backward costs twice forward; each multiplication and its addition are two operations
    formula = 3 * 2 * (4 * n * width * width + 2 * n * n * width)
    return {
        "operations": counter.get_total_flops() / formula,
        "cells": probe.values["pattern"].numel() / n**2,
        "time": fused[-1],
        "plain time": plain[-1],
        "time by length": points(size["lengths"], fused),
        "plain time by length": points(size["lengths"], plain),
    }


class OneVector(nn.Module):
    """In place of the joined product of an attention: one vector a token, handed over as its Q, its K and its V."""

    def __init__(self, width: int, wide: int):
        super().__init__()
        self.one = nn.Linear(width, wide)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T n"]:
        return self.one(x).repeat(1, 1, 3)


class Arrows(nn.Module):
    """Tokens that have a name and point at another token by its name; each shall say where that one points."""

    def __init__(self, count: int, width: int, trunk: Stack):
        super().__init__()
        self.names, self.points = nn.Embedding(count, width), nn.Embedding(count, width)
        self.trunk, self.head = trunk, nn.Linear(width, count)

    def forward(self, names: Int[Tensor, "B n"], points: Int[Tensor, "B n"]) -> Float[Tensor, "B n n"]:
        return self.head(self.trunk(self.names(names) + self.points(points)))


def ring(random: torch.Generator, rows: int, count: int) -> list[Int[Tensor, "B n"]]:
    """Names in a ring, each token pointing at the next, mixed up: names, where they point, and where those point."""
    order, mixed = (torch.rand(rows, count, generator=random).argsort(1) for _ in range(2))
    return [order.roll(-ahead, 1).gather(1, mixed) for ahead in range(3)]


def arrows(arm: str, seed: int, size: Size) -> Arrows:
    """One vector is given heads twice as wide, so that both arms learn as many numbers."""
    width, heads = size["width"], size["heads"]

    def make() -> Arrows:
        wide = 2 * width // heads if arm == "one vector" else None
        trunk = stack(width, heads, mask=full, head_width=wide)
        if arm == "one vector":
            for block in trunk.blocks:
                block.get_submodule("attn").qkv = OneVector(width, 2 * width)
        return Arrows(size["count"], width, trunk)

    return built(make, seed)


def follow(arm: str, seed: int, size: Size) -> Measured:
    """Each token looks for the one it points at, and tells where that one points."""
    model = arrows(arm, seed, size)

    def loss_of(step: int) -> Tensor:
        names, ahead, answers = ring(dice(seed, step, 1), size["rows"], size["count"])
        return F.cross_entropy(model(names, ahead).flatten(0, 1), answers.flatten())

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)
    names, ahead, answers = ring(dice(seed, 0, 2), size["judged"], size["count"])
    with torch.no_grad():
        right = model(names, ahead).argmax(-1) == answers
    return {"accuracy": float(right.float().mean()), "loss by step": points(range(len(losses)), losses)}


_LOOKS = dict(names=8, values=8, width=32, heads=4, rows=64, steps=400, lr=3e-3, judged=1000)
_COST = dict(width=256, lengths=(64, 256, 512), times=7)
_ARROWS = dict(count=8, width=32, heads=2, rows=32, steps=300, lr=3e-3, judged=500)
_LOSS = Curve("loss by step", "step", "training loss (nats)")

CLAIMS = (
    Claim(
        name="heads",
        title="Several heads",
        hypothesis="One softmax must concentrate: a single head cannot look at two things at once for two reasons.",
        removed="Attention(width, heads=1) in place of Attention(width, heads=4): as wide, and as many numbers",
        arms=("four heads", "one head"),
        measure=two_looks,
        predictions=(
            Prediction(
                "asked for two cards at once, it mixes them up",
                "accuracy",
                "both values right and in order, on cards not trained on (share)",
                "four heads",
                "one head",
                by=0.2,
            ),
        ),
        quick=_LOOKS,
        full=_LOOKS | dict(names=16, values=16, width=64, steps=3000, judged=4000),
        tiny=dict(names=5, values=3, width=4, heads=2, rows=2, steps=1, lr=1e-3, judged=7),
        curves=(_LOSS,),
        caveat="One block. A second block can look a second time, and one head of full width could in principle give "
        "two cards unequal weights and tell them apart by that; it does not find this way in the steps given. Where "
        "every pair of name and value had a vector of its own (one trial, width 64) one head answered all: a mixture "
        "of two cards then still says which two they were.",
        source="002, Why One Head Is Not Enough; 003, part 2",
    ),
    Claim(
        name="heads-cost",
        title="What several heads cost",
        hypothesis="h heads of width d/h cost the same as one head of width d.",
        removed="Attention(256, heads=1) in place of Attention(256, heads=8); forward and backward, one thread",
        arms=("eight heads", "one head"),
        measure=cost,
        predictions=(
            Prediction(
                "its matrix products are as many",
                "operations",
                "operations counted, against 3·2·(4nd² + 2n²d)",
                "eight heads",
                "",
                near=1.0,
                by=1e-9,
            ),
            Prediction(
                "but the softmax has h·n² cells and not n²",
                "cells",
                "cells of the pattern, against n²",
                "eight heads",
                "",
                near=float(HEADS),
                by=1e-9,
            ),
            Prediction(
                "fused, it takes as long",
                "time",
                "time of the longest text, against one head's",
                "eight heads",
                "",
                near=1.0,
                by=0.1,
            ),
            Prediction(
                "with the scores written out, it takes longer",
                "plain time",
                "time of the longest text with its scores kept, against one head's",
                "eight heads",
                "one head",
                by=0.1,
            ),
        ),
        quick=_COST,
        full=_COST | dict(lengths=(64, 128, 256, 512, 1024, 2048), times=15),
        tiny=dict(width=8, lengths=(3, 5), times=1),
        curves=(
            Curve("time by length", "tokens", "time against one head's, fused", log_x=True),
            Curve("plain time by length", "tokens", "time against one head's, scores kept", log_x=True),
        ),
        alone=True,
        caveat="Times are of this machine and of these sizes; kernels differ. The operations counted are those of "
        "matrix products, so the exponentials of the softmax, h·n² of them, are not among them.",
        source="002, The Computational Cost Trick; 003, part 2",
    ),
    Claim(
        name="qkv",
        title="Separate queries, keys and values",
        hypothesis="What a token looks for, what it offers and what it gives are three things; with one vector for all "
        "three, looking is a matter of likeness alone.",
        removed="attn.qkv is swapped for one product whose result serves as Q, K and V; twice as wide, so as many "
        "numbers are learned",
        arms=("three vectors", "one vector"),
        measure=follow,
        predictions=(
            Prediction(
                "it cannot follow an arrow, only see who is joined by one",
                "accuracy",
                "right answers on rings not trained on (share)",
                "three vectors",
                "one vector",
                by=0.2,
            ),
        ),
        quick=_ARROWS,
        full=_ARROWS | dict(count=16, width=64, steps=2000, judged=2000),
        tiny=dict(count=5, width=4, heads=2, rows=2, steps=1, lr=1e-3, judged=3),
        curves=(_LOSS,),
        caveat="One block without positions. Scores of a vector with itself are symmetric, x_i·x_j = x_j·x_i, so a "
        "token that looks at the one it points at is looked at by it as much. Several blocks, or positions, can make "
        "up for some of it.",
        source="002, Queries, Keys, and Values",
    ),
)
