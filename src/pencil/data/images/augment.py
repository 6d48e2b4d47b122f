"""Image transforms: an image brought to a model's input size, and random augmentation while training."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from ...config import UserError
from .limits import limits

MARGIN = 1.25  # of a kept image over the model's input size, for random crops
BARS = 128  # the grey of a padded image's bars: zero, as a model reads it
STRIP = 1 << 20  # pixels that are converted at a time
EXIF = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")  # where Pillow finds an image's orientation

Fit = Literal["crop", "pad", "squash"]
Resample = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]
Transparency = Literal["white", "drop"]


@dataclass(frozen=True)
class ImageTransform:
    """A model's input format, size and channels, and the random augmentation used in training."""

    size: tuple[int, int]  # height, width
    channels: int
    flip: bool = False  # mirrored left to right with probability one half
    crop: float = 1.0  # the smallest fraction of the image's area that a random crop keeps
    augment_ops: int = 0  # the number of random small affine or colour operations for each image, from OPS
    fit: Fit = "crop"  # what becomes of an image of another shape: its middle, all of it between bars, or stretched
    resize: tuple[int, int] | None = None  # height and width before the centre is cut out, as other libraries do it
    resample: Resample = "bicubic"  # of that resize
    transparency: Transparency = "white"  # on white, or the colours as they are stored
    mean: tuple[float, ...] | None = None  # of each channel, from 0 to 1; without it pixels are from −1 to 1
    std: tuple[float, ...] | None = None

    @property
    def mode(self) -> str:
        """Pillow's name of the channels."""
        return {1: "L", 3: "RGB"}[self.channels]

    @property
    def without_augmentation(self) -> "ImageTransform":
        """The same size and channels without augmentation, for evaluation."""
        return replace(self, flip=False, crop=1.0, augment_ops=0)

    @property
    def approximate(self) -> "ImageTransform":
        """The same without the resize of another library, whose exact pixels need the whole image."""
        return replace(self, resize=None)

    @property
    def augmented(self) -> bool:
        return self.flip or self.crop < 1 or self.augment_ops > 0


def upright(image: Image.Image, mode: str, transparency: Transparency = "white") -> Image.Image:
    """The image in this mode: rotated by its EXIF orientation, transparency on white, 16 bits scaled to 8."""
    return _plain(ImageOps.exif_transpose(image), mode, _is_wide(image), transparency)


