"""Limits of pictures: read from the header, one setting for them; very large pictures are reduced while converted."""

import io

import numpy as np
import pytest
from PIL import Image

from albums import picture
from conftest import call
from pencil.config import UserError
from pencil.data.images import decoding
from pencil.data.images.augment import ImageTransform, shrink
from pencil.data.images.decoding import decode, open_header, open_image, read_header
from pencil.data.images.limits import MAX_BYTES, MAX_PIXELS, bytes_to_decode, declared_size, limits


def smooth(size, mode, seed=5):
    """A picture without edges, so that two good ways to reduce it agree; in any mode."""
    width, height = size
    x, y = np.meshgrid(np.linspace(0, 3, width), np.linspace(0, 2, height))
    waves = [np.sin(x * (k + 1) + seed) * np.cos(y * (k + 2)) for k in range(4)]
    pixels = (127.5 + 120 * np.stack(waves, -1)).astype(np.uint8)
    if mode == "I;16":
        return Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    if mode == "I":
        return Image.fromarray(pixels[..., 0].astype(np.int32) * 257)
    if mode == "P":
        return Image.fromarray(pixels[..., 0]).convert("P")
    return Image.fromarray(pixels[..., {"L": 0, "LA": slice(2), "RGB": slice(3), "RGBA": slice(4)}[mode]])


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "I;16", "I"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_picture_is_the_same_reduced_as_whole(mode, channels, orientation, tmp_path, monkeypatch):
    path, transform = tmp_path / ("a.tif" if mode == "I" else "a.png"), ImageTransform((11, 17), channels)
    exif = Image.Exif()
    exif[0x0112] = orientation
    smooth((307, 211), mode).save(path, exif=exif)
    whole = shrink(decode(path, transform), transform.size)
    monkeypatch.setattr(decoding, "LARGE_PIXELS", 1000)
    monkeypatch.setattr("pencil.data.images.augment.STRIP", 307 * 17)
    reduced = decode(path, transform)
    assert reduced.width < 307 / 3
    small = shrink(reduced, transform.size)
    assert small.mode == whole.mode
    assert max(abs(a - b) for a, b in zip(small.size, whole.size, strict=True)) <= 1
    near = np.asarray(small.resize(whole.size), dtype=float) - np.asarray(whole, dtype=float)
    assert np.abs(near).mean() < 3


def test_a_very_long_picture_is_not_reduced_below_what_is_needed(tmp_path, monkeypatch):
    smooth((1009, 23), "RGB").save(tmp_path / "long.png")
    monkeypatch.setattr(decoding, "LARGE_PIXELS", 1000)
    assert decode(tmp_path / "long.png", ImageTransform((11, 17), 3)).size == (1009, 23)


def test_a_jpeg_is_decoded_at_a_reduced_size(tmp_path):
    smooth((1601, 1409), "RGB").save(tmp_path / "a.jpg")
    assert decode(tmp_path / "a.jpg", ImageTransform((31, 37), 3)).size == (201, 177)


def test_pillows_own_limit_is_not_touched(tmp_path):
    assert Image.MAX_IMAGE_PIXELS == 89_478_485
    open_image(picture(tmp_path / "a.png"), ImageTransform((5, 7), 3))
    assert Image.MAX_IMAGE_PIXELS == 89_478_485


def test_one_setting_for_pixels_and_memory(monkeypatch, tmp_path):
    assert limits() == (MAX_PIXELS, MAX_BYTES) == (64_000_000, 300_000_000)
    path = picture(tmp_path / "a.png", size=(101, 67))
    monkeypatch.setenv("PENCIL_MAX_MEGAPIXELS", "0.0067")
    assert "101×67 pixels is more than 6,700" in str(read_header(path).fault)
    monkeypatch.setenv("PENCIL_MAX_MEGAPIXELS", "0.0068")
    assert read_header(path).fault is None
    monkeypatch.setenv("PENCIL_MAX_MEGAPIXELS", "200")
    monkeypatch.setattr("pencil.cli.doctor.EXTRAS", {})
    assert limits() == (200_000_000, 937_500_000)
    assert "of at most 200 megapixels; PENCIL_MAX_MEGAPIXELS" in call("doctor").stdout
    for word in ("much", "-3", "0", "nan", "inf", ""):
        monkeypatch.setenv("PENCIL_MAX_MEGAPIXELS", word)
        with pytest.raises(UserError, match="PENCIL_MAX_MEGAPIXELS must be a number of megapixels"):
            read_header(path)


@pytest.mark.parametrize("ending, how, each", [
    ("png", {}, 4), ("jpg", {"quality": 90}, 4), ("jpg", {"progressive": True, "subsampling": 0}, 7),
    ("jpg", {"progressive": True, "subsampling": 2}, 4), ("webp", {}, 16), ("bmp", {}, 4), ("ppm", {}, 4),
])  # fmt: skip
def test_the_memory_of_a_format(ending, how, each, tmp_path):
    path = picture(tmp_path / f"a.{ending}", size=(61, 47), **how)
    with open_header(path) as image:
        assert bytes_to_decode(image) == each * 61 * 47


def test_a_picture_that_needs_more_memory_than_pixels_is_refused(tmp_path, monkeypatch):
    path = picture(tmp_path / "a.webp", size=(61, 47))
    monkeypatch.setenv("PENCIL_MAX_MEGAPIXELS", "0.003")
    with pytest.raises(UserError, match="61×47 pixels in this format need 0 MB to be decoded"):
        open_image(path, ImageTransform((5, 7), 3))
    monkeypatch.setenv("PENCIL_MAX_MEGAPIXELS", "0.01")
    assert open_image(path, ImageTransform((5, 7), 3)).shape == (3, 5, 7)


@pytest.mark.parametrize("ending, how", [
    ("gif", {}), ("webp", {"lossless": True}), ("webp", {"lossless": False}), ("webp", {"exif": b"Exif\0\0"}),
])  # fmt: skip
def test_a_canvas_is_known_before_its_reader_allocates_it(ending, how):
    out = io.BytesIO()
    Image.new("RGB", (61, 47), (1, 2, 3)).save(out, ending.upper(), **how)
    assert declared_size(out.getvalue()[:30]) == (61, 47)


@pytest.mark.parametrize("ending", ["png", "jpg", "gif", "bmp", "webp", "tif", "ppm"])
def test_every_format_is_read_as_pillow_reads_it(ending, tmp_path):
    path = picture(tmp_path / f"a.{ending}", size=(17, 11))
    with Image.open(path) as theirs:
        expected = np.asarray(theirs.convert("RGB")).transpose(2, 0, 1)
    assert (open_image(path, ImageTransform((11, 17), 3)) == expected).all()
