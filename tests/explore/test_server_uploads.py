"""Uploaded pictures: only real ones, within limits, decoded in another process, and handed on as plain pixels."""

import asyncio
import base64
import io
import os
import struct
import subprocess
import sys
import zlib
from dataclasses import asdict

import numpy as np
import pytest
from PIL import Image
from served import PICTURE, Pretended, serving, state

from pencil.data.images.augment import ImageTransform
from pencil.data.images.decoding import FITTED, open_image
from pencil.explore import uploads
from pencil.explore.requests import Refused

SIZE = (PICTURE["height"], PICTURE["width"])
TRANSFORM = asdict(ImageTransform(SIZE, 3))
OTHER = asdict(ImageTransform((11, 13), 3))


@pytest.fixture(scope="module")
def served():
    session = Pretended()
    with serving(session) as found:
        found.session = session
        yield found


def url(content, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def encoded(image, kind, **how):
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def noise(height=11, width=13, channels=3, seed=0):
    return np.random.default_rng(seed).integers(256, size=(height, width, channels), dtype=np.uint8).squeeze()


def pixels(address):
    head, _, body = address.partition(",")
    assert f"{head}," == FITTED
    return Image.open(io.BytesIO(base64.b64decode(body)))


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def bomb(width, height):
    """A PNG of few bytes that declares many pixels, and has them."""
    row = zlib.compressobj(9)
    body = b"".join(row.compress(bytes(width // 8 + 1)) for _ in range(min(height, 20_000))) + row.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def photographs():
    """Files that a model's resize treats each in its own way: many pixels, greys, 16 bits, transparency, turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    large = np.repeat(np.repeat(noise(37, 31), 41, 0), 43, 1)
    return {
        "small.png": encoded(Image.fromarray(noise()), "PNG"),
        "small.webp": encoded(Image.fromarray(noise()), "WEBP", lossless=True),
        "small.gif": encoded(Image.fromarray(noise()), "GIF"),
        "small.bmp": encoded(Image.fromarray(noise()), "BMP"),
        "grey.png": encoded(Image.fromarray(noise(channels=1)), "PNG"),
        "clear.png": encoded(Image.fromarray(noise(channels=4)), "PNG"),
        "deep.png": encoded(Image.fromarray(np.full((3, 5), 257 * 131, np.uint16)), "PNG"),
        "turned.jpeg": encoded(Image.fromarray(noise(53, 89)), "JPEG", exif=exif),
        "large.png": encoded(Image.fromarray(large), "PNG", compress_level=1),
        "large.jpeg": encoded(Image.fromarray(large), "JPEG"),
    }


@pytest.mark.parametrize("how", [{}, {"resize": (19, 19)}, {"fit": "pad"}, {"channels": 1, "transparency": "drop"}])
def test_a_file_becomes_the_picture_that_sample_makes_of_it(tmp_path, how):
    transform = ImageTransform(**{"size": (11, 7), "channels": 3, **how})
    for name, content in photographs().items():
        (tmp_path / name).write_bytes(content)
        wanted = open_image(tmp_path / name, transform)
        for _ in range(2):  # what was fitted before stays as it is
            content = uploads.plain_png(content, asdict(transform), content.startswith(b"\x89PNG") and _ > 0)
            got = np.asarray(Image.open(io.BytesIO(content)))
            assert np.array_equal(got[None] if got.ndim == 2 else got.transpose(2, 0, 1), wanted), name


def test_a_picture_reaches_the_model_whatever_its_kind_is_called(served):
    for name, content in photographs().items():
        assert served.post("/api/answer", state(picture=url(content, "application/x-anything"))).status == 200
        sent = served.session.asked[-1]["input"]["picture"]
        assert sent == FITTED + base64.b64encode(uploads.plain_png(content, TRANSFORM)).decode(), name
        assert served.post("/api/answer", state(picture=sent)).status == 200
        assert served.session.asked[-1]["input"]["picture"] == sent


def test_nothing_but_pixels_is_kept():
    content = encoded(Image.new("L", (3, 5)), "PNG", icc_profile=b"private", dpi=(7, 7))
    assert set(Image.open(io.BytesIO(content)).info) >= {"icc_profile", "dpi"}
    assert Image.open(io.BytesIO(uploads.plain_png(content, TRANSFORM))).info == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7", b"II*\x00" + bytes(40), b"P6 1 1 255 abc",
     b"%!PS-Adobe", b"\x00\x00\x00\x0cjP  \r\n\x87\n", b"RIFF\x00\x00\x00\x00AVI "],
)  # fmt: skip
def test_what_is_no_picture_of_these_kinds_is_refused(served, content):
    for address in (url(content), url(content, "image/svg+xml")):
        reply = served.post("/api/answer", state(picture=address))
        assert reply.status == 415
        assert "PNG, JPEG, WebP, GIF or BMP" in reply.error


@pytest.mark.parametrize(
    "address",
    ["/etc/passwd", "file:///etc/passwd", "http://127.0.0.1/", "data:image/png,abc", "data:;base64,@@@@", ","],
)
def test_a_picture_is_never_an_address(served, address):
    assert served.post("/api/answer", state(picture=address)).status == 415


def test_a_damaged_picture_is_refused_and_the_next_one_is_read(served):
    good = encoded(Image.fromarray(noise(seed=1)), "PNG")
    for bad in (
        good[: len(good) // 2],
        good[:40],
        b"BM" + bytes(60),
        b"\xff\xd8\xff" + bytes(50),
        b"GIF89a" + b"\xff" * 20,
    ):
        reply = served.post("/api/answer", state(picture=url(bad)))
        assert reply.status == 415, bad
        assert "cannot be read" in reply.error
    assert served.post("/api/answer", state(picture=url(good))).status == 200


def test_a_picture_of_too_many_bytes_is_refused(served, monkeypatch):
    monkeypatch.setattr(uploads, "MOST_BYTES", 1000)
    reply = served.post("/api/answer", state(picture=url(encoded(Image.fromarray(noise(50, 50)), "PNG"))))
    assert reply.status == 413
    assert "MB" in reply.error


def test_a_bomb_is_refused_by_its_header(served):
    content = bomb(40_000, 40_000)
    assert len(content) < 1_000_000
    reply = served.post("/api/answer", state(picture=url(content)))
    assert reply.status == 415
    assert "decompression bomb" in reply.error


def test_the_server_itself_decodes_nothing(served, monkeypatch):
    monkeypatch.setattr(uploads, "plain_png", lambda *_: pytest.fail("decoded in the server"))
    picture = url(encoded(Image.fromarray(noise(seed=2)), "PNG"))
    assert served.post("/api/answer", state(picture=picture)).status == 200


def test_a_picture_is_decoded_once(served):
    content = url(encoded(Image.fromarray(noise(seed=3)), "PNG"))
    assert served.post("/api/answer", state(picture=content)).status == 200
    process = served.explorer.pictures._process
    served.explorer.pictures._process = None  # a second decoding would start another
    assert served.post("/api/record", state(picture=content)).status == 200
    assert served.explorer.pictures._process is None
    served.explorer.pictures._process = process


def test_a_picture_that_takes_too_long_ends_its_process_only():
    pictures = uploads.Pictures(seconds=0.2)
    content = encoded(Image.fromarray(noise(seed=4)), "PNG")

    async def wait():
        process = pictures._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import time; time.sleep(60)", stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with pytest.raises(Refused, match=r"in 0\.2 seconds"):
            await pictures.read(url(content), OTHER)
        assert process.returncode is not None
        pictures._seconds = 60
        found = await pictures.read(url(content), OTHER)
        await pictures.close()
        return found

    assert np.array_equal(np.asarray(pixels(asyncio.run(wait()))), noise(seed=4))


@pytest.mark.parametrize("reply", [b"", b"+", b"+\xff\xff\xff\xff", b"+\x00\x00\x00\x09png"])
def test_a_process_that_ends_or_answers_nonsense_is_replaced(reply):
    pictures = uploads.Pictures()
    content = encoded(Image.fromarray(noise(seed=5)), "PNG")

    async def ask():
        code = f"import sys, time; sys.stdin.buffer.read(4); sys.stdout.buffer.write({reply!r}); sys.stdout.flush()"
        code += "; time.sleep(60)" * (b"\xff" in reply)  # more bytes than a picture may have are not waited for
        pictures._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with pytest.raises(Refused, match="could not be decoded;"):
            await pictures.read(url(content), OTHER)
        assert pictures._process is None

    asyncio.run(ask())


@pytest.mark.skipif(not os.path.exists("/proc/self/limits"), reason="the system does not say what its limits are")
def test_the_process_has_limits(served):
    served.post("/api/answer", state(picture=url(encoded(Image.fromarray(noise(seed=6)), "PNG"))))
    number = served.explorer.pictures._process.pid
    with open(f"/proc/{number}/limits") as file:
        limits = {line[:25].strip(): line[26:].split()[0] for line in file}
    assert limits["Max file size"] == "0"
    assert limits["Max cpu time"] == str(uploads.CPU_SECONDS)
    assert limits["Max address space"] != "unlimited"


def test_a_model_without_pictures_refuses_one():
    session = Pretended()
    session.transform, session.takes = None, {"text": {}}
    session.about = lambda: {"id": "a", "name": "x", "input": {"text": {}}, "example": {}}
    with serving(session) as found:
        reply = found.post("/api/answer", state(picture=url(encoded(Image.new("L", (3, 5)), "PNG"))))
        assert (reply.status, reply.error) == (400, "this model takes no picture; it takes text")
