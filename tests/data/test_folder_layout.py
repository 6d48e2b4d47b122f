"""Folders as strangers have them: splits of any name, files that are no pictures, folders in folders, odd formats."""

import shutil
from typing import Any

import numpy as np
import pytest
from PIL import Image

from albums import album, idx, photos, picture
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.config import UserError
from pencil.data.images import open_images as images
from pencil.data.images.augment import ImageTransform
from pencil.data.images.decoding import open_image, read_header
from pencil.data.images.image_data import lookalikes, with_classes


def load(folder, want="label", whole=False):
    return images.load(str(folder), want, whole)


@pytest.mark.parametrize("names", [("Train", "Test"), ("training", "TESTING"), ("TRAIN", "val")])
def test_splits_are_found_whatever_their_letters(tmp_path, names):
    for name in names:
        photos(tmp_path / name)
    data = load(tmp_path)
    assert data.classes == ("cat", "dog")
    assert {path.parts[-3] for path in data.train.sources} == {names[0]}
    test: Any = data.test
    assert {path.parts[-3] for path in test.sources} == {names[1]}
    assert data.notes[0] == f"{tmp_path} has {names[0]}/ to train on and {names[1]}/ to evaluate on"


@pytest.mark.parametrize("names, shown", [
    (("cat", "Cat"), "'Cat' and 'cat'"), (("cat", "cat "), "'cat' and 'cat '"),
    (("caf\u00e9", "cafe\u0301"), "'cafe\\u0301' and 'caf\\xe9'"),
])  # fmt: skip
def test_classes_that_look_alike_are_named(names, shown):
    note = f"{shown} are different classes with names that look alike: if they are one, give them one name"
    assert lookalikes(sorted((*names, "dog", "dogs"))) == [note]
    assert lookalikes([names[0], "dog", "dogs"]) == []


def test_classes_that_look_alike_are_announced_for_pictures_and_texts(tmp_path):
    for i, name in enumerate(("cat", "cat", "Cat", "Cat", "dog", "dog")):
        picture(tmp_path / "pets" / name / f"{i}.png", seed=i)
    rows = [f"text number {i},{('pos', 'Pos', 'neg')[i % 3]}" for i in range(31)]
    (tmp_path / "rows.csv").write_text("text,label\n" + "\n".join(rows))
    for family, data, pair in (("vit", "pets", "'Cat' and 'cat'"), ("reader", "rows.csv", "'Pos' and 'pos'")):
        notes = []
        new_run(TrainingRequest(family, str(tmp_path / data)), out=tmp_path / family, notify=notes.append)
        assert f"{pair} are different classes with names that look alike: if they are one, give them one name" in notes


