"""Diffusion: predict the prediction target (noise, image or velocity) of a noised image.

Each row has random numbers from a key of its own: the same whichever rows are computed together, and where. They are
those of SplitMix64 (Steele, Lea and Flood, 2014): number i of a key k is a mix of the bits of k + i·γ.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ... import draw
from ...collectives.distributed_map import distributed_map, ordered_sum
from ...config import UserError, coerce
from ...console import note
from ...core.patches import by
from ...core.probe import Probe
from ...core.span import Span
from ...data.builtin import MovingDigits
from ...data.images import open_images as images
from ...data.images.augment import ImageTransform
from ...data.images.folders import annotations_in, has_labels
from ...data.images.from_memory import annotations_in_memory
from ...data.images.image_data import ImageData, with_order
from ...data.images.shards import annotations_of, find_shards
from ...data.images.sizes import common_size, patch_for
from ...data.in_memory import is_token
from ...data.tokenizers.tokenizer import Tokenizer
from ...device import pick_device
from ...files import write_all
from ...inference.autoencoder import Autoencoder, autoencoder_of
from ...inference.diffusion import Process, RectifiedFlow, split_variance
from ...inference.image_sampling import decoder_of, process_of, sample_images
from ...inference.text_batches import end_token, pad
from ...models.build import normalize
from ...runs.run import Run
from ..model_selection import MOST_PASSES_NOISED, Amount
from ..settings import TrainConfig
from ..task import ALL, Batch, Prepared, Preview, Request, random_of
from .captioning import caption_context
from .image_task import ImageTask, reading_of
from .latents import to_latents

GAMMA, FIRST, SECOND = (value - (1 << 64) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def row_keys(rng: np.random.Generator, count: int) -> Int[Tensor, "B"]:
    """A key for each of so many rows."""
    return torch.from_numpy(rng.integers(1 << 62, size=count))


def random_bits(keys: Int[Tensor, "B"], count: int, first: int = 0) -> Int[Tensor, "B n"]:
    """`count` numbers of 64 random bits for each key, from number `first` on."""
    # a compiler takes products of an arange for indices, which do not wrap around; the mask, which changes nothing,
    # makes them numbers
    numbers = torch.arange(first + 1, first + count + 1, device=keys.device) & ((1 << 62) - 1)
    z = keys[:, None] + numbers * GAMMA
    z = (z ^ _right(z, 30)) * FIRST
    z = (z ^ _right(z, 27)) * SECOND
    return z ^ _right(z, 31)


def _right(z: Tensor, by: int) -> Tensor:
    """Shifted to the right, with zeros from the left."""
    return (z >> by) & ((1 << (64 - by)) - 1)


def uniform(keys: Int[Tensor, "B"], first: int = 0) -> Float[Tensor, "B"]:
    """A number of [0, 1) for each key."""
    return _right(random_bits(keys, 1, first)[:, 0], 40).float() / (1 << 24)


def normal(keys: Int[Tensor, "B"], shape: tuple[int, ...], first: int = 0) -> Float[Tensor, "B *s"]:
    """Standard normal numbers of this shape for each key: two of 64 bits, by Box and Muller."""
    count = math.prod(shape)
    bits = random_bits(keys, -(-count // 2), first)
    radius = (-2 * ((_right(bits, 32) + 1).float() / (1 << 32)).log()).sqrt()
    angle = (bits & 0xFFFFFFFF).float() * (2 * math.pi / (1 << 32))
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)[:, :count].reshape(-1, *shape)


VARIATIONAL_BOUND_WEIGHT = 0.001  # in the loss, where the variance is learned
DEFAULT_CONDITION_DROPOUT = 0.1
# training settings that suit a data set at the default preset
DATA_SETTINGS: dict[str, dict[str, Any]] = {
    "digits": dict(steps=480, warmup=96, ema=0.99, eval_every=480, save_every=240),
    "mnist": dict(steps=3000, batch=128, eval_every=1000),
    "moving-digits": dict(steps=6000, eval_every=1000),
}

SCORED_BY = (
    "sample_accuracy: share of samples that the classifier assigns to their label",
    "classifier_accuracy: of the same classifier on real held-out images, which sample_accuracy is measured against",
)


class Diffusion(ImageTask):
    """Predict the prediction target of a noised image, given the timestep, and a label or a text if there is one."""

    draws = True

    @classmethod
    def prepare(cls, request: Request, train: TrainConfig) -> Prepared:
        labels = coerce(request.model.get("classes"), int | None, "model.classes") is not None
        want = annotation_kind(request.data, labels)
        data = images.load(request.data, want, split=request.split)
        if request.start is not None and (order := request.start.in_order(data.classes)):
            data = with_order(data, order)
        train = cls.settings(request, data, train)
        tokenizer, facts = None, {}
        from_data: dict[str, Any] = {"classes": len(data.classes) or None}
        if want == "caption":
            tokenizer = request.learn_tokenizer(data.captions(), "bpe")
            from_data = {"vocab": tokenizer.vocab, **caption_context(request, data, tokenizer)}
            facts = {"tokenizer": tokenizer.kind}
        elif request.options.tokenizer is not None:
            have = "labels" if data.classes else "no captions"
            raise UserError(f"--tokenizer is for text, and these images have {have}")
        autoencoder = None
        if request.options.vae is not None:
            if not hasattr(data.train, "targets"):
                raise UserError(
                    f"{data.name} is generated while training, so it cannot be encoded before: leave --vae out"
                )
            for name in ("flip", "crop", "augment_ops"):
                if getattr(train, name) is not None:
                    raise UserError(f"train.{name} has no effect with --vae: images are encoded once, before training")
            autoencoder = Autoencoder.open(request.options.vae, pick_device(train.device))
            facts |= {"vae": autoencoder.source, "vae_hash": autoencoder.hash}
        config = cls.configure(request, data, from_data, autoencoder)
        if config.classes:
            facts |= {"classes": data.classes}
        task = cls(request.family, data, config, train, tokenizer, request.data, autoencoder)
        notes = [*task.choose_fit(request)]
        if want == "caption" and has_labels_too(request.data):
            notes.append(f"{data.name} has texts and labels: the texts are used; --model.classes chooses the labels")
        if autoencoder is not None:  # the name of the cached latents follows from these
            facts |= {"vae_size": task.transform.size, "vae_channels": task.transform.channels}
        return Prepared(task, data.name, data.hash, config, train, tokenizer, facts, task.reading, notes)

    @classmethod
    def configure(
        cls, request: Request, data: ImageData, from_data: dict[str, Any], autoencoder: Autoencoder | None = None
    ) -> Any:
        """The config as for other images, except that only the shape is taken from the data."""
        preset = request.preset_values
        suggested = {} if "image_size" in preset else suggest_shape(request, data)
        if autoencoder is not None:
            size = coerce(request.options.size, tuple[int, int] | None, "--size") or suggested.pop("image_size", None)
            suggested |= {"channels": autoencoder.channels}
            suggested |= {"image_size": autoencoder.latent_size(size)} if size else {}
            if "image_size" not in preset:
                even = not any(side % 2 for side in suggested["image_size"])
                suggested["patch"] = (2, 2) if even else (1, 1)
        config = request.configure(**{**suggested, **from_data})
        if "prediction" in request.model and config.prediction != "eps" and config.noise_schedule == "flow":
            raise UserError(
                "model.prediction needs --model.noise_schedule linear or cosine; a flow predicts the velocity"
            )
        if "window" in request.model and config.attention != "windowed":
            raise UserError(f"model.window has no effect with model.attention {config.attention}: leave it out")
        check_config(config, data, "vocab" in from_data)
        # without a condition there is nothing to drop
        return config if config.classes or config.vocab else replace(config, null_condition=False)

    @classmethod
    def settings(cls, request: Request, data: ImageData, train: TrainConfig) -> TrainConfig:
        """The training settings with the steps that suit the data; by default no image is augmented."""
        defaults = DATA_SETTINGS.get(data.name, {}) if request.preset == request.family.default_preset else {}
        return replace(train, **{n: v for n, v in defaults.items() if n not in request.train})

    @classmethod
    def reopen(cls, family: Any, run: Run, source: str, train: TrainConfig, whole: bool = False) -> "Diffusion":
        config = family.read_config(run.config["model"])
        labels = config.classes is not None
        kind = annotation_kind(source, labels)
        if kind == "caption" and config.vocab is None:  # of an older version, which read no texts beside images
            kind = "nothing"
        data = cls.load(source, kind, run, labels, whole)
        autoencoder = autoencoder_of(run, pick_device(train.device))
        tokenizer = run.tokenizer if config.vocab is not None else None
        return cls(family, data, config, train, tokenizer, source, autoencoder).read_as(reading_of(run))

    def __init__(
        self,
        family: Any,
        data: ImageData,
        config: Any,
        train: TrainConfig,
        tokenizer: Tokenizer | None,
        source: str,
        autoencoder: Autoencoder | None = None,
    ):
        self.autoencoder = autoencoder
        super().__init__(family, data, config, train)
        self.select_best = False
        self.last_because = "the validation loss does not measure how good the samples are"
        self.source = source
        self.process, self.tokenizer = process_of(config, autoencoder is not None), tokenizer
        self.conditional = bool(config.classes or config.vocab)
        if tokenizer is not None:
            self.end = end_token(tokenizer)
            self.encoded = lru_cache(1 << 16)(lambda text: tokenizer.encode(text).tolist())
        self.condition_dropout = (
            DEFAULT_CONDITION_DROPOUT if train.condition_dropout is None else train.condition_dropout
        )
        if not config.null_condition:
            self.condition_dropout = 0.0

    def _transform(self) -> ImageTransform:
        if self.autoencoder is None:
            return super()._transform()
        if self.config.channels != self.autoencoder.channels:
            raise UserError(
                f"the latents have {self.autoencoder.channels} channels, and model.channels is {self.config.channels}"
            )
        height, width = (side * self.autoencoder.factor for side in self.config.image_size)
        return ImageTransform((height, width), self.autoencoder.image_channels)

    @cached_property
    def inputs(self) -> ImageData:
        if self.autoencoder is None:
            return self.data
        return to_latents(self.data, self.autoencoder, self.transform, note)

    def build(self) -> nn.Module:
        _ = self.inputs  # latents are encoded before the training's clock starts
        return super().build()

    def about(self) -> str:
        if self.autoencoder is None:
            return super().about()
        return f"{super().about()}, as latents of {by((self.config.channels, *self.config.image_size))}"

    @property
    def amount(self) -> Amount | None:
        """How much there is to train on."""
        images = super().amount
        return images and images._replace(most_passes=MOST_PASSES_NOISED)

    @property
    def usage(self) -> str:
        if not self.conditional:
            return "--count 16"
        return f"--prompt {self.data.test.targets[0]!r}" if self.tokenizer else f"--label {self.data.classes[0]}"

    def examples(self, step: int, micro: int, rows: slice = ALL) -> tuple[np.ndarray, list[Any]]:
        if isinstance(self.data.train, MovingDigits):
            videos, labels = self.data.train.draw(random_of(self.train.seed, step, micro), self.train.batch)
            return videos[rows], labels[rows]
        return super().examples(step, micro, rows)

    def condition(self, targets: Sequence[Any]) -> tuple[Tensor, ...]:
        """The labels, or the texts' tokens and their places; or nothing."""
        if not self.conditional:
            return ()
        if self.tokenizer is None:
            return (torch.tensor(targets),)
        whole = self.train.deterministic  # kernels, and so the last bits, depend on the shapes compiled
        return pad([[self.end, *self.encoded(str(text))] for text in targets], self.end, self.config.context, whole)

    def batch(self, step: int, micro: int = 0, rows: slice = ALL) -> Batch:
        """Images, their conditions, and the key of each row's random numbers."""
        pictures, targets = self.examples(step, micro, rows)
        keys = row_keys(random_of(self.train.seed, step, micro + (1 << 23)), self.train.batch)[rows]
        return torch.from_numpy(np.ascontiguousarray(pictures)), *self.condition(targets), keys

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean squared error of the prediction; times, noise and dropped conditions follow from each row's key."""
        pictures, *condition, keys = batch
        return self._loss(model, as_floats(pictures), condition, keys, self.condition_dropout)

    def noise(self, keys: Tensor, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each row the time, the noise, and a uniform number by which its condition is dropped."""
        t = self.process.training_times(uniform(keys, 0), normal(keys, (1,), 1)[:, 0])
        return t, normal(keys, tuple(like.shape[1:]), 3).to(like.dtype), uniform(keys, 2)

    def _loss(
        self, model: nn.Module, x: Tensor, condition: Sequence[Tensor], keys: Tensor, condition_dropout: float
    ) -> Tensor:
        t, noise, chance = self.noise(keys, x)
        dropped = chance < condition_dropout if condition_dropout else None
        places = Span.at(condition[1]) if len(condition) > 1 else None
        noised = self.process.add_noise(x, noise, t)
        output = model(noised, self.process.timestep(t), condition[0] if condition else None, places, dropped)
        return prediction_loss(self.process, output, x, noised, noise, t, 256 if self.autoencoder is None else None)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        """The loss on held-out images, each time with the same noise."""
        device, examples = next(model.parameters()).device, self.inputs.test
        keys = row_keys(random_of(0, 0, 1 << 23), len(examples))

        def batch_loss(which: np.ndarray) -> tuple[float, int]:
            pictures, targets = examples.take(which, self.transform.without_augmentation)
            if not len(pictures):
                return 0.0, 0
            x = as_floats(torch.from_numpy(np.ascontiguousarray(pictures)).to(device))
            condition = [t.to(device) for t in self.condition(targets)]
            keys_of_batch = keys[which][: len(x)].to(device)  # there are fewer where some cannot be decoded
            return float(self._loss(model, x, condition, keys_of_batch, 0.0)) * len(x), len(x)

        losses, counts = zip(*distributed_map(self.held_out_parts(examples, batches), batch_loss), strict=True)
        return {"val_loss": ordered_sum(losses) / self.decoded(sum(counts))}

    def preview(self, model: nn.Module) -> Preview:
        """A few samples for the first labels or texts, in a few steps."""
        targets = self.sample_targets(20)
        samples = self.sample(model, targets, guidance=2.0 if self.config.null_condition else 1.0, steps=20)
        pictures = list(middle_frames(samples))
        names = [self.target_name(target) for target in targets]
        return Preview(".png", draw.sheet(pictures, names, [True] * len(pictures), self.data.name))

    def sample_targets(self, count: int) -> list[Any]:
        """Labels in turn, or the first held-out texts; or no condition."""
        if not self.conditional:
            return [None] * count
        if self.tokenizer is None:
            return [i % len(self.data.classes) for i in range(count)]
        return list(self.data.test.targets[:count])

    def target_name(self, target: Any) -> str:
        if target is None:
            return ""
        return str(self.data.classes[target]) if self.tokenizer is None else str(target)

    def sample(self, model: nn.Module, targets: Sequence[Any], **settings: Any) -> np.ndarray:
        """Samples for these targets, as bytes."""
        condition, decode = self.condition(targets), decoder_of(self.autoencoder)
        return sample_images(model, self.process, condition, len(targets), decode=decode, **settings)[-1]

    @property
    def has_classes(self) -> bool:
        """Whether a classifier of the data can score samples."""
        return self.tokenizer is None and bool(self.data.classes)

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """The loss, and samples to look at."""
        folder.mkdir(parents=True, exist_ok=True)
        return self.evaluate(model), write_all(folder, {"samples.png": self.preview(model).content})

    @property
    def notes(self) -> list[str]:
        """What to know of the metrics."""
        if self.data.classes:
            unscored = "samples have no label, so none is scored: look at samples.png"
            return [*SCORED_BY] if self.conditional else [unscored]
        what = "captions" if self.conditional else "images alone"
        return [f"{what} have no class to score samples by: look at samples.png"]


def prediction_loss(
    process: Process, output: Tensor, x: Tensor, noised: Tensor, noise: Tensor, t: Tensor, levels: int | None
) -> Tensor:
    """The mean squared error of what a model predicts, and where it learns the variance a share of its bound."""
    predicted, variance = split_variance(output if output.dtype == torch.float64 else output.float(), x.shape[1])
    loss = F.mse_loss(predicted, process.target(x, noise, t))
    if variance is None or isinstance(process, RectifiedFlow):
        return loss
    bound = process.variational_bound(x, noised, predicted, variance, t, levels=levels)
    # times are uniform: the mean term times their number estimates the sum over all steps
    return loss + VARIATIONAL_BOUND_WEIGHT * len(process) * bound.mean()


def middle_frames(samples: np.ndarray) -> np.ndarray:
    """Images as they are; of videos the middle frame."""
    return samples if samples.ndim == 4 else samples[:, :, samples.shape[2] // 2]


def as_floats(pictures: Tensor) -> Tensor:
    """Bytes as the model reads them; latents are floats already."""
    return normalize(pictures) if pictures.dtype == torch.uint8 else pictures


def check_config(config: Any, data: ImageData, captions: bool) -> None:
    """Refuse a condition the data does not have, or images of a shape it does not have."""
    if config.vocab and not captions:
        raise UserError(f"model.vocab is for images with captions, and {data.name} has none")
    if config.classes and not data.classes:
        raise UserError(f"model.classes is for images with labels, and {data.name} has none")
    if config.classes and config.classes < len(data.classes):
        raise UserError(f"model.classes {config.classes} is fewer than the {len(data.classes)} classes of {data.name}")
    fixed, frames = data.model_defaults, data.model_defaults.get("frames", 1)
    if config.frames != frames and frames == 1:
        raise UserError(f"model.frames {config.frames} is for video, and {data.name} has still images")
    for name in ("frames", "image_size", "channels") if frames > 1 else ():
        if getattr(config, name) != fixed[name]:
            value = "x".join(map(str, fixed[name])) if name == "image_size" else fixed[name]
            raise UserError(f"{data.name} is made with model.{name} {value} only: leave it out")


def suggest_shape(request: Request, data: ImageData) -> dict[str, Any]:
    """What the data suggests: images in files at the size they all have, cut by a patch that divides it."""
    names = ("image_size", "channels", "patch", "frames", "patch_frames")
    shape = {name: value for name, value in data.model_defaults.items() if name in names}
    size = request.options.size or request.model.get("image_size")
    if size is None:
        shape["image_size"] = common_size(data, request.data) or shape["image_size"]
    elif request.options.vae is None:
        shape["image_size"] = coerce(size, tuple[int, int], "model.image_size")
    other = tuple(shape["image_size"]) != tuple(data.model_defaults["image_size"]) and min(shape["image_size"]) > 0
    if other and request.options.vae is None and "patch" not in request.model:
        shape["patch"] = patch_for(shape["image_size"])
    return shape


def annotation_kind(data: str, labels: bool = False) -> str:
    """What comes with the images: a label, a caption, or nothing; or whether they are videos.

    Where there are both, `labels` are taken if a model with classes was requested.
    """
    path = Path(data).expanduser()
    for want in ("video", "caption"):
        if data in images.EMBEDDED[want]:
            return want
    if is_token(data):
        kind = annotations_in_memory(data)
    elif shards := find_shards(data):
        kind = next((kind for kind in ("caption", "label") if kind in annotations_of(shards)), "nothing")
    else:
        kind = annotations_in(path) if path.is_dir() else "label"
    return "label" if labels and kind == "caption" else kind


def has_labels_too(data: str) -> bool:
    """Whether images with captions have labels besides."""
    if shards := find_shards(data):
        return "label" in annotations_of(shards)
    path = Path(data).expanduser()
    return path.is_dir() and has_labels(path)


SAMPLES, GUIDANCE, STEPS = 200, 3.0, 50  # of what is scored by a classifier
CLASSIFIER_BATCH = 256  # images
SHEET_SAMPLES = 80


@torch.no_grad()
def features(classifier: Any, pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classifier's pooled features of each image, and the predicted class; of a video, over all frames."""
    parts, labels = [], []
    for i in range(0, len(pictures), CLASSIFIER_BATCH):
        batch = torch.from_numpy(np.ascontiguousarray(pictures[i : i + CLASSIFIER_BATCH]))
        frames = batch.shape[2] if batch.ndim == 5 else 1
        probe = Probe("pooled")
        logits = classifier(normalize(batch.transpose(1, 2).flatten(0, 1) if batch.ndim == 5 else batch), probe=probe)
        parts.append(probe.values["pooled"].double().unflatten(0, (-1, frames)).mean(1).numpy())
        labels.append(logits.log_softmax(-1).unflatten(0, (-1, frames)).mean(1).argmax(-1).numpy())
    return np.concatenate(parts), np.concatenate(labels)


def frechet(a: np.ndarray, b: np.ndarray) -> float:
    """The Fréchet distance between two sets of features, each as a Gaussian: ‖μ−ν‖² + tr(A + B − 2√(AB))."""
    mean = ((a.mean(0) - b.mean(0)) ** 2).sum()
    cov_a, cov_b = (np.cov(x, rowvar=False) for x in (a, b))
    values, vectors = np.linalg.eigh(cov_a)
    root = vectors * np.sqrt(np.clip(values, 0, None)) @ vectors.T
    trace_of_root = np.sqrt(np.clip(np.linalg.eigvalsh(root @ cov_b @ root), 0, None)).sum()
    return float(mean + np.trace(cov_a) + np.trace(cov_b) - 2 * trace_of_root)


def score_samples(task: Diffusion, model: Any, classifier: Any) -> tuple[dict[str, float], dict[str, bytes]]:
    """The share of samples classified as their label, their Fréchet distance to real images, and a sheet of samples."""
    targets = task.sample_targets(SAMPLES)
    samples = task.sample(model, targets, guidance=GUIDANCE if task.config.null_condition else 1.0, steps=STEPS)
    held_out, true = task.data.test.take(range(len(task.data.test)), task.transform.without_augmentation)
    # as many real ones as samples: the distance between small sets is larger
    if isinstance(task.data.train, MovingDigits):
        real, _ = task.data.train.draw(random_of(0, 0), len(samples))
    else:
        indices = random_of(0, 0).permutation(len(task.data.train))[: len(samples)]
        real, _ = task.data.train.take(indices, task.transform.without_augmentation)
    (sampled, predicted), (reference, named), (baseline, _) = (
        features(classifier, part) for part in (samples, held_out, real)
    )
    # a sample without a label is named by what it is classified as
    labels = targets if task.conditional else predicted.tolist()
    right = predicted == np.asarray(labels)
    lines = [
        task.target_name(t) if ok else f"{task.target_name(t)}, classified as {task.target_name(int(n))}"
        for t, n, ok in zip(labels, predicted, right, strict=True)
    ]
    pictures = middle_frames(samples)[:SHEET_SAMPLES]
    title = (
        f"{int(right.sum())} of {len(samples)} classified as their label" if task.conditional else "predicted classes"
    )
    sheet = draw.sheet(list(pictures), lines[: len(pictures)], [bool(ok) for ok in right[: len(pictures)]], title)
    metrics = {"sample_accuracy": float(right.mean())} if task.conditional else {}
    metrics["classifier_accuracy"] = float((named == np.asarray(true)).mean())
    if min(len(reference), len(baseline)) > 1:  # one point has no covariance
        metrics |= {"frechet": frechet(sampled, reference), "frechet_of_real": frechet(baseline, reference)}
    if samples.ndim == 5:
        metrics |= {"jerk": jerk(samples), "jerk_of_real": jerk(held_out)}
    return metrics, {"samples.png": sheet}


def jerk(videos: np.ndarray) -> float:
    """How unevenly the bright part moves: the mean change, in pixels, of its centre's step from frame to frame.

    A digit that moves at constant speed has none except where it bounces.
    """
    light = videos[:, 0].astype(float) + 1e-6
    total = light.sum((2, 3))
    places = [
        (light * np.arange(light.shape[axis]).reshape([-1 if i == axis else 1 for i in range(4)])).sum((2, 3)) / total
        for axis in (2, 3)
    ]
    return float(np.abs(np.diff(np.stack(places), 2, axis=2)).mean())
