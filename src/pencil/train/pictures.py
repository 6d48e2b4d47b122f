"""The tasks of picture models: say what a picture shows, by a label or in words."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import draw
from ..config import UserError
from ..data import images
from ..data.augment import Look
from ..data.builtin import Scenes
from ..files import write_all
from ..models import configure, create, preset_of
from ..models.parts import numbers
from ..runs import Run
from .labels import confusion, measure, per_class
from .settings import TrainConfig, refuse
from .tasks import Asked, Batch, Begun, Preview, in_turn, random_of

JUDGED = 256  # pictures at a time
SHOWN = 40  # mistakes on a sheet


class PictureTask:
    """What labels and captions have in common: which pictures, how they look, what could not be used."""

    family = ""
    want = ""
    unit, headline = "pictures", ""

    def __init__(self, data: images.PictureData, sizes: Any, config: TrainConfig):
        self.data, self.config, self.train = data, sizes, config
        self.look = self._look()

    def _look(self) -> Look:
        c = self.config
        if c.channels not in (1, 3):
            raise UserError(f"pictures have 1 channel (grey) or 3 (colour); model.channels cannot be {c.channels}")
        kept = {name: getattr(self.train, name) for name in ("flip", "crop", "randaugment")}
        return Look(c.image_size, c.channels, **{k: v for k, v in kept.items() if v is not None})

    @cached_property
    def learned(self) -> images.PictureData:
        """The data as the model reads it."""
        return self.data

    @classmethod
    def sizes_for(cls, asked: Asked, data: images.PictureData, found: dict[str, Any]) -> Any:
        """The model's config: the preset, what it leaves open as the data suggests, and what was asked for."""
        preset = preset_of(asked.family, asked.preset)
        suggested = {} if "image_size" in preset else dict(data.native)
        return configure(asked.family, asked.preset, **{**suggested, **found, **asked.model})

    @classmethod
    def settings_for(cls, asked: Asked, data: images.PictureData, config: TrainConfig) -> TrainConfig:
        """The training's settings with the pace and the augmentations that suit the data, unless they were given."""
        pace = {} if "image_size" in preset_of(asked.family, asked.preset) else data.pace
        suggested = {name: value for name, value in data.augment.items() if getattr(config, name) is None}
        return replace(config, **{n: v for n, v in {**suggested, **pace}.items() if n not in asked.train})

    @property
    def chooses(self) -> bool:
        return self.data.chosen_by

    @property
    def slow(self) -> bool:
        return isinstance(self.data.train, images.FileExamples)

    @property
    def hash(self) -> str:
        return self.data.hash

    def about(self) -> str:
        made = "made on the fly" if not hasattr(self.data.train, "targets") else f"{len(self.data.train):,} to train on"
        size, held = "×".join(map(str, self.look.size)), len(self.data.test)
        what = "videos" if getattr(self.config, "frames", 1) > 1 else "pictures"
        return f"{what} of {self.data.name} at {size}, {made}, {held:,} to be judged by"

    @property
    def usage(self) -> str:
        return "--image picture.png"

    def skipped(self) -> list[tuple[str, str]]:
        return list(self.data.skipped)

    def build(self) -> nn.Module:
        return create(self.family, self.config)

    def count(self, batch: Batch) -> int:
        return len(batch[0])

    def draw(self, step: int, micro: int) -> tuple[np.ndarray, list[Any]]:
        """The pictures of a step and their targets, varied as the look says."""
        rng, size = random_of(self.train.seed, step, micro), self.train.batch
        data = self.learned.train
        if isinstance(data, Scenes):
            drawn = data.draw(rng, size)
            return images.ArrayExamples(*drawn).take(range(size), self.look, rng)
        first = (step * self.train.accumulate + micro) * size
        return data.take(in_turn(self.train.seed, first, size, len(data)), self.look, rng)

    def judged(self, examples: images.Examples, batches: int | None):
        """Held-out pictures and their targets, a few at a time: all of them, or as many as `batches` batches hold."""
        total = len(examples) if batches is None else min(len(examples), batches * self.train.batch)
        which = np.linspace(0, len(examples) - 1, total).astype(int)
        found = False
        for i in range(0, total, JUDGED):
            pictures, targets = examples.take(which[i : i + JUDGED], self.look.plain)
            if len(pictures):
                found = True
                yield pictures, targets
        if not found:
            raise UserError(f"none of the held-out pictures of {self.data.name} can be decoded")


