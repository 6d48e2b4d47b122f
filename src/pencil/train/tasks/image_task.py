"""What tasks on images have in common: which images, how they are transformed, what could not be used."""

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...config import UserError, build
from ...data.builtin import MovingDigits, Scenes
from ...data.images import open_images as images
from ...data.images.augment import ImageTransform
from ...data.images.datasets import ArrayExamples, Examples, FileExamples
from ...data.images.image_data import with_classes, with_order
from ...data.images.sizes import choose_fit
from ...data.settings import DataConfig, image_transform
from ...progress import track
from ...runs.run import Run
from ..model_selection import MOST_PASSES, MOST_PASSES_AUGMENTED, Amount
from ..settings import TrainConfig
from ..task import ALL, FamilyTask, Request, random_of, split_of

EVAL_BATCH = 256  # images


class ImageTask(FamilyTask):
    """Images and their targets, in batches."""

    want = ""  # what comes with an image: label, caption, video or nothing
    draws = False  # whether the model's output is an image
    unit, usage = "images", "--image picture.png"

    def __init__(self, family: Any, data: images.ImageData, config: Any, train: TrainConfig):
        super().__init__(family, data, config, train)
        self.transform, self.reading = self._transform(), DataConfig()

    def choose_fit(self, request: Request) -> list[str]:
        """Fit images of another shape as was chosen, or as the data needs; what the user should know of the data.

        A training that starts from a run reads them as the run does.
        """
        chosen, start = build(DataConfig, request.data_settings, "data."), request.start
        reading_of_start = DataConfig() if start is None else start.reading_for(self.transform.size)
        requested = {f.name: value for f in fields(chosen) if (value := getattr(chosen, f.name)) is not None}
        reading, wanted = replace(reading_of_start, **requested), chosen.fit
        if getattr(self.config, "frames", 1) > 1:
            if wanted is not None:
                raise UserError(f"data.fit has no effect on videos: leave it out for {self.data.name}")
            return list(self.data.notes)
        if reading.resize is not None:
            fit, note = reading.fit or "crop", ""
        else:
            fit, note = choose_fit(self.data, self.transform.size, wanted, self.draws)
            fit, note = (reading.fit, "") if reading.fit is not None and start is not None else (fit, note)
        self.read_as(replace(reading, fit=fit))
        return [*self.data.notes, *([note] if note else [])]

    def read_as(self, reading: DataConfig) -> Any:
        """The task with images fitted in this way; a run of an older version has no setting for it, and crops."""
        augmentation = {name: getattr(self.transform, name) for name in ("flip", "crop", "augment_ops")}
        self.reading = reading
        self.transform = image_transform(self.transform.size, self.transform.channels, reading, **augmentation)
        return self

    @classmethod
    def load(cls, source: str, want: str, run: Run, classes: bool, whole: bool) -> images.ImageData:
        """The data of a run; or, `whole`, other data that it is evaluated on, all of it."""
        data = images.load(source, want, whole, split_of(run))
        classes_of_run = tuple(map(str, run.config["run"].get("classes") or ()))
        if whole and classes and classes_of_run:
            return with_classes(data, classes_of_run, run.path)
        # the order of a run that was started from another is that one's
        same_classes = set(data.classes) == set(classes_of_run)
        return with_order(data, classes_of_run) if data.classes != classes_of_run and same_classes else data

    def _transform(self) -> ImageTransform:
        c = self.config
        if c.channels not in (1, 3):
            raise UserError(f"images have 1 channel (grey) or 3 (colour); model.channels cannot be {c.channels}")
        chosen = {name: getattr(self.train, name) for name in ("flip", "crop", "augment_ops")}
        return ImageTransform(c.image_size, c.channels, **{k: v for k, v in chosen.items() if v is not None})

    @cached_property
    def inputs(self) -> images.ImageData:
        """The data as the model reads it."""
        return self.data

    @classmethod
    def configure(cls, request: Request, data: images.ImageData, from_data: dict[str, Any]) -> Any:
        """The model's config: the preset, over it what the data suggests, over that what was requested.

        A family without a setting that the data suggests, such as dropout, goes without it.
        """
        settings = {field.name for field in fields(request.family.config)}
        suggested = {} if "image_size" in request.preset_values else data.model_defaults
        suggested = {name: value for name, value in suggested.items() if name in settings}
        return request.configure(**{**suggested, **from_data})

    @classmethod
    def settings(cls, request: Request, data: images.ImageData, train: TrainConfig) -> TrainConfig:
        """The training settings, with the steps and the augmentations that suit the data unless they were given."""
        defaults = {} if "image_size" in request.preset_values else data.training_defaults
        suggested = {name: value for name, value in data.augmentation.items() if getattr(train, name) is None}
        return replace(train, **{n: v for n, v in {**suggested, **defaults}.items() if n not in request.train})

    @property
    def slow(self) -> bool:
        return isinstance(self.data.train, FileExamples)

    def about(self) -> str:
        generated = not hasattr(self.data.train, "targets")
        count = "generated while training" if generated else f"{len(self.data.train):,} to train on"
        size, held = "×".join(map(str, self.transform.size)), len(self.data.test)
        how = {"pad": ", padded", "squash": ", squashed"}.get(self.transform.fit, "")
        if (resize := self.transform.resize) is not None and resize != self.transform.size:
            how = f" (cut out of {'×'.join(map(str, resize))}{how})"
        what = "videos" if getattr(self.config, "frames", 1) > 1 else "images"
        return f"{what} of {self.data.name} at {size}{how}, {count}, {held:,} held out"

    @property
    def amount(self) -> Amount | None:
        """How much there is to train on; None where images are generated."""
        if not hasattr(self.data.train, "targets"):
            return None
        augmented = any(getattr(self.train, name) for name in ("flip", "crop", "augment_ops"))
        most = MOST_PASSES_AUGMENTED if augmented else MOST_PASSES
        return Amount(len(self.data.train), "images", self.train.batch * self.train.accumulate, most)

    def skipped(self) -> list[tuple[str, str]]:
        return list(self.data.skipped)

    def examples(self, step: int, micro: int, rows: slice = ALL) -> tuple[np.ndarray, list[Any]]:
        """The augmented images of a step and their targets: all of them, or some rows."""
        rng, size = random_of(self.train.seed, step, micro), self.train.batch
        data = self.inputs.train
        if self.slow and rows != ALL:  # decoding is what takes long
            rng.integers(1 << 62, size=rows.start)  # the seeds of the augmentation of the rows before (`to_arrays`)
            return data.take(self._indices(step, micro)[rows], self.transform, rng)
        if isinstance(data, Scenes):
            drawn = data.draw(rng, size)
            pictures, targets = ArrayExamples(*drawn).take(range(size), self.transform, rng)
        else:
            pictures, targets = data.take(self._indices(step, micro), self.transform, rng)
        return pictures[rows], targets[rows]

    def _indices(self, step: int, micro: int) -> list[int]:
        return self.epoch_examples(step, micro, len(self.inputs.train))

    def sample_ids(self, step: int, micro: int = 0) -> list[str]:
        data = self.data.train
        if isinstance(data, Scenes | MovingDigits):
            _, targets = data.draw(random_of(self.train.seed, step, micro), self.train.batch)
            what = "image" if isinstance(data, Scenes) else "video"
            return [f"the generated {what} of {target!r}" for target in targets]
        which, decodable = self._indices(step, micro), getattr(self.inputs.train, "which", None)
        which = (
            which if decodable is None else [decodable[i] for i in which]
        )  # latents lack the images that cannot be decoded
        return self.names(data, which)

    def names(self, examples: Examples, which: Iterable[int]) -> list[str]:
        """What some images are called: their files, or their numbers."""
        if isinstance(examples, FileExamples):
            sources = [examples.sources[i] for i in which]
            return [str(source if isinstance(source, Path) else source.name) for source in sources]
        return [f"image {i} of {self.data.name}" for i in which]

    def held_out_parts(self, examples: Examples, batches: int | None) -> list[np.ndarray]:
        """Which held-out images, in batches: all of them, or as many as `batches` batches hold."""
        total = len(examples) if batches is None else min(len(examples), batches * self.train.batch)
        which = np.linspace(0, len(examples) - 1, total).astype(int)
        return [which[i : i + EVAL_BATCH] for i in range(0, total, EVAL_BATCH)]

    def held_out(self, examples: Examples, batches: int | None) -> Iterator[tuple[np.ndarray, list[Any], list[int]]]:
        """Held-out images, their targets and which they are, in batches."""
        count = 0
        for which in track(self.held_out_parts(examples, batches)):
            pictures, targets = examples.take(which, self.transform.without_augmentation)
            if len(pictures):
                count += len(pictures)
                broken = getattr(examples, "broken", ())
                yield pictures, targets, [int(i) for i in which if i not in broken]
        self.decoded(count)

    def decoded(self, count: int) -> int:
        """How many held-out images were decoded; none at all is refused."""
        if not count:
            raise UserError(f"none of the held-out images of {self.data.name} can be decoded")
        return count


def reading_of(run: Run) -> DataConfig:
    """How the data of a run is read."""
    return build(DataConfig, run.config.get("data") or {}, "data.")
