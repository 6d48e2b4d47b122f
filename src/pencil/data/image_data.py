"""ImageData: what every source of images (built-in, idx files, folders, the hub) is loaded into."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..config import UserError
from .builtin import Scenes
from .examples import Examples, Skipped

PHOTO_AUGMENTATION = dict(flip=True, crop=0.5, augment_ops=1)
CAPTIONED_AUGMENTATION = dict(crop=0.9)  # no flip: a caption may name left and right


@dataclass
class ImageData:
    """A data set: what to train on, what is held out, and the model and training defaults it suggests."""

    name: str
    hash: str
    train: Any  # Examples, or Scenes or MovingDigits, which are generated
    test: Examples
    classes: tuple[str, ...] = ()
    model_defaults: dict[str, Any] = field(default_factory=dict)
    augmentation: dict[str, Any] = field(default_factory=dict)  # training settings that augment its examples
    training_defaults: dict[str, Any] = field(default_factory=dict)
    skipped: Skipped = field(default_factory=list)
    # whether the best weights are selected on `test`: never on a published test set, only on a validation split
    select_best: bool = True
    seen_combinations: Examples | None = None  # held-out images of combinations that are in the training data
    pinned: str = ""  # what names exactly this version of the data, where --data names the newest
    former_hash: Callable[[], str] | None = None  # as older versions recorded it

    def captions(self) -> Iterable[str]:
        """Texts to learn a tokenizer from."""
        if isinstance(self.train, Scenes):
            return self.train.draw(np.random.Generator(np.random.Philox(key=1)), 4000)[1]
        return map(str, self.train.targets)


def check_classes(labels: Iterable[str], where: str) -> tuple[str, ...]:
    """The classes, sorted; refused where there are fewer than two."""
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        only = f"only one class, {classes[0]}" if classes else "no class"
        raise UserError(f"{where} has {only}; a classifier needs at least two (one folder a class)")
    return classes
