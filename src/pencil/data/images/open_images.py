"""Load image data sets: built-in ones, and by the form of --data, idx files, folders or the hub.

Images are decoded off the training thread and cached at the size they need, so most data sets are decoded once. A batch
is a function of (seed, step) all the same: each image is augmented by random numbers of its own, so it does not matter
on which thread, or when. An image that cannot be decoded is replaced by the next in training, left out in evaluation,
and named at the end.
"""

import gzip
import hashlib
import os
import struct
import zlib
from math import prod
from pathlib import Path

import numpy as np

from ...config import UserError, expand_path, nearest, refuse
from ...files import check_inside, check_regular
from ..builtin import CANVAS, FRAMES, MovingDigits, Scenes
from ..hub import PREFIX, current_form, from_hub
from ..in_memory import is_token
from ..split import SPLIT, Picture, in_both_parts, in_two_classes
from .datasets import ArrayExamples, VideoExamples
from .digits import digits
from .folders import from_folder
from .from_memory import from_memory
from .image_data import ImageData, all_held_out, check_classes
from .shards import find_shards, from_shards

EMBEDDED = {"label": ("digits", "moving-digits"), "caption": ("scenes", "scenes-hard"), "video": ("moving-digits",)}
EMBEDDED_NAMES = frozenset(name for names in EMBEDDED.values() for name in names)
IDX_PARTS = ("train", "t10k")
MAX_IDX_BYTES = 1 << 32  # of one file, decompressed
MAX_RATIO = 100  # of its size decompressed to its size: MNIST's is 5, a bomb's 1,000
ALWAYS_READ_BYTES = 1 << 24  # decompressed, that a file may have whatever the ratio


def load(data: str, want: str, whole: bool = False, split: int = SPLIT) -> ImageData:
    """The data set that --data names, with the wanted targets: a label, a caption, a video's label, or nothing.

    With `whole` all of it is held out, and nothing trained on; of generated data, what it holds out anyway. `split` is
    the rule by which a part is held out of data that has none.
    """
    data = current_form(data)
    if is_token(data):
        return from_memory(data, want, whole, split)
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
        hint = nearest(data, EMBEDDED[want])
        raise UserError(f"there is no folder {data}, and no embedded pictures of that name; {hint}")
    names = _idx_names(path)
    return from_idx(path, names, want) if names else from_folder(path, want, split=split)


def _idx_names(folder: Path) -> list[str]:
    """The files of a folder, if idx files of images are among them."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror}") from None
    return names if any("images" in name and "idx3" in name for name in names) else []


def from_idx(folder: Path, names: list[str], want: str) -> ImageData:
    """MNIST, or a data set in its format: four idx files, gzipped or not."""
    if want != "label":
        raise UserError(f"{folder} holds idx files, which have labels; a captioner needs a folder with metadata.jsonl")
    parts, sha = [], hashlib.sha256()
    for split in IDX_PARTS:
        arrays = []
        for what, axes in (("images-idx3", 3), ("labels-idx1", 1)):
            files = [name for name in names if split in name and what in name]
            if not files:
                raise UserError(f"{folder} has no {split}-{what}-ubyte file, with or without .gz")
            check_inside(folder / files[0], folder)
            arrays.append(read_idx(folder / files[0], axes))
            sha.update(arrays[-1])
        pictures, labels = arrays
        if len(pictures) != len(labels):
            raise UserError(f"{folder} has {len(pictures)} {split} pictures and {len(labels)} labels")
        parts.append(ArrayExamples(pictures[:, None], labels.astype(np.int64).tolist()))
    side = parts[0].pictures.shape[2:]
    train, test = (
        [
            Picture(f"{split} picture {i}", str(label), hashlib.sha256(row).hexdigest())
            for i, (row, label) in enumerate(zip(part.pictures, part.targets, strict=True))
        ]
        for split, part in zip(IDX_PARTS, parts, strict=True)
    )
    count = 1 + max(max(part.targets) for part in parts)
    patch = next(p for p in (4, 7, 5, 3, 2, 1) if not side[0] % p and not side[1] % p)
    check_classes([str(t) for t in parts[0].targets], str(folder))
    return ImageData(
        _idx_name(folder, names),
        sha.hexdigest(),
        parts[0],
        parts[1],
        tuple(map(str, range(count))),
        dict(image_size=side, channels=1, patch=(patch, patch)),
        dict(augment_ops=1),
        select_best=False,
        notes=[*in_two_classes([*train, *test]), *in_both_parts(train, test)],
    )


def _idx_name(folder: Path, names: list[str]) -> str:
    """`mnist` for mnist-train-images…, else the folder's name."""
    (first, *_) = [name for name in names if "train" in name and "images-idx3" in name]
    return first.partition("train")[0].strip("-_.") or folder.resolve().name


def read_idx(path: Path, axes: int) -> np.ndarray:
    """An idx file of bytes; no more is decompressed than the sizes in its header."""
    size = check_regular(path).st_size
    if not size:
        raise UserError(f"{path} cannot be read: it is empty (0 bytes)")
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            magic, sizes = file.read(4), file.read(4 * axes)
            # two zeros, 8 for bytes, and the number of axes; then the size of each axis
            if magic != bytes((0, 0, 8, axes)) or len(sizes) < 4 * axes:
                raise UserError(f"{path} is not an idx file of bytes with {axes} axes")
            shape = struct.unpack(f">{axes}I", sizes)
            length = prod(shape)
            holds = f"{path} should hold {length:,} bytes by its header, and"
            refuse(
                (length > MAX_IDX_BYTES, f"{holds} at most {MAX_IDX_BYTES:,} are read"),
                (not packed and length > size, f"{holds} does not"),
                (
                    packed and length > max(ALWAYS_READ_BYTES, MAX_RATIO * size),
                    f"{path} has {size:,} bytes and would have {length:,} decompressed: taken for a decompression "
                    "bomb; if it is none, decompress it with gunzip",
                ),
            )
            body = file.read(length + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if len(body) != length or not body:
        raise UserError(f"{path} should hold {'×'.join(map(str, shape))} bytes by its header, and does not")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _digits() -> ImageData:
    pictures, labels, held_out = digits()
    return ImageData(
        "digits",
        hashlib.sha256(pictures.tobytes() + labels.tobytes() + held_out.tobytes()).hexdigest(),
        ArrayExamples(pictures[~held_out], labels[~held_out].tolist()),
        ArrayExamples(pictures[held_out], labels[held_out].tolist()),
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