def test_what_a_mac_adds_to_a_zip_archive_is_not_read_and_announced(tmp_path):
    """Its folder mirrors the others, with a file ._NAME of each; it is no class, no split and no picture."""
    pets = tmp_path / "pets"
    for i, name in enumerate(("cat", "cat", "dog", "dog")):
        picture(pets / name / f"{i}.png", seed=i)
        (pets / "__MACOSX" / name).mkdir(parents=True, exist_ok=True)
        (pets / "__MACOSX" / name / f"._{i}.png").write_bytes(b"\0\5\x16\7")
        (pets / name / f"._{i}.png").write_bytes(b"\0\5\x16\7")
    (pets / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    data = load(str(pets), "label")
    assert data.classes == ("cat", "dog")
    assert len(data.train.sources) + len(data.test.sources) == 4
    assert data.notes == [f"{pets / '__MACOSX'} is what a Mac adds to a zip archive, and not read"]
    parts = tmp_path / "parts"
    for part in ("train", "test"):
        shutil.copytree(pets, parts / part, ignore=shutil.ignore_patterns("__MACOSX"))
    (parts / "__MACOSX" / "train").mkdir(parents=True)
    assert len(load(str(parts), "label", whole=True).test.sources) == 8


def test_too_few_pictures_says_how_many_would_do(tmp_path):
    for i, name in enumerate(("cat", "dog")):
        picture(tmp_path / name / f"{i}.png", seed=i)
    with pytest.raises(UserError, match="none is left to evaluate on; two different ones of each class would do$"):
        load(str(tmp_path), "label")


def test_folders_beside_a_split_are_named(tmp_path):
    for name in ("train", "test", "val", "more"):
        photos(tmp_path / name)
    first = f"{tmp_path} has train/ to train on and test/ to evaluate on; not read: more/, val/"
    assert load(tmp_path).notes[0] == first


def test_files_that_are_not_read_and_folders_in_class_folders_are_named(tmp_path):
    photos(tmp_path)
    assert load(tmp_path).notes == []
    (tmp_path / "cat" / "a.heic").write_bytes(b"x")
    (tmp_path / ".hidden").write_bytes(b"x")
    (tmp_path / "Thumbs.db").write_bytes(b"x")
    picture(tmp_path / "dog" / "puppies" / "1.png", seed=9)
    stray, nested = load(tmp_path).notes
    assert stray.startswith(f"1 file of {tmp_path} is no picture by the ending, and not read (a.heic)")
    assert nested == f"a class is a folder of {tmp_path}: what is in dog/puppies/ counts as dog"
    album(tmp_path / "album", [f"dot {i}" for i in range(7)])
    assert load(tmp_path / "album", "caption").notes == []


def test_all_of_a_folder_is_held_out_however_little_it_is(tmp_path):
    picture(tmp_path / "one" / "cat" / "a.png")
    data = load(tmp_path / "one", whole=True)
    assert (len(data.train), len(data.test), data.classes) == (0, 1, ("cat",))
    for name in ("train", "test", "val"):
        photos(tmp_path / "split" / name, {"cat": 2, "dog": 3})
    assert len(load(tmp_path / "split", whole=True).test) == 15
    album(tmp_path / "album", ["a dot"])
    assert load(tmp_path / "album", "caption", whole=True).test.targets == ["a dot"]


def test_all_of_other_data_is_held_out_too(tmp_path):
    arrays = idx(tmp_path / "mnist", train=23, test=11)
    data = load(tmp_path / "mnist", whole=True)
    joined = np.concatenate([arrays[part, "images-idx3"] for part in ("train", "t10k")])
    rows, _ = data.test.take(range(34), ImageTransform((6, 9), 1))
    assert np.array_equal(rows[:, 0], joined)
    assert len(data.train) == 0
    digits, plain = load("digits", whole=True), load("digits")
    assert len(digits.test) == len(plain.test) + len(plain.train)
    # generated pictures have no end: what they hold out is evaluated
    assert len(load("scenes", "caption", whole=True).test) == len(load("scenes", "caption").test)


def test_classes_are_matched_by_name(tmp_path):
    photos(tmp_path, {"dog": 2, "owl": 3})
    data = with_classes(load(tmp_path, whole=True), ["cat", "owl", "dog"], "runs/a")
    assert data.test.targets == [2, 2, 1, 1, 1]
    assert data.classes == ("cat", "owl", "dog")
    with pytest.raises(UserError, match="has the class owl, and runs/a knows cat, dog: leave it out"):
        with_classes(load(tmp_path, whole=True), ["cat", "dog"], "runs/a")


def test_pictures_of_every_kind_have_the_colours_they_show(tmp_path):
    """Grey, transparent, palette, CMYK and 16 bits, each of one colour, beside Pillow's own conversion."""
    red, transform = (200, 30, 60), ImageTransform((5, 7), 3)
    plain = Image.new("RGB", (14, 10), red)
    made = {
        "rgb.png": (plain, red),
        "rgba.png": (Image.new("RGBA", (14, 10), (*red, 255)), red),
        "clear.png": (Image.new("RGBA", (14, 10), (*red, 0)), (255, 255, 255)),
        "half.png": (Image.new("RGBA", (14, 10), (200, 100, 0, 51)), (244, 224, 204)),
        "palette.gif": (plain.quantize(7), red),
        "la.png": (Image.new("LA", (14, 10), (90, 255)), (90, 90, 90)),
        "bits.png": (Image.new("1", (14, 10), 1), (255, 255, 255)),
        "cmyk.jpg": (plain.convert("CMYK"), red),
        "cmyk.tif": (plain.convert("CMYK"), red),
        "deep.png": (Image.fromarray(np.full((10, 14), 128 * 257, np.uint16)), (128, 128, 128)),
    }
    for name, (image, colour) in made.items():
        image.save(tmp_path / name)
        shown = open_image(tmp_path / name, transform)
        assert np.abs(shown.reshape(3, -1).mean(1) - colour).max() <= 4, name


def test_fractions_without_a_range_are_refused_by_name(tmp_path):
    Image.fromarray(np.full((10, 14), 0.5, np.float32)).save(tmp_path / "a.tif")
    assert "fractions" in str(read_header(tmp_path / "a.tif").fault)
    with pytest.raises(UserError, match="a.tif: its pixels are fractions, without a known range"):
        open_image(tmp_path / "a.tif", ImageTransform((5, 7), 3))


@pytest.mark.parametrize("ending, kind", [("gif", {}), ("tiff", {}), ("webp", {"lossless": True})])
def test_a_picture_of_several_frames_is_read_by_its_first_and_announced(tmp_path, caplog, ending, kind):
    photos(tmp_path)
    frames = [Image.new("RGB", (23, 29), colour) for colour in ("red", "blue")]
    moving = tmp_path / "cat" / f"moving.{ending}"
    frames[0].save(moving, save_all=True, append_images=frames[1:], **kind)
    assert load(tmp_path).notes == [f"1 picture has several frames, of which only the first is read ({moving.name})"]
    shown = open_image(moving, ImageTransform((7, 5), 3))
    assert shown[0].min() > 250  # red, not blue
    assert shown[2].max() < 5
    assert f"{moving} has several frames: only the first is read" in caplog.text


def test_a_class_of_a_single_picture_is_trained_on_and_announced(tmp_path):
    photos(tmp_path)
    picture(tmp_path / "owl" / "only.png", seed=9)
    data = load(tmp_path)
    assert data.notes == ["owl has too few different pictures to hold one out: it is trained on, and not evaluated"]
    assert data.classes.index("owl") in data.train.targets
