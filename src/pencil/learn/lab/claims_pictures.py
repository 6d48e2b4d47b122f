"""Claims tried on handwritten digits: the swap, norms over the batch, and the zero a diffusion block begins with."""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ...core.probe import Probe
from ...data.builtin import digits
from ...diffusion import Flow
from ...models.dit import DiT, DiTConfig
from ...models.parts import numbers
from ...models.vit import ViT, ViTConfig
from .claim import Claim, Curve, Measured, Prediction, Size
from .practice import built, dice, points, train

Labelled = tuple[Float[Tensor, "_ 1 8 8"], Tensor]


@lru_cache(maxsize=1)
def handwriting() -> tuple[Labelled, Labelled]:
    """Pictures and labels to learn from, and those held out."""
    pictures, labels, held = (torch.from_numpy(part) for part in digits())
    ready = numbers(pictures)
    return (ready[~held], labels[~held]), (ready[held], labels[held])


def some(seed: int, step: int, rows: int) -> Labelled:
    """The pictures of one step: the same in every arm."""
    pictures, labels = handwriting()[0]
    which = torch.randint(len(labels), (rows,), generator=dice(seed, step, 1))
    return pictures[which], labels[which]


def vit(seed: int, size: Size, patch: int) -> ViT:
    sizes = dict(width=size["width"], depth=size["depth"], heads=size["heads"], hidden=2 * size["width"])
    return built(lambda: ViT(ViTConfig(image_size=(8, 8), patch=(patch, patch), **sizes)), seed)


def learn_digits(model: ViT, seed: int, size: Size) -> list[float]:
    def loss_of(step: int) -> Tensor:
        pictures, labels = some(seed, step, size["rows"])
        return F.cross_entropy(model(pictures), labels)

    return train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)


@torch.no_grad()
def right(model: ViT) -> float:
    """The share of the held-out digits that are told right."""
    pictures, labels = handwriting()[1]
    return float((model.eval()(pictures).argmax(-1) == labels).float().mean())


def leave(folded: Shaped[Tensor, "B C *bands"]) -> Shaped[Tensor, "B C *bands"]:
    """In place of the swap: the dots stay in the order of the picture's rows."""
    return folded


def cut_up(arm: str, seed: int, size: Size) -> Measured:
    """Digits are learned from strips that are squares, or slices of rows; small ones and large ones."""
    found: Measured = {}
    for patch in size["patches"]:
        model = vit(seed, size, patch)
        if arm == "slices":
            model.patches.swap = leave
        losses = learn_digits(model, seed, size)
        found[f"right at {patch}"] = right(model)
        found[f"loss at {patch} by step"] = points(range(len(losses)), losses)
    return found


