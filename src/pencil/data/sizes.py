"""The sizes of pictures in files, read from their heads; and how to cut a picture of any size."""

import math
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image

from ..config import UserError
from .augment import Look
from .images import FORMATS, FileExamples, PictureData, decode, pool

WIDEST, FEW_STRIPS, MOST_STRIPS = 16, 256, 1024  # of a patch nobody asked for: its side, and what it may make


def shapes(examples: FileExamples) -> dict[tuple[int, int], str]:
    """Each height and width there is, with the name of a picture that has it; by the heads of the files alone."""
    found: dict[tuple[int, int], list[Any]] = {}
    for shape, source in zip(pool().map(_shape, examples.sources), examples.sources, strict=True):
        if shape is not None:
            found.setdefault(shape, []).append(source)
    # a broken file may say any size: where there are several, each needs a picture that can be decoded
    sound = {shape: next(filter(_decodes, held), None) if found.keys() - {shape} else held[0]
             for shape, held in found.items()}  # fmt: skip
    return {shape: source.name for shape, source in sound.items() if source is not None}


def common_size(data: PictureData, where: str) -> tuple[int, int] | None:
    """Height and width of every picture, where they are in files; refused where they differ."""
    found: dict[tuple[int, int], str] = {}
    for part in (data.train, data.test):
        if isinstance(part, FileExamples):
            found = shapes(part) | found
    if len(found) > 1:
        (first, name), (second, other) = list(found.items())[:2]
        raise UserError(
            f"the pictures in {where} are of different sizes ({name} has {first[0]}×{first[1]} and {other} "
            f"{second[0]}×{second[1]}, height first): say at which to draw, such as --size 64 or --size 64x96"
        )
    return next(iter(found), None)


def patch_for(size: tuple[int, int]) -> tuple[int, int]:
    """A patch that makes about eight strips a side: a square, or, where that makes many, with sides of their own."""

    def best(side: int, whole: int) -> int:
        fits = [n for n in range(1, WIDEST + 1) if whole % n == 0]
        return min(fits, key=lambda n: abs(math.log(side / n / 8)))

    square = best(max(size), math.gcd(*size))
    for patch, most in (
        ((square, square), FEW_STRIPS),
        ((best(size[0], size[0]), best(size[1], size[1])), MOST_STRIPS),
    ):
        if size[0] // patch[0] * (size[1] // patch[1]) <= most:
            return patch
    scale = min(1, 128 / max(size))
    round_ = "x".join(str(max(8, round(side * scale / 8) * 8)) for side in size)
    raise UserError(
        f"no patch of at most {WIDEST} dots a side cuts pictures of {size[0]}×{size[1]} into {MOST_STRIPS:,} strips or "
        f"fewer: say another size, such as --size {round_}, or a --model.patch"
    )


def _shape(source: Any) -> tuple[int, int] | None:
    """Height and width as a person sees the picture, without decoding it; none where its head cannot be read."""
    try:
        with Image.open(source if isinstance(source, Path) else source.open(), formats=FORMATS) as image:
            width, height = image.size
            # Pillow looks for a PNG's behind the picture, and turns a TIFF's size itself
            told = image.format not in ("PNG", "TIFF") or (image.format == "PNG" and "exif" in image.info)
            turned = told and image.getexif().get(ExifTags.Base.Orientation) in (5, 6, 7, 8)
            return (width, height) if turned else (height, width)
    except Exception:  # Pillow's readers of headers raise all kinds; what is wrong is told when it is decoded
        return None


def _decodes(source: Any) -> bool:
    try:
        decode(source, Look((1, 1), 1))
    except Exception:  # Pillow's decoders raise all kinds
        return False
    return True
