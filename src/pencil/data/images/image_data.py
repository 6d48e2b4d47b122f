"""ImageData: what every source of images (built-in, idx files, folders, the hub) is loaded into.

One fit for all verbs. An image of another shape than the model's is cropped to its middle, padded or squashed by
`data.fit`, chosen once, by the headers of the files, and recorded in the run (how). The bars are grey 128, which is
zero to a model. A random crop is taken from the image as evaluation shows it: from the padded or squashed one, bars
included. Runs of older versions crop.

The pixels of an imported model are the original's. `data.resize` is another library's order: resize first, then cut the
centre out. Such an image is decoded whole, resized once and cached at its last size; without it a JPEG may be decoded
at a half. Mean and deviation are of each channel. An augmented image takes the usual way, since its pixels are random
anyhow.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...config import UserError
from ...console import shortened
from ..builtin import Scenes
from ..split import Picture, copies, hold_out, in_both_parts, in_two_classes, not_evaluated
from .datasets import ArrayExamples, Examples, FileExamples, Skipped

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
    shapes: list[tuple[int, int]] = field(default_factory=list)  # heights and widths of images in a folder
    hashes: Mapping[Any, str] = field(default_factory=dict)  # of the files in a folder
    notes: list[str] = field(default_factory=list)  # how a folder is read, where that may not be what it looks like
    split: int = 1  # the rule by which a part was held out here (`split.py`)

    def captions(self) -> Iterable[str]:
        """Texts to learn a tokenizer from."""
        if isinstance(self.train, Scenes):
            return self.train.draw(np.random.Generator(np.random.Philox(key=1)), 4000)[1]
        return map(str, self.train.targets)


class Entry(NamedTuple):
    """A picture of a folder or of shards, whose header could be read, before the data set is divided."""

    source: Any  # what FileExamples reads
    target: Any
    name: str
    content: str  # a hash of its bytes
    shape: tuple[int, int]
    grey: bool


def from_entries(
    name: str,
    where: str | Path,
    parts: Mapping[str, list[Entry]],
    want: str,
    classes: Callable[[set[Any]], Sequence[str]],
    skipped: Skipped,
    whole: bool,
    split: int,
    sources: Callable[[list[Any]], Sequence[Any]] = list,
    **facts: Any,
) -> ImageData:
    """The data set of pictures in a folder or in shards, `where` in errors.

    `parts` are "train" and "test", or "all", of which a part is held out by the rule `split`; with `whole` nothing is
    trained on. `classes` puts the labels that occur in order.
    """
    every = [entry for part in parts.values() for entry in part]
    if not every:
        named = [Path(name).name if isinstance(where, Path) else name for name, _ in skipped[:1]]
        first = f"; {named[0]}: {skipped[0][1]}" if skipped else ""
        raise UserError(f"{where} holds no picture that can be read{first}")
    labels = {entry.target for entry in every} if want == "label" else set()
    if labels and not whole:
        check_classes(map(str, labels), str(where))
    names, own_parts, notes = tuple(classes(labels)), "all" not in parts, []
    if whole:
        parts = {"train": [], "test": every}
    elif not own_parts:
        held_out, others = hold_out(every, want, [entry.content for entry in every], split)
        parts = {"train": others, "test": held_out}
        notes += not_evaluated(names, {str(entry.target) for entry in held_out}, "pictures")
    train, test = (
        [Picture(entry.name, str(entry.target), entry.content) for entry in parts[part]] for part in ("train", "test")
    )
    same = copies([*train, *test]) if labels and not own_parts and split > 1 else []
    for part, entries in parts.items():
        if not entries and not whole:
            use = "evaluate on" if part == "test" else "train on"
            enough = "two different ones of each class" if want == "label" else "two different ones"
            raise UserError(
                "; ".join([f"{where} has too few pictures: none is left to {use}; {enough} would do", *same])
            )
    if labels:
        notes += in_two_classes([*train, *test])
        notes += in_both_parts(train, test) if own_parts or split == 1 else []
        notes += same if not whole else []
    absent = sorted(set(names) - {picture.target for picture in train})
    if absent and not whole:
        some = ", ".join(map(shortened, absent[:3]))
        raise UserError(f"{where} has no training picture of {some}; each class needs at least two")
    number = {name: i for i, name in enumerate(names)}

    def examples(part: str) -> FileExamples:
        targets = [number.get(str(entry.target), str(entry.target)) for entry in parts[part]]
        return FileExamples(sources([entry.source for entry in parts[part]]), targets, skipped)

    return ImageData(
        name,
        train=examples("train"),
        test=examples("test"),
        classes=names,
        model_defaults=dict(image_size=(64, 64), channels=1 if all(entry.grey for entry in every) else 3, patch=(8, 8)),
        augmentation=PHOTO_AUGMENTATION if want == "label" else CAPTIONED_AUGMENTATION,
        skipped=skipped,
        shapes=[entry.shape for entry in every],
        notes=notes,
        split=1 if own_parts else split,
        **facts,
    )


def all_held_out(data: ImageData) -> ImageData:
    """The data set with what it would train on held out too; generated images are left out."""
    train, test = data.train, data.test
    if isinstance(train, FileExamples) and isinstance(test, FileExamples):
        nothing = FileExamples([], [], data.skipped)
        every = FileExamples([*train.sources, *test.sources], [*train.targets, *test.targets], data.skipped)
    elif isinstance(train, ArrayExamples) and isinstance(test, ArrayExamples):
        nothing = ArrayExamples(train.pictures[:0], [])
        every = ArrayExamples(np.concatenate((train.pictures, test.pictures)), [*train.targets, *test.targets])
    else:
        nothing, every = train, test
    return replace(data, train=nothing, test=every, seen_combinations=None)


def with_classes(data: ImageData, classes: Sequence[str], model: object) -> ImageData:
    """The held-out images with the numbers that a model has for their classes; a class it does not have is refused."""
    number = {name: i for i, name in enumerate(classes)}
    check_known(data.classes, classes, data.name, model)
    data.test.targets = [number[data.classes[target]] for target in data.test.targets]
    return replace(data, classes=tuple(classes))


def with_order(data: ImageData, classes: Sequence[str]) -> ImageData:
    """The same images with their classes numbered in this order."""
    number = {name: i for i, name in enumerate(classes)}
    for part in (data.train, data.test):
        if (targets := getattr(part, "targets", None)) is not None:
            part.targets = [number[data.classes[target]] for target in targets]
    return replace(data, classes=tuple(classes))


def check_known(classes: Sequence[str], model_classes: Sequence[str], data: str, model: object) -> None:
    """Refuse classes that a model does not know."""
    unknown = [name for name in classes if name not in model_classes]
    if unknown:
        raise UserError(
            f"{data} has the {'classes' if len(unknown) > 1 else 'class'} {_some(unknown)}, and {model} knows "
            f"{_some(model_classes)}: leave {'them' if len(unknown) > 1 else 'it'} out, or use the model's names"
        )


def lookalikes(classes: Sequence[str]) -> list[str]:
    """A note of classes whose names differ only in upper and lower case, spaces around them, or Unicode's form."""
    alike: dict[str, list[str]] = {}
    composed = {name: unicodedata.normalize("NFC", name) for name in classes}
    for name, form in composed.items():
        alike.setdefault(form.strip().casefold(), []).append(name)
    groups = []
    for names in (names for names in alike.values() if len(names) > 1):
        shown = ascii if len({composed[name] for name in names}) < len(names) else repr  # else they would look the same
        groups.append(" and ".join(map(shown, names)))
    if not groups:
        return []
    return [f"{_some(groups)} are different classes with names that look alike: if they are one, give them one name"]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")


def check_classes(labels: Iterable[str], where: str) -> tuple[str, ...]:
    """The classes, sorted; refused where there are fewer than two."""
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        only = f"only one class, {classes[0]}" if classes else "no class"
        raise UserError(f"{where} has {only}; a classifier needs at least two (one folder a class)")
    return classes
