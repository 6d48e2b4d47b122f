import io
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from albums import album, cut_short, idx, photos, picture, write_rows
from pencil.config import UserError
from pencil.data.images import datasets
from pencil.data.images import open_images as images
from pencil.data.images.augment import ImageTransform
from pencil.data.images.datasets import ArrayExamples, FileExamples
from pencil.data.images.decoding import open_image
from pencil.data.images.open_images import read_idx

GREY, COLOUR = ImageTransform((16, 24), 1), ImageTransform((16, 24), 3)


def rng(key=1):
    return np.random.Generator(np.random.Philox(key=key))


def names(part):
    return [Path(path).name for path in part.sources]


def flat(path, value, size=(24, 16), **how):
    """An image of one colour, so that it can be recognized after decoding."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB" if isinstance(value, tuple) else "L", size, value).save(path, **how)
    return path


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_their_arrays(tmp_path, packed):
    arrays = idx(tmp_path / "leaf", packed=packed)
    data = images.load(str(tmp_path / "leaf"), "label")
    for part, split in ((data.train, "train"), (data.test, "t10k")):
        assert np.array_equal(part.pictures[:, 0], arrays[split, "images-idx3"])
        assert part.targets == arrays[split, "labels-idx1"].tolist()
    assert data.classes == ("0", "1", "2")
    assert data.model_defaults == dict(image_size=(6, 9), channels=1, patch=(3, 3))
    assert data.name == "leaf"
    assert not data.select_best
    rows, targets = data.test.take([2, 5], ImageTransform((6, 9), 1))
    assert np.array_equal(rows[:, 0], arrays["t10k", "images-idx3"][[2, 5]])
    assert targets == [2, 2]
    other = idx(tmp_path / "other", packed=True, prefix="kmnist-", side=(28, 28))
    assert np.array_equal(
        read_idx(tmp_path / "other" / "kmnist-t10k-images-idx3-ubyte.gz", 3), other["t10k", "images-idx3"]
    )
    assert images.load(str(tmp_path / "other"), "label").name == "kmnist"
    assert images.load(str(tmp_path / "other"), "label").model_defaults["patch"] == (4, 4)


def test_packed_and_plain_idx_files_are_the_same_data(tmp_path):
    idx(tmp_path / "a"), idx(tmp_path / "b", packed=True)
    assert images.load(str(tmp_path / "a"), "label").hash == images.load(str(tmp_path / "b"), "label").hash
    idx(tmp_path / "b", packed=True, classes=2)
    assert images.load(str(tmp_path / "a"), "label").hash != images.load(str(tmp_path / "b"), "label").hash


def test_images_in_memory_are_resized_and_augmented():
    pictures = np.random.default_rng(0).integers(0, 256, (7, 1, 6, 9), dtype=np.uint8)
    held = ArrayExamples(pictures, list("abcdefg"))
    rows, targets = held.take([6, 0], ImageTransform((6, 9), 1))
    assert np.array_equal(rows, pictures[[6, 0]])
    assert targets == ["g", "a"]
    rows, _ = held.take([3], ImageTransform((11, 13), 3))
    assert rows.shape == (1, 3, 11, 13)
    assert (rows[:, 0] == rows[:, 1]).all()
    transform = ImageTransform((6, 9), 1, augment_ops=2)
    assert np.array_equal(held.take([3], transform)[0], pictures[[3]])  # without a generator, no augmentation
    one, two = (held.take(range(7), transform, rng(k))[0] for k in (1, 2))
    assert np.array_equal(one, held.take(range(7), transform, rng(1))[0])
    assert not np.array_equal(one, two)
    flipped, _ = held.take(range(7), ImageTransform((6, 9), 1, flip=True), rng(4))
    mirrored = [np.array_equal(a, b[..., ::-1]) for a, b in zip(flipped, pictures, strict=True)]
    assert {True, False} == set(mirrored)
    assert all(m or np.array_equal(a, b) for m, a, b in zip(mirrored, flipped, pictures, strict=True))


def test_a_folder_a_class(tmp_path):
    folder = photos(tmp_path / "photos", {"dog": 20, "cat": 40, "emu": 2})
    (folder / ".hidden").mkdir()
    picture(folder / ".hidden" / "a.png")
    (folder / "cat" / "notes.txt").write_text("words")
    picture(folder / "cat" / "deeper" / "z.JPG", seed=500)
    data = images.load(str(folder), "label")
    assert data.classes == ("cat", "dog", "emu")
    assert data.name == "photos"
    assert len(data.train) + len(data.test) == 63
    for part in (data.train, data.test):
        for source, target in zip(part.sources, part.targets, strict=True):
            assert source.relative_to(folder).parts[0] == data.classes[target]
    assert np.bincount(data.test.targets).tolist() == [4, 2, 1]  # a tenth of each, at least one
    assert not set(data.train.sources) & set(data.test.sources)
    again = images.load(str(folder), "label")
    assert again.test.sources == data.test.sources
    assert again.hash == data.hash
    assert data.model_defaults["channels"] == 3
    assert data.select_best
    assert images.load(str(photos(tmp_path / "grey", mode="L")), "label").model_defaults["channels"] == 1


@pytest.mark.parametrize("given", ["test", "val", "valid", "validation"])
def test_a_split_that_is_there_is_kept(tmp_path, given):
    photos(tmp_path / "photos" / "train", {"cat": 5, "dog": 3})
    photos(tmp_path / "photos" / given, {"cat": 2, "dog": 2})
    data = images.load(str(tmp_path / "photos"), "label")
    assert (len(data.train), len(data.test)) == (8, 4)
    assert all("train" in path.parts for path in data.train.sources)
    assert all(given in path.parts for path in data.test.sources)
    assert data.classes == ("cat", "dog")


def test_an_album(tmp_path):
    captions = [f"thing {i}" for i in range(20)]
    for key in ("text", "caption"):
        data = images.load(str(album(tmp_path / key, captions, key)), "caption")
        assert sorted(data.train.targets + data.test.targets) == sorted(captions)
        for part in (data.train, data.test):
            assert [f"thing {int(name[1:3])}" for name in names(part)] == part.targets
        assert len(data.test) == 2
        assert data.classes == ()
        assert "flip" not in data.augmentation
    labels = ["x", 7, "y"] * 5
    data = images.load(str(album(tmp_path / "labelled", [f"c{i}" for i in range(15)], label=labels)), "label")
    assert data.classes == ("7", "x", "y")
    for part in (data.train, data.test):
        assert [data.classes[t] for t in part.targets] == [str(labels[int(n[1:3])]) for n in names(part)]
    deep = tmp_path / "deep"
    album(deep / "train", ["one"] * 3), album(deep / "test", ["two"] * 2)
    data = images.load(str(deep), "caption")
    assert (data.train.targets, data.test.targets) == (["one"] * 3, ["two"] * 2)


def test_the_hash_is_of_every_picture_label_and_caption(tmp_path):
    folder = photos(tmp_path / "photos")
    first = images.load(str(folder), "label").hash
    kept = (folder / "cat" / "0.png").read_bytes()
    picture(folder / "cat" / "0.png", seed=991)
    assert images.load(str(folder), "label").hash != first
    (folder / "cat" / "0.png").write_bytes(kept)
    assert images.load(str(folder), "label").hash == first
    shutil.move(folder / "cat" / "6.png", folder / "dog" / "6.png")
    assert images.load(str(folder), "label").hash != first
    folder = album(tmp_path / "album", ["a dot"] * 5)
    first = images.load(str(folder), "caption").hash
    write_rows(folder, [{"file_name": f"p{i:02}.png", "text": "a dot" if i else "a bar"} for i in range(5)])
    assert images.load(str(folder), "caption").hash != first


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
def test_a_picture_of_any_kind_is_read(tmp_path, kind):
    path = flat(tmp_path / f"a.{kind.lower()}", (200, 90, 40), format=kind)
    shown = open_image(path, COLOUR)
    assert shown.shape == (3, 16, 24)
    assert shown.dtype == np.uint8
    np.testing.assert_allclose(shown.mean((1, 2)), (200, 90, 40), atol=4)
    assert open_image(path, GREY).mean() == pytest.approx(0.299 * 200 + 0.587 * 90 + 0.114 * 40, abs=4)


def test_grey_becomes_colour(tmp_path):
    shown = open_image(flat(tmp_path / "a.png", 77), COLOUR)
    assert (shown == 77).all()


def test_a_palette_is_looked_up(tmp_path):
    image = Image.new("P", (24, 16), 3)
    image.putpalette([0, 0, 0, 9, 9, 9, 1, 2, 3, 250, 120, 10])
    image.save(tmp_path / "a.png")
    assert open_image(tmp_path / "a.png", COLOUR)[:, 4, 5].tolist() == [250, 120, 10]
    image.save(tmp_path / "b.png", transparency=3)
    assert open_image(tmp_path / "b.png", COLOUR)[:, 4, 5].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode, clear, half", [
    ("RGBA", (255, 0, 0, 0), (255, 0, 0, 128)), ("LA", (0, 0), (0, 127)),
])  # fmt: skip
def test_transparent_pixels_become_white(tmp_path, mode, clear, half):
    image = Image.new(mode, (24, 16), clear)
    image.paste(half, (12, 0, 24, 16))
    image.save(tmp_path / "a.png")
    shown = open_image(tmp_path / "a.png", COLOUR)
    assert (shown[:, :, :10] == 255).all()
    np.testing.assert_allclose(shown[:, 5, 20], (255, 127, 127) if mode == "RGBA" else (128,) * 3, atol=1)


def test_sixteen_bits_are_scaled_to_eight(tmp_path):
    ramp = np.linspace(0, 65535, 24).astype(np.uint16)
    Image.fromarray(np.tile(ramp, (16, 1))).save(tmp_path / "a.png")
    shown = open_image(tmp_path / "a.png", GREY)
    np.testing.assert_allclose(shown[0, 3], ramp / 257, atol=0.51)
    Image.fromarray(np.tile(ramp, (16, 1))).save(tmp_path / "a.tif")
    assert np.array_equal(open_image(tmp_path / "a.tif", GREY), shown)
    assert open_image(tmp_path / "a.png", COLOUR).shape == (3, 16, 24)


@pytest.mark.parametrize(
    "orientation, undo",
    [(3, Image.Transpose.ROTATE_180), (6, Image.Transpose.ROTATE_90), (8, Image.Transpose.ROTATE_270)],
)
def test_an_image_is_rotated_by_its_exif_orientation(tmp_path, orientation, undo):
    image = Image.new("L", (24, 16), 0)
    image.paste(255, (0, 0, 6, 4))  # bright at the top left
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.transpose(undo).save(tmp_path / "a.jpg", exif=exif, quality=95)
    shown = open_image(tmp_path / "a.jpg", GREY)[0]
    assert shown[:3, :5].min() > 200
    assert shown[6:, 9:].max() < 60


def test_a_large_jpeg_is_decoded_at_a_smaller_size(tmp_path):
    x = np.mgrid[:480, :720][1]
    Image.fromarray(((x // 3) % 256).astype(np.uint8)).save(tmp_path / "a.jpg", quality=95)
    shown = open_image(tmp_path / "a.jpg", GREY)
    assert shown.shape == (1, 16, 24)
    np.testing.assert_allclose(shown[0, 8], (np.arange(24) * 30 + 15) // 3 % 256, atol=8)


@pytest.mark.parametrize("make, message", [
    (lambda p: None, "there is no picture"),
    (lambda p: p.mkdir(), "is a folder, not a picture"),
    (lambda p: p.touch(), r"is empty \(0 bytes\)"),
    (lambda p: p.write_text("words"), "not a picture Pillow can read"),
    (lambda p: p.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 40), "cannot be read as a picture"),
    (lambda p: shutil.move(cut_short(p.with_suffix(".jpg")), p), "truncated"),
])  # fmt: skip
def test_an_image_that_cannot_be_read_is_refused_in_one_line(tmp_path, make, message):
    make(tmp_path / "a.png")
    with pytest.raises(UserError, match=message) as error:
        open_image(tmp_path / "a.png", GREY)
    assert "a.png" in str(error.value)
    assert "\n" not in str(error.value)


def spoiled(tmp_path):
    """Twelve flat pictures, as bright as ten times their number; four of them each broken differently."""
    folder = tmp_path / "photos"
    for i in range(12):
        flat(folder / ("even" if i % 2 == 0 else "odd") / f"{i:02}.png", 10 * i)
    (folder / "odd" / "03.png").write_text("words")
    (folder / "even" / "04.png").write_bytes(b"")
    shutil.move(cut_short(tmp_path / "cut.jpg"), folder / "odd" / "07.png")
    Image.new("L", (101, 67)).save(folder / "even" / "08.png")
    return folder


def test_broken_pictures_are_left_out_and_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_MAX_MEGAPIXELS", str(64 * 48 / 1e6))
    data = images.load(str(spoiled(tmp_path)), "label")
    faults = {Path(name).name: why for name, why in data.skipped}
    assert set(faults) == {"03.png", "04.png", "08.png"}  # a truncated file is found when decoded
    assert faults["04.png"] == "empty (0 bytes)"
    assert "bomb" in faults["08.png"]
    everything = FileExamples(
        data.train.sources + data.test.sources, data.train.targets + data.test.targets, data.skipped
    )
    rows, targets = everything.take(range(len(everything)), GREY)
    assert len(rows) == len(targets) == 8
    values = sorted(int(row.mean()) for row in rows)
    assert values == [0, 10, 20, 50, 60, 90, 100, 110]
    assert [int(row.mean()) // 10 % 2 for row in rows] == targets
    assert [Path(name).name for name, _ in data.skipped][3:] == ["07.png"]
    everything.take(range(len(everything)), GREY)
    assert len(data.skipped) == 4  # each is reported once


def test_a_bomb_is_refused_before_it_is_decompressed(tmp_path, monkeypatch):
    monkeypatch.setenv("PENCIL_MAX_MEGAPIXELS", "0.005")
    Image.new("L", (101, 67)).save(tmp_path / "a.png")
    loaded = []
    monkeypatch.setattr(Image.Image, "load", lambda image: loaded.append(image))
    with pytest.raises(UserError, match="a.png: 101×67 pixels is more than 5,000: taken for a decompression bomb"):
        open_image(tmp_path / "a.png", GREY)
    assert not loaded


def test_in_training_a_broken_picture_is_replaced_by_the_next_with_its_target(tmp_path):
    paths = [flat(tmp_path / f"{i}.png", 20 * i) for i in range(6)]
    for i in (2, 3, 5):
        cut_short(tmp_path / "cut.jpg").rename(paths[i])
    held = FileExamples(paths, [f"is {20 * i}" for i in range(6)], [])
    rows, targets = held.take([0, 2, 4, 5], GREY, rng())
    assert [f"is {int(row.mean())}" for row in rows] == targets == ["is 0", "is 80", "is 80", "is 0"]
    assert sorted(Path(name).name for name, _ in held.skipped) == ["2.png", "3.png", "5.png"]
    for path in paths:
        path.write_bytes(b"")
    lost = FileExamples(paths, list(range(6)), [])
    with pytest.raises(UserError, match="none of the 6 pictures can be decoded"):
        lost.take([1], GREY, rng())
    rows, targets = lost.take([1, 2], GREY)
    assert rows.shape == (0, 1, 16, 24)
    assert targets == []


def test_images_of_the_same_name_are_reported_by_path(tmp_path):
    paths = [cut_short(tmp_path / name / "a.jpg") for name in ("cat", "dog")]
    held = FileExamples(paths, [0, 1], [])
    held.take([0, 1], GREY)
    assert sorted(name for name, _ in held.skipped) == sorted(map(str, paths))


def test_pictures_are_decoded_off_the_training_thread(tmp_path, monkeypatch):
    paths = [flat(tmp_path / f"{i}.png", i) for i in range(5)]
    threads, decode = set(), datasets.decode

    def watched(source, transform):
        threads.add(threading.current_thread())
        return decode(source, transform)

    monkeypatch.setattr(datasets, "decode", watched)
    rows, _ = FileExamples(paths, list(range(5)), []).take(range(5), GREY, rng())
    assert rows[:, 0, 0, 0].tolist() == list(range(5))  # in the requested order
    assert threads
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("room, cached", [(0, 0), (40 * 30 * 3, 1), (1 << 20, 4)])
def test_a_cached_image_equals_one_decoded_again(tmp_path, monkeypatch, room, cached):
    paths = [picture(tmp_path / f"{i}.png", seed=i, size=(40, 30)) for i in range(4)]
    calls, decode = [], datasets.decode
    monkeypatch.setattr(datasets, "decode", lambda source, transform: calls.append(source) or decode(source, transform))
    monkeypatch.setattr(datasets, "CACHE_BYTES", room)
    transform = ImageTransform((16, 24), 3, flip=True, crop=0.4, augment_ops=2)
    held = FileExamples(paths, list(range(4)), [])
    first, _ = held.take(range(4), transform, rng(6))
    assert len(held.cache) == cached
    assert sum(image.width * image.height * 3 for image in held.cache.values()) <= room
    calls.clear()
    again, _ = held.take(range(4), transform, rng(6))
    assert len(calls) == 4 - cached
    plain, _ = held.take(range(4), transform.without_augmentation)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, held.take(range(4), transform, rng(7))[0])
    assert np.array_equal(
        FileExamples(paths, list(range(4)), []).take(range(4), transform.without_augmentation)[0], plain
    )


def test_a_picture_can_come_from_bytes(tmp_path):
    class Held:
        name = "row 3"

        def __init__(self, content):
            self.content = content

        def open(self):
            return io.BytesIO(self.content)

    whole = flat(tmp_path / "a.png", 90).read_bytes()
    held = FileExamples([Held(whole), Held(whole[:40])], ["a", "b"], [])
    rows, targets = held.take([0, 1], GREY)
    assert (rows == 90).all()
    assert targets == ["a"]
    assert held.skipped[0][0] == "row 3"
