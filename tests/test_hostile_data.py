"""Hostile pictures, folders, captions, idx files, links and names: each refused in one sentence, none executed."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import hostile_data
from albums import photos, picture
from commands import SMALL
from conftest import call, refused
from hostile_data import CASES, ESCAPES
from pencil.config import UserError
from pencil.data.images import open_images as images
from pencil.data.images.open_images import read_idx

CODES = (*range(10), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))  # no line end
CONTROL = set(map(chr, CODES))


@pytest.fixture(scope="module", autouse=True)
def started(tmp_path_factory):
    """What every command loads, loaded."""
    call(*hostile_data.by_name(picture(tmp_path_factory.mktemp("started") / "a.png")))


@pytest.mark.parametrize("name", CASES)
def test_hostile_data_is_refused_in_a_sentence(name, tmp_path):
    words = CASES[name](tmp_path)
    done = refused(words, tmp_path)
    assert not CONTROL & set(done.stdout + done.stderr)
    assert not (tmp_path / "run").exists()


def test_there_are_enough_cases_of_enough_kinds():
    assert len(CASES) >= 30
    assert len({name.partition(":")[0] for name in CASES}) >= 6


def test_a_sentence_names_the_file_and_what_to_do(tmp_path):
    def refused(name):
        (folder := tmp_path / name.replace("/", " ")).mkdir()
        return call(*CASES[name](folder), code=2).stderr

    assert "picture.png: 9459×9459 pixels is more than 64,000,000" in (
        shown := refused("bomb: a png of 9459×9459 in 344 KB")
    )
    assert "PENCIL_MAX_MEGAPIXELS=90" in shown
    assert "cat/x.png is a link that leads out of" in refused("link: a picture out of its class folder")
    assert "cow is a link that leads out of" in refused("link: a class folder out of the folder")
    assert "metadata.jsonl, line 1: longer than 1,048,576 bytes" in refused("captions: a line of 10 MB")
    assert "taken for a decompression bomb; if it is none, decompress it with gunzip" in refused(
        "idx: a gz of 1 GB of zeros"
    )
    assert "only one class, \\x1b[31mcat\\x07;" in refused("name: a class folder with terminal escapes")


# ---- pictures within the limits

MEASURE = """
import resource, sys
from pencil.data.images.augment import ImageTransform
from pencil.data.images.decoding import open_image
from PIL import Image
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
assert Image.MAX_IMAGE_PIXELS == 89_478_485, "importing touched Pillow's own limit"
picture = Image.new("L", (8, 8)); picture.save(sys.argv[1] + ".png"); open_image(sys.argv[1] + ".png", ImageTransform((31, 37), 3))
before = peak()
try:
    shown = open_image(sys.argv[1], ImageTransform((31, 37), 3)).mean()
except ValueError as error:
    shown = error
assert Image.MAX_IMAGE_PIXELS == 89_478_485, "decoding touched Pillow's own limit"
print(peak() - before, shown)
"""


def measured(path):
    """The memory, in bytes, that opening a picture takes in a process of its own; and its mean, or why not."""
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    taken, _, shown = done.stdout.strip().partition(" ")
    return int(taken), shown


def test_a_small_png_takes_no_gigabyte(tmp_path):
    (tmp_path / "bomb.png").write_bytes(content := hostile_data.BOMBS["a png of 9459×9459 in 344 KB"]())
    assert len(content) < 400_000
    taken, shown = measured(tmp_path / "bomb.png")
    assert "taken for a decompression bomb" in shown
    assert taken < 30_000_000


def test_the_largest_transparent_png_is_decoded_within_300_mb(tmp_path):
    (tmp_path / "large.png").write_bytes(hostile_data._whole_png(7993))
    taken, shown = measured(tmp_path / "large.png")
    assert float(shown) == 255  # transparency is white
    assert taken < 300_000_000


@pytest.mark.long
@pytest.mark.parametrize(
    "ending, mode", [("png", "RGBA"), ("png", "RGB"), ("png", "I;16"), ("jpg", "RGB"), ("gif", "P"), ("tif", "RGB")]
)
def test_the_largest_picture_of_a_format_is_decoded_within_300_mb(ending, mode, tmp_path):
    colour = {"RGBA": (90, 90, 90, 255), "RGB": (90, 90, 90)}.get(mode, 90 * 257 if mode == "I;16" else 0)
    how = {"compression": "tiff_lzw"} if ending == "tif" else {"compress_level": 1} if ending == "png" else {}
    Image.new(mode, (7919, 7993), colour).save(tmp_path / f"large.{ending}", **how)
    taken, shown = measured(tmp_path / f"large.{ending}")
    assert float(shown) == pytest.approx(0 if ending == "gif" else 90, abs=1)
    assert taken < 300_000_000


# ---- folders and idx files


def test_links_within_a_folder_are_followed(tmp_path):
    photos(tmp_path)
    (tmp_path / "dog" / "again.png").symlink_to(tmp_path / "dog" / "0.png")
    data = images.load(str(tmp_path), "label")
    assert len(data.train) + len(data.test) == 13


def test_a_pipe_among_pictures_is_skipped_and_named(tmp_path):
    photos(tmp_path)
    hostile_data._piped(tmp_path / "cat" / "pipe.png")
    data = images.load(str(tmp_path), "label")
    assert [(Path(name).name, why) for name, why in data.skipped] == [
        ("pipe.png", "a pipe, a device or a socket, not a plain file")
    ]


def test_an_honest_idx_file_is_read_whatever_its_ratio(tmp_path):
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(hostile_data._zeros(10_000_000))
    assert read_idx(path, 3).shape == (1000, 100, 100)
    path.write_bytes(hostile_data._zeros(20_000_000))
    with pytest.raises(UserError, match="would have 20,000,000 decompressed"):
        read_idx(path, 3)


# ---- names


@pytest.mark.usefixtures("light")
def test_a_class_with_terminal_escapes_is_trained_and_shown_escaped(tmp_path):
    photos(tmp_path / "photos", {ESCAPES: 5, "dog": 5})
    (tmp_path / "photos" / "dog" / "\x1b[2J.png").write_bytes(b"words")
    run, one = tmp_path / "run\x1b[1m", picture(tmp_path / "one.png", seed=3)
    done = call("train", "vit", "--data", tmp_path / "photos", "--out", run, *SMALL, "--model.image_size", 16)
    assert "skipped" in done.stderr
    assert "\\x1b[2J.png" in done.stderr
    assert "run\\x1b[1m" in done.stderr
    used = call("sample", run, "--image", one)
    assert "\\x1b[31mcat\\x07 0." in used.stdout
    scored = call("eval", run)
    for shown in (done, used, scored):
        assert not CONTROL & set(shown.stdout + shown.stderr)
