"""Claims about the recipe of the first Transformer: cross-attention, dropout, label smoothing, averaged checkpoints."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.probe import OFF, Probe
from ...models.seq2seq import Seq2Seq, Seq2SeqConfig
from ...models.vit import ViT, ViTConfig
from ...train.losses.cross_entropy import next_token
from ...train.tasks.class_report import calibration
from .claim import LOSS, Claim, Measured, Prediction, Size
from .claims_blocks import small_gpt, text_batch
from .claims_images import Labelled, digit_images
from .training import by_step, generator, seeded, train

BINS = 10  # of confidence, for the calibration error


# ---- cross-attention


class NoCross(nn.Module):
    """Replaces cross-attention: nothing of the source is read, and nothing is added."""

    def read(self, source: Float[Tensor, "B s D"], probe: Probe = OFF) -> tuple[Tensor, Tensor]:
        return source[:, None, :, :0], source[:, None, :, :0]

    def forward(self, x: Float[Tensor, "B T D"], span: Any = None, **more: Any) -> Float[Tensor, "B T D"]:
        return torch.zeros_like(x)


def translator(arm: str, seed: int, size: Size) -> Seq2Seq:
    sizes = dict(vocab=size["words"] + 1, context=size["length"], source_context=size["length"], width=size["width"])
    model = seeded(lambda: Seq2Seq(Seq2SeqConfig(depth=size["depth"], heads=size["heads"], **sizes)), seed)
    if arm == "without":
        for block in model.blocks:
            block.cross = NoCross()
    return model


def reversals(
    size: Size, random: torch.Generator, rows: int
) -> tuple[Int[Tensor, "B n"], Int[Tensor, "B n"], Int[Tensor, "B n"]]:
    """Sources of random words, what the decoder reads, and what it must write: the source from its end."""
    source = torch.randint(size["words"], (rows, size["length"]), generator=random)
    wanted = source.flip(1)
    begin = torch.full((rows, 1), size["words"])
    return source, torch.cat((begin, wanted[:, :-1]), 1), wanted


def measure_cross(arm: str, seed: int, size: Size) -> Measured:
    """Words are written in reverse; each is predicted with the right words before it."""
    model = translator(arm, seed, size)

    def loss_of(step: int) -> Tensor:
        source, before, wanted = reversals(size, generator(seed, step, 1), size["batch"])
        return next_token(model(before, source), wanted)

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)
    source, before, wanted = reversals(size, generator(seed, 0, 2), size["held_out"])
    with torch.no_grad():
        right = model.eval()(before, source).argmax(-1) == wanted
    accuracy = float(right.float().mean())
    return {"accuracy": accuracy, "chance": accuracy * size["words"], "loss by step": by_step(losses)}


# ---- dropout and label smoothing, on few images


def few_digits(seed: int, size: Size) -> Labelled:
    """Some images of the training set: others for each seed, the same in every arm."""
    images, labels = digit_images()[0]
    which = torch.randperm(len(labels), generator=generator(seed, 0, 1))[: size["images"]]
    return images[which], labels[which]


def train_on_few(seed: int, size: Size, dropout: float, smoothing: float) -> tuple[ViT, list[float]]:
    """A classifier trained on few images, many times over, and its training losses."""
    sizes = dict(width=size["width"], depth=size["depth"], heads=size["heads"], hidden=2 * size["width"])
    model = seeded(lambda: ViT(ViTConfig(image_size=(8, 8), patch=(4, 4), dropout=dropout, **sizes)), seed)
    images, labels = few_digits(seed, size)

    def loss_of(step: int) -> Tensor:
        which = torch.randint(len(labels), (size["rows"],), generator=generator(seed, step, 2))
        return F.cross_entropy(model(images[which]), labels[which], label_smoothing=smoothing)

    torch.manual_seed(seed)  # dropout's random numbers
    return model, train(model, loss_of, size["steps"], lr=size["lr"], warmup=20)


@torch.no_grad()
def logits_and_labels(model: ViT, part: Labelled) -> tuple[Float[Tensor, "n c"], Int[Tensor, "n"]]:
    images, labels = part
    return model.eval()(images), labels


def calibration_error(logits: Float[Tensor, "n c"], labels: Int[Tensor, "n"]) -> float:
    """The expected calibration error: |accuracy − mean confidence| in ten bins of confidence, by their shares."""
    confidence, guess = logits.softmax(-1).max(-1)
    return calibration(confidence, guess == labels, BINS).error


def held_out_metrics(model: ViT) -> Measured:
    logits, labels = logits_and_labels(model, digit_images()[1])
    return {
        "loss": float(F.cross_entropy(logits, labels)),
        "accuracy": float((logits.argmax(-1) == labels).float().mean()),
        "calibration": calibration_error(logits, labels),
    }


def measure_dropout(arm: str, seed: int, size: Size) -> Measured:
    """Few images are learned with and without dropout; others are classified."""
    model, losses = train_on_few(seed, size, size["dropout"] if arm == "with" else 0.0, 0.0)
    measured, seen = held_out_metrics(model), logits_and_labels(model, few_digits(seed, size))
    held_out = measured["loss"]
    assert isinstance(held_out, float)
    return measured | {"gap": held_out - float(F.cross_entropy(*seen)), "loss by step": by_step(losses)}


def measure_smoothing(arm: str, seed: int, size: Size) -> Measured:
    """Few images are learned with smoothed labels and with plain ones; others are classified."""
    model, losses = train_on_few(seed, size, 0.0, size["smoothing"] if arm == "with" else 0.0)
    return held_out_metrics(model) | {"loss by step": by_step(losses)}


# ---- averaged checkpoints


def mean_of_states(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of some checkpoints' weights, computed in double precision."""
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        for name, tensor in states[-1].items()
    }


