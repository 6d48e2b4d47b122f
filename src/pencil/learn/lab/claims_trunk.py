"""Claims about the trunk: residual connections, norms, and where the norms stand."""

import math
from typing import Any

import torch

from ...core.probe import Probe
from ...models.gpt import GPT, GPTConfig
from ...models.parts import initialise_post
from ...train.losses import next_token
from .claim import Claim, Curve, Measured, Prediction, Size
from .practice import built, dice, last, points, train
from .removals import lengths_of_gradients, post_norm, without_norms, without_skips
from .tasks import grammar, walks


def made(size: Size, seed: int, depth: int, glorot: bool = False) -> Any:
    """A small GPT; its matrices begin as GPT-2's, or as Glorot's, which keep the size of what passes through."""
    sizes = dict(vocab=size["words"], context=size["length"], width=size["width"], heads=size["heads"], bias=True)
    model = built(lambda: GPT(GPTConfig(depth=depth, **sizes)), seed)
    if glorot:
        torch.manual_seed(seed)
        initialise_post(model)
    return model


def texts(size: Size, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A step's texts in the seed's grammar, and what comes next."""
    text = walks(grammar(size["words"], 3, seed), size["batch"], size["length"] + 1, dice(seed, step, 2))
    return text[:, :-1], text[:, 1:]


def trained(model: Any, size: Size, seed: int, **how: Any) -> list[float]:
    """Losses of a short training on the seed's texts."""

    def loss_of(step: int) -> torch.Tensor:
        text, following = texts(size, seed, step)
        return next_token(model(text), following)

    return train(model, loss_of, size["steps"], lr=size["lr"], **how)


def end_of(losses: list[float], size: Size) -> float:
    """The loss at the end of a training; guessing gives the logarithm of how many words there are."""
    return last(losses, 10, math.log(size["words"]))


def gradients(model: Any, size: Size, seed: int) -> list[float]:
    """The gradient of the first loss at what each block gives."""
    text, following = texts(size, seed, 0)
    return lengths_of_gradients(model, lambda: next_token(model(text), following))


def highway(arm: str, seed: int, size: Size) -> Measured:
    """How much of the gradient at the last block is there at the first, for growing depth; then a short training."""
    shares = []
    for depth in size["depths"]:
        model = _residual(arm, made(size, seed, depth))
        lengths = gradients(model, size, seed)
        shares.append(lengths[0] / lengths[-1])
    found: Measured = {"share": shares[-1], "share by depth": points(size["depths"], shares)}
    if arm == "no norms either":
        return found  # it is there for its gradients
    losses = trained(_residual(arm, made(size, seed, size["depth"])), size, seed, warmup=10)
    return found | {"loss": end_of(losses, size), "loss by step": points(range(len(losses)), losses)}


def _residual(arm: str, model: Any) -> Any:
    if arm == "with":
        return model
    return without_skips(without_norms(model) if arm == "no norms either" else model)


def drift(arm: str, seed: int, size: Size) -> Measured:
    """How large what a block reads is, in the last block against the first; then a short training."""
    model, probe = _normed(arm, size, seed, max(size["depths"])), Probe("blocks.*.attn_norm")
    with torch.no_grad():
        model(texts(size, seed, 0)[0], probe=probe)
    read = [float(value.square().mean().sqrt()) for value in probe.values.values()]
    losses = trained(_normed(arm, size, seed, size["depth"]), size, seed, warmup=10)
    return {
        "drift": max(read[-1] / read[0], read[0] / read[-1]),
        "loss": end_of(losses, size),
        "size by block": points(range(1, len(read) + 1), read),
        "loss by step": points(range(len(losses)), losses),
    }


def _normed(arm: str, size: Size, seed: int, depth: int) -> Any:
    model = made(size, seed, depth, glorot=arm != "without, small start")
    return model if arm == "with" else without_norms(model)


def where(arm: str, seed: int, size: Size) -> Measured:
    """Pre-norm against post-norm with the same matrices: the gradient's way down, and a training without warm-up."""
    shares = []
    for depth in size["depths"]:
        model = made(size, seed, depth, glorot=True)
        lengths = gradients(post_norm(model) if arm == "post" else model, size, seed)
        shares.append(lengths[0] / lengths[-1])
    model = made(size, seed, size["depth"], glorot=True)
    losses = trained(post_norm(model) if arm == "post" else model, size, seed)
    return {
        "share": shares[-1],
        "loss": end_of(losses, size),
        "share by depth": points(size["depths"], shares),
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
        hypothesis="Through x + f(x) the gradient reaches the first block as large as it leaves the last; without it "
        "a deep trunk does not train.",
        removed="each block gives f(x) where it gave x + f(x); its norms, attention and MLP stay",
        arms=("with", "without", "no norms either"),
        measure=highway,
        predictions=(
            Prediction(
                "less of the last block's gradient is left at the first",
                "share",
                "gradient at the first block ÷ at the last, deepest model, untrained",
                "with",
                "without",
                times=2.0,
            ),
            Prediction(
                "a deep trunk does not train",
                "loss",
                "training loss at the end (nats a word)",
                "without",
                "with",
                by=0.1,
            ),
        ),
        quick=_SIZE,
        full=_FULL,
        tiny=_TINY,
        curves=(Curve("share by depth", "blocks", "gradient: first ÷ last block", log_x=True, log_y=True), _BY_STEP),
        caveat="The norms that stay keep the gradient's size alive over tens of blocks; with them gone as well (third "
        "line) it vanishes as the page says. That a trunk without residuals does not learn is not only the gradient's "
        "size: each block has to pass on, by itself, all that the next ones need.",
        source="002, Residual Connections",
    ),
    Claim(
        name="layernorm",
        title="LayerNorm inside the blocks",
        hypothesis="Without normalisation the scale of activations drifts as they pass through many layers, growing "
        "exponentially or shrinking.",
        removed="the two norms of every block are replaced by nothing; the one before the logits stays",
        arms=("with", "without", "without, small start"),
        measure=drift,
        predictions=(
            Prediction(
                "what a block reads grows or shrinks with depth",
                "drift",
                "size read by the last block ÷ by the first, or its inverse, deepest model, untrained",
                "without",
                "with",
                times=10.0,
            ),
            Prediction("it trains worse", "loss", "training loss at the end (nats a word)", "without", "with", by=0.1),
        ),
        quick=_SIZE,
        full=_FULL,
        tiny=_TINY,
        curves=(Curve("size by block", "block", "root mean square of what it reads", log_y=True), _BY_STEP),
        caveat="The matrices begin as Glorot's, which is when the claim is testable. From GPT-2's small start (third "
        "line, normal(0.02) and less where a part writes to the trunk) nothing drifts before training.",
        source="002, Layer Normalization",
    ),
    Claim(
        name="pre-norm",
        title="The norm before each part, or after it",
        hypothesis="Pre-norm is more stable to train than post-norm, because the residual path carries values that "
        "were not normalised and so stays a highway for gradients.",
        removed="the blocks are replaced by post-norm ones holding the same attention and MLPs, with the same numbers",
        arms=("pre", "post"),
        measure=where,
        predictions=(
            Prediction(
                "after-norms shrink the gradient on its way to the first block",
                "share",
                "gradient at the first block ÷ at the last, deepest model, untrained",
                "pre",
                "post",
                times=2.0,
            ),
            Prediction(
                "post-norm trains worse without a warm-up",
                "loss",
                "training loss at the end (nats a word)",
                "post",
                "pre",
                by=0.1,
            ),
        ),
        quick=_SIZE,
        full=_FULL,
        tiny=_TINY,
        curves=(Curve("share by depth", "blocks", "gradient: first ÷ last block", log_x=True, log_y=True), _BY_STEP),
        caveat="Both begin with Glorot's matrices and the same rate; each might do better with one of its own.",
        source="002, Layer Normalization",
    ),
)
