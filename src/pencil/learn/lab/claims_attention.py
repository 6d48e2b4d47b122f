"""Claims about attention: the scale of its scores, several heads, queries, keys and values, the KV cache; and about the
recurrent networks before it, an RNN, an LSTM and a GRU of the transformer's size."""

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ...core.attention import Attention, attend
from ...core.blocks import Block
from ...core.layers import MLP, LayerNorm
from ...core.masks import Mask, causal, full
from ...core.probe import OFF, Probe
from ...core.span import Span
from ...models.gpt import GPT, GPTConfig
from .ablations import without_division
from .claim import LOSS, Claim, Curve, Measured, Prediction, Size
from .training import (
    Blocks,
    RecallModel,
    by_step,
    exact_match,
    generator,
    held_out_batch,
    points,
    recall_batch,
    recall_loss,
    seconds,
    seeded,
    train,
    training_batches,
)

HEADS = 8  # of the layer whose cost is measured
TRAINED = (16, 64, 256)  # widths of a head, d_k, at which models are trained with and without the division
RECURRENT_ARMS = ("transformer", "RNN", "LSTM", "GRU")
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


def pattern_of(q: torch.Tensor, k: torch.Tensor, scale: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores, still in the autograd graph, and the pattern."""
    probe = Probe()
    attend(q, k, k, scale=scale, probe=probe)
    return probe.values["scores"], probe.values["pattern"]


def softmax_gradients(arm: str, seed: int, size: Size) -> Measured:
    """The entropy of the pattern, and the gradient behind the softmax, for growing widths of a head."""
    entropies, slopes, at_queries = [], [], []
    for width in size["widths"]:
        random = generator(seed, width)
        q, k = (torch.randn(size["rows"], 1, size["tokens"], width, generator=random) for _ in range(2))
        direction = torch.randn(size["rows"], 1, size["tokens"], size["tokens"], generator=random)
        q.requires_grad_()
        scores, pattern = pattern_of(q, k, None if arm == "with" else 1.0)
        scores.retain_grad()
        (pattern * direction).sum().backward()
        entropies.append(float(torch.special.entr(pattern.detach()).sum(-1).mean()))
        slopes.append(float(scores.grad.norm(dim=-1).mean()) if scores.grad is not None else 0.0)
        at_queries.append(float(q.grad.norm(dim=-1).mean()) if q.grad is not None else 0.0)
    widths = size["widths"]
    return {
        "entropy": entropies[-1],
        "slope": slopes[-1],
        "entropy by width": points(widths, entropies),
        "slope by width": points(widths, slopes),
        "at queries by width": points(widths, at_queries),
    }


def scaled_recall(arm: str, seed: int, size: Size, head_width: int) -> RecallModel:
    """A model of heads of this width, as many as it has room for, so that all widths have as many parameters.

    Queries and keys begin with variance 1, as the derivation of √d_k assumes.
    """
    width = size["width"]

    def make() -> RecallModel:
        body = make_blocks(width, width // head_width, size["depth"])
        for block in body.blocks:
            attention: Any = block.get_submodule("attn")
            with torch.no_grad():
                attention.qkv.weight[: 2 * width].normal_(std=width**-0.5)
                attention.qkv.bias.zero_()
        return RecallModel(size["names"], size["values"], 1, width, body)

    model = seeded(make, seed)
    if arm == "without":
        without_division(model.body)
    return model


def measure_scaling(arm: str, seed: int, size: Size) -> Measured:
    """The softmax and its gradient for growing widths of a head; then models of some of these widths are trained."""
    kind = dict(names=size["names"], values=size["values"], shown=size["names"], queries=1)
    batches, measured = training_batches(seed, size["batch"], **kind), softmax_gradients(arm, seed, size)
    means, right, losses = [], [], []
    for head_width in size["trained"]:
        model = scaled_recall(arm, seed, size, head_width)
        losses = train(
            model, lambda step, model=model: recall_loss(model, batches(step)), size["steps"], lr=size["lr"], warmup=10
        )
        means.append(sum(losses) / len(losses))
        right.append(exact_match(model, held_out_batch(seed, size["held_out"], **kind)))
        measured |= {f"loss at {head_width}": means[-1], f"accuracy at {head_width}": right[-1]}
    return measured | {
        "loss by width": points(size["trained"], means),
        "accuracy by width": points(size["trained"], right),
        "loss by step": by_step(losses),
    }


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
        "loss by step": by_step(losses),
    }


def attention_pass(width: int, heads: int, length: int, seed: int) -> Callable[[Probe], None]:
    """A function that runs one attention over random tokens, forward and backward."""
    model = seeded(lambda: Attention(width, heads), seed)
    x = torch.randn(1, length, width, generator=generator(seed, length), requires_grad=True)
    span = Span.whole(length).under(full)
    return lambda probe: model(x, span, probe=probe).sum().backward()


def time_ratio(first: Callable[[], object], second: Callable[[], object], times: int) -> float:
    """The time of the first ÷ that of the second; they alternate, so that other load affects both."""
    return median([seconds(first) / seconds(second) for _ in range(times + 1)][1:])  # the first is a warm-up


def measure_cost(arm: str, seed: int, size: Size) -> Measured:
    """FLOPs, softmax cells and time of several heads against one head of the same total width."""
    width, heads = size["width"], 1 if arm == "one head" else HEADS
    fused, plain = [], []
    for n in size["lengths"]:
        several, single = attention_pass(width, heads, n, seed), attention_pass(width, 1, n, seed)
        fused.append(time_ratio(partial(several, OFF), partial(single, OFF), size["times"]))
        plain.append(time_ratio(partial(several, Probe("pattern")), partial(single, Probe("pattern")), size["times"]))
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
    return {"accuracy": float(right.float().mean()), "loss by step": by_step(losses)}


@torch.no_grad()
def time_next_token(model: GPT, text: torch.Tensor, cached: bool, times: int) -> tuple[float, Any]:
    """Seconds to decode one token after a text, the median of several; and the cache, if there is one."""
    cache = model.new_cache(1, text.shape[1] + times + 1) if cached else None
    if cached:
        model(text, cache=cache, last=True)
    decode = partial(model, text[:, -1:] if cached else text, cache=cache, last=True)
    return median([seconds(decode) for _ in range(times + 1)][1:]), cache  # the first is a warm-up


def measure_cache(arm: str, seed: int, size: Size) -> Measured:
    """The time of one token by the length of the context, and the bytes of the cache against the formula."""
    lengths = size["lengths"]
    model = seeded(
        lambda: GPT(GPTConfig(vocab=97, context=max(lengths) + size["times"] + 1, width=size["width"], depth=4)), seed
    ).eval()
    text = torch.randint(97, (1, max(lengths)), generator=generator(seed))
    taken = [time_next_token(model, text[:, :n], arm == "with", size["times"])[0] * 1000 for n in lengths]
    measured: Measured = {"milliseconds": taken[-1], "growth": taken[-1] / taken[0]}
    if arm == "with":
        caches = [model.new_cache(1, n) for n in lengths]
        formula = [2 * n * size["width"] * len(model.blocks) * 4 for n in lengths]
        measured["bytes"] = max(cache.nbytes / expected for cache, expected in zip(caches, formula, strict=True))
        measured["bytes by length"] = points(lengths, [cache.nbytes / 1e6 for cache in caches])
    return measured | {"time by length": points(lengths, taken)}


class Recurrent(nn.Module):
    """torch's RNN, LSTM or GRU, and a projection back to the input width."""

    def __init__(self, kind: str, width: int, state: int):
        super().__init__()
        self.cells = getattr(nn, kind)(width, state, batch_first=True)
        self.out = nn.Linear(state, width)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.out(self.cells(x)[0])


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def sequence_model(arm: str, width: int, depth: int) -> nn.Module:
    """Transformer blocks, or the recurrent network with the nearest number of parameters."""
    blocks = make_blocks(width, 2, depth)
    if arm == "transformer":
        return blocks
    wanted, gates = count_parameters(blocks), GATES[arm]

    def parameters(state: int) -> int:
        return gates * state * (width + state + 2) + (state + 1) * width

    return Recurrent(arm, width, min(range(1, 40 * width), key=lambda state: abs(parameters(state) - wanted)))


def measure_time(arm: str, seed: int, size: Size) -> Measured:
    """Forward and backward over one text of growing length: the least of several times, which other load affects
    least."""
    model = seeded(lambda: sequence_model(arm, size["width"], size["depth"]), seed)
    by_length = {}
    for n in size["lengths"]:
        x = torch.randn(1, n, size["width"], generator=generator(seed, n), requires_grad=True)
        spent = [seconds(lambda x=x: model(x)[:, -1].sum().backward()) for _ in range(size["times"] + 1)]
        by_length[n] = 1000 * min(spent[1:])  # the first is a warm-up
    return {
        "time": by_length[size["length"]],
        "growth": by_length[size["length"]] / by_length[size["lengths"][0]],
        "parameters": float(count_parameters(model)),
        "time by length": points(by_length, by_length.values()),
    }


def measure_gradient(arm: str, seed: int, size: Size) -> Measured:
    """The gradient of the last token's output at the first token, relative to that at the last."""
    # in double precision: the gradient of an RNN soon underflows in single precision
    model = seeded(lambda: sequence_model(arm, size["width"], size["depth"]), seed).double()
    ratios = []
    for n in size["lengths"]:
        random = generator(seed, n)
        x = torch.randn(1, n, size["width"], generator=random, dtype=torch.float64, requires_grad=True)
        direction = torch.randn(size["width"], generator=random, dtype=torch.float64)
        (grad,) = torch.autograd.grad((model(x)[0, -1] * direction).sum(), x)
        ratios.append(float(grad[0, 0].norm() / grad[0, -1].norm()))
    return {"ratio": ratios[-1], "ratio by length": points(size["lengths"], ratios)}


def measure_recall(arm: str, seed: int, size: Size) -> Measured:
    """Few or many cards are read; then the value of one is queried."""
    kind = dict(names=size["names"], values=size["values"], queries=1)

    def make() -> RecallModel:
        return RecallModel(
            size["names"], size["values"], 1, size["width"], sequence_model(arm, size["width"], size["depth"])
        )

    model = seeded(make, seed)

    def loss_of(step: int) -> Tensor:
        shown = size["shown"][step % len(size["shown"])]
        return recall_loss(model, recall_batch(generator(seed, step, 1), size["rows"], shown=shown, **kind))

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)
    right = [exact_match(model, held_out_batch(seed, size["held_out"], shown=shown, **kind)) for shown in size["shown"]]
    return {
        "drop": right[0] - right[-1],
        "many": right[-1],
        "parameters": float(count_parameters(model)),
        "accuracy by cards": points(size["shown"], right),
        "loss by step": by_step(losses),
    }