def reduced(image: Image.Image, transform: ImageTransform) -> Image.Image:
    """`upright` for a very large image: converted strip by strip, each reduced at once by a whole factor.

    The factor leaves twice what a random crop needs, as resizing with a `reducing_gap` of 2 does.
    """
    image.load()
    by = max(1, int(min(image.size) / (2 * MARGIN * max(transform.size))))
    wide, (width, height) = _is_wide(image), image.size
    out = Image.new(transform.mode, (ceil(width / by), ceil(height / by)))
    rows = by * max(1, STRIP // (width * by))
    for top in range(0, height, rows):
        part = image.crop((0, top, width, min(height, top + rows)))
        strip = _plain(part, transform.mode, wide, transform.transparency)
        out.paste(strip.reduce(by), (0, top // by))
    out.info = {key: image.info[key] for key in EXIF if key in image.info}
    return ImageOps.exif_transpose(out)


def _is_wide(image: Image.Image) -> bool:
    """Whether greys have 16 bits; a file of 32 bits a pixel may hold either."""
    if not image.mode.startswith("I"):
        return False
    largest: Any = 0 if image.mode.startswith("I;16") else image.getextrema()[1]
    return image.mode.startswith("I;16") or largest > 255


def _plain(image: Image.Image, mode: str, wide: bool, transparency: Transparency) -> Image.Image:
    if image.mode.startswith("I"):
        # 16-bit greys are clipped by Pillow's own conversion
        array = np.asarray(image, dtype=np.float64)
        image = Image.fromarray(np.clip(np.round(array / (257 if wide else 1)), 0, 255).astype(np.uint8))
    if transparency == "white" and ("A" in image.getbands() or "transparency" in image.info):
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def shrink(image: Image.Image, size: tuple[int, int], how: Fit = "crop") -> Image.Image:
    """No larger than a random crop needs, MARGIN times the model's input size: small enough to keep in memory."""
    height, width = size
    scales = MARGIN * height / image.height, MARGIN * width / image.width
    scale = min(scales) if how == "pad" else max(scales)
    if scale >= 1:
        return image
    return image.resize(
        (ceil(image.width * scale), ceil(image.height * scale)), Image.Resampling.BICUBIC, reducing_gap=2
    )


def prepare(image: Image.Image, transform: ImageTransform) -> Image.Image:
    """The image at the transform's size, not augmented."""
    if transform.resize is None:
        return fit(image, transform.size, transform.fit)
    height, width = transform.resize if transform.fit == "squash" else covering(image, transform.resize)
    if height * width > limits()[0]:
        raise UserError(f"{image.width}×{image.height} pixels would be resized to {width}×{height}: it is too narrow")
    image = image.resize((width, height), Image.Resampling[transform.resample.upper()])
    # Python's round, which takes a half to the even number, is torchvision's too
    top, left = round((height - transform.size[0]) / 2), round((width - transform.size[1]) / 2)
    return image.crop((left, top, left + transform.size[1], top + transform.size[0]))


def covering(image: Image.Image, size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of an image that keeps its shape and covers `size`, rounded as torchvision and timm do."""
    if size[0] == size[1]:
        longer = int(size[0] * max(image.size) / min(image.size))
        return (size[0], longer) if image.height <= image.width else (longer, size[0])
    ratio = min(image.height / size[0], image.width / size[1])
    return round(image.height / ratio), round(image.width / ratio)


def fit(image: Image.Image, size: tuple[int, int], how: Fit = "crop") -> Image.Image:
    """The image at `size`: the largest centre crop of that shape, the whole image between bars, or stretched to it."""
    height, width = size
    if image.size == (width, height):
        return image
    if how == "squash":
        return image.resize((width, height), Image.Resampling.BICUBIC)
    if how == "pad":
        return _pad(image, size)
    return ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)


def _pad(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The whole image as large as it fits, in the middle of grey bars."""
    height, width = size
    scale = min(height / image.height, width / image.width)
    inner = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    out = Image.new(image.mode, (width, height), (BARS,) * len(image.getbands()))
    place = (width - inner[0]) // 2, (height - inner[1]) // 2
    out.paste(image.resize(inner, Image.Resampling.BICUBIC), place)
    return out


def random_augment(image: Image.Image, transform: ImageTransform, rng: np.random.Generator) -> Image.Image:
    """A random crop, a resize to the transform's size, a random flip, then `augment_ops` operations from OPS.

    A crop is taken from the image as evaluation shows it, padded or stretched; where that crops too, from all of it.
    """
    if transform.crop < 1:
        if transform.fit != "crop":
            height, width = transform.size
            image = fit(image, (ceil(MARGIN * height), ceil(MARGIN * width)), transform.fit)
        image = _random_crop(image, transform, rng)
    image = fit(image, transform.size, transform.fit)
    if transform.flip and rng.random() < 0.5:
        image = ImageOps.mirror(image)
    for _ in range(transform.augment_ops):
        op = OPS[rng.integers(len(OPS))]
        image = op(image, float(rng.uniform(-1, 1)))
    return image


def _random_crop(image: Image.Image, transform: ImageTransform, rng: np.random.Generator) -> Image.Image:
    """A box of a random area, at least the fraction `crop`, and up to 4/3 wider or taller than the target."""
    area = image.width * image.height * rng.uniform(transform.crop, 1)
    ratio = transform.size[1] / transform.size[0] * np.exp(rng.uniform(-1, 1) * np.log(4 / 3))
    width = min(image.width, max(1, round((area * ratio) ** 0.5)))
    height = min(image.height, max(1, round((area / ratio) ** 0.5)))
    left, top = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
    return image.resize(
        (transform.size[1], transform.size[0]),
        Image.Resampling.BICUBIC,
        (left, top, left + width, top + height),
        reducing_gap=2,
    )


def random_affine(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`augment_ops` for arrays (n, C, H, W) that have the right size already: all images at once, and faster.

    Each image gets `count` of the six affine operations of OPS with the same ranges, composed into one matrix and
    resampled once, bilinear; pixels from outside are black. There are no colour operations.
    """
    n, _, height, width = rows.shape
    matrices = np.tile(np.eye(3), (n, 1, 1))
    for _ in range(count):
        magnitude, matrix = rng.uniform(-1, 1, n), np.tile(np.eye(3), (n, 1, 1))
        op, angle = rng.integers(0, 6, n), np.deg2rad(15 * magnitude)
        rotated, scaled = op == 0, op == 1
        matrix[rotated, 0, 0] = matrix[rotated, 1, 1] = np.cos(angle[rotated])
        matrix[rotated, 0, 1], matrix[rotated, 1, 0] = np.sin(angle[rotated]), -np.sin(angle[rotated])
        matrix[scaled, 0, 0] = matrix[scaled, 1, 1] = 1 + 0.12 * magnitude[scaled]
        # shears, then translations
        for which, cell, largest in (
            (2, (0, 1), 0.2),
            (3, (1, 0), 0.2),
            (4, (0, 2), 0.1 * height),
            (5, (1, 2), 0.1 * width),
        ):
            matrix[op == which, *cell] = largest * magnitude[op == which]
        matrices = matrices @ matrix
    centre = np.array([(height - 1) / 2, (width - 1) / 2])
    grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij")).reshape(2, -1)
    source = matrices[:, :2, :2] @ (grid - centre[:, None]) + matrices[:, :2, 2:] + centre[:, None]
    low = np.floor(source).astype(np.int64)
    part = (source - low).astype(np.float32)
    # a border of one black pixel represents everything outside
    padded = np.pad(rows, ((0, 0), (0, 0), (1, 1), (1, 1))).reshape(n, rows.shape[1], -1)
    out = np.zeros((n, rows.shape[1], height * width), np.float32)
    for down in (0, 1):
        for across in (0, 1):
            y = np.clip(low[:, 0] + 1 + down, 0, height + 1)
            x = np.clip(low[:, 1] + 1 + across, 0, width + 1)
            weight = np.abs(1 - down - part[:, 0]) * np.abs(1 - across - part[:, 1])
            out += weight[:, None] * np.take_along_axis(padded, (y * (width + 2) + x)[:, None], 2)
    return np.round(out).astype(np.uint8).reshape(rows.shape)


def _affine(image: Image.Image, a: float, b: float, c: float, d: float, e: float, f: float) -> Image.Image:
    """The affine map about the image's centre; pixels from outside get the colour of the top left corner."""
    x, y = image.width / 2, image.height / 2
    data = (a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y)
    corner = image.getpixel((0, 0))
    return image.transform(image.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR, fillcolor=corner)


def _rotate(image: Image.Image, m: float) -> Image.Image:
    angle = np.deg2rad(15 * m)
    return _affine(image, np.cos(angle), np.sin(angle), 0, -np.sin(angle), np.cos(angle), 0)


# The operations of `augment_ops`. For each image N of them are drawn, uniformly and with replacement, each with its own
# magnitude m, uniform in [-1, 1]; every operation scales m to a fixed small range. This is not RandAugment, which draws
# from its own 14 operations and applies each with one fixed magnitude M; hence its own name.
OPS: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    _rotate,  # up to 15 degrees
    lambda image, m: _affine(image, 1 + 0.12 * m, 0, 0, 0, 1 + 0.12 * m, 0),  # scale by up to 12 %
    lambda image, m: _affine(image, 1, 0.2 * m, 0, 0, 1, 0),  # shear along the rows
    lambda image, m: _affine(image, 1, 0, 0, 0.2 * m, 1, 0),  # shear along the columns
    lambda image, m: _affine(image, 1, 0, 0.1 * m * image.width, 0, 1, 0),  # shift by up to a tenth of the width
    lambda image, m: _affine(image, 1, 0, 0, 0, 1, 0.1 * m * image.height),  # shift by up to a tenth of the height
    lambda image, m: ImageEnhance.Brightness(image).enhance(1 + 0.4 * m),
    lambda image, m: ImageEnhance.Contrast(image).enhance(1 + 0.4 * m),
    lambda image, m: ImageEnhance.Color(image).enhance(1 + 0.6 * m),
    lambda image, m: ImageEnhance.Sharpness(image).enhance(1 + 0.8 * m),
    lambda image, m: ImageOps.autocontrast(image) if m > 0 else image,
)
