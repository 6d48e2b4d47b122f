"""Image folders: several captions an image, given splits, empty classes, files that are no images."""

import csv

import pytest

from albums import album, photos, picture, write_rows
from pencil.config import UserError
from pencil.data.images import open_images as images
from pencil.data.images.folders import annotations_in


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


CAPTIONS = [f"a dot, {i} wide" for i in range(7)]


def as_csv(folder, captions):
    with (folder / "metadata.csv").open("w", newline="", encoding="utf-8-sig") as file:
        rows = csv.writer(file)
        rows.writerows([("file_name", "text", "size"), *((f"p{i:02}.png", one, i) for i, one in enumerate(captions))])


def as_texts(folder, captions):
    for i, one in enumerate(captions):
        (folder / f"p{i:02}.txt").write_text(f"{one}\n", encoding="utf-8")


@pytest.mark.parametrize("write", [as_csv, as_texts])
def test_captions_in_a_csv_or_beside_the_pictures_are_those_of_json(tmp_path, write):
    folder = album(tmp_path / "album", CAPTIONS)
    expected = images.load(str(folder), "caption")
    (folder / "metadata.jsonl").unlink()
    assert annotations_in(folder) == "nothing"
    write(folder, CAPTIONS)
    data = images.load(str(folder), "caption")
    assert (data.hash, data.test.targets, data.notes) == (expected.hash, expected.test.targets, expected.notes)
    assert annotations_in(folder) == "caption"


@pytest.mark.parametrize("name, content, message", [
    ("metadata.csv", "name,text\np00.png,a\n", "has no column file_name"),
    ("metadata.csv", "file_name,text\np00.png,a,b\n", "line 2: its cells are not those of file_name,text"),
    ("metadata.csv", "file_name,text\np00.png\n", "line 2: its cells are not those of file_name,text"),
    ("metadata.csv", 'file_name,text\np00.png,"a\n', "line 2: unexpected end of data"),
    ("metadata.csv", "file_name,text\n", "metadata.csv is empty"),
    ("metadata.csv", "file_name,text\np00.png,\n", "line 2: p00.png has no text; write a column text"),
    ("metadata.csv", "file_name,text\n../p.png,a\n", "lies outside the folder"),
    ("metadata.csv", "file_name,text\np00.png,a\n", "6 pictures without a line in metadata.csv"),
    ("p00.txt", "a dot", r"6 pictures without a .txt of the same name \(p01.png, p02.png, p03.png, …\)"),
])  # fmt: skip
def test_captions_that_cannot_be_read_are_refused(tmp_path, name, content, message):
    album(tmp_path, CAPTIONS)
    (tmp_path / "metadata.jsonl").unlink()
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        images.load(str(tmp_path), "caption")


def test_a_text_beside_a_picture_has_words_and_two_tables_are_refused(tmp_path):
    album(tmp_path, CAPTIONS)
    as_csv(tmp_path, CAPTIONS)
    with pytest.raises(UserError, match="has metadata.jsonl and metadata.csv: remove one of them"):
        images.load(str(tmp_path), "caption")
    for name in ("metadata.jsonl", "metadata.csv"):
        (tmp_path / name).unlink()
    as_texts(tmp_path, CAPTIONS)
    (tmp_path / "p03.txt").write_text(" \n")
    with pytest.raises(UserError, match="p03.txt is empty: write what p03.png shows"):
        images.load(str(tmp_path), "caption")
    (tmp_path / "p03.txt").write_bytes("Käse".encode("latin-1"))
    with pytest.raises(UserError, match="p03.txt cannot be read: it is not UTF-8 text"):
        images.load(str(tmp_path), "caption")
    (tmp_path / "p03.txt").unlink()
    (tmp_path / "p03.txt").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="is a link that leads out of"):
        images.load(str(tmp_path), "caption")


def test_a_broken_link_is_skipped_as_a_broken_picture_is(tmp_path):
    photos(tmp_path / "a")
    expected = images.load(str(tmp_path / "a"), "label").hash
    for target, name in (("gone.png", "x.png"), ("/nowhere/gone.png", "y.png"), ("z.png", "z.png")):
        (tmp_path / "a" / "cat" / name).symlink_to(target)
    data = images.load(str(tmp_path / "a"), "label")
    fault = "a link to a file that is not there"
    assert data.skipped == [(str(tmp_path / "a" / "cat" / name), fault) for name in ("x.png", "y.png", "z.png")]
    assert data.hash == expected
    album(tmp_path / "b", CAPTIONS)
    (tmp_path / "b" / "p03.png").unlink()
    (tmp_path / "b" / "p03.png").symlink_to("/nowhere/gone.png")
    assert len(images.load(str(tmp_path / "b"), "caption").skipped) == 1
