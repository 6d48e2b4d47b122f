"""How large an image may be: checked from its header, before anything is decoded."""

import math
import os
import struct
from typing import Any

from ...config import UserError
from ...files import LFS_BEGINNING, LFS_FETCH, LFS_POINTER

MAX_PIXELS = 64_000_000  # of one image; phones make 50 million
MAX_BYTES = 300_000_000  # to decode one
SETTING = "PENCIL_MAX_MEGAPIXELS"  # the environment variable that allows more
MAX_ADVISED = 1000  # megapixels: no error advises more
WEBP = 16  # bytes a pixel: two canvases, a copy, and Pillow's own; four bytes each


def limits() -> tuple[int, int]:
    """The most pixels of an image, and the most bytes to decode one; the setting changes both in proportion."""
    megapixels = os.environ.get(SETTING)
    if megapixels is None:
        return MAX_PIXELS, MAX_BYTES
    try:
        pixels = float(megapixels) * 1e6
    except ValueError:
        pixels = math.nan
    if not 0 < pixels < 1e15:
        raise UserError(f"{SETTING} must be a number of megapixels, such as 200, not {megapixels!r}")
    return int(pixels), int(MAX_BYTES * pixels / MAX_PIXELS)


def check_head(head: bytes) -> None:
    """Refuse, by its first 30 bytes, an image whose reader allocates the canvas when it opens, and what is none."""
    if head.startswith(LFS_BEGINNING):
        raise UserError(f"{LFS_POINTER}: {LFS_FETCH}")
    size = declared_size(head)
    if size is not None:
        _check(size, WEBP * size[0] * size[1] if head[:4] == b"RIFF" else 0)


def check_image(image: Any) -> None:
    """Refuse an image of which only the header was read, by its size and by what decoding it needs."""
    _check(image.size, bytes_to_decode(image))


def _check(size: tuple[int, int], need: int) -> None:
    pixels, (most_pixels, most_bytes) = size[0] * size[1], limits()
    more = math.ceil(max(pixels, need * MAX_PIXELS / MAX_BYTES) / 1e6)
    mend = f"; if it is none, set {SETTING}={more}" if more <= MAX_ADVISED else ""
    if pixels > most_pixels:
        raise UserError(
            f"{size[0]}×{size[1]} pixels is more than {most_pixels:,}: taken for a decompression bomb{mend}"
        )
    if need > most_bytes:
        raise UserError(
            f"{size[0]}×{size[1]} pixels in this format need {need / 1e6:,.0f} MB to be decoded, more than "
            f"{most_bytes / 1e6:,.0f}: taken for a decompression bomb{mend}"
        )


def bytes_to_decode(image: Any) -> int:
    """Memory to decode an image: its pixels as Pillow keeps them, and the buffers of the format's decoder."""
    pixels = image.width * image.height
    each = 1 if image.mode in ("1", "L", "P") else 2 if image.mode.startswith("I;16") else 4
    if image.format == "WEBP":
        return WEBP * pixels
    if image.format in ("JPEG", "MPO") and image.info.get("progressive"):
        # the coefficients of every component, two bytes each, at full size; the pixels at half the size or less
        sampled = [down * across for _, down, across, _ in image.layer]
        return 2 * pixels * sum(sampled) // max(sampled) + pixels
    if image.format == "TIFF":
        return each * pixels + 4 * _largest_part(image)
    return each * pixels


def _largest_part(image: Any) -> int:
    """Pixels of a TIFF's strip or tile, which its decoder keeps as a whole."""
    tags = image.tag_v2
    if 322 in tags and 323 in tags:
        return int(tags[322]) * int(tags[323])
    return image.width * min(image.height, int(tags.get(278, image.height)))


def declared_size(head: bytes) -> tuple[int, int] | None:
    """Width and height in the first 30 bytes of a GIF or a WebP, whose readers allocate the canvas when they open."""
    if head[:4] == b"GIF8" and len(head) >= 10:
        width, height = struct.unpack("<HH", head[6:10])
        return width, height
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP" or len(head) < 30:
        return None
    kind = head[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack("<HH", head[26:30])
    return width & 0x3FFF, height & 0x3FFF