class LabelTask(PictureTask):
    """Name the class of a picture."""

    family, want, headline = "vit", "label", "accuracy"

    @classmethod
    def begin(cls, asked: Asked, config: TrainConfig) -> Begun:
        if asked.tokenizer is not None:
            raise UserError("--tokenizer is for text, and vit writes none")
        refuse(config, ("word_dropout", "label_smoothing"), "for words, and vit reads none")
        data = images.load(asked.data, cls.want)
        config = cls.settings_for(asked, data, config)
        sizes = cls.sizes_for(asked, data, {"classes": len(data.classes)})
        return Begun(cls(data, sizes, config), data.name, data.hash, sizes, config, None, {"classes": data.classes})

    @classmethod
    def again(cls, run: Run, source: str, config: TrainConfig) -> "LabelTask":
        return cls(images.load(source, cls.want), configure(run.family, None, **run.config["model"]), config)

    def __init__(self, data: images.PictureData, sizes: Any, config: TrainConfig):
        super().__init__(data, sizes, config)
        if sizes.classes < len(data.classes):
            raise UserError(
                f"model.classes {sizes.classes} is fewer than the {len(data.classes)} classes of {data.name}"
            )

    def batch(self, step: int, micro: int = 0) -> Batch:
        pictures, labels = self.draw(step, micro)
        batch = torch.from_numpy(np.ascontiguousarray(pictures)), torch.tensor(labels)
        if not self.train.mixup:
            return batch
        rng = random_of(self.train.seed, step, micro + (1 << 22))
        return *batch, torch.tensor(rng.beta(self.train.mixup, self.train.mixup), dtype=torch.float32)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        pictures, labels, *mixed = batch
        x = numbers(pictures)
        if not mixed:
            return F.cross_entropy(model(x).float(), labels)
        (share,) = mixed
        logits = model(share * x + (1 - share) * x.flip(0)).float()
        return share * F.cross_entropy(logits, labels) + (1 - share) * F.cross_entropy(logits, labels.flip(0))

    @torch.no_grad()
    def _judge(self, model: nn.Module, batches: int | None) -> Iterator[tuple[Tensor, Tensor, np.ndarray]]:
        """Log-probabilities, labels and pictures of the held-out part, a few at a time."""
        device = next(model.parameters()).device
        for pictures, targets in self.judged(self.data.test, batches):
            said = model(numbers(torch.from_numpy(pictures).to(device))).float().log_softmax(-1).cpu()
            yield said, torch.tensor(targets), pictures

    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        return measure([part[:2] for part in self._judge(model, batches)])[0]

    def preview(self, model: nn.Module) -> Preview:
        said, labels, pictures = next(self._judge(model, 1))
        shown = [(said[i], int(labels[i]), pictures[i]) for i in range(min(24, len(labels)))]
        return Preview(".png", self._sheet(shown, self.data.name))

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """Accuracy over all and per class; the confusion matrix, and the mistakes the model was surest of."""
        folder.mkdir(parents=True, exist_ok=True)
        parts, surest = [], []
        for said, labels, pictures in self._judge(model, None):
            parts.append((said, labels))
            wrong = (said.argmax(-1) != labels).nonzero()[:, 0].tolist()
            surest += [(said[i], int(labels[i]), pictures[i].copy()) for i in wrong]
            surest = sorted(surest, key=lambda one: -one[0].max().item())[:SHOWN]
        measures, guessed, labels = measure(parts)
        measures |= per_class(guessed, labels, self.data.classes)
        wrong = int((guessed != labels).sum())
        title = f"{wrong} of {len(labels)} wrong" + (": the mistakes it was surest of" if wrong else "")
        files = {
            "confusion.png": confusion(guessed, labels, self.data.classes, self.data.name),
            "mistakes.png": self._sheet(surest, title),
        }
        return measures, write_all(folder, files)

    def _sheet(self, shown: list[tuple[Tensor, int, np.ndarray]], title: str) -> bytes:
        names = dict(enumerate(self.data.classes))
        lines, right = [], []
        for said, label, _ in shown:
            guess = int(said.argmax())
            right.append(guess == label)
            truth = "" if guess == label else f"\nis {names[label]}"
            lines.append(f"{names.get(guess, guess)} ({said.exp().max():.0%}){truth}")
        return draw.sheet([picture for *_, picture in shown], lines, right, title)
