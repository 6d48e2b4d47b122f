"""Claims about the start of training: warm-up, and the scale of the embeddings."""

import math
from typing import Any

import torch

from ...core.probe import Probe
from ...models.gpt import GPT, GPTConfig
from ...train.losses.vocabulary import next_token
from .claim import Claim, Curve, Measured, Prediction, Size
from .claims_residual import final_loss, small_gpt, text_batch, train_on_texts
from .removals import ScaledTokens, post_norm
from .training import mean_of_last, points, seeded, train


def measure_warmup(arm: str, seed: int, size: Size) -> Measured:
    """Post-norm blocks at several learning rates, each with a warm-up or from the first step."""
    ends, losses, warmup = [], [], size["warmup"] if arm == "with" else 0
    for rate in size["rates"]:
        model = post_norm(small_gpt(size, seed, size["depth"], glorot=True))
        losses = train_on_texts(model, {**size, "lr": rate}, seed, warmup=warmup, decay=False, beta2=0.98)
        ends.append(final_loss(losses, size))
    return {
        "loss": ends[-1],
        "loss at the smallest rate": ends[0],
        "loss by rate": points(size["rates"], ends),
        "loss by step": points(range(len(losses)), losses),
    }


def measure_embedding_scale(arm: str, seed: int, size: Size) -> Measured:
    """The scale of token embeddings and of position embeddings where they are added; and a short training."""
    kind, start = arm.split(", ", 1)
    model = scaled_gpt(size, seed, 1.0 if start == "N(0, 1)" else size["width"] ** -0.5, kind == "scaled")
    probe = Probe("embed", "positions.embedding")
    text, _ = text_batch(size, seed, 0)
    with torch.no_grad():
        model(text, probe=probe)
    tokens, positions = (float(value.square().mean().sqrt()) for value in probe.values.values())

    def loss_of(step: int) -> torch.Tensor:
        text, targets = text_batch(size, seed, step)
        return next_token(model(text), targets)

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=10)
    return {
        "ratio": max(tokens / positions, positions / tokens),
        "tokens": tokens / positions,
        "loss": mean_of_last(losses, 10, math.log(size["words"])),
        "loss by step": points(range(len(losses)), losses),
    }


def scaled_gpt(size: Size, seed: int, std: float, scaled: bool) -> Any:
    """A GPT with sinusoidal positions; its token embeddings have this standard deviation, times √width if `scaled`."""
    sizes = dict(vocab=size["words"], context=size["length"], width=size["width"], heads=size["heads"])
    model = seeded(
        lambda: GPT(GPTConfig(depth=size["depth"], positions="sinusoidal", tie_embeddings=False, **sizes)), seed
    )
    torch.nn.init.normal_(model.tokens.weight, std=std)
    if scaled:
        model.tokens = ScaledTokens(model.tokens, math.sqrt(size["width"]))
    return model


_WARM = dict(
    words=17, length=16, width=32, heads=2, batch=16, depth=6, steps=120, warmup=40, rates=(0.001, 0.004, 0.016)
)
_SCALE = dict(words=17, length=16, width=64, heads=2, batch=16, depth=2, steps=60, lr=2e-3)
_BY_STEP = Curve("loss by step", "step", "training loss (nats)")

CLAIMS = (
    Claim(
        name="warm-up",
        title="Learning rate warm-up",
        hypothesis="The post-norm blocks of the first Transformer need a small learning rate at the start; at the full "
        "rate from the first step they train worse or not at all.",
        removed="the learning rate is at its peak from the first step, instead of rising linearly; all else is the "
        "same",
        arms=("with", "without"),
        measure=measure_warmup,
        predictions=(
            Prediction(
                "at a high learning rate it trains worse or not at all",
                "loss",
                "training loss at the end, at the highest rate (nats per word)",
                "without",
                "with",
                by=0.1,
            ),
        ),
        quick=_WARM,
        # this wider model does not train at 0.016, with or without warm-up
        full=_WARM | dict(steps=400, warmup=130, width=64, heads=4, rates=(0.001, 0.002, 0.004)),
        tiny=dict(words=5, length=3, width=4, heads=2, batch=2, depth=1, steps=1, warmup=1, rates=(0.001, 0.01)),
        curves=(
            Curve("loss by rate", "peak learning rate", "training loss at the end (nats)", log_x=True),
            Curve("loss by step", "step", "training loss at the highest rate (nats)"),
        ),
        caveat="The highest rate is tested. At the lower ones the model trains without a warm-up equally well, or a "
        "little faster; the warm-up is what allows a high rate.",
        source="the schedule of the first Transformer",
    ),
    Claim(
        name="embedding-scale",
        title="Multiplying the embeddings by √d",
        hypothesis="Multiplying the embeddings by √d brings the token embeddings and the position embeddings to the "
        "same order of magnitude.",
        removed="the token embeddings are not multiplied by √d",
        arms=("scaled, d^−½", "plain, d^−½", "scaled, N(0, 1)", "plain, N(0, 1)"),
        measure=measure_embedding_scale,
        predictions=(
            Prediction(
                "initialised with d^−½, the position embeddings are much larger",
                "ratio",
                "token and position embeddings, the larger ÷ the smaller (root mean squares)",
                "plain, d^−½",
                "scaled, d^−½",
                times=2.0,
            ),
            Prediction(
                "initialised with N(0, 1), as in the document's code, the scale brings them together too",
                "ratio",
                "token and position embeddings, the larger ÷ the smaller (root mean squares)",
                "plain, N(0, 1)",
                "scaled, N(0, 1)",
                times=2.0,
            ),
            Prediction(
                "small token embeddings learn more slowly",
                "loss",
                "training loss at the end, from d^−½ (nats per word)",
                "plain, d^−½",
                "scaled, d^−½",
            ),
        ),
        quick=_SCALE,
        full=_SCALE | dict(width=512, heads=8, steps=200),
        tiny=dict(words=5, length=3, width=4, heads=2, batch=2, depth=1, steps=1, lr=1e-3),
        curves=(_BY_STEP,),
        caveat="The claim is true of embeddings initialised with a standard deviation of d^−½. torch's own Embedding, "
        "which the document's code uses, has N(0, 1): there the factor makes the token embeddings larger than the "
        "position embeddings, 32 to 1 at a width of 512.",
        source="003, part 3",
    ),
)
