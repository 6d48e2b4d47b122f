"""Claims tested on images of digits: the swap, BatchNorm, and the zero initialisation of adaLN-Zero."""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ...core.probe import Probe
from ...data.images.digits import digits
from ...inference.diffusion import RectifiedFlow
from ...models.build import normalize
from ...models.dit import DiT, DiTConfig
from ...models.vit import ViT, ViTConfig
from .claim import LOSS, Claim, Curve, Measured, Prediction, Size
from .training import by_step, generator, seeded, train

Labelled = tuple[Float[Tensor, "_ 1 8 8"], Tensor]


@lru_cache(maxsize=1)
def digit_images() -> tuple[Labelled, Labelled]:
    """Images and labels for training, and those held out."""
    pixels, labels, held_out = (torch.from_numpy(part) for part in digits())
    images = normalize(pixels)
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def training_batch(seed: int, step: int, rows: int) -> Labelled:
    """The images of one step: the same in every arm."""
    images, labels = digit_images()[0]
    which = torch.randint(len(labels), (rows,), generator=generator(seed, step, 1))
    return images[which], labels[which]


def digit_vit(seed: int, size: Size, patch: int) -> ViT:
    sizes = dict(width=size["width"], depth=size["depth"], heads=size["heads"], hidden=2 * size["width"])
    return seeded(lambda: ViT(ViTConfig(image_size=(8, 8), patch=(patch, patch), **sizes)), seed)


def train_digits(model: ViT, seed: int, size: Size) -> list[float]:
    def loss_of(step: int) -> Tensor:
        images, labels = training_batch(seed, step, size["rows"])
        return F.cross_entropy(model(images), labels)

    return train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)


@torch.no_grad()
def accuracy(model: ViT) -> float:
    """The accuracy on the held-out digits."""
    images, labels = digit_images()[1]
    return float((model.eval()(images).argmax(-1) == labels).float().mean())


def no_swap(folded: Shaped[Tensor, "B C *bands"]) -> Shaped[Tensor, "B C *bands"]:
    """Replaces the swap: the pixels stay in the order of the image's rows."""
    return folded


def measure_swap(arm: str, seed: int, size: Size) -> Measured:
    """Digits are learned from patches that are squares, or slices of rows; of two sizes."""
    measured: Measured = {}
    for patch in size["patches"]:
        model = digit_vit(seed, size, patch)
        if arm == "slices":
            model.patches.swap = no_swap
        losses = train_digits(model, seed, size)
        measured[f"accuracy at {patch}"] = accuracy(model)
        measured[f"loss at {patch} by step"] = by_step(losses)
    return measured


class TokenBatchNorm(nn.Module):
    """torch's BatchNorm over all tokens of the batch: mean and variance of each channel, not of each token."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.norm(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def with_batchnorm(model: Any) -> Any:
    """Every norm of the model replaced by BatchNorm."""
    width = model.config.width
    for block in model.blocks:
        block.attn_norm, block.mlp_norm = TokenBatchNorm(width), TokenBatchNorm(width)
    model.norm = TokenBatchNorm(width)
    return model


@torch.no_grad()
def batch_dependence(model: nn.Module, rows: int) -> float:
    """The relative change of one image's logits when the others in its batch change, in training mode."""
    images, _ = digit_images()[1]
    model.train()
    first, other = (model(torch.cat((images[:1], images[i : i + rows - 1])))[0] for i in (1, rows))
    return float((first - other).norm() / first.norm())


@torch.no_grad()
def loss_in_batches(model: nn.Module, rows: int, batches: int) -> float:
    """The loss on held-out digits, in batches of the training size."""
    images, labels = (part[: rows * batches].split(rows) for part in digit_images()[1])
    return float(
        torch.stack([F.cross_entropy(model(p), label) for p, label in zip(images, labels, strict=True)]).mean()
    )


def measure_batchnorm(arm: str, seed: int, size: Size) -> Measured:
    """Digits are learned in small batches; then the loss on the same images in training and in evaluation mode."""
    model = digit_vit(seed, size, size["patch"])
    if arm == "BatchNorm":
        with_batchnorm(model)
    losses = train_digits(model, seed, size)
    small = size["rows"], size["batches"]
    correct, in_eval = accuracy(model), loss_in_batches(model.eval(), *small)
    # last, since BatchNorm updates its running statistics in training mode
    change, in_training = batch_dependence(model, size["rows"]), loss_in_batches(model.train(), *small)
    return {
        "change": change,
        "gap": abs(in_eval - in_training),
        "accuracy": correct,
        "loss by step": by_step(losses),
    }


def gates_at_one(model: DiT) -> DiT:
    """Each block starts as a plain pre-norm block: its gates are 1 instead of 0."""
    for block in model.blocks:
        with torch.no_grad():
            gates = block.get_submodule("ada").get_parameter("bias").view(6, -1)
            gates[2] = gates[5] = 1.0
    return model


def digit_dit(arm: str, seed: int, size: Size) -> DiT:
    sizes = dict(width=size["width"], depth=size["depth"], heads=size["heads"], hidden=2 * size["width"])
    model = seeded(lambda: DiT(DiTConfig(image_size=(8, 8), classes=10, null_condition=False, **sizes)), seed)
    return model if arm == "zero" else gates_at_one(model)


def diffusion_loss(model: DiT, images: Tensor, labels: Tensor, random: torch.Generator) -> Tensor:
    """The mean squared error of the prediction on noised images."""
    flow, noise = RectifiedFlow(), torch.randn(images.shape, generator=random)
    t = torch.randn(len(images), generator=random).sigmoid()
    prediction = model(flow.add_noise(images, noise, t), flow.timestep(t), labels)
    return F.mse_loss(prediction, flow.target(images, noise, t))