def measure_averaging(arm: str, seed: int, size: Size) -> Measured:
    """Texts are learned at a learning rate that stays or falls; the last weights are used, or a mean of five."""
    model, states = small_gpt(size, seed, size["depth"]), []
    kept = {size["steps"] - i * size["every"] for i in range(1, size["last"])}
    falls = arm.endswith("falling rate")

    def loss_of(step: int) -> Tensor:
        if step in kept:  # before this step so many updates were made
            states.append(copy.deepcopy(model.state_dict()))
        text, targets = text_batch(size, seed, step)
        return next_token(model(text), targets)

    losses = train(model, loss_of, size["steps"], lr=size["lr"], warmup=10, decay=falls)
    if arm.startswith("mean"):
        model.load_state_dict(mean_of_states([*states, model.state_dict()]))
    model.eval()
    with torch.no_grad():
        tests = [text_batch(size, seed, (1 << 19) + i) for i in range(size["held_out"])]
        loss = sum(float(next_token(model(text), targets)) for text, targets in tests) / len(tests)
    return {"loss": loss, "loss by step": by_step(losses)}


_FEW = dict(width=32, depth=2, heads=2, rows=32, steps=800, lr=2e-3, images=200)
_FEW_TINY = dict(width=4, depth=1, heads=2, rows=2, steps=1, lr=1e-3, images=5)

