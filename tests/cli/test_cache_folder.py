"""The cache in `pencil doctor`: its size, and how it is emptied without touching what is not Pencil's."""

import re

import pytest

from conftest import call

MINE = {"tokens-0a.uint16": 7_000_001, "tokens-0b.uint32": 13, "bpe-1-0a-300.json": 500_000, "latents-0a-x.f16": 11}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("PENCIL_CACHE", str(folder))
    monkeypatch.setattr("pencil.cli.doctor.EXTRAS", {})
    return folder


def fill(folder):
    for name, size in MINE.items():
        (folder / name).write_bytes(bytes(size))


def test_doctor_names_the_folder_its_size_and_how_to_empty_it(cache):
    line = re.search(r"^cache .*$", call("doctor").stdout, re.M)
    assert line is not None
    assert f"{cache}: 0 files, 0.0 MB" in line[0]
    assert "--clear-cache" not in line[0]
    fill(cache)
    line = re.search(r"^cache .*$", call("doctor").stdout, re.M)
    assert line is not None
    assert f"{cache}: 4 files, 7.5 MB" in line[0]
    assert line[0].endswith("pencil doctor --clear-cache empties it")


def test_clearing_removes_what_can_be_made_again_and_names_it(cache):
    fill(cache)
    (cache / "text-0c.txt").write_text("from standard input")
    shown = call("doctor", "--clear-cache").stdout.splitlines()
    assert shown == [
        f"{cache}:",
        "removed 1 file, 0.5 MB: trained tokenizers (bpe-*)",
        "removed 1 file, 0.0 MB: encoded pictures (latents-*)",
        "kept 1 file, 0.0 MB: standard input that runs were trained on (text-*)",
        "removed 2 files, 7.0 MB: tokenized texts (tokens-*)",
    ]
    assert [path.name for path in cache.iterdir()] == ["text-0c.txt"]
    (cache / "text-0c.txt").unlink()
    assert call("doctor", "--clear-cache").stdout.splitlines()[1:] == ["nothing to remove"]


def test_links_folders_and_other_files_are_left_alone(cache, tmp_path):
    """PENCIL_CACHE may be any folder, and what is in it anybody's."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "tokens-1").write_text("kept")
    (outside / "mine").write_text("kept")
    (cache / "tokens-link").symlink_to(outside / "mine")
    (cache / "tokens-folder").symlink_to(outside)
    (cache / "bpe-folder").mkdir()
    (cache / "bpe-folder" / "tokens-2").write_text("kept")
    for name in ("thesis.tex", "tokens", "pictures.zip"):
        (cache / name).write_text("kept")
    names = sorted(path.name for path in cache.iterdir())
    assert call("doctor", "--clear-cache").stdout.splitlines()[1:] == ["nothing to remove"]
    assert sorted(path.name for path in cache.iterdir()) == names
    assert {path.read_text() for path in outside.iterdir()} == {"kept"}


def test_a_text_is_tokenized_again_after_the_cache_was_emptied(cache, tmp_path):
    from pencil.data.text import text_data as text

    (tmp_path / "notes.txt").write_text("seven words make a line of text\n" * 31)
    first = text.load(str(tmp_path / "notes.txt"), "bpe", 300).ids.tolist()
    assert "removed" in call("doctor", "--clear-cache").stdout
    assert not list(cache.iterdir())
    assert text.load(str(tmp_path / "notes.txt"), "bpe", 300).ids.tolist() == first
