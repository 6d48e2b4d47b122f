"""Hostile data: pictures, folders, captions, idx files, links and names that must be refused in a sentence.

Each case makes its files in a folder and returns the words of the command that meets them. What would be executed, if
anything were, makes a file called `executed` there.
"""

import gzip
import io
import json
import os
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from albums import idx, picture, write_rows

VIT = Path(__file__).parents[1] / "runs-0.6" / "vit"
ESCAPES = "\x1b[31mcat\x07"
SMALL = ["--model.width", "24", "--model.depth", "1", "--model.heads", "3", "--train.steps", "1", "--train.batch", "3"]

CASES: dict[str, Callable[[Path], list[str]]] = {}


def case(name: str):
    """A case by its name, `kind: what`."""

    def keep(make: Callable[[Path], list[str]]) -> Callable[[Path], list[str]]:
        assert name not in CASES
        CASES[name] = make
        return make

    return keep


def by_name(path: Path | str) -> list[str]:
    """A picture given by its name."""
    return ["sample", str(VIT), "--image", str(path)]


def train(folder: Path, family: str = "vit", *words: str) -> list[str]:
    return ["train", family, "--data", str(folder), "--out", str(folder.parent / "run"), *SMALL, *words]


class Executed:
    """Unpickled, it makes a file."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder / "executed"),))


def chunk(kind: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *more: bytes, body: bytes = b"") -> bytes:
    """A PNG of these sizes by its header, 8 bits of RGBA, with chunks before its pixels."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))
    pixels = chunk(b"IDAT", body or zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + pixels + chunk(b"IEND", b"")


def resized_jpeg(side: int, **how) -> bytes:
    """A small JPEG whose header claims another size."""
    out = io.BytesIO()
    Image.new("RGB", (16, 16), (9, 8, 7)).save(out, "JPEG", **how)
    content = bytearray(out.getvalue())
    at = content.index(b"\xff\xc2" if how.get("progressive") else b"\xff\xc0")
    content[at + 5 : at + 9] = struct.pack(">HH", side, side)
    return bytes(content)


def webp(width: int, height: int) -> bytes:
    """An animated WebP with this canvas."""
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + sizes
    return b"RIFF" + struct.pack("<I", len(body)) + body


def tiff(width: int, height: int) -> bytes:
    """A TIFF of these sizes in one strip."""
    tags = [(256, width), (257, height), (258, 8), (259, 5), (262, 1), (273, 8), (277, 1), (278, height), (279, 100)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + entries + bytes(4)


def gif(width: int, height: int, frame: tuple[int, int]) -> bytes:
    """A GIF with this screen, and a frame of another size."""
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return head + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02\x02\x4c\x01\0;"


# ---- pictures that unpack to too much

BOMBS = {
    "a png of 9459×9459 in 344 KB": lambda: _whole_png(9459),
    "a png of 2³¹ × 2³¹": lambda: png(2**31 - 1, 2**31 - 1),
    "an animated png": lambda: png(40_000, 40_000, chunk(b"acTL", struct.pack(">II", 1000, 0))),
    "a gif with a large screen": lambda: gif(65_535, 65_535, (1, 1)),
    "a gif with a large frame": lambda: gif(1, 1, (65_535, 65_535)),
    "an animated webp": lambda: webp(16_383, 16_383),
    "a webp as large as a png may be": lambda: webp(7919, 7919),
    "a tiff of 200,000 × 200,000": lambda: tiff(200_000, 200_000),
    "a tiff in one strip": lambda: tiff(8000, 8000),
    "a bmp of 2³⁰ × 2³⁰": lambda: b"BM" + struct.pack("<IHHI", 99, 0, 0, 54) + struct.pack(
        "<IiiHHIIiiII", 40, 2**30, 2**30, 1, 24, 0, 0, 0, 0, 0, 0
    ),
    "a ppm of 10⁹ × 10⁹": lambda: b"P6\n999999999 999999999\n255\n" + bytes(300),
    "a jpeg of 65,500 × 65,500": lambda: resized_jpeg(65_500),
    "a progressive jpeg": lambda: resized_jpeg(7919, progressive=True, subsampling=0),
    "a png with a long text": lambda: png(13, 11, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(5_000_000)))),
}  # fmt: skip