class OverTheBatch(nn.Module):
    """torch's BatchNorm over all tokens of all rows: middle and spread of each channel, not of each token."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        return self.norm(x.flatten(0, 1)).unflatten(0, x.shape[:2])


def over_the_batch(model: Any) -> Any:
    """Every norm of the model replaced."""
    width = model.config.width
    for block in model.blocks:
        block.attn_norm, block.mlp_norm = OverTheBatch(width), OverTheBatch(width)
    model.norm = OverTheBatch(width)
    return model


@torch.no_grad()
def leak(model: nn.Module, rows: int) -> float:
    """How far the answer about one picture moves when the others in its batch are exchanged, as in training."""
    pictures, _ = handwriting()[1]
    model.train()
    one, other = (model(torch.cat((pictures[:1], pictures[i : i + rows - 1])))[0] for i in (1, rows))
    return float((one - other).norm() / one.norm())


@torch.no_grad()
def loss_in(model: nn.Module, rows: int, batches: int) -> float:
    """The loss on held-out digits in batches as small as in training."""
    pictures, labels = (part[: rows * batches].split(rows) for part in handwriting()[1])
    return float(
        torch.stack([F.cross_entropy(model(p), label) for p, label in zip(pictures, labels, strict=True)]).mean()
    )


def norm_what(arm: str, seed: int, size: Size) -> Measured:
    """Digits learned a few at a time; then the same pictures in training and in use."""
    model = vit(seed, size, size["patch"])
    if arm == "BatchNorm":
        over_the_batch(model)
    losses = learn_digits(model, seed, size)
    small = size["rows"], size["batches"]
    accuracy, in_use = right(model), loss_in(model.eval(), *small)
    # last, since a norm over the batch remembers what it sees in training
    moved, in_training = leak(model, size["rows"]), loss_in(model.train(), *small)
    return {
        "moved": moved,
        "gap": abs(in_use - in_training),
        "right": accuracy,
        "loss by step": points(range(len(losses)), losses),
    }


def gates_at_one(model: DiT) -> DiT:
    """Each block begins as a plain pre-norm block: what it would add is added whole, not times zero."""
    for block in model.blocks:
        with torch.no_grad():
            gates = block.get_submodule("ada").get_parameter("bias").view(6, -1)
            gates[2] = gates[5] = 1.0
    return model


def dit(arm: str, seed: int, size: Size) -> DiT:
    sizes = dict(width=size["width"], depth=size["depth"], heads=size["heads"], hidden=2 * size["width"])
    model = built(lambda: DiT(DiTConfig(image_size=(8, 8), classes=10, null=False, **sizes)), seed)
    return model if arm == "zero" else gates_at_one(model)


def noise_loss(model: DiT, pictures: Tensor, labels: Tensor, random: torch.Generator) -> Tensor:
    """How far what the model says of noised pictures is from what it shall say."""
    flow, noise = Flow(), torch.randn(pictures.shape, generator=random)
    t = torch.randn(len(pictures), generator=random).sigmoid()
    said = model(flow.noised(pictures, noise, t), flow.clock(t), labels)
    return F.mse_loss(said, flow.target(pictures, noise, t))


@torch.no_grad()
def drift(model: DiT) -> float:
    """How far the blocks carry what they are given, against its length."""
    pictures, labels = handwriting()[1]
    probe = Probe("input", f"blocks.{model.config.depth - 1}.post")
    model(pictures[:64], torch.linspace(0, 1000, 64), labels[:64], probe=probe)
    begun, ended = probe.values.values()
    return float((ended - begun).norm() / begun.norm())


def begin(arm: str, seed: int, size: Size) -> Measured:
    """A diffusion transformer begins to learn digits."""
    model = dit(arm, seed, size)
    fresh = drift(model)
    losses = train(
        model,
        lambda step: noise_loss(model, *some(seed, step, size["rows"]), dice(seed, step, 2)),
        size["steps"],
        lr=size["lr"],
    )
    model.eval()
    with torch.no_grad():
        held = float(noise_loss(model, *handwriting()[1], dice(seed, 0, 3)))
    return {"drift": fresh, "loss": held, "loss by step": points(range(len(losses)), losses)}


_CUT = dict(patches=(2, 4), width=48, depth=2, heads=4, rows=32, steps=200, lr=2e-3)
_NORM = dict(patch=4, width=48, depth=2, heads=4, rows=4, steps=400, lr=1e-3, batches=80)
_ZERO = dict(width=48, depth=8, heads=4, rows=24, steps=100, lr=2e-3)
_LOSS = Curve("loss by step", "step", "training loss (nats)")

CLAIMS = (
    Claim(
        name="swap",
        title="The swap, which makes a strip a square",
        hypothesis="Without the swap a strip is a slice of the picture's rows and not a square, and the model sees "
        "less.",
        removed="patches.swap is replaced by one that leaves the dots as they are; the shapes are the same",
        arms=("squares", "slices"),
        measure=cut_up,
        predictions=tuple(
            Prediction(
                f"digits are told apart less well ({patch}×{patch} dots a strip)",
                f"right at {patch}",
                "held-out digits told right (share)",
                "squares",
                "slices",
            )
            for patch in (2, 4)
        ),
        quick=_CUT,
        full=_CUT | dict(width=64, depth=4, steps=2000),
        tiny=dict(patches=(2, 4), width=4, depth=1, heads=2, rows=2, steps=1, lr=1e-3),
        curves=tuple(
            Curve(f"loss at {patch} by step", "step", f"training loss (nats), {patch}×{patch}") for patch in (2, 4)
        ),
        caveat="Pictures of 8×8 dots. A slice of 4 dots is half a row, one of 16 two whole rows: no dot is lost either "
        "way, and attention can put together what the cut took apart, so a longer training closes some of the gap. A "
        "slice is a full row only where patch² equals the width.",
        source="000, the three moves",
    ),
    Claim(
        name="batchnorm",
        title="BatchNorm in place of LayerNorm",
        hypothesis="LayerNorm reads one token alone; BatchNorm reads the whole batch, so an answer depends on what "
        "else is in it, and training and use differ.",
        removed="every norm of the vit is swapped for torch.nn.BatchNorm1d over all tokens; four pictures a step",
        arms=("LayerNorm", "BatchNorm"),
        measure=norm_what,
        predictions=(
            Prediction(
                "the answer about one picture moves with the others in its batch",
                "moved",
                "change of one picture's logits when the other three are exchanged (share of their length)",
                "BatchNorm",
                "LayerNorm",
                by=0.01,
            ),
            Prediction(
                "the loss in use is not the loss in training",
                "gap",
                "loss in training mode and in evaluation mode on the same pictures, apart (nats)",
                "BatchNorm",
                "LayerNorm",
                by=0.01,
            ),
            Prediction(
                "digits are told apart less well",
                "right",
                "held-out digits told right (share)",
                "LayerNorm",
                "BatchNorm",
            ),
        ),
        quick=_NORM,
        full=_NORM | dict(width=64, depth=4, steps=4000),
        tiny=dict(patch=4, width=4, depth=1, heads=2, rows=3, steps=1, lr=1e-3, batches=2),
        curves=(_LOSS,),
        caveat="Batches of four pictures, where the middle and spread of a batch vary most. All pictures here are of "
        "one size; where rows are filled up with padding a norm over the batch reads that too.",
        source="000, LayerNorm",
    ),
    Claim(
        name="ada-zero",
        title="adaLN-Zero's zero",
        hypothesis="Gates that begin at zero make every fresh block the identity, and a diffusion transformer learns "
        "faster from there.",
        removed="the biases of the two gates of every block begin at 1 in place of 0: plain pre-norm blocks",
        arms=("zero", "one"),
        measure=begin,
        predictions=(
            Prediction(
                "a fresh trunk changes nothing",
                "drift",
                "what the fresh blocks add, against what they are given",
                "zero",
                "",
                near=0.0,
                by=1e-9,
            ),
            Prediction(
                "without the zero it does",
                "drift",
                "what the fresh blocks add, against what they are given",
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
        quick=_ZERO,
        full=_ZERO | dict(width=64, steps=1000, lr=1e-3),
        tiny=dict(width=4, depth=2, heads=2, rows=2, steps=1, lr=1e-3),
        curves=(Curve("loss by step", "step", "training loss (squared error)"),),
        caveat="The same learning rate in both arms and no warm-up; the last matrix begins at zero in both. "
        "Gates that begin small by chance (Glorot's weights, biases of zero) did almost as well as zero in one trial: "
        "it is gates that begin open that cost.",
        source="002, Adaptive Layer Norm (which leaves the gate out)",
    ),
)
