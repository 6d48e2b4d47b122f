"""Pictures with a label or a caption each: embedded, idx files, folders, the hub; decoded off the training thread."""

import hashlib
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image, UnidentifiedImageError

from ..config import UserError, in_full, nearest
from .augment import Look, bent, fit, shrunk, upright, vary
from .builtin import Scenes, digits
from .moving import CANVAS, FRAMES, MovingDigits, VideoExamples

MOST_PIXELS = 89_478_485  # of one picture: a small file that unpacks to more is taken for a bomb
KEEP_BYTES = 1 << 29  # of decoded pictures in each part, so that most data sets are decoded once
# what people keep pictures in; others (some run programs of their own to decode) are not opened, whatever their name
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
Image.MAX_IMAGE_PIXELS = None  # the limit above is checked instead, before anything is unpacked, and says so itself
EMBEDDED = {"label": ("digits", "moving-digits"), "caption": ("scenes", "scenes-hard"), "video": ("moving-digits",)}
SPLITS = {"train": "train", "test": "test", "val": "test", "valid": "test", "validation": "test"}

Target = Any  # a class's number, or a caption
Skipped = list[tuple[str, str]]


@runtime_checkable
class Examples(Protocol):
    """A list of pictures with their targets."""

    targets: list[Target]

    def __len__(self) -> int: ...

    def take(
        self, which: Iterable[int], look: Look, rng: np.random.Generator | None = None
    ) -> tuple[np.ndarray, list[Target]]:
        """Pictures (n, C, H, W) as bytes, and their targets; with a generator varied as the look says.

        One that cannot be decoded is named in `skipped`, and left out, or replaced by the next when training.
        """
        ...


@dataclass
class PictureData:
    """A data set: what to train on, what to be judged by, and the sizes it suggests to a model that leaves them."""

    name: str
    hash: str
    train: Any  # Examples, or Scenes, which are drawn
    test: Examples
    classes: tuple[str, ...] = ()
    native: dict[str, Any] = field(default_factory=dict)
    augment: dict[str, Any] = field(default_factory=dict)
    pace: dict[str, Any] = field(default_factory=dict)  # training settings that suit it
    skipped: Skipped = field(default_factory=list)
    # a test set others report on is never used to choose weights; a part the user's own data lent may be
    chosen_by: bool = True
    familiar: Examples | None = None  # unseen pictures of combinations that were seen

    def captions(self) -> Iterable[str]:
        """Texts to learn a tokenizer from."""
        if isinstance(self.train, Scenes):
            return self.train.draw(np.random.Generator(np.random.Philox(key=1)), 4000)[1]
        return map(str, self.train.targets)


class ArrayExamples:
    """Pictures that are in memory already."""

    def __init__(self, pictures: np.ndarray, targets: Sequence[Target]):
        self.pictures, self.targets = pictures, list(targets)

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, which, look, rng=None):
        which = np.asarray(list(which), dtype=np.int64)
        rows = self.pictures[which]
        targets = [self.targets[i] for i in which]
        if rows.shape[1:] == (look.channels, *look.size):
            if rng is None or not look.varied:
                return rows, targets
            if look.crop == 1 and not look.flip:
                return bent(rows, look.randaugment, rng), targets
        images = [
            Image.fromarray(row[0] if len(row) == 1 else row.transpose(1, 2, 0)).convert(look.mode) for row in rows
        ]
        return np.stack(list(_finish(images, look, rng))), targets


