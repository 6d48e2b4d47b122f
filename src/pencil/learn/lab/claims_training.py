"""Claims about how training begins: warm-up, and the scale of the embeddings."""

import math
from typing import Any

import torch

from ...core.probe import Probe
from ...models.gpt import GPT, GPTConfig
from ...train.losses import next_token
from .claim import Claim, Curve, Measured, Prediction, Size
from .claims_trunk import end_of, made, texts, trained
from .practice import built, last, points, train
from .removals import Times, post_norm


def warmed(arm: str, seed: int, size: Size) -> Measured:
    """The first Transformer's trunk at several rates, each either reached slowly or there from the first step."""
    ends, losses, warmup = [], [], size["warmup"] if arm == "with" else 0
    for rate in size["rates"]:
        model = post_norm(made(size, seed, size["depth"], glorot=True))
        losses = trained(model, {**size, "lr": rate}, seed, warmup=warmup, decay=False, beta2=0.98)
        ends.append(end_of(losses, size))
    return {
        "loss": ends[-1],
        "loss at the smallest rate": ends[0],
        "loss by rate": points(size["rates"], ends),
        "loss by step": points(range(len(losses)), losses),
    }


def scaled(arm: str, seed: int, size: Size) -> Measured:
    """Words against stamps: how large each is where they are added, and a short training."""
    kind, start = arm.split(", ", 1)
    model = stamped(size, seed, 1.0 if start == "N(0, 1)" else size["width"] ** -0.5, kind == "scaled")
    probe = Probe("embed", "positions.stamp")
    text, _ = texts(size, seed, 0)
    with torch.no_grad():
        model(text, probe=probe)
    words, stamps = (float(value.square().mean().sqrt()) for value in probe.values.values())

    def loss_of(step: int) -> torch.Tensor:
        text, following = texts(size, seed, step)
        return next_token(model(text), following)

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=10)
    return {
        "apart": max(words / stamps, stamps / words),
        "words": words / stamps,
        "loss": last(losses, 10, math.log(size["words"])),
        "loss by step": points(range(len(losses)), losses),
    }


def stamped(size: Size, seed: int, start: float, times: bool) -> Any:
    """A GPT with sine and cosine stamps, its table drawn anew with this spread, and read √width times or once."""
    sizes = dict(vocab=size["words"], context=size["length"], width=size["width"], heads=size["heads"])
    model = built(lambda: GPT(GPTConfig(depth=size["depth"], positions="sincos", tied=False, **sizes)), seed)
    torch.nn.init.normal_(model.tokens.weight, std=start)
    if times:
        model.tokens = Times(model.tokens, math.sqrt(size["width"]))
    return model


_WARM = dict(
    words=17, length=16, width=32, heads=2, batch=16, depth=6, steps=120, warmup=40, rates=(0.001, 0.004, 0.016)
)  # fmt: skip
_SCALE = dict(words=17, length=16, width=64, heads=2, batch=16, depth=2, steps=60, lr=2e-3)
_BY_STEP = Curve("loss by step", "step", "training loss (nats)")

CLAIMS = (
    Claim(
        name="warm-up",
        title="Warming the rate up",
        hypothesis="The first Transformer's post-norm trunk must begin with a small rate; at its full rate from the "
        "first step it trains worse or not at all.",
        removed="the rate is at its peak from the first step, in place of a linear rise; everything else is the same",
        arms=("with", "without"),
        measure=warmed,
        predictions=(
            Prediction(
                "at a high rate it trains worse or not at all",
                "loss",
                "training loss at the end, at the highest rate (nats a word)",
                "without",
                "with",
                by=0.1,
            ),
        ),
        quick=_WARM,
        # wider, so slower: at 0.016 this one trains no more, warmed up or not
        full=_WARM | dict(steps=400, warmup=130, width=64, heads=4, rates=(0.001, 0.002, 0.004)),
        tiny=dict(words=5, length=3, width=4, heads=2, batch=2, depth=1, steps=1, warmup=1, rates=(0.001, 0.01)),
        curves=(
            Curve("loss by rate", "rate, once warm", "training loss at the end (nats)", log_x=True),
            Curve("loss by step", "step", "training loss at the highest rate (nats)"),
        ),
        caveat="What is judged is the highest rate. At the lower ones the trunk trains without a warm-up just as well, "
        "or a little faster; a rise to the rate is what makes a high one bearable.",
        source="the schedule of the first Transformer",
    ),
    Claim(
        name="embedding-scale",
        title="Multiplying the embeddings by √d",
        hypothesis="Multiplying the embeddings by √d brings the words and the stamps of their positions to the same "
        "order of magnitude.",
        removed="the table of words is read as it is, in place of √d times",
        arms=("scaled, d^−½", "plain, d^−½", "scaled, N(0, 1)", "plain, N(0, 1)"),
        measure=scaled,
        predictions=(
            Prediction(
                "from a start of d^−½ the stamps drown the words",
                "apart",
                "the larger of words and stamps ÷ the smaller (root mean squares)",
                "plain, d^−½",
                "scaled, d^−½",
                times=2.0,
            ),
            Prediction(
                "as the page's code starts, N(0, 1), the scale brings them together too",
                "apart",
                "the larger of words and stamps ÷ the smaller (root mean squares)",
                "plain, N(0, 1)",
                "scaled, N(0, 1)",
                times=2.0,
            ),
            Prediction(
                "words that drown are learned later",
                "loss",
                "training loss at the end, from d^−½ (nats a word)",
                "plain, d^−½",
                "scaled, d^−½",
            ),
        ),
        quick=_SCALE,
        full=_SCALE | dict(width=512, heads=8, steps=200),
        tiny=dict(words=5, length=3, width=4, heads=2, batch=2, depth=1, steps=1, lr=1e-3),
        curves=(_BY_STEP,),
        caveat="The page's sentence is true of a table that starts with a spread of d^−½. torch's own Embedding, which "
        "its code uses, starts with N(0, 1): there the scale drives words and stamps apart, 32 to 1 at a width of 512.",
        source="003, part 3",
    ),
)
