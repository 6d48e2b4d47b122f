"""Load image data sets: built-in ones, and by the form of --data, idx files, folders or the hub.

Images are decoded off the training thread and cached at the size they need, so most data sets are decoded once. A batch
is a function of (seed, step) all the same: each image is augmented by random numbers of its own, so it does not matter
on which thread, or when. An image that cannot be decoded is replaced by the next in training, left out in evaluation,
and named at the end.
"""

import hashlib
import os
from pathlib import Path

import numpy as np

from ...config import UserError, expand_path, nearest
from ..builtin import Scenes
from ..hub import PREFIX, current_form, from_hub
from ..split import SPLIT
from .digits import digits
from .examples import ArrayExamples, VideoExamples
from .folders import from_folder
from .idx import from_idx
from .image_data import ImageData, all_held_out
from .moving_digits import CANVAS, FRAMES, MovingDigits
from .shards import find_shards, from_shards

EMBEDDED = {"label": ("digits", "moving-digits"), "caption": ("scenes", "scenes-hard"), "video": ("moving-digits",)}
EMBEDDED_NAMES = frozenset(name for names in EMBEDDED.values() for name in names)


def load(data: str, want: str, whole: bool = False, split: int = SPLIT) -> ImageData:
    """The data set that --data names, with the wanted targets: a label, a caption, a video's label, or nothing.

    With `whole` all of it is held out, and nothing trained on; of generated data, what it holds out anyway. `split` is
    the rule by which a part is held out of data that has none.
    """
    data = current_form(data)
    path = expand_path(data) if data and not data.startswith(PREFIX) else None
    if whole and data not in EMBEDDED_NAMES and (shards := find_shards(data)):
        return from_shards(shards, want, whole, split)
    if whole and path is not None and path.is_dir() and data not in EMBEDDED_NAMES and not _idx_names(path):
        return from_folder(path, want, whole, split)
    return all_held_out(_load(data, want, split)) if whole else _load(data, want, split)


def _load(data: str, want: str, split: int) -> ImageData:
    if data in EMBEDDED_NAMES:
        if data not in EMBEDDED[want]:
            has = "labels" if data in EMBEDDED["label"] else "captions"
            raise UserError(f"{data} has {has}, and {want}s are needed; try {EMBEDDED[want][0]}")
        if data == "moving-digits":
            return _moving_digits(want)
        return _digits() if data == "digits" else _scenes(data)
    if data.startswith(PREFIX):
        return from_hub(data.removeprefix(PREFIX), want, split)
    if not data:
        raise UserError(f"--data is empty; give a folder or {' or '.join(EMBEDDED[want])}")
    if shards := find_shards(data):
        return from_shards(shards, want, split=split)
    path = expand_path(data)
    if path.is_file():
        size = "an empty file" if not path.stat().st_size else "a file"
        raise UserError(f"{data} is {size}; pictures come in a folder, or in .tar files")
    if not path.is_dir():
        known = nearest(data, EMBEDDED[want])
        raise UserError(f"there is no folder {data}, and no embedded pictures of that name; {known}")
    names = _idx_names(path)
    return from_idx(path, names, want) if names else from_folder(path, want, split=split)


def _idx_names(folder: Path) -> list[str]:
    """The files of a folder, if idx files of images are among them."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from None
    return names if any("images" in name and "idx3" in name for name in names) else []


def _digits() -> ImageData:
    pictures, labels, held = digits()
    return ImageData(
        "digits",
        hashlib.sha256(pictures.tobytes() + labels.tobytes() + held.tobytes()).hexdigest(),
        ArrayExamples(pictures[~held], labels[~held].tolist()),
        ArrayExamples(pictures[held], labels[held].tolist()),
        tuple(map(str, range(10))),
        dict(image_size=(8, 8), channels=1, patch=(2, 2), dropout=0.15, attention_dropout=0.0, key_dropout=0.15),
        training_defaults=dict(steps=700, eval_every=175, save_every=350, muon_lr=0.01),
        select_best=False,
    )


def _scenes(name: str) -> ImageData:
    scenes = Scenes(hard=name == "scenes-hard")

    def fixed(key: int, count: int, held_out: bool) -> ArrayExamples:
        return ArrayExamples(*scenes.draw(np.random.Generator(np.random.Philox(key=key)), count, True, held_out))

    test = fixed(2, 1000, True)
    return ImageData(
        name,
        hashlib.sha256(test.pictures.tobytes() + "\n".join(map(str, test.targets)).encode()).hexdigest(),
        scenes,
        test,
        model_defaults=dict(image_size=(scenes.canvas, scenes.canvas), channels=1, patch=(4, 4)),
        # a digit does not predict the next one; a model that learns otherwise fails on the held-out combinations
        augmentation=dict(word_dropout=0.8),
        select_best=False,
        seen_combinations=fixed(3, 1000, False),
    )


def _moving_digits(want: str) -> ImageData:
    """Moving digits as videos, or, for a classifier, every second frame as an image."""
    moving = MovingDigits()
    test, labels = moving.draw(np.random.Generator(np.random.Philox(key=2)), 500, unseen=True)
    name, classes = "moving-digits", tuple(map(str, range(10)))
    content = hashlib.sha256(test.tobytes()).hexdigest()
    sizes = dict(image_size=(CANVAS, CANVAS), channels=1, patch=(4, 4))
    if want == "video":
        return ImageData(
            name,
            content,
            moving,
            VideoExamples(test, labels),
            classes,
            dict(**sizes, frames=FRAMES, patch_frames=2),
            training_defaults=dict(steps=3000),
            select_best=False,
        )
    train, train_labels = moving.draw(np.random.Generator(np.random.Philox(key=1)), 4000)
    return ImageData(
        name,
        content,
        _frames(train, train_labels),
        _frames(test, labels),
        classes,
        sizes,
        training_defaults=dict(steps=1500),
        select_best=False,
    )


def _frames(videos: np.ndarray, labels: list[int]) -> ArrayExamples:
    frames = videos[:, :, ::2].swapaxes(1, 2).reshape(-1, 1, CANVAS, CANVAS)
    return ArrayExamples(frames, np.repeat(labels, FRAMES // 2).tolist())
