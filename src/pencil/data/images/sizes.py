"""Image sizes, read from file headers; and a patch size for images of any size."""

import math
from typing import Any

from ...config import UserError
from .augment import Fit, ImageTransform
from .datasets import FileExamples
from .decoding import decode, open_header, pool, upright_shape
from .image_data import ImageData

# of a default patch: its side in pixels, and the number of patches, for a square patch and for any
MAX_SIDE, MAX_SQUARE_PATCHES, MAX_PATCHES = 16, 256, 1024
# what a picture may lose by cropping (one of 4:3 loses a quarter by a square), and which share of all may lose more
MAX_LOST, MAX_SHARE = 0.26, 0.1
SAMPLED = 1000  # headers that are read of a table to find that out


def shapes(examples: FileExamples) -> dict[tuple[int, int], str]:
    """Each height and width that occurs, with the name of an image that has it; read from the file headers."""
    sources_of: dict[tuple[int, int], list[Any]] = {}
    for shape, source in zip(pool().map(_shape, examples.sources), examples.sources, strict=True):
        if shape is not None:
            sources_of.setdefault(shape, []).append(source)
    # the header of a broken file may hold any size: where there are several, each needs an image that can be decoded
    sound = {
        shape: next(filter(_decodes, sources), None) if sources_of.keys() - {shape} else sources[0]
        for shape, sources in sources_of.items()
    }
    return {shape: source.name for shape, source in sound.items() if source is not None}


def common_size(data: ImageData, where: str) -> tuple[int, int] | None:
    """Height and width of all images, if they are in files; refused where they differ."""
    sizes: dict[tuple[int, int], str] = {}
    for part in (data.train, data.test):
        if isinstance(part, FileExamples):
            sizes = shapes(part) | sizes
    if len(sizes) > 1:
        (first, name), (second, other) = list(sizes.items())[:2]
        raise UserError(
            f"the pictures in {where} are of different sizes ({name} has {first[0]}×{first[1]} and {other} "
            f"{second[0]}×{second[1]}, height first): give the size to generate at, such as --size 64 or --size 64x96"
        )
    return next(iter(sizes), None)


def choose_fit(data: ImageData, size: tuple[int, int], fit: Fit | None, draws: bool) -> tuple[Fit | None, str]:
    """How pictures of another shape than the model's become its input, and a sentence about it; None where none is.

    Where more than a tenth of them would lose more than a quarter by cropping, they are padded; not for a model that
    draws pictures (`draws`), which would draw the bars too.
    """
    sizes = _every_shape(data)
    lost = [1 - min(ratio := h * size[1] / (w * size[0]), 1 / ratio) for h, w in sizes if h and w]
    fixed = not isinstance(data.train, FileExamples) and not isinstance(data.test, FileExamples)
    if fixed and not any(lost):
        if fit is not None:
            made = f"{sizes[0][0]}×{sizes[0][1]}"
            raise UserError(f"data.fit has no effect on {data.name}, whose pictures are all {made}: leave it out")
        return None, ""
    share = sum(part > MAX_LOST for part in lost) / max(1, len(lost))
    if fit is not None or not share:
        return fit or "crop", ""
    much = f"{max(1, round(100 * share))} % of the pictures would lose more than a quarter by cropping"
    if draws:
        return "crop", f"{much}, and are cropped: padded, a model would draw the bars too; --data.fit squash keeps all"
    if share > MAX_SHARE:
        return "pad", f"{much}: all are padded with grey bars; --data.fit crop cuts them, squash stretches them"
    return "crop", f"{much}; --data.fit pad keeps them whole"


def _every_shape(data: ImageData) -> list[tuple[int, int]]:
    """Height and width of the pictures; of those in a table, of some."""
    if data.shapes:
        return data.shapes
    if isinstance(data.train, FileExamples):
        some = data.train.sources[:: max(1, len(data.train) // SAMPLED)]
        return [shape for shape in pool().map(_shape, some) if shape is not None]
    return [tuple(data.model_defaults["image_size"])]


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
            return upright_shape(image)
    except Exception:  # Pillow's header readers raise many kinds; the error is reported when the image is decoded
        return None


def _decodes(source: Any) -> bool:
    try:
        decode(source, ImageTransform((1, 1), 1))
    except Exception:  # Pillow's decoders raise many kinds
        return False
    return True
