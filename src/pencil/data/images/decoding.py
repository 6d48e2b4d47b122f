"""Decode images: from a file or from bytes to uint8 arrays, within limits, on a pool of threads."""

import logging
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# each plugin registers its format with Pillow when it is imported
from PIL import (
    BmpImagePlugin,  # noqa: F401
    ExifTags,
    GifImagePlugin,  # noqa: F401
    Image,
    JpegImagePlugin,  # noqa: F401
    PngImagePlugin,  # noqa: F401
    PpmImagePlugin,  # noqa: F401
    TiffImagePlugin,  # noqa: F401
    UnidentifiedImageError,
    WebPImagePlugin,  # noqa: F401
)

from ...config import UserError, first_line, refuse
from ...files import is_broken_link
from .augment import ImageTransform, prepare, random_augment, reduced, upright
from .limits import check_head, check_image, limits

# common image formats; others (some run programs of their own to decode) are not opened, whatever the file's name
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
LOG = logging.getLogger("pencil")
LARGE_PIXELS = 12_000_000  # above which an image is reduced while it is converted, so that it is held once only
FITTED = "data:image/png;fitted=1;base64,"  # how the address of a picture begins that has its model's size already


@lru_cache
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="decode")


@contextmanager
def open_header(source: Any) -> Iterator[Any]:
    """The image of a path, or of an object with `open()`, with only its header read; refused above the limits."""
    if isinstance(source, Path) and not stat.S_ISREG(source.stat().st_mode):
        raise UserError("a pipe, a device or a socket, not a plain file")
    with source.open("rb") if isinstance(source, Path) else source.open() as file:
        image = _identified(file)
        check_image(image)
        if image.mode == "F":  # Pillow would clip 0 … 1 to black
            raise UserError("its pixels are fractions, without a known range: save it with 8 or 16 bits")
        yield image


def _identified(file: Any) -> Any:
    """The image in a file, by its first bytes. `Image.open` is not used: its limit is one for the whole program."""
    head = file.read(30)
    check_head(head)
    for name in FORMATS:
        factory, accepts = Image.OPEN[name]
        fits = accepts is None or accepts(head[:16])
        if fits and not isinstance(fits, str):  # a text says why this Pillow cannot read the format
            file.seek(0)
            try:
                return factory(file, "")
            except (SyntaxError, IndexError, TypeError, struct.error):
                continue
    raise UnidentifiedImageError("not a picture Pillow can read")


def decode(source: Any, transform: ImageTransform) -> Image.Image:
    """The whole image, upright and with the transform's channels.

    It has its own size, except that a JPEG and a very large image are reduced to no less than twice what is needed,
    unless the transform resizes it exactly.
    """
    with open_header(source) as image:
        if transform.resize is not None:
            return upright(image, transform.mode, transform.transparency)
        # a JPEG can be decoded directly at a half, a quarter or an eighth of its size
        image.draft(transform.mode, (2 * transform.size[1], 2 * transform.size[0]))
        if image.width * image.height <= LARGE_PIXELS:
            return upright(image, transform.mode, transform.transparency)
        return reduced(image, transform)


def fitted(source: Any, transform: ImageTransform, before: bool = False) -> Image.Image:
    """The image at the transform's size, not augmented; with `before` one that has this size stays as it is."""
    with open_header(source) as image:
        if before and image.size == transform.size[::-1]:
            return upright(image, transform.mode, transform.transparency)
    return prepare(decode(source, transform), transform)


def to_arrays(
    images: Sequence[Image.Image], transform: ImageTransform, rng: np.random.Generator | None
) -> Iterable[np.ndarray]:
    """Each image at the transform's size as uint8 (C, H, W); with a generator augmented, each from its own seed."""
    seeds = [0] * len(images) if rng is None else rng.integers(1 << 62, size=len(images)).tolist()

    def array_of(image: Image.Image, seed: int) -> np.ndarray:
        if rng is None or not transform.augmented:
            image = prepare(image, transform)
        else:
            image = random_augment(image, transform, np.random.Generator(np.random.Philox(key=seed)))
        array = np.asarray(image)
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)

    return pool().map(array_of, images, seeds) if len(images) > 8 else map(array_of, images, seeds)


def open_image(path: str | Path, transform: ImageTransform) -> np.ndarray:
    """One image from a file as uint8 (C, H, W), not augmented; one that cannot be read is refused."""
    path = Path(path)
    refuse(
        (path.is_dir(), f"{path} is a folder, not a picture"),
        (not path.exists(), f"there is no picture {path}"),
        (path.is_file() and not path.stat().st_size, f"{path} is empty (0 bytes)"),
    )
    try:
        if read_header(path).frames:
            LOG.warning("%s has several frames: only the first is read", path)
        return next(iter(to_arrays([decode(path, transform)], transform.without_augmentation, None)))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except Exception as error:
        raise UserError(f"{path} cannot be read as a picture: {reason(error)}") from None


def image_of_array(array: np.ndarray) -> Image.Image:
    """An array of uint8 (height, width) or (height, width, channels) as a picture."""
    if array.dtype != np.uint8:
        raise UserError(f"an array of a picture is uint8, from 0 to 255, not {array.dtype}: convert it first")
    grey = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1)
    if not array.size or not (grey or (array.ndim == 3 and array.shape[2] in (3, 4))):
        turned = array.ndim == 3 and array.shape[0] in (1, 3, 4)
        raise UserError(
            f"an array of a picture is (height, width) or (height, width, channels) with 1, 3 or 4 channels, not "
            f"{array.shape}" + ("; .transpose(1, 2, 0) brings its channels to the end" if turned else "")
        )
    return Image.fromarray(array.reshape(array.shape[:2]) if grey else array)


def reason(error: Exception) -> str:
    """Why an image cannot be decoded, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "not a picture Pillow can read"
    if isinstance(error, Image.DecompressionBombError):
        return "taken for a decompression bomb"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error)


class SourceChanged(UserError):
    """A file is not the one that was indexed: what would be read of it is nothing, or something else."""


class Header(NamedTuple):
    """What the header of an image file says."""

    fault: str | None = None
    shape: tuple[int, int] = (0, 0)  # height and width, after EXIF orientation
    grey: bool = False
    frames: bool = False  # whether it has more than the first, which is the one that is read


def read_header(path: Any) -> Header:
    """The header of an image file, or of an object with `open()`; or what is wrong with it. A truncated file is found
    only when it is decoded."""
    limits()  # a setting that is no number is refused, and not taken for a fault of the file
    try:
        if isinstance(path, Path) and is_broken_link(path):
            return Header("a link to a file that is not there")
        if isinstance(path, Path) and path.is_file() and not path.stat().st_size:
            return Header("empty (0 bytes)")
        with open_header(path) as image:
            grey = image.mode in ("1", "L", "LA", "I") or image.mode.startswith("I;16")
            return Header(None, upright_shape(image), grey, _has_frames(image))
    except (SourceChanged, MemoryError):  # no fault of the picture
        raise
    except Exception as error:  # Pillow's header readers raise many kinds
        return Header(reason(error))


def _has_frames(image: Any) -> bool:
    """Whether an image has several frames or pages."""
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # a second frame that is damaged is not read
        return False


def upright_shape(image: Any) -> tuple[int, int]:
    """Height and width after EXIF orientation, of an image of which only the header was read."""
    width, height = image.size
    # Pillow searches for a PNG's EXIF data behind the pixels, and swaps a TIFF's sides itself
    has_exif = image.format not in ("PNG", "TIFF") or (image.format == "PNG" and "exif" in image.info)
    swapped = has_exif and image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
    return (width, height) if swapped else (height, width)
