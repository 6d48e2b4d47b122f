"""Image classification: predict the class of an image."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import draw
from ...collectives.distributed_map import distributed_map
from ...config import UserError
from ...data.images import open_images as images
from ...data.images.image_data import with_order
from ...files import write_all
from ...models.build import normalize
from ...runs.run import Run
from ..settings import TrainConfig
from ..task import ALL, Batch, Prepared, Preview, Request, random_of
from .baselines import FOREST, MOST_FITTED, histograms
from .class_balance import ClassBalance
from .class_report import Answers, class_files
from .image_task import ImageTask, reading_of
from .metrics import ClassPredictions, class_predictions, classification_metrics

MISTAKES = 40  # on a sheet


class ImageClassification(ImageTask):
    """Predict the class of an image."""

    want, headline, baseline = "label", "accuracy", FOREST

    @classmethod
    def prepare(cls, request: Request, train: TrainConfig) -> Prepared:
        data = images.load(request.data, cls.want, split=request.split)
        if request.start is not None and (order := request.start.in_order(data.classes)):
            data = with_order(data, order)
        train = cls.settings(request, data, train)
        config = cls.configure(request, data, {"classes": len(data.classes)})
        task = cls(request.family, data, config, train)
        notes = task.choose_fit(request)
        facts = {"classes": data.classes}
        return Prepared(task, data.name, data.hash, config, train, None, facts, task.reading, notes)

    @classmethod
    def reopen(
        cls, family: Any, run: Run, source: str, train: TrainConfig, whole: bool = False
    ) -> "ImageClassification":
        data = cls.load(source, cls.want, run, True, whole)
        task = cls(family, data, family.read_config(run.config["model"]), train)
        return task.read_as(reading_of(run))

    def __init__(self, family: Any, data: images.ImageData, config: Any, train: TrainConfig):
        super().__init__(family, data, config, train)
        if config.classes < len(data.classes):
            raise UserError(
                f"model.classes {config.classes} is fewer than the {len(data.classes)} classes of {data.name}"
            )
        self.balance = ClassBalance(train, data.train.targets, data.classes, config.classes, data.name)

    def _indices(self, step: int, micro: int) -> list[int]:
        if not self.balance.members:
            return super()._indices(step, micro)
        return self.balance.indices(self.train.seed, self.first_example(step, micro), self.train.batch)

    def targets(self, batch: Batch) -> float:
        return self.balance.targets(batch[1])

    def batch(self, step: int, micro: int = 0, rows: slice = ALL) -> Batch:
        """Images and labels; with mixup the share of each, and, of some rows alone, those they are blended with."""
        batch = self._pictures(step, micro, rows)
        if not self.train.mixup:
            return batch
        rng = random_of(self.train.seed, step, micro + (1 << 22))
        share = torch.tensor(rng.beta(self.train.mixup, self.train.mixup), dtype=torch.float32)
        if rows == ALL:  # slots are cut of it, whose rows are blended as in the whole
            return *batch, share, *(part.flip(0) for part in batch if self.train.exact)
        size = self.train.batch
        others = self._pictures(step, micro, slice(size - rows.stop, size - rows.start))  # row i with the i-th last
        return *batch, share, *(part.flip(0) for part in others)

    def _pictures(self, step: int, micro: int, rows: slice) -> tuple[Tensor, Tensor]:
        pictures, labels = self.examples(step, micro, rows)
        return torch.from_numpy(np.ascontiguousarray(pictures)), torch.tensor(labels)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        pictures, labels, *mixup = batch
        x = normalize(pictures, self.transform.mean, self.transform.std)
        if not mixup:
            return self.balance.cross_entropy(model(x).float(), labels)
        share, *others = mixup
        if others:
            y, other_labels = normalize(others[0], self.transform.mean, self.transform.std), others[1]
        else:
            y, other_labels = x.flip(0), labels.flip(0)
        logits = model(share * x + (1 - share) * y).float()
        # in a whole batch both have the same weights, in some rows not: these count by the weights of their own labels
        other_loss = self.balance.cross_entropy(logits, other_labels, counted=labels)
        return share * self.balance.cross_entropy(logits, labels) + (1 - share) * other_loss

    @torch.no_grad()
    def _log_probabilities(self, model: nn.Module, pictures: np.ndarray) -> Tensor:
        """Of every class, for each image."""
        x = torch.from_numpy(pictures).to(next(model.parameters()).device)
        return model(normalize(x, self.transform.mean, self.transform.std)).float().log_softmax(-1).cpu()

    def _predict(self, model: nn.Module, batches: int | None) -> Iterator[tuple[Tensor, Tensor, np.ndarray, list[str]]]:
        """Log-probabilities, labels, images and their names, of the held-out part, a batch at a time."""
        for pictures, targets, which in self.held_out(self.data.test, batches):
            names = self.names(self.data.test, which)
            yield self._log_probabilities(model, pictures), torch.tensor(targets), pictures, names

    def baseline_examples(self, held_out: bool) -> tuple[np.ndarray, list[int]]:
        """The colours of images and the classes that a baseline is measured on, or fitted to."""
        examples, batches = (self.data.test, None) if held_out else (self.data.train, MOST_FITTED // self.train.batch)
        parts = [(histograms(pictures), targets) for pictures, targets, _ in self.held_out(examples, batches)]
        return np.concatenate([part for part, _ in parts]), [target for _, targets in parts for target in targets]

    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        examples = self.data.test

        def predict_batch(which: np.ndarray) -> ClassPredictions:
            pictures, targets = examples.take(which, self.transform.without_augmentation)
            if not len(pictures):
                return ClassPredictions([], [], [])
            likely, inputs = self._log_probabilities(model, pictures), map(np.ndarray.tobytes, pictures)
            return class_predictions(likely, torch.tensor(targets), inputs)

        parts = distributed_map(self.held_out_parts(examples, batches), predict_batch)
        self.decoded(sum(len(part[0]) for part in parts))
        return classification_metrics(parts, self.data.classes, self.balance.evaluation)

    def preview(self, model: nn.Module) -> Preview:
        predicted, labels, pictures, _ = next(self._predict(model, 1))
        rows = [(predicted[i], int(labels[i]), pictures[i], "") for i in range(min(24, len(labels)))]
        return Preview(".png", self._sheet(rows, self.data.name))

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """The metrics over all and of each class; the most confident mistakes, and all answers."""
        folder.mkdir(parents=True, exist_ok=True)
        parts, mistakes, names = [], [], []
        for predicted, labels, pictures, called in self._predict(model, None):
            names += called
            parts.append(class_predictions(predicted, labels, map(np.ndarray.tobytes, pictures)))
            wrong = (predicted.argmax(-1) != labels).nonzero()[:, 0].tolist()
            mistakes += [(predicted[i], int(labels[i]), pictures[i].copy(), Path(called[i]).name) for i in wrong]
            mistakes = sorted(mistakes, key=lambda mistake: -mistake[0].max().item())[:MISTAKES]
        metrics = classification_metrics(parts, self.data.classes, self.balance.evaluation, listed=None)
        answers = Answers.of(parts)
        metrics["calibration_error"] = answers.calibration.error
        wrong = int((~answers.right).sum())
        title = f"{wrong} of {len(names)} wrong" + (": the most confident mistakes" if wrong else "")
        files = class_files(answers, ["image"], [[name] for name in names], self.data.classes, self.data.name)
        return metrics, write_all(folder, {**files, "mistakes.png": self._sheet(mistakes, title)})

    def _sheet(self, rows: list[tuple[Tensor, int, np.ndarray, str]], title: str) -> bytes:
        """The images with their classes, and with their names where those are given."""
        names = dict(enumerate(self.data.classes))
        lines, right = [], []
        for predicted, label, _, name in rows:
            guess = int(predicted.argmax())
            right.append(guess == label)
            truth = "" if guess == label else f"\nis {names[label]}"
            lines.append(
                f"{names.get(guess, guess)} ({predicted.exp().max():.0%}){truth}" + (f"\n{name}" if name else "")
            )
        return draw.sheet([picture for _, _, picture, _ in rows], lines, right, title)