class FileExamples:
    """Pictures in files (or in a hub's table), decoded when asked for, and kept small while there is room."""

    def __init__(self, sources: Sequence[Any], targets: Sequence[Target], skipped: Skipped):
        self.sources, self.targets, self.skipped = list(sources), list(targets), skipped
        self.kept: dict[tuple[int, Look], Image.Image] = {}
        self.broken: set[int] = set()
        self.room, self.lock = KEEP_BYTES, threading.Lock()

    def __len__(self) -> int:
        return len(self.sources)

    def take(self, which, look, rng=None):
        found = list(pool().map(lambda i: self._find(i, look.plain, rng is not None), map(int, which)))
        found = [pair for pair in found if pair is not None]
        images = [image for image, _ in found]
        pictures = list(_finish(images, look, rng))
        empty = np.zeros((0, look.channels, *look.size), np.uint8)
        return np.stack(pictures) if pictures else empty, [self.targets[i] for _, i in found]

    def _find(self, i: int, look: Look, replace: bool) -> tuple[Image.Image, int] | None:
        for step in range(len(self) if replace else 1):
            at = (i + step) % len(self)
            image = self._decode(at, look)
            if image is not None:
                return image, at
        if replace:
            raise UserError(f"none of the {len(self)} pictures can be decoded; the first: {self.skipped[0][1]}")
        return None

    def _decode(self, i: int, look: Look) -> Image.Image | None:
        key = (i, look)
        if key in self.kept:
            return self.kept[key]
        if i in self.broken:
            return None
        source = self.sources[i]
        try:
            image = shrunk(decode(source, look), look.size)
        except Exception as error:  # Pillow's decoders raise all kinds
            with self.lock:
                if i not in self.broken:
                    self.broken.add(i)
                    self.skipped.append((str(source if isinstance(source, Path) else source.name), _fault(error)))
            return None
        with self.lock:
            size = image.width * image.height * (1 if look.channels == 1 else 4)  # Pillow keeps colours in four bytes
            if size <= self.room and key not in self.kept:
                self.room -= size
                self.kept[key] = image
        return image


@lru_cache
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="decode")


def _finish(images: Sequence[Image.Image], look: Look, rng: np.random.Generator | None) -> Iterable[np.ndarray]:
    """Each picture at its size, as bytes with its channels first; each varied by random numbers of its own."""
    seeds = [0] * len(images) if rng is None else rng.integers(1 << 62, size=len(images)).tolist()

    def one(image: Image.Image, seed: int) -> np.ndarray:
        if rng is None or not look.varied:
            image = fit(image, look.size)
        else:
            image = vary(image, look, np.random.Generator(np.random.Philox(key=seed)))
        array = np.asarray(image)
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)

    return pool().map(one, images, seeds) if len(images) > 8 else map(one, images, seeds)


def decode(source: Any, look: Look) -> Image.Image:
    """A picture from a file or from bytes, upright and with the look's channels; too large a one is refused."""
    with Image.open(source if isinstance(source, Path) else source.open(), formats=FORMATS) as image:
        _check_pixels(image)
        # a JPEG can be decoded at a half, a quarter or an eighth of its size at once
        image.draft(look.mode, (2 * look.size[1], 2 * look.size[0]))
        return upright(image, look.mode)


def _check_pixels(image: Image.Image) -> None:
    if image.width * image.height > MOST_PIXELS:
        raise UserError(
            f"{image.width}×{image.height} pixels is more than {MOST_PIXELS:,}: taken for a decompression bomb"
        )