CLAIMS = (
    Claim(
        name="cross-attention",
        title="Cross-attention",
        hypothesis="The decoder reads the source through cross-attention alone: without it, what it writes does not "
        "depend on what it should translate.",
        removed="the cross-attention of every decoder block is replaced by a module whose output is 0",
        arms=("with", "without"),
        measure=measure_cross,
        predictions=(
            Prediction(
                "it writes words that are not those of the source",
                "accuracy",
                "right words, held-out sources in reverse (fraction)",
                "with",
                "without",
                by=0.2,
            ),
            Prediction("it guesses", "chance", "right words ÷ those of guessing", "without", "", near=1.0, by=0.2),
        ),
        quick=dict(words=11, length=6, width=32, heads=2, depth=1, batch=32, steps=300, lr=3e-3, held_out=500),
        full=dict(words=31, length=12, width=64, depth=2, steps=1500, held_out=2000),
        tiny=dict(words=5, length=3, width=4, heads=2, depth=1, batch=2, steps=1, lr=1e-3, held_out=7),
        curves=(LOSS,),
        caveat="The words are random, so that nothing of the text itself can be predicted. In a language the decoder "
        "would still write sentences, of anything.",
        source="003, cross-attention",
    ),
    Claim(
        name="dropout",
        title="Dropout",
        hypothesis="Dropout keeps a model from learning its training data by heart: on other data it is better.",
        removed="dropout 0.1 on the embeddings, the attention weights and each sublayer's output is 0",
        arms=("with", "without"),
        measure=measure_dropout,
        predictions=(
            Prediction(
                "its loss on held-out images is higher",
                "loss",
                "loss on held-out digits (nats)",
                "without",
                "with",
                by=0.05,
            ),
            Prediction(
                "it fits its training images better than others by more",
                "gap",
                "held-out loss − training loss (nats)",
                "without",
                "with",
                by=0.05,
            ),
        ),
        quick=_FEW | dict(dropout=0.1),
        full=dict(width=64, depth=4, steps=2000),
        tiny=_FEW_TINY | dict(dropout=0.1),
        curves=(LOSS,),
        caveat="200 images are seen dozens of times, where a model overfits. On a text that is read once there is "
        "nothing to learn by heart, and dropout only makes training slower; many large models have none.",
        source="the recipe of the first Transformer",
    ),
    Claim(
        name="label-smoothing",
        title="Label smoothing",
        hypothesis="A model trained towards 0.9 instead of 1 is less sure of itself: its confidence is nearer to how "
        "often it is right, and it is right more often, though its loss is higher.",
        removed="the cross-entropy's targets are 1 and 0, instead of 0.1 spread evenly over the classes and 0.9",
        arms=("with", "without"),
        measure=measure_smoothing,
        predictions=(
            Prediction(
                "its confidence is further from how often it is right",
                "calibration",
                "expected calibration error, held-out digits (ten bins)",
                "without",
                "with",
                by=0.01,
            ),
            Prediction("it is right less often", "accuracy", "accuracy on held-out digits", "with", "without"),
            Prediction(
                "but its loss is lower", "loss", "loss on held-out digits, plain labels (nats)", "with", "without"
            ),
        ),
        quick=_FEW | dict(smoothing=0.1),
        full=dict(width=64, depth=4, steps=2000),
        tiny=_FEW_TINY | dict(smoothing=0.1),
        curves=(LOSS,),
        caveat="On few images, where plain labels make a model overconfident. The paper's own claim is about "
        "translations, where the loss rises and BLEU rises too. The last panel is of the loss trained on, which "
        "is another one in each arm.",
        source="the recipe of the first Transformer",
    ),
    Claim(
        name="averaging",
        title="Averaged checkpoints",
        hypothesis="The mean of the last five checkpoints' weights is better than the last one.",
        removed="the last weights are used, instead of the mean of five, the same training",
        arms=("mean, constant rate", "last, constant rate", "mean, falling rate", "last, falling rate"),
        measure=measure_averaging,
        predictions=(
            Prediction(
                "at a constant learning rate the loss is higher",
                "loss",
                "loss on held-out texts (nats per word)",
                "last, constant rate",
                "mean, constant rate",
                by=0.001,
            ),
            Prediction(
                "at a rate that falls to 0 the loss is higher too",
                "loss",
                "loss on held-out texts (nats per word)",
                "last, falling rate",
                "mean, falling rate",
                by=0.001,
            ),
        ),
        quick=dict(
            words=17, length=16, width=32, heads=2, batch=16, depth=2, steps=200, every=10, last=5, lr=4e-3, held_out=20
        ),
        full=dict(width=64, heads=4, steps=2000, every=50, held_out=100),
        tiny=dict(words=5, length=3, width=4, heads=2, batch=2, depth=1, steps=3, every=1, last=2, lr=1e-3, held_out=1),
        curves=(LOSS,),
        caveat="`pencil average RUN --last 5` does it to a run. A rate that falls to 0 does much of the same: the "
        "steps become small enough to settle in the middle.",
        source="the recipe of the first Transformer",
    ),
)
