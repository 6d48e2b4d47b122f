"""Images in idx files, the format of MNIST."""

import gzip
import hashlib
import struct
import zlib
from math import prod
from pathlib import Path

import numpy as np

from ...config import UserError
from ...files import check_inside, check_regular
from ..split import Picture, in_both_parts, in_two_classes
from .examples import ArrayExamples
from .image_data import ImageData, check_classes

SPLITS = ("train", "t10k")
MAX_BYTES = 1 << 32  # of one file, decompressed
MAX_RATIO = 100  # of its size decompressed to its size: MNIST's is 5, a bomb's 1,000
ALWAYS_READ = 1 << 24  # bytes, decompressed, that a file may have whatever the ratio


def from_idx(folder: Path, names: list[str], want: str) -> ImageData:
    """MNIST, or a data set in its format: four idx files, gzipped or not."""
    if want != "label":
        raise UserError(f"{folder} holds idx files, which have labels; a captioner needs a folder with metadata.jsonl")
    parts, sha = [], hashlib.sha256()
    for split in SPLITS:
        arrays = []
        for what, axes in (("images-idx3", 3), ("labels-idx1", 1)):
            found = [name for name in names if split in name and what in name]
            if not found:
                raise UserError(f"{folder} has no {split}-{what}-ubyte file, with or without .gz")
            check_inside(folder / found[0], folder)
            arrays.append(read_idx(folder / found[0], axes))
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
        for split, part in zip(SPLITS, parts, strict=True)
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
            _check_length(path, prod(shape), size, packed)
            body = file.read(prod(shape) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if len(body) != prod(shape) or not body:
        raise UserError(f"{path} should hold {'×'.join(map(str, shape))} bytes by its header, and does not")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _check_length(path: Path, length: int, size: int, packed: bool) -> None:
    """Refuse a body of this length in a file of this size, before it is read."""
    if length > MAX_BYTES:
        raise UserError(f"{path} should hold {length:,} bytes by its header, and at most {MAX_BYTES:,} are read")
    if not packed and length > size:
        raise UserError(f"{path} should hold {length:,} bytes by its header, and does not")
    if packed and length > max(ALWAYS_READ, MAX_RATIO * size):
        raise UserError(
            f"{path} has {size:,} bytes and would have {length:,} decompressed: taken for a decompression bomb; if it "
            "is none, decompress it with gunzip"
        )