def _fault(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not a picture Pillow can read"
    return (str(error) or type(error).__name__).splitlines()[0]


def open_picture(path: str | Path, look: Look) -> np.ndarray:
    """One picture from a file (C, H, W), as bytes; what is wrong with it is a sentence."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no picture {path}" if not path.is_dir() else f"{path} is a folder, not a picture")
    if not path.stat().st_size:
        raise UserError(f"{path} is empty (0 bytes)")
    try:
        return next(iter(_finish([decode(path, look)], look.plain, None)))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:
        raise UserError(f"{path} cannot be read as a picture: {_fault(error)}") from None


def _moving(want: str) -> PictureData:
    """Moving digits as videos, or, for a classifier, their frames one by one."""
    digits = MovingDigits()
    test, labels = digits.draw(np.random.Generator(np.random.Philox(key=2)), 500, unseen=True)
    name, classes = "moving-digits", tuple(map(str, range(10)))
    known = hashlib.sha256(test.tobytes()).hexdigest()
    if want == "video":
        native = dict(image_size=(CANVAS, CANVAS), channels=1, patch=(4, 4), frames=FRAMES, patch_frames=2)
        return PictureData(
            name, known, digits, VideoExamples(test, labels), classes, native, pace=dict(steps=3000), chosen_by=False
        )
    seen, named = digits.draw(np.random.Generator(np.random.Philox(key=1)), 4000)
    train, held = (
        ArrayExamples(
            videos[:, :, ::2].swapaxes(1, 2).reshape(-1, 1, CANVAS, CANVAS), np.repeat(targets, FRAMES // 2).tolist()
        )
        for videos, targets in ((seen, named), (test, labels))
    )
    native = dict(image_size=(CANVAS, CANVAS), channels=1, patch=(4, 4))
    return PictureData(name, known, train, held, classes, native, pace=dict(steps=1500), chosen_by=False)


def load(data: str, want: str) -> PictureData:
    """The data set a --data names, with labels or captions as wanted."""
    if data in {name for names in EMBEDDED.values() for name in names}:
        if data not in EMBEDDED[want]:
            has = "labels" if data in EMBEDDED["label"] else "captions"
            raise UserError(f"{data} has {has}, and {want}s are needed; try {EMBEDDED[want][0]}")
        if data == "moving-digits":
            return _moving(want)
        return _digits() if data == "digits" else _scenes(data)
    if data.startswith("hub:"):
        from .hub import from_hub

        return from_hub(data.removeprefix("hub:"), want)
    if not data:
        raise UserError(f"--data is empty; give a folder or {' or '.join(EMBEDDED[want])}")
    path = in_full(data)
    if path.is_file():
        size = "an empty file" if not path.stat().st_size else "a file"
        raise UserError(f"{data} is {size}; pictures come in a folder")
    if not path.is_dir():
        known = nearest(data, EMBEDDED[want])
        raise UserError(f"there is no folder {data}, and no embedded pictures of that name; {known}")
    try:
        names = sorted(entry.name for entry in os.scandir(path))
    except OSError as error:
        raise UserError(f"{data} cannot be read: {error.strerror}") from None
    if any("images" in name and "idx3" in name for name in names):
        from .idx import from_idx

        return from_idx(path, names, want)
    from .folders import from_folder

    return from_folder(path, want)


def _digits() -> PictureData:
    pictures, labels, held = digits()
    return PictureData(
        "digits",
        hashlib.sha256(pictures.tobytes() + labels.tobytes() + held.tobytes()).hexdigest(),
        ArrayExamples(pictures[~held], labels[~held].tolist()),
        ArrayExamples(pictures[held], labels[held].tolist()),
        tuple(map(str, range(10))),
        dict(image_size=(8, 8), channels=1, patch=(2, 2), dropout=0.15),
        pace=dict(steps=700, eval_every=175, save_every=350, muon_lr=0.01),
        chosen_by=False,
    )


def _scenes(name: str) -> PictureData:
    scenes = Scenes(hard=name == "scenes-hard")

    def fixed(key: int, count: int, held_out: bool) -> ArrayExamples:
        return ArrayExamples(*scenes.draw(np.random.Generator(np.random.Philox(key=key)), count, True, held_out))

    test = fixed(2, 1000, True)
    return PictureData(
        name,
        hashlib.sha256(test.pictures.tobytes() + "\n".join(map(str, test.targets)).encode()).hexdigest(),
        scenes,
        test,
        native=dict(image_size=(scenes.canvas, scenes.canvas), channels=1, patch=(4, 4)),
        # a digit says nothing of the next one, and a model that thinks so fails on combinations it has not seen
        augment=dict(word_dropout=0.8),
        chosen_by=False,
        familiar=fixed(3, 1000, False),
    )


def check_classes(labels: Iterable[str], where: str) -> tuple[str, ...]:
    """The classes in order; one alone cannot be told from anything."""
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        only = f"only one class, {classes[0]}" if classes else "no class"
        raise UserError(f"{where} has {only}; a classifier needs at least two (one folder a class)")
    return classes