@torch.no_grad()
def block_change(model: DiT) -> float:
    """What all blocks together add to their input, relative to its norm."""
    images, labels = digit_images()[1]
    probe = Probe("input", f"blocks.{model.config.depth - 1}.post")
    model(images[:64], torch.linspace(0, 1000, 64), labels[:64], probe=probe)
    first, last = probe.values.values()
    return float((last - first).norm() / first.norm())


def measure_adaln_zero(arm: str, seed: int, size: Size) -> Measured:
    """The first steps of a diffusion transformer on digits."""
    model = digit_dit(arm, seed, size)
    untrained = block_change(model)
    losses = train(
        model,
        lambda step: diffusion_loss(model, *training_batch(seed, step, size["rows"]), generator(seed, step, 2)),
        size["steps"],
        lr=size["lr"],
    )
    model.eval()
    with torch.no_grad():
        held_out = float(diffusion_loss(model, *digit_images()[1], generator(seed, 0, 3)))
    return {"change": untrained, "loss": held_out, "loss by step": by_step(losses)}


CLAIMS = (
    Claim(
        name="swap",
        title="The swap, which makes a patch a square",
        hypothesis="Without the swap a patch is a slice of the image's rows and not a square, and the model learns "
        "less.",
        removed="patches.swap is replaced by the identity; the shapes are the same",
        arms=("squares", "slices"),
        measure=measure_swap,
        predictions=tuple(
            Prediction(
                f"digits are classified less well ({patch}×{patch} patches)",
                f"accuracy at {patch}",
                "accuracy on held-out digits",
                "squares",
                "slices",
            )
            for patch in (2, 4)
        ),
        quick=dict(patches=(2, 4), width=48, depth=2, heads=4, rows=32, steps=200, lr=2e-3),
        full=dict(width=64, depth=4, steps=2000),
        tiny=dict(patches=(2, 4), width=4, depth=1, heads=2, rows=2, steps=1, lr=1e-3),
        curves=tuple(
            Curve(f"loss at {patch} by step", "step", f"training loss (nats), {patch}×{patch}") for patch in (2, 4)
        ),
        caveat="Images of 8×8 pixels. A slice of 4 pixels is half a row, one of 16 is two rows: no pixel is lost in "
        "either arm, and attention can combine the slices, so a longer training closes some of the gap. A slice is a "
        "full row only where patch² equals the width.",
        source="000, the three moves",
    ),
    Claim(
        name="batchnorm",
        title="BatchNorm instead of LayerNorm",
        hypothesis="LayerNorm reads one token alone; BatchNorm reads the whole batch, so the output for an image "
        "depends on the other images, and training and evaluation differ.",
        removed="every norm of the vit is replaced by torch.nn.BatchNorm1d over all tokens; batches of four images",
        arms=("LayerNorm", "BatchNorm"),
        measure=measure_batchnorm,
        predictions=(
            Prediction(
                "the output for one image depends on the others in its batch",
                "change",
                "relative change of one image's logits when the other three change",
                "BatchNorm",
                "LayerNorm",
                by=0.01,
            ),
            Prediction(
                "the loss differs between training and evaluation mode",
                "gap",
                "difference of the loss in training and in evaluation mode, same images (nats)",
                "BatchNorm",
                "LayerNorm",
                by=0.01,
            ),
            Prediction(
                "digits are classified less well",
                "accuracy",
                "accuracy on held-out digits",
                "LayerNorm",
                "BatchNorm",
            ),
        ),
        quick=dict(patch=4, width=48, depth=2, heads=4, rows=4, steps=400, lr=1e-3, batches=80),
        full=dict(width=64, depth=4, steps=4000),
        tiny=dict(patch=4, width=4, depth=1, heads=2, rows=3, steps=1, lr=1e-3, batches=2),
        curves=(LOSS,),
        caveat="Batches of four images, where mean and variance of a batch vary most. All images here have one size; "
        "with padded sequences BatchNorm reads the padding too.",
        source="000, LayerNorm",
    ),
    Claim(
        name="ada-zero",
        title="The zero of adaLN-Zero",
        hypothesis="Gates initialised to zero make every block the identity before training, and a diffusion "
        "transformer learns faster from there.",
        removed="the biases of the two gates of every block are initialised to 1 instead of 0: plain pre-norm blocks",
        arms=("zero", "one"),
        measure=measure_adaln_zero,
        predictions=(
            Prediction(
                "untrained blocks change nothing",
                "change",
                "what untrained blocks add, relative to their input (norm)",
                "zero",
                "",
                near=0.0,
                by=1e-9,
            ),
            Prediction(
                "without the zero they do",
                "change",
                "what untrained blocks add, relative to their input (norm)",
                "one",
                "zero",
                by=0.1,
            ),
            Prediction(
                "without the zero it learns more slowly",
                "loss",
                "loss on held-out digits after training (squared error)",
                "one",
                "zero",
            ),
        ),
        quick=dict(width=48, depth=8, heads=4, rows=24, steps=100, lr=2e-3),
        full=dict(width=64, steps=1000, lr=1e-3),
        tiny=dict(width=4, depth=2, heads=2, rows=2, steps=1, lr=1e-3),
        curves=(Curve("loss by step", "step", "training loss (squared error)"),),
        caveat="The same learning rate in both arms and no warm-up; the last matrix is initialised to zero in both. "
        "Small random gates (Glorot weights, zero biases) did almost as well as zero in one trial: what hurts is gates "
        "that start open.",
        source="002, Adaptive Layer Norm (which leaves the gate out)",
    ),
)
