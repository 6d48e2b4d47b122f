"""Indexed images or videos with their targets: in memory, or in files that are decoded on request and cached.

The scenes cannot be memorised. Digits three apart (in a ring) never stand next to each other in a training scene; in a
test scene two always do, and in handwriting no training scene used.
"""

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from ...config import UserError
from .augment import ImageTransform, prepare, random_affine, shrink
from .decoding import SourceChanged, decode, pool, reason, to_arrays

CACHE_BYTES = 1 << 29  # of decoded images for each split, so that most data sets are decoded once

Target = Any  # a class index, or a caption
Skipped = list[tuple[str, str]]  # the name of each image left out, and why


@runtime_checkable
class Examples(Protocol):
    """A list of images with their targets."""

    targets: list[Target]

    def __len__(self) -> int: ...

    def take(
        self, which: Iterable[int], transform: ImageTransform, rng: np.random.Generator | None = None
    ) -> tuple[np.ndarray, list[Target]]:
        """Images (n, C, H, W) as uint8, and their targets; with a generator, augmented as the transform defines.

        An image that cannot be decoded is recorded in `skipped`. With a generator the next one replaces it; without, it
        is left out.
        """
        ...


class ArrayExamples:
    """Images in memory."""

    def __init__(self, pictures: np.ndarray, targets: Sequence[Target]):
        self.pictures, self.targets = pictures, list(targets)

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, which, transform, rng=None):
        which = np.asarray(list(which), dtype=np.int64)
        rows = self.pictures[which]
        targets = [self.targets[i] for i in which]
        if rows.shape[1:] == (transform.channels, *transform.size) and transform.resize in (None, transform.size):
            if rng is None or not transform.augmented:
                return rows, targets
            if transform.crop == 1 and not transform.flip:
                return random_affine(rows, transform.augment_ops, rng), targets
        images = [
            Image.fromarray(row[0] if len(row) == 1 else row.transpose(1, 2, 0)).convert(transform.mode) for row in rows
        ]
        return np.stack(list(to_arrays(images, transform, rng))), targets


class FileExamples:
    """Images in files (or in a hub's table), decoded on request and cached, shrunk, up to CACHE_BYTES."""

    def __init__(self, sources: Sequence[Any], targets: Sequence[Target], skipped: Skipped):
        # shards have millions of sources, which are made when they are asked for
        self.sources = list(sources) if isinstance(sources, list) else sources
        self.targets, self.skipped = list(targets), skipped
        self.cache: dict[tuple[int, ImageTransform, bool], Image.Image] = {}
        self.broken: set[int] = set()
        self.free_bytes, self.lock = CACHE_BYTES, threading.Lock()

    def __len__(self) -> int:
        return len(self.sources)

    def take(self, which, transform, rng=None):
        plain, whole = transform.without_augmentation, rng is not None and transform.augmented
        decoded = list(pool().map(lambda i: self._decode_or_next(i, plain, whole, rng is not None), map(int, which)))
        decoded = [pair for pair in decoded if pair is not None]
        images = [image for image, _ in decoded]
        pictures = list(to_arrays(images, transform.approximate, rng))
        empty = np.zeros((0, transform.channels, *transform.size), np.uint8)
        return np.stack(pictures) if pictures else empty, [self.targets[i] for _, i in decoded]

    def _decode_or_next(
        self, i: int, transform: ImageTransform, whole: bool, replace: bool
    ) -> tuple[Image.Image, int] | None:
        """The image and its index; to replace a broken one, those of the next that can be decoded."""
        for step in range(len(self) if replace else 1):
            at = (i + step) % len(self)
            image = self._decode(at, transform, whole)
            if image is not None:
                return image, at
        if replace:
            raise UserError(f"none of the {len(self)} pictures can be decoded; the first: {self.skipped[0][1]}")
        return None

    def _decode(self, i: int, transform: ImageTransform, whole: bool) -> Image.Image | None:
        """The image at the transform's size, as `open_image` has it; with `whole` a larger one, for random crops."""
        key = (i, transform, whole)
        if key in self.cache:
            return self.cache[key]
        if i in self.broken:
            return None
        source = self.sources[i]
        try:
            image = decode(source, transform.approximate if whole else transform)
            image = shrink(image, transform.size, transform.fit) if whole else prepare(image, transform)
        except SourceChanged:
            raise
        except Exception as error:  # Pillow's decoders raise many kinds
            with self.lock:
                if i not in self.broken:
                    self.broken.add(i)
                    self.skipped.append((str(source if isinstance(source, Path) else source.name), reason(error)))
            return None
        with self.lock:
            size = image.width * image.height * (1 if transform.channels == 1 else 4)  # Pillow keeps RGB in four bytes
            if size <= self.free_bytes and key not in self.cache:
                self.free_bytes -= size
                self.cache[key] = image
        return image


class VideoExamples:
    """Videos in memory; they are not augmented."""

    def __init__(self, videos: np.ndarray, targets: list[int]):
        self.videos, self.targets = videos, targets

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, which, transform, rng=None):
        rows = [int(i) for i in which]
        return self.videos[rows], [self.targets[i] for i in rows]
