"""Image sizes, read from file headers; and a patch size for images of any size."""

import math
from typing import Any

from PIL import ExifTags

from ..config import UserError
from .augment import ImageTransform
from .decoding import decode, open_header, pool
from .examples import FileExamples
from .image_data import ImageData

# of a default patch: its side in pixels, and the number of patches, for a square patch and for any
MAX_SIDE, MAX_SQUARE_PATCHES, MAX_PATCHES = 16, 256, 1024


def shapes(examples: FileExamples) -> dict[tuple[int, int], str]:
    """Each height and width that occurs, with the name of an image that has it; read from the file headers."""
    found: dict[tuple[int, int], list[Any]] = {}
    for shape, source in zip(pool().map(_shape, examples.sources), examples.sources, strict=True):
        if shape is not None:
            found.setdefault(shape, []).append(source)
    # the header of a broken file may hold any size: where there are several, each needs an image that can be decoded
    sound = {shape: next(filter(_decodes, held), None) if found.keys() - {shape} else held[0]
             for shape, held in found.items()}  # fmt: skip
    return {shape: source.name for shape, source in sound.items() if source is not None}


def common_size(data: ImageData, where: str) -> tuple[int, int] | None:
    """Height and width of all images, if they are in files; refused where they differ."""
    found: dict[tuple[int, int], str] = {}
    for part in (data.train, data.test):
        if isinstance(part, FileExamples):
            found = shapes(part) | found
    if len(found) > 1:
        (first, name), (second, other) = list(found.items())[:2]
        raise UserError(
            f"the pictures in {where} are of different sizes ({name} has {first[0]}×{first[1]} and {other} "
            f"{second[0]}×{second[1]}, height first): give the size to generate at, such as --size 64 or --size 64x96"
        )
    return next(iter(found), None)


def patch_for(size: tuple[int, int]) -> tuple[int, int]:
    """A patch size that gives about eight patches a side: square, or, if that gives too many, each side on its own."""

    def best(side: int, whole: int) -> int:
        fits = [n for n in range(1, MAX_SIDE + 1) if whole % n == 0]
        return min(fits, key=lambda n: abs(math.log(side / n / 8)))

    square = best(max(size), math.gcd(*size))
    for patch, most in (
        ((square, square), MAX_SQUARE_PATCHES),
        ((best(size[0], size[0]), best(size[1], size[1])), MAX_PATCHES),
    ):
        if size[0] // patch[0] * (size[1] // patch[1]) <= most:
            return patch
    scale = min(1, 128 / max(size))
    round_ = "x".join(str(max(8, round(side * scale / 8) * 8)) for side in size)
    raise UserError(
        f"no patch of at most {MAX_SIDE} pixels a side cuts pictures of {size[0]}×{size[1]} into {MAX_PATCHES:,} "
        f"patches or fewer: give another size, such as --size {round_}, or a --model.patch"
    )


def _shape(source: Any) -> tuple[int, int] | None:
    """Height and width after EXIF orientation, without decoding; None where the header cannot be read."""
    try:
        with open_header(source) as image:
            width, height = image.size
            # Pillow searches for a PNG's EXIF data behind the pixels, and swaps a TIFF's sides itself
            has_exif = image.format not in ("PNG", "TIFF") or (image.format == "PNG" and "exif" in image.info)
            swapped = has_exif and image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
            return (width, height) if swapped else (height, width)
    except Exception:  # Pillow's header readers raise many kinds; the error is reported when the image is decoded
        return None


def _decodes(source: Any) -> bool:
    try:
        decode(source, ImageTransform((1, 1), 1))
    except Exception:  # Pillow's decoders raise many kinds
        return False
    return True
