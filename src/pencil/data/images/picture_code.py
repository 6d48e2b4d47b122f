"""Python for a README that brings a picture to what a run reads, with Pillow and NumPy alone."""

from .augment import BARS, ImageTransform


def picture_code(transform: ImageTransform) -> str:
    """A function `pixels(path)` that gives the array (1, C, H, W) that the run would read.

    Pencil reduces a picture above 12 million pixels while it decodes it, so there the two differ a little.
    """
    (height, width), mode, lines = transform.size, transform.mode, ["image = Image.open(path)"]
    if transform.resize is None:
        lines.append(f'image.draft("{mode}", {(2 * width, 2 * height)})  # a JPEG is decoded no larger than needed')
    lines += [
        "image = ImageOps.exif_transpose(image)",
        'if image.mode.startswith("I;16"):  # greys of 16 bits',
        '    image = Image.fromarray(np.round(np.asarray(image) / 257).astype("uint8"))',
    ]
    if transform.transparency == "white":
        lines += [
            "if image.has_transparency_data:",
            '    image = image.convert("RGBA")',
            '    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)',
        ]
    lines += [f'image = image.convert("{mode}")', *_fit(transform)]
    lines += [f'values = np.asarray(image, "float32").reshape{(height, width, transform.channels)}', _scaled(transform)]
    lines.append("return values.transpose(2, 0, 1)[None]")
    imports = "import numpy as np\nfrom PIL import Image, ImageOps\n\n\n"
    return f"{imports}def pixels(path):\n" + "".join(f"    {line}\n" for line in lines)


def _fit(transform: ImageTransform) -> list[str]:
    """The lines that bring the image to its size, as `augment.py` does."""
    height, width = transform.size
    if transform.resize is not None:
        return [
            *_covering(transform.resize, transform.fit == "squash"),
            f"image = image.resize((wide, high), Image.Resampling.{transform.resample.upper()})",
            f"top, left = round((high - {height}) / 2), round((wide - {width}) / 2)",
            f"image = image.crop((left, top, left + {width}, top + {height}))",
        ]
    if transform.fit == "squash":
        return [f"image = image.resize({(width, height)}, Image.Resampling.BICUBIC)"]
    if transform.fit == "crop":
        return [f"image = ImageOps.fit(image, {(width, height)}, Image.Resampling.BICUBIC)"]
    grey = (BARS,) * transform.channels if transform.channels > 1 else BARS
    return [
        f"scale = min({height} / image.height, {width} / image.width)",
        "inner = max(1, round(image.width * scale)), max(1, round(image.height * scale))",
        f'bars = Image.new("{transform.mode}", {(width, height)}, {grey})',
        "image = image.resize(inner, Image.Resampling.BICUBIC)",
        f"bars.paste(image, (({width} - inner[0]) // 2, ({height} - inner[1]) // 2))",
        "image = bars",
    ]


def _covering(size: tuple[int, int], squash: bool) -> list[str]:
    """The width and height that the image has before its centre is cut out."""
    high, wide = size
    if squash:
        return [f"wide, high = {(wide, high)}"]
    if high == wide:
        return [
            f"longer = int({high} * max(image.size) / min(image.size))",
            f"wide, high = (longer, {high}) if image.height <= image.width else ({high}, longer)",
        ]
    return [
        f"ratio = min(image.height / {high}, image.width / {wide})",
        "wide, high = round(image.width / ratio), round(image.height / ratio)",
    ]


def _scaled(transform: ImageTransform) -> str:
    if transform.mean is None or transform.std is None:
        return "values = values / 127.5 - 1"
    mean, std = (f'np.array({list(part)}, "float32")' for part in (transform.mean, transform.std))
    return f"values = (values / 255 - {mean}) / {std}"