_REPLACED = "the blocks are replaced by torch.nn.RNN, LSTM or GRU with the same number of parameters, and a projection"

CLAIMS = (
    Claim(
        name="scaling",
        title="Dividing the scores by √d_k",
        hypothesis="Without the division the scores grow with the width of a head and the softmax saturates; in a wide "
        "head less of the gradient passes it.",
        removed="attend(…, scale=1) instead of 1/√d_k: first over random queries and keys of variance 1, then in "
        "models that are trained, of equal width and parameters, with fewer heads where these are wider",
        arms=("with", "without"),
        measure=measure_scaling,
        predictions=(
            Prediction(
                "the pattern becomes one-hot: its entropy falls",
                "entropy",
                "entropy of a row of the pattern, widest head (nats)",
                "with",
                "without",
                times=2.0,
            ),
            Prediction(
                "in the widest head less of the gradient passes the softmax",
                "slope",
                "gradient at the scores of a row, widest head (norm)",
                "with",
                "without",
                times=2.0,
            ),
            *(
                Prediction(
                    f"at d_k = {width} it trains more slowly",
                    f"loss at {width}",
                    f"training loss, the mean of all steps, heads of width {width} (nats per answer)",
                    "without",
                    "with",
                    by=0.05,
                )
                for width in TRAINED
            ),
        ),
        quick=dict(
            widths=(4, 16, 64, 256, 1024),
            tokens=64,
            rows=8,
            trained=TRAINED,
            width=256,
            depth=1,
            names=8,
            values=8,
            batch=32,
            steps=100,
            lr=1e-3,
            held_out=500,
        ),
        full=dict(widths=(4, 16, 64, 256, 1024, 4096), rows=32, depth=2, names=16, steps=400, held_out=4000),
        tiny=dict(
            widths=(2, 5),
            tokens=3,
            rows=1,
            trained=TRAINED,
            width=256,
            depth=1,
            names=3,
            values=2,
            batch=2,
            steps=1,
            lr=1e-3,
            held_out=3,
        ),
        curves=(
            Curve("entropy by width", "width of a head, d_k", "entropy (nats)", log_x=True),
            Curve("slope by width", "width of a head, d_k", "gradient at the scores", log_x=True, log_y=True),
            Curve("at queries by width", "width of a head, d_k", "gradient at the queries", log_x=True, log_y=True),
            Curve("loss by width", "width of a head, d_k", "mean training loss (nats)", log_x=True),
            Curve("accuracy by width", "width of a head, d_k", "held-out accuracy after training", log_x=True),
            Curve("loss by step", "step", "training loss, widest trained head (nats)"),
        ),
        caveat="The gradient is measured on random vectors. Their entries have variance 1, as the derivation assumes; "
        "the default initialisation of torch's Linear gives 1/3, so its scores vary less. The documents say that the "
        "gradient vanishes; measured at the scores, it is smaller in wide heads only: without the division it was 1.4 "
        "times as large at d_k = 4 and 16, the same at 64, 0.58 of it at 256 and 0.33 at 1024 (small form). At the "
        "queries it is multiplied by the keys, which are longer in a wider head and not divided by √d_k; there it is "
        "larger without the division at every width, 8 times at 64. So where models train more slowly without the "
        "division, which they did at 16 and 64 too, a gradient that vanishes is not the reason. The models begin with "
        "queries and keys of variance 1; one that begins with smaller ones has less need of the division.",
        source="002, The Scaling Factor; 003, the scaling trick",
        by_hand="pencil why example:training-step 'grad:blocks.0.attn.scores[0,0,1,0]'",
    ),
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
        quick=dict(names=8, values=8, width=32, heads=4, rows=64, steps=400, lr=3e-3, held_out=1000),
        full=dict(names=16, values=16, width=64, steps=3000, held_out=4000),
        tiny=dict(names=5, values=3, width=4, heads=2, rows=2, steps=1, lr=1e-3, held_out=7),
        curves=(LOSS,),
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
        quick=dict(width=256, lengths=(64, 256, 512), times=7),
        full=dict(lengths=(64, 128, 256, 512, 1024, 2048), times=15),
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
        quick=dict(count=8, width=32, heads=2, rows=32, steps=300, lr=3e-3, held_out=500),
        full=dict(count=16, width=64, steps=2000, held_out=2000),
        tiny=dict(count=5, width=4, heads=2, rows=2, steps=1, lr=1e-3, held_out=3),
        curves=(LOSS,),
        caveat="One block without positions. Scores of a vector with itself are symmetric, x_i·x_j = x_j·x_i, so "
        "attention from a token to the one it points at is as strong as back. Several blocks, or positions, can make "
        "up for some of it.",
        source="002, Queries, Keys, and Values",
    ),
    Claim(
        name="kv-cache",
        title="The KV cache",
        hypothesis="Without cached keys and values every new token reads the whole text again; the cache costs 2·n·d·L "
        "values of memory, and the time per token hardly grows with the text.",
        removed="each token is computed from the whole text instead of from the cache",
        arms=("with", "without"),
        measure=measure_cache,
        predictions=(
            Prediction(
                "a token takes longer after a long text",
                "milliseconds",
                "time of one token after the longest text (ms)",
                "without",
                "with",
                times=2.0,
            ),
            Prediction(
                "the time grows faster with the length",
                "growth",
                "time after the longest text ÷ after the shortest",
                "without",
                "with",
                times=2.0,
            ),
            Prediction(
                "the cache holds 2·n·d·L values",
                "bytes",
                "bytes of the cache ÷ 2·n·d·L·4",
                "with",
                "",
                near=1.0,
            ),
        ),
        quick=dict(lengths=(32, 64, 128, 256, 512), width=128, times=7),
        full=dict(lengths=(32, 64, 128, 256, 512, 1024, 2048), width=256, times=15),
        tiny=dict(lengths=(3, 5), width=8, times=1),
        curves=(
            Curve("time by length", "tokens before", "time of one token (ms)", log_x=True, log_y=True),
            Curve("bytes by length", "cached tokens", "cache (MB, 10⁶ bytes)"),
        ),
        alone=True,
        caveat="Timed on one thread of this machine's processor, with batch size 1. With fewer key-value heads than "
        "query heads (GQA) the cache is smaller by that factor; the formula is for equally many.",
        source="002, KV Cache",
    ),
    Claim(
        name="rnn-time",
        title="Recurrent networks: time",
        hypothesis="A recurrent network must process one token after another, so its time grows with every token of "
        "the text; attention processes all tokens at once.",
        removed=_REPLACED + "; one text at a time, forward and backward, one thread",
        arms=RECURRENT_ARMS,
        measure=measure_time,
        predictions=tuple(
            Prediction(
                f"the {arm} takes longer for a text of 256 tokens",
                "time",
                "time of one text of 256 tokens, forward and backward (ms)",
                arm,
                "transformer",
                times=1.0,
            )
            for arm in RECURRENT_ARMS[1:]
        ),
        quick=dict(width=64, depth=2, lengths=(16, 64, 256, 1024), length=256, times=5),
        full=dict(lengths=(16, 32, 64, 128, 256, 512, 1024, 2048), times=15),
        tiny=dict(width=4, depth=1, lengths=(3, 5), length=5, times=1),
        curves=(Curve("time by length", "tokens in the text", "time (ms)", log_x=True, log_y=True),),
        alone=True,
        caveat="The times are of one thread of this machine. The cost of attention grows with the square of the length "
        "and catches up: see the right end of the curve. A recurrent network uses the hardware better with large "
        "batches, and worse with many cores.",
        source="002, Why Not RNNs? Problem 1",
    ),
    Claim(
        name="rnn-gradient",
        title="Recurrent networks: the gradient at the first token",
        hypothesis="A recurrent network multiplies the gradient by the same matrix at every step back, so it vanishes "
        "with the length; gates reduce this but do not end it; attention reaches every token in one step.",
        removed=_REPLACED + "; untrained, with the default initialisation of torch and pencil",
        arms=RECURRENT_ARMS,
        measure=measure_gradient,
        predictions=(
            *(
                Prediction(
                    f"in the {arm} almost no gradient reaches back 100 tokens",
                    "ratio",
                    "gradient at the first of 100 tokens ÷ at the last",
                    "transformer",
                    arm,
                    times=1000.0,
                )
                for arm in RECURRENT_ARMS[1:]
            ),
            *(
                Prediction(
                    f"the gates of the {arm} reduce this",
                    "ratio",
                    "gradient at the first of 100 tokens ÷ at the last",
                    arm,
                    "RNN",
                    times=10.0,
                )
                for arm in RECURRENT_ARMS[2:]
            ),
        ),
        quick=dict(width=64, depth=2, lengths=(2, 4, 8, 16, 32, 64, 100)),
        full=dict(width=128, depth=4, lengths=(2, 4, 8, 16, 32, 64, 100)),
        tiny=dict(width=4, depth=1, lengths=(2, 5)),
        curves=(
            Curve("ratio by length", "tokens in the text", "gradient: first ÷ last token", log_x=True, log_y=True),
        ),
        caveat="Nothing is trained. How fast the gradient vanishes depends on the initialisation: torch's default has "
        "a largest eigenvalue near 0.6, an orthogonal matrix would lose less, and an LSTM with a large forget-gate "
        "bias keeps more. The transformer's gradient falls too, as 1/n: attention is over n tokens.",
        source="002, Why Not RNNs? Problem 2",
        by_hand="pencil why example:rnn 'product[0,0,1]'",
    ),
    Claim(
        name="rnn-recall",
        title="Recurrent networks: the capacity of the state",
        hypothesis="The whole past must fit in one state of fixed size, so early tokens are overwritten; attention "
        "looks them up.",
        removed=_REPLACED,
        arms=RECURRENT_ARMS,
        measure=measure_recall,
        predictions=(
            *(
                Prediction(
                    f"the {arm} forgets which value belongs to which name",
                    "many",
                    "accuracy after 16 cards",
                    "transformer",
                    arm,
                    by=0.2,
                )
                for arm in RECURRENT_ARMS[1:]
            ),
            *(
                Prediction(
                    f"the {arm} recalls two cards better than sixteen",
                    "drop",
                    "accuracy after two cards − after sixteen",
                    arm,
                    "transformer",
                    by=0.1,
                )
                for arm in RECURRENT_ARMS[2:]
            ),
        ),
        quick=dict(
            names=16, values=8, width=32, depth=1, shown=(2, 4, 8, 16), rows=64, steps=400, lr=1e-2, held_out=1000
        ),
        full=dict(width=64, steps=4000, held_out=4000),
        tiny=dict(names=5, values=3, width=4, depth=1, shown=(2, 5), rows=2, steps=1, lr=1e-3, held_out=7),
        curves=(
            Curve("accuracy by cards", "cards", "accuracy", log_x=True),
            LOSS,
        ),
        caveat="The same number of steps for all. A recurrent network must learn to store all cards before the query, "
        "which takes longer, so part of the gap is training time and not the capacity of the state.",
        source="002, Why Not RNNs? Problem 3; 003, part 1",
    ),
)