@cache
def _whole_png(side: int) -> bytes:
    """Transparent pixels, all of them there: 64 rows, packed on their own and repeated, and the rest."""

    def rows(count: int) -> bytes:
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        return packer.compress(bytes((4 * side + 1) * count)) + packer.flush(zlib.Z_FULL_FLUSH)

    check = (4 * side + 1) * side % 65521 << 16 | 1  # Adler's, of so many zeros
    packed = rows(64) * (side // 64) + rows(side % 64)
    return png(side, side, body=b"\x78\xda" + packed + b"\x03\0" + struct.pack(">I", check))


def _bomb(name: str) -> None:
    @case(f"bomb: {name}")
    def make(folder: Path) -> list[str]:
        (folder / "picture.png").write_bytes(BOMBS[name]())
        return by_name(folder / "picture.png")


for _name in BOMBS:
    _bomb(_name)


@case("bomb: every picture of a folder")
def _bombs(folder: Path) -> list[str]:
    for name, content in (("cat", png(20_000, 20_000)), ("dog", resized_jpeg(65_500)), ("cow", webp(16_383, 16_383))):
        (folder / "photos" / name).mkdir(parents=True)
        (folder / "photos" / name / "a.png").write_bytes(content)
    return train(folder / "photos")


# ---- pictures that are broken, or none


def _broken(name: str, content: Callable[[Path], bytes], ending: str = "png") -> None:
    @case(f"broken: {name}")
    def make(folder: Path) -> list[str]:
        path = folder / f"picture.{ending}"
        path.write_bytes(content(folder))
        return by_name(path)


def _cut(ending: str) -> Callable[[Path], bytes]:
    def make(folder: Path) -> bytes:
        whole = picture(folder / f"whole.{ending}", size=(61, 47)).read_bytes()
        return whole[: len(whole) // 2]

    return make


def _zipped(folder: Path) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a.png", picture(folder / "a.png").read_bytes())
    return out.getvalue()


_broken("a png cut in half", _cut("png"))
_broken("a jpeg cut in half", _cut("jpg"), "jpg")
_broken("a webp cut in half", _cut("webp"), "webp")
_broken("an empty file", lambda folder: b"")
_broken("random bytes", lambda folder: np.random.default_rng(7).bytes(4096))
_broken("a pickle called .png", lambda folder: pickle.dumps(Executed(folder)))
_broken("a page called .jpg", lambda folder: b"<html><script>alert(1)</script></html>", "jpg")
_broken("a zip called .webp", _zipped, "webp")
_broken(
    "a PostScript program called .png",
    lambda folder: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%mkdir executed) (w) file\n",
)
_broken("a png without pixels", lambda folder: png(13, 11, body=zlib.compress(b"")))

# ---- idx files


def _idx(name: str, change: Callable[[Path], None]) -> None:
    @case(f"idx: {name}")
    def make(folder: Path) -> list[str]:
        idx(folder / "mnist")
        change(folder / "mnist" / "train-images-idx3-ubyte")
        return train(folder / "mnist")


def _zeros(count: int) -> bytes:
    """A gzip file of so many zeros after an idx header that announces them; a thousandth of the size."""
    head = gzip.compress(struct.pack(">HBBIII", 0, 8, 3, count // 10_000, 100, 100))
    return head + gzip.compress(bytes(10_000_000)) * (count // 10_000_000)


def _packed(path: Path, content: bytes) -> None:
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(content)


def _linked(path: Path, target: str | Path) -> None:
    path.unlink()
    path.symlink_to(target)


def _piped(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


_idx("4 G × 4 G × 4 G pictures", lambda path: path.write_bytes(b"\0\0\x08\x03" + b"\xff" * 12 + bytes(99)) and None)
_idx("a gz of 1 GB of zeros", lambda path: _packed(path, _zeros(1_000_000_000)))
_idx("a gz of more than its header", lambda path: _packed(path, gzip.compress(b"\0\0\x08\x03" + bytes(10_000_000))))
_idx("a gz cut short", lambda path: _packed(path, gzip.compress(path.read_bytes())[:99]))
_idx("a gz that is none", lambda path: _packed(path, b"words"))
_idx("a pipe", _piped)
_idx("a link to a device", lambda path: _linked(path, "/dev/zero"))

# ---- captions


def _captions(name: str, rows: bytes) -> None:
    @case(f"captions: {name}")
    def make(folder: Path) -> list[str]:
        for i in range(3):
            picture(folder / "album" / f"{i}.png", seed=i)
        (folder / "album" / "metadata.jsonl").write_bytes(rows)
        return train(folder / "album", "captioner")


def _row(file_name: str, text: object = "a dot") -> bytes:
    return json.dumps({"file_name": file_name, "text": text}).encode() + b"\n"


_captions("a line of 10 MB", _row("0.png", "a" * 10_000_000))
_captions("lists in lists", b'{"file_name": "0.png", "text": ' + b"[" * 500_000 + b"\n")
_captions("a number of a million digits", b'{"file_name": "0.png", "text": ' + b"9" * 1_000_000 + b"}\n")
_captions("a path out of the folder", _row("../../../../../../etc/passwd"))
_captions("a path from the root", _row("/etc/passwd"))
_captions("a zero byte in a name", _row("0.png\0.txt"))
_captions("bytes that are no text", b'{"file_name": "0.png", "text": "\xff\xfe"}\n')
_captions("half a character", b'{"file_name": "0.png", "text": "\\ud800"}\n')
_captions("a file of nothing but line ends", b"\n" * 100_000)


@case("captions: a file of 2 GB")
def _sparse(folder: Path) -> list[str]:
    picture(folder / "album" / "0.png")
    with (folder / "album" / "metadata.jsonl").open("wb") as file:
        file.truncate(2_000_000_000)
    return train(folder / "album", "captioner")


@case("pairs: a line of 10 MB")
def _long_pair(folder: Path) -> list[str]:
    (folder / "pairs.tsv").write_text("one\ttwo\n" + "a" * 10_000_000 + "\tb\n")
    return train(folder / "pairs.tsv", "seq2seq")


@case("pairs: lists in lists")
def _deep_pair(folder: Path) -> list[str]:
    (folder / "pairs.jsonl").write_text('{"source": "a", "target": ' + "[" * 500_000 + "\n")
    return train(folder / "pairs.jsonl", "seq2seq")


# ---- links, pipes and devices


def _link(name: str, make: Callable[[Path, Path], None], family: str = "vit") -> None:
    @case(f"link: {name}")
    def prepared(folder: Path) -> list[str]:
        secret = picture(folder / "elsewhere" / "secret.png", seed=9)
        for kind in ("cat", "dog"):
            for i in range(3):
                picture(folder / "photos" / kind / f"{i}.png", seed=i)
        make(folder / "photos", secret)
        return train(folder / "photos", family)


def _split_elsewhere(photos: Path, secret: Path) -> None:
    (photos / "test").mkdir()
    (photos / "train").symlink_to(secret.parent)


def _captioned_elsewhere(photos: Path, secret: Path) -> None:
    write_rows(secret.parent, [{"file_name": "cat/0.png", "text": "a"}])
    (photos / "metadata.jsonl").symlink_to(secret.parent / "metadata.jsonl")


_link("a picture out of its class folder", lambda photos, secret: (photos / "cat" / "x.png").symlink_to(secret))
_link("a class folder out of the folder", lambda photos, secret: (photos / "cow").symlink_to(secret.parent))
_link("train/ out of the folder", _split_elsewhere)
_link("captions out of the folder", _captioned_elsewhere, "captioner")
_link("a picture that is a device", lambda photos, secret: (photos / "cat" / "x.png").symlink_to("/dev/zero"))


@case("pipe: a picture by name")
def _pipe(folder: Path) -> list[str]:
    _piped(folder / "picture.png")
    return by_name(folder / "picture.png")


@case("pipe: every picture of a folder")
def _pipes(folder: Path) -> list[str]:
    for kind in ("cat", "dog"):
        _piped(folder / "photos" / kind / "a.png")
    return train(folder / "photos")


@case("pipe: a device by name")
def _device(folder: Path) -> list[str]:
    return by_name("/dev/zero")


# ---- names


@case("name: a class folder with terminal escapes")
def _class_name(folder: Path) -> list[str]:
    picture(folder / "photos" / ESCAPES / "a.png")
    return train(folder / "photos")


@case("name: pictures with terminal escapes and line ends")
def _picture_names(folder: Path) -> list[str]:
    for kind in ("cat", "dog"):
        (folder / "photos" / kind).mkdir(parents=True)
        (folder / "photos" / kind / "\x1b]0;owned\x07\npencil: all is well\r.png").write_bytes(b"words")
    return train(folder / "photos")


@case("name: captions of a picture with a reversed name")
def _reversed(folder: Path) -> list[str]:
    picture(folder / "album" / "0.png")
    write_rows(folder / "album", [{"file_name": "\u202egnp.exe\x9b31m", "text": "a"}])
    return train(folder / "album", "captioner")


@case("name: a run with terminal escapes")
def _run_name(folder: Path) -> list[str]:
    return ["sample", str(folder / "\x1b[2J\x9b2J"), "--image", "a.png"]


@case("name: bytes that are no text")
def _bytes_name(folder: Path) -> list[str]:
    (folder / "photos").mkdir()
    for kind in (b"cat\xff", b"dog\xfe"):
        os.mkdir(os.fsencode(folder / "photos") + b"/" + kind)
        picture(Path(os.fsdecode(os.fsencode(folder / "photos") + b"/" + kind)) / "a.png")
    return train(folder / "photos")


# ---- autoencoders


def _vae(name: str, config: dict[str, object], weights: Callable[[Path], None]) -> None:
    @case(f"autoencoder: {name}")
    def make(folder: Path) -> list[str]:
        (folder / "vae").mkdir()
        (folder / "vae" / "config.json").write_text(json.dumps({"_class_name": "AutoencoderKL", **config}))
        weights(folder / "vae")
        return ["train", "dit", "--data", "digits", "--out", str(folder / "run"), "--vae", str(folder / "vae")]


def _pickled(vae: Path) -> None:
    (vae / "diffusion_pytorch_model.bin").write_bytes(pickle.dumps(Executed(vae.parent)))


def _some_weights(vae: Path) -> None:
    (vae / "diffusion_pytorch_model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")


_vae("weights as a pickle", {}, _pickled)
_vae("blocks of 10⁹ channels", {"block_out_channels": [10**9]}, _some_weights)
_vae("a million layers", {"layers_per_block": 1_000_000}, _some_weights)
_vae("a hundred thousand blocks", {"down_block_types": ["DownEncoderBlock2D"] * 100_000}, _some_weights)
