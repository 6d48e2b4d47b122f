"""Image folders: several captions an image, given splits, empty classes, files that are no images."""

import pytest

from albums import album, photos, picture, write_rows
from pencil.config import UserError
from pencil.data.images import open_images as images


def test_all_captions_of_a_picture_are_held_out_together(tmp_path):
    names = [f"p{i:02}.png" for i in range(23)]
    for i, name in enumerate(names):
        picture(tmp_path / name, seed=i)
    write_rows(
        tmp_path, [{"file_name": name, "text": f"{word} {i}"} for i, name in enumerate(names) for word in "abcde"]
    )
    data = images.load(str(tmp_path), "caption")
    train, test = set(data.train.sources), set(data.test.sources)
    assert not train & test
    assert len(train) + len(test) == 23
    assert len(data.test) == 5 * len(test) == 10


@pytest.mark.parametrize("part", ["val", "valid", "validation"])
def test_test_is_held_out_and_val_only_without_a_test(tmp_path, part):
    for name in ("train", part):
        photos(tmp_path / name)
    data = images.load(str(tmp_path), "label")
    assert {path.parts[-3] for path in data.test.sources} == {part}
    assert data.select_best
    photos(tmp_path / "test")
    data = images.load(str(tmp_path), "label")
    assert {path.parts[-3] for path in data.test.sources} == {"test"}
    assert not data.select_best


def test_a_class_without_pictures_is_named(tmp_path):
    photos(tmp_path)
    (tmp_path / "owl").mkdir()
    (tmp_path / ".hidden").mkdir()
    with pytest.raises(UserError, match=r"has 1 class folder without a picture \(owl\)"):
        images.load(str(tmp_path), "label")


def test_one_colour_picture_anywhere_makes_the_set_coloured(tmp_path):
    photos(tmp_path, {"ant": 70, "bee": 70}, mode="L")
    assert images.load(str(tmp_path), "label").model_defaults["channels"] == 1
    photos(tmp_path, {"cow": 70})
    assert images.load(str(tmp_path), "label").model_defaults["channels"] == 3


def test_formats_that_run_programs_are_not_opened(tmp_path):
    photos(tmp_path)
    (tmp_path / "cat" / "x.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    data = images.load(str(tmp_path), "label")
    assert data.skipped == [(str(tmp_path / "cat" / "x.png"), "not a picture Pillow can read")]


def test_text_that_cannot_be_written_is_refused(tmp_path):
    album(tmp_path, ["a dot"] * 7)
    rows = "".join(f'{{"file_name": "p{i:02}.png", "text": "a \\ud800 b"}}\n' for i in range(7))
    (tmp_path / "metadata.jsonl").write_text(rows)
    with pytest.raises(UserError, match="line 1: .* is not text that can be written"):
        images.load(str(tmp_path), "caption")


def test_a_home_folder_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match="cannot be expanded"):
        images.load("~nosuchuser/x", "label")


def test_a_byte_order_mark_and_crlf_line_ends_are_read(tmp_path):
    album(tmp_path, [f"dot {i}" for i in range(7)])
    path = tmp_path / "metadata.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    data = images.load(str(tmp_path), "caption")
    assert sorted([*data.train.targets, *data.test.targets]) == [f"dot {i}" for i in range(7)]
    path.write_bytes(path.read_text(encoding="utf-8-sig").encode("utf-16"))
    with pytest.raises(UserError, match="it is not UTF-8 text"):
        images.load(str(tmp_path), "caption")
