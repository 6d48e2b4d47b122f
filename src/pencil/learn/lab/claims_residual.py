"""Claims about the residual stream: residual connections, norms, and pre-norm against post-norm."""

import math
from typing import Any

import torch

from ...core.probe import Probe
from ...models.gpt import GPT, GPTConfig
from ...models.parts import initialise_post
from ...train.losses.vocabulary import next_token
from .claim import Claim, Curve, Measured, Prediction, Size
from .grammar_task import grammar, sample_texts
from .removals import gradient_norms, post_norm, without_norms, without_skips
from .training import generator, mean_of_last, points, seeded, train


def small_gpt(size: Size, seed: int, depth: int, glorot: bool = False) -> Any:
    """A small GPT, initialised as GPT-2, or by Glorot, which keeps the scale of activations."""
    sizes = dict(vocab=size["words"], context=size["length"], width=size["width"], heads=size["heads"], bias=True)
    model = seeded(lambda: GPT(GPTConfig(depth=depth, **sizes)), seed)
    if glorot:
        torch.manual_seed(seed)
        initialise_post(model)
    return model


def text_batch(size: Size, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one step, in the grammar of the seed."""
    text = sample_texts(grammar(size["words"], 3, seed), size["batch"], size["length"] + 1, generator(seed, step, 2))
    return text[:, :-1], text[:, 1:]


def train_on_texts(model: Any, size: Size, seed: int, **how: Any) -> list[float]:
    """The losses of a short training on the texts of the seed."""

    def loss_of(step: int) -> torch.Tensor:
        text, targets = text_batch(size, seed, step)
        return next_token(model(text), targets)

    return train(model, loss_of, size["steps"], lr=size["lr"], **how)


def final_loss(losses: list[float], size: Size) -> float:
    """The loss at the end of a training, at most that of guessing: the logarithm of the vocabulary size."""
    return mean_of_last(losses, 10, math.log(size["words"]))


def block_gradients(model: Any, size: Size, seed: int) -> list[float]:
    """The gradient norms of the first loss at the output of each block."""
    text, targets = text_batch(size, seed, 0)
    return gradient_norms(model, lambda: next_token(model(text), targets))


def measure_residual(arm: str, seed: int, size: Size) -> Measured:
    """The gradient at the first block as a fraction of that at the last, for growing depth; then a short training."""
    ratios = []
    for depth in size["depths"]:
        model = _residual(arm, small_gpt(size, seed, depth))
        lengths = block_gradients(model, size, seed)
        ratios.append(lengths[0] / lengths[-1])
    found: Measured = {"ratio": ratios[-1], "ratio by depth": points(size["depths"], ratios)}
    if arm == "no norms either":
        return found  # this arm is for the gradients only
    losses = train_on_texts(_residual(arm, small_gpt(size, seed, size["depth"])), size, seed, warmup=10)
    return found | {"loss": final_loss(losses, size), "loss by step": points(range(len(losses)), losses)}


def _residual(arm: str, model: Any) -> Any:
    if arm == "with":
        return model
    return without_skips(without_norms(model) if arm == "no norms either" else model)


def measure_layernorm(arm: str, seed: int, size: Size) -> Measured:
    """The scale of a block's input, in the last block against the first; then a short training."""
    model, probe = _normed(arm, size, seed, max(size["depths"])), Probe("blocks.*.attn_norm")
    with torch.no_grad():
        model(text_batch(size, seed, 0)[0], probe=probe)
    read = [float(value.square().mean().sqrt()) for value in probe.values.values()]
    losses = train_on_texts(_normed(arm, size, seed, size["depth"]), size, seed, warmup=10)
    return {
        "drift": max(read[-1] / read[0], read[0] / read[-1]),
        "loss": final_loss(losses, size),
        "scale by block": points(range(1, len(read) + 1), read),
        "loss by step": points(range(len(losses)), losses),
    }


def _normed(arm: str, size: Size, seed: int, depth: int) -> Any:
    model = small_gpt(size, seed, depth, glorot=arm != "without, small start")
    return model if arm == "with" else without_norms(model)


def measure_pre_norm(arm: str, seed: int, size: Size) -> Measured:
    """Pre-norm against post-norm with the same matrices: gradients by depth, and a training without warm-up."""
    ratios = []
    for depth in size["depths"]:
        model = small_gpt(size, seed, depth, glorot=True)
        lengths = block_gradients(post_norm(model) if arm == "post" else model, size, seed)
        ratios.append(lengths[0] / lengths[-1])
    model = small_gpt(size, seed, size["depth"], glorot=True)
    losses = train_on_texts(post_norm(model) if arm == "post" else model, size, seed)
    return {
        "ratio": ratios[-1],
        "loss": final_loss(losses, size),
        "ratio by depth": points(size["depths"], ratios),
        "loss by step": points(range(len(losses)), losses),
    }


_SIZE = dict(words=17, length=16, width=32, heads=2, batch=16, depths=(2, 4, 8, 16, 32), depth=12, steps=100, lr=2e-3)
_FULL = _SIZE | dict(depths=(2, 4, 8, 16, 32, 64), steps=400, width=64, heads=4)
_TINY = dict(words=5, length=3, width=4, heads=2, batch=2, depths=(1, 2), depth=2, steps=1, lr=1e-3)
_BY_STEP = Curve("loss by step", "step", "training loss (nats)")

CLAIMS = (
    Claim(
        name="residual",
        title="Residual connections",
        hypothesis="Through x + f(x) the gradient reaches the first block as large as it leaves the last; without it a "
        "deep model does not train.",
        removed="each block computes f(x) instead of x + f(x); its norms, attention and MLP stay",
        arms=("with", "without", "no norms either"),
        measure=measure_residual,
        predictions=(
            Prediction(
                "less of the last block's gradient reaches the first",
                "ratio",
                "gradient at the first block ÷ at the last, deepest model, untrained",
                "with",
                "without",
                times=2.0,
            ),
            Prediction(
                "a deep model does not train",
                "loss",
                "training loss at the end (nats per word)",
                "without",
                "with",
                by=0.1,
            ),
        ),
        quick=_SIZE,
        full=_FULL,
        tiny=_TINY,
        curves=(Curve("ratio by depth", "blocks", "gradient: first ÷ last block", log_x=True, log_y=True), _BY_STEP),
        caveat="With the norms that stay, the gradient survives a few blocks, not tens: in the small form 0.38 of it "
        "reached the first of 8 blocks, 1.3·10⁻⁵ the first of 16, 8.8·10⁻²⁰ the first of 32. Without the norms as well "
        "(third line) it was 2·10⁻⁵ over 2 blocks, and below the smallest float from 8 on. That a model without "
        "residual connections does not learn is not only a matter of gradients: each block has to pass on all that the "
        "next ones need.",
        source="002, Residual Connections",
    ),
    Claim(
        name="layernorm",
        title="LayerNorm inside the blocks",
        hypothesis="Without normalisation the scale of activations drifts as they pass through many layers, growing "
        "exponentially or shrinking.",
        removed="the two norms of every block are removed; the one before the logits stays",
        arms=("with", "without", "without, small start"),
        measure=measure_layernorm,
        predictions=(
            Prediction(
                "the input of a block grows or shrinks with depth",
                "drift",
                "scale of the last block's input ÷ the first's, or its inverse, deepest model, untrained",
                "without",
                "with",
                times=10.0,
            ),
            Prediction(
                "it trains worse", "loss", "training loss at the end (nats per word)", "without", "with", by=0.1
            ),
        ),
        quick=_SIZE,
        full=_FULL,
        tiny=_TINY,
        curves=(Curve("scale by block", "block", "root mean square of its input", log_y=True), _BY_STEP),
        caveat="The matrices are initialised by Glorot, where the claim is testable. With GPT-2's small initialisation "
        "(third line, normal(0.02), less for output projections) nothing drifts before training.",
        source="002, Layer Normalization",
    ),
    Claim(
        name="pre-norm",
        title="The norm before each part, or after it",
        hypothesis="Pre-norm is more stable to train than post-norm, because the residual path carries values that "
        "were not normalised and so stays a highway for gradients.",
        removed="the blocks are replaced by post-norm ones with the same attention and MLPs, and the same weights",
        arms=("pre", "post"),
        measure=measure_pre_norm,
        predictions=(
            Prediction(
                "post-norm shrinks the gradient towards the first block",
                "ratio",
                "gradient at the first block ÷ at the last, deepest model, untrained",
                "pre",
                "post",
                times=2.0,
            ),
            Prediction(
                "post-norm trains worse without a warm-up",
                "loss",
                "training loss at the end (nats per word)",
                "post",
                "pre",
                by=0.1,
            ),
        ),
        quick=_SIZE,
        full=_FULL,
        tiny=_TINY,
        curves=(Curve("ratio by depth", "blocks", "gradient: first ÷ last block", log_x=True, log_y=True), _BY_STEP),
        caveat="Both have Glorot initialisation and the same learning rate; each might do better with its own.",
        source="002, Layer Normalization",
    ),
)
