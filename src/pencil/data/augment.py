"""Pictures varied while training: flipped, cropped, bent a little; and fitted to the size a model takes."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
from PIL import Image, ImageEnhance, ImageOps


@dataclass(frozen=True)
class Look:
    """What a picture must look like: its size, its channels, and how it may be varied in training."""

    size: tuple[int, int]  # height, width
    channels: int
    flip: bool = False  # left and right, half the time
    crop: float = 1.0  # the smallest share of the picture's area a crop may keep
    randaugment: int = 0  # how many small changes of form or colour, drawn anew for each picture

    @property
    def mode(self) -> str:
        return {1: "L", 3: "RGB"}[self.channels]

    @property
    def plain(self) -> "Look":
        """The same, for pictures that are judged: not varied."""
        return Look(self.size, self.channels)

    @property
    def varied(self) -> bool:
        return self.flip or self.crop < 1 or self.randaugment > 0


def upright(image: Image.Image, mode: str) -> Image.Image:
    """The picture as a person sees it: turned as its camera says, transparent parts white, 16 bits brought to 8."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        # 16-bit greys are clipped by Pillow's own conversion
        array = np.asarray(image, dtype=np.float64)
        wide = image.mode.startswith("I;16") or array.max(initial=0) > 255
        image = Image.fromarray(np.clip(np.round(array / (257 if wide else 1)), 0, 255).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(mode)


def shrunk(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """No larger than cropping needs: a quarter more than the model's picture; small enough to keep."""
    height, width = size
    scale = max(1.25 * height / image.height, 1.25 * width / image.width)
    if scale >= 1:
        return image
    return image.resize(
        (ceil(image.width * scale), ceil(image.height * scale)), Image.Resampling.BICUBIC, reducing_gap=2
    )


def fit(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The middle of the picture, as large as fits, at this size."""
    height, width = size
    if image.size == (width, height):
        return image
    return ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)


def vary(image: Image.Image, look: Look, rng: np.random.Generator) -> Image.Image:
    """Crop, flip and bend, as the look allows; then at its size."""
    if look.crop < 1:
        image = _random_crop(image, look, rng)
    image = fit(image, look.size)
    if look.flip and rng.random() < 0.5:
        image = ImageOps.mirror(image)
    for _ in range(look.randaugment):
        change = CHANGES[rng.integers(len(CHANGES))]
        image = change(image, float(rng.uniform(-1, 1)))
    return image


def _random_crop(image: Image.Image, look: Look, rng: np.random.Generator) -> Image.Image:
    """A box with between `crop` and all of the area, somewhat wider or taller than the target."""
    area = image.width * image.height * rng.uniform(look.crop, 1)
    ratio = look.size[1] / look.size[0] * np.exp(rng.uniform(-1, 1) * np.log(4 / 3))
    width = min(image.width, max(1, round((area * ratio) ** 0.5)))
    height = min(image.height, max(1, round((area / ratio) ** 0.5)))
    left, top = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
    return image.resize(
        (look.size[1], look.size[0]), Image.Resampling.BICUBIC, (left, top, left + width, top + height), reducing_gap=2
    )


def bent(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Small grey pictures (n, C, H, W), all at once: `count` small changes of form each, then one resampling."""
    n, _, height, width = rows.shape
    matrices = np.tile(np.eye(3), (n, 1, 1))
    for _ in range(count):
        by, one = rng.uniform(-1, 1, n), np.tile(np.eye(3), (n, 1, 1))
        kind, angle = rng.integers(0, 6, n), np.deg2rad(15 * by)
        turned, scaled = kind == 0, kind == 1
        one[turned, 0, 0] = one[turned, 1, 1] = np.cos(angle[turned])
        one[turned, 0, 1], one[turned, 1, 0] = np.sin(angle[turned]), -np.sin(angle[turned])
        one[scaled, 0, 0] = one[scaled, 1, 1] = 1 + 0.12 * by[scaled]
        for which, cell, strength in (
            (2, (0, 1), 0.2), (3, (1, 0), 0.2), (4, (0, 2), 0.1 * height), (5, (1, 2), 0.1 * width),
        ):  # fmt: skip
            one[kind == which, *cell] = strength * by[kind == which]
        matrices = matrices @ one
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij")).reshape(2, -1)
    from_where = matrices[:, :2, :2] @ (grid - middle[:, None]) + matrices[:, :2, 2:] + middle[:, None]
    low = np.floor(from_where).astype(np.int64)
    part = (from_where - low).astype(np.float32)
    # one black dot all around, for what comes in from outside
    wide = np.pad(rows, ((0, 0), (0, 0), (1, 1), (1, 1))).reshape(n, rows.shape[1], -1)
    out = np.zeros((n, rows.shape[1], height * width), np.float32)
    for down in (0, 1):
        for across in (0, 1):
            y = np.clip(low[:, 0] + 1 + down, 0, height + 1)
            x = np.clip(low[:, 1] + 1 + across, 0, width + 1)
            weight = np.abs(1 - down - part[:, 0]) * np.abs(1 - across - part[:, 1])
            out += weight[:, None] * np.take_along_axis(wide, (y * (width + 2) + x)[:, None], 2)
    return np.round(out).astype(np.uint8).reshape(rows.shape)


def _affine(image: Image.Image, a: float, b: float, c: float, d: float, e: float, f: float) -> Image.Image:
    """Moved about its own middle; what comes in from outside has the colour of the corner."""
    x, y = image.width / 2, image.height / 2
    data = (a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y)
    corner = image.getpixel((0, 0))
    return image.transform(image.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR, fillcolor=corner)


def _rotate(image: Image.Image, by: float) -> Image.Image:
    angle = np.deg2rad(15 * by)
    return _affine(image, np.cos(angle), np.sin(angle), 0, -np.sin(angle), np.cos(angle), 0)


# each takes a picture and how strong the change is, from −1 to 1
CHANGES: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    _rotate,
    lambda image, by: _affine(image, 1 + 0.12 * by, 0, 0, 0, 1 + 0.12 * by, 0),
    lambda image, by: _affine(image, 1, 0.2 * by, 0, 0, 1, 0),
    lambda image, by: _affine(image, 1, 0, 0, 0.2 * by, 1, 0),
    lambda image, by: _affine(image, 1, 0, 0.1 * by * image.width, 0, 1, 0),
    lambda image, by: _affine(image, 1, 0, 0, 0, 1, 0.1 * by * image.height),
    lambda image, by: ImageEnhance.Brightness(image).enhance(1 + 0.4 * by),
    lambda image, by: ImageEnhance.Contrast(image).enhance(1 + 0.4 * by),
    lambda image, by: ImageEnhance.Color(image).enhance(1 + 0.6 * by),
    lambda image, by: ImageEnhance.Sharpness(image).enhance(1 + 0.8 * by),
    lambda image, by: ImageOps.autocontrast(image) if by > 0 else image,
)
