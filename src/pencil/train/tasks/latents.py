"""Images as latents of an autoencoder: encoded once, before training, and cached on disk."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...config import UserError
from ...data.cache import cache_folder, making, seal, usable
from ...data.images.augment import ImageTransform
from ...data.images.datasets import Examples
from ...data.images.open_images import ImageData
from ...files import open_aside
from ...inference.autoencoder import BATCH, Autoencoder


class LatentExamples:
    """Latents on disk, with the targets of their pictures."""

    def __init__(self, latents: np.ndarray, targets: Sequence[Any]):
        self.latents, self.which = latents, np.flatnonzero(np.isfinite(latents[:, 0, 0, 0])).tolist()
        self.targets = [targets[i] for i in self.which]

    def __len__(self) -> int:
        return len(self.which)

    def take(self, which, transform, rng=None):
        rows = list(which)
        return self.latents[[self.which[i] for i in rows]].astype(np.float32), [self.targets[i] for i in rows]


def latents_path(
    data: str, autoencoder: str, size: tuple[int, int], channels: int, part: str, fit: str = "crop", split: int = 1
) -> Path:
    """Where the latents of a part of the data are cached, by the hashes of the data and of the autoencoder."""
    how = "" if fit == "crop" else f" {fit}"  # older versions cropped everything
    how += "" if split == 1 else f" split {split}"
    digest = hashlib.sha256(f"{data} {autoencoder} {size} {channels}{how}".encode()).hexdigest()[:32]
    return cache_folder() / f"latents-{digest}-{part}.f16"


def to_latents(
    data: ImageData, autoencoder: Autoencoder, transform: ImageTransform, report: Callable[[str], None]
) -> ImageData:
    """The same data set with every image as its latents, from the cache if they are there."""
    sides = (autoencoder.channels, *autoencoder.latent_size(transform.size))
    parts = {}
    for name, examples in (("train", data.train), ("test", data.test)):
        count = len(examples)
        if not count:  # other data, of which nothing is trained on
            parts[name] = LatentExamples(np.zeros((0, *sides), np.float16), [])
            continue
        part = name if len(data.train) else "all"
        key = (data.hash, autoencoder.hash, transform.size, transform.channels, part, transform.fit, data.split)
        path = latents_path(*key)
        with making(path):  # the processes of a training need it at the same time
            if not usable(path) or path.stat().st_size != 2 * count * int(np.prod(sides)):
                at = f"{transform.size[0]}×{transform.size[1]}"
                report(f"Encoding {count:,} pictures of {data.name} at {at} ({name}), once.")
                _write(path, examples, autoencoder, transform, (count, *sides))
                seal(path)
        latents = np.memmap(path, np.float16, "r", shape=(count, *sides))
        parts[name] = LatentExamples(latents, examples.targets)
        if not len(parts[name]):
            raise UserError(f"none of the pictures of {data.name} can be decoded")
    return replace(data, **parts)


def _write(
    path: Path, examples: Examples, autoencoder: Autoencoder, transform: ImageTransform, shape: tuple[int, ...]
) -> None:
    """The latents of every image, in order; images that cannot be decoded are stored as NaN. Whole, or not at all."""
    with open_aside(path) as file:
        for first in range(0, shape[0], BATCH):
            rows = range(first, min(first + BATCH, shape[0]))
            images, _ = examples.take(rows, transform)
            if len(images) == len(rows):
                out = autoencoder.encode(images).cpu().numpy()
            else:
                out = np.full((len(rows), *shape[1:]), np.nan)
                for i, row in enumerate(rows):
                    alone, _ = examples.take([row], transform)
                    if len(alone):
                        out[i] = autoencoder.encode(alone).cpu().numpy()
            file.write(out.astype(np.float16).tobytes())
