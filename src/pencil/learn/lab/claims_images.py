"""Claims tested on images of digits: the swap, BatchNorm, the zero of adaLN-Zero, and the U-Net beside the DiT."""

from functools import lru_cache, partial
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
from .claims_attention import time_ratio
from .training import by_step, generator, seeded, train
from .unet import UNet

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


def diffusion_loss(model: nn.Module, images: Tensor, labels: Tensor, random: torch.Generator) -> Tensor:
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


DENOISERS = "DiT", "U-Net"
TIMED_STEPS = 4  # of a measurement of the time


def denoiser(arm: str, seed: int, size: Size) -> nn.Module:
    """A DiT, or a U-Net with as many numbers."""
    if arm == "DiT":
        return digit_dit("zero", seed, size)
    return seeded(lambda: UNet(size["channels"], size["width"], classes=10), seed)


def pixel_order(seed: int, shuffled: bool) -> Tensor:
    """The pixels' order: that of the picture, or a random one, the same for every picture of a seed."""
    return torch.randperm(64, generator=generator(seed, 0, 4)) if shuffled else torch.arange(64)


def denoising_loss(model: nn.Module, batch: Labelled, order: Tensor, random: torch.Generator) -> Tensor:
    images, labels = batch
    return diffusion_loss(model, images.flatten(2)[:, :, order].view_as(images), labels, random)


def train_denoiser(model: nn.Module, arm: str, seed: int, size: Size, order: Tensor, steps: int) -> list[float]:
    """The digits and the noise of each step are the same for both models."""

    def loss_of(step: int) -> Tensor:
        return denoising_loss(model, training_batch(seed, step, size["rows"]), order, generator(seed, step, 2))

    return train(model, loss_of, steps, lr=size["rates"][DENOISERS.index(arm)])


def denoised(arm: str, seed: int, size: Size, steps: int, shuffled: bool = False) -> tuple[float, list[float]]:
    """The loss on held-out digits after so many steps, and the losses of the training."""
    model, order = denoiser(arm, seed, size), pixel_order(seed, shuffled)
    losses = train_denoiser(model, arm, seed, size, order, steps)
    model.eval()
    with torch.no_grad():
        draws = [denoising_loss(model, digit_images()[1], order, generator(seed, i, 3)) for i in range(size["draws"])]
    return float(torch.stack(draws).mean()), losses


def step_time(seed: int, size: Size) -> float:
    """The time of a training step of the U-Net ÷ that of the DiT."""
    unet, dit = (
        partial(train_denoiser, denoiser(arm, seed, size), arm, seed, size, pixel_order(seed, False), TIMED_STEPS)
        for arm in ("U-Net", "DiT")
    )
    return time_ratio(unet, dit, size["times"])


# the U-Net's error is larger
worse_unet = partial(Prediction, more="U-Net", less="DiT", by=0.01)


def measure_unet(arm: str, seed: int, size: Size) -> Measured:
    """Digits are denoised after equally many steps, after as many as fit in the same time, and with shuffled pixels."""
    slower = step_time(seed, size) if arm == "U-Net" else 1.0
    steps = max(1, round(size["steps"] / slower))
    loss, losses = denoised(arm, seed, size, size["steps"])
    return {
        "step time": slower,
        "loss": loss,
        "steps in equal time": float(steps),
        "loss in equal time": loss if steps == size["steps"] else denoised(arm, seed, size, steps)[0],
        "rise": denoised(arm, seed, size, size["steps"], shuffled=True)[0] - loss,
        "loss by step": by_step(losses),
    }


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
    Claim(
        name="unet",
        title="A convolutional U-Net instead of the DiT",
        hypothesis="A U-Net is biased towards local structure, and a transformer with as many numbers, trained on the "
        "same pictures, denoises better.",
        removed="the whole DiT, replaced by a U-Net of convolutions with as many numbers, the same inputs and output",
        arms=DENOISERS,
        measure=measure_unet,
        predictions=(
            worse_unet(
                "after as many steps it denoises less well",
                "loss",
                "loss on held-out digits, equal steps (squared error)",
            ),
            Prediction(
                "a step takes longer: its weights are used for every pixel, not for every patch",
                "step time",
                "time of a training step ÷ that of the DiT",
                "U-Net",
                "DiT",
                times=1.0,
            ),
            worse_unet(
                "after the same time it denoises less well",
                "loss in equal time",
                "loss on held-out digits, equal time (squared error)",
            ),
            worse_unet(
                "it relies more on neighbours: with the pixels in a random order it loses more",
                "rise",
                "held-out loss, pixels in one random order − in that of the picture, equal steps (squared error)",
            ),
        ),
        quick=dict(
            width=48,
            depth=4,
            heads=4,
            channels=(20, 40),
            rows=24,
            steps=200,
            times=9,
            rates=(16e-3, 6e-3),
            draws=4,
        ),
        full=dict(width=64, channels=(28, 52), steps=1000, times=15, rates=(8e-3, 4e-3)),
        tiny=dict(
            width=4,
            depth=1,
            heads=2,
            channels=(4, 8),
            rows=2,
            steps=1,
            times=1,
            rates=(1e-3, 1e-3),
            draws=1,
        ),
        curves=(Curve("loss by step", "step", "training loss (squared error)"),),
        alone=True,
        caveat="Pictures of 8×8 pixels: two halvings bring all of them together, so dependencies over a long range "
        "are hardly tested, nor is how the models grow with data and size. This U-Net has no attention; those of "
        "Stable Diffusion have. Each model has a learning rate of its own, the best of those tried with seed 0: five "
        "or six in the small form, two or three in the other. The small form is the beginning of a training; in the "
        "other the U-Net was ahead in equal time too. The time is that of one thread of this machine; elsewhere "
        "another number of steps fits in it. What is measured is the error of the prediction, not how samples look.",
        source="002, From U-Nets to Transformers",
    ),
)
