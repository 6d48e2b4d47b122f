"""Decode images: from a file or from bytes to uint8 arrays, within limits, on a pool of threads."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from ..config import UserError
from .augment import ImageTransform, fit, random_augment, upright

MAX_PIXELS = 89_478_485  # of one image: a small file that decompresses to more is taken for a bomb
# common image formats; others (some run programs of their own to decode) are not opened, whatever the file's name
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
Image.MAX_IMAGE_PIXELS = None  # MAX_PIXELS is checked instead, before anything is decompressed, with its own error


@lru_cache
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="decode")


def open_header(source: Any) -> Image.Image:
    """The image of a path, or of an object with `open()`, with only its header read."""
    return Image.open(source if isinstance(source, Path) else source.open(), formats=FORMATS)


def decode(source: Any, transform: ImageTransform) -> Image.Image:
    """The whole image, upright and with the transform's channels, at its own size; refused above MAX_PIXELS."""
    with open_header(source) as image:
        if image.width * image.height > MAX_PIXELS:
            raise UserError(
                f"{image.width}×{image.height} pixels is more than {MAX_PIXELS:,}: taken for a decompression bomb"
            )
        # a JPEG can be decoded directly at a half, a quarter or an eighth of its size
        image.draft(transform.mode, (2 * transform.size[1], 2 * transform.size[0]))
        return upright(image, transform.mode)


def to_arrays(
    images: Sequence[Image.Image], transform: ImageTransform, rng: np.random.Generator | None
) -> Iterable[np.ndarray]:
    """Each image at the transform's size as uint8 (C, H, W); with a generator augmented, each from its own seed."""
    seeds = [0] * len(images) if rng is None else rng.integers(1 << 62, size=len(images)).tolist()

    def one(image: Image.Image, seed: int) -> np.ndarray:
        if rng is None or not transform.augmented:
            image = fit(image, transform.size)
        else:
            image = random_augment(image, transform, np.random.Generator(np.random.Philox(key=seed)))
        array = np.asarray(image)
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)

    return pool().map(one, images, seeds) if len(images) > 8 else map(one, images, seeds)


def open_image(path: str | Path, transform: ImageTransform) -> np.ndarray:
    """One image from a file as uint8 (C, H, W), not augmented; one that cannot be read is refused."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no picture {path}" if not path.is_dir() else f"{path} is a folder, not a picture")
    if not path.stat().st_size:
        raise UserError(f"{path} is empty (0 bytes)")
    try:
        return next(iter(to_arrays([decode(path, transform)], transform.without_augmentation, None)))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:
        raise UserError(f"{path} cannot be read as a picture: {reason(error)}") from None


def reason(error: Exception) -> str:
    """Why an image cannot be decoded, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "not a picture Pillow can read"
    return (str(error) or type(error).__name__).splitlines()[0]


def header_fault(path: Path) -> str | None:
    """What is wrong with an image file, by its header alone; a truncated file is found only when it is decoded."""
    try:
        if not path.stat().st_size:
            return "empty (0 bytes)"
        with open_header(path) as image:
            large = image.width * image.height > MAX_PIXELS
            return f"{image.width}×{image.height} pixels: taken for a decompression bomb" if large else None
    except Image.DecompressionBombError:
        return "taken for a decompression bomb"
    except OSError as error:
        return error.strerror or "not a picture Pillow can read"
    except Exception as error:  # Pillow's header readers raise many kinds
        return str(error) or type(error).__name__


def is_grey(path: Path) -> bool:
    with open_header(path) as image:
        return image.mode in ("1", "L", "LA", "I;16", "I")
