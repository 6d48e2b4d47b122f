"""Cached files have their size and hash beside them; picture folders are hashed whole, and quickly a second time."""

import os
import shutil
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from albums import album, photos, picture
from pencil.data import cache, hub
from pencil.data.images import open_images as images
from pencil.data.images.augment import ImageTransform
from pencil.data.text import text_data as text
from pencil.inference.autoencoder import Autoencoder
from pencil.train.tasks import latents


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of its own."""
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def spoil(path, how):
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[len(content) // 2] ^= 4
    elif how == "cut":
        del content[-3:]
    path.write_bytes(content)


@pytest.mark.parametrize(
    "tokenizer, pattern", [("char", "tokens-*.uint16"), ("bpe", "tokens-*.uint16"), ("bpe", "bpe-*-270.json")]
)
@pytest.mark.parametrize("how", ["flip", "cut"])
def test_a_damaged_cache_is_made_again_and_announced(folder, tmp_path, capsys, tokenizer, pattern, how):
    path = tmp_path / "a.txt"
    path.write_text("seven pencils, eleven papers\n" * 13)
    first = text.load(str(path), tokenizer, 270)
    ids, ours = np.array(first.ids), first.tokenizer.to_json()
    (kept,) = folder.glob(pattern)
    assert capsys.readouterr().err == ""
    for victim in (kept, cache.record_of(kept)):
        spoil(victim, how)
        again = text.load(str(path), tokenizer, 270)
        assert np.array_equal(again.ids, ids)
        assert again.tokenizer.to_json() == ours
        shown = capsys.readouterr().err
        assert shown.count("it is made again") == 1
        assert str(kept) in shown.replace("\n", "")
        text.load(str(path), tokenizer, 270)
        assert capsys.readouterr().err == ""


def test_a_cache_under_the_name_of_another_is_noticed(folder, tmp_path, capsys):
    ids = {}
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"the text of {name}\n" * 17)
        ids[name] = np.array(text.load(str(tmp_path / f"{name}.txt"), "byte").ids)
    one, other = sorted(folder.glob("tokens-*.uint16"))
    for first, second in ((one, other), (cache.record_of(one), cache.record_of(other))):
        kept = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(kept)
    for name in "ab":
        assert np.array_equal(text.load(str(tmp_path / f"{name}.txt"), "byte").ids, ids[name])
    assert capsys.readouterr().err.count("it is made again") == 2


class Encoder(Autoencoder):
    """In place of an autoencoder: every 4×4 block's first pixel."""

    channels, hash = 3, "0" * 8

    def __init__(self):
        pass

    def latent_size(self, size):
        return size[0] // 4, size[1] // 4

    def encode(self, images):
        return torch.from_numpy(images[:, :, ::4, ::4].astype(np.float32))


def test_damaged_latents_are_encoded_again(folder, tmp_path, capsys):
    photos(tmp_path / "photos")
    data, transform = images.load(str(tmp_path / "photos"), "label"), ImageTransform((12, 20), 3)
    first = np.array(latents.to_latents(data, Encoder(), transform, lambda line: None).train.latents)
    capsys.readouterr()
    (kept,) = folder.glob("latents-*-train.f16")
    spoil(kept, "flip")
    again = latents.to_latents(data, Encoder(), transform, lambda line: None)
    assert np.array_equal(again.train.latents, first)
    assert f"{kept.name} is damaged" in capsys.readouterr().err.replace("\n", "")


def test_a_bit_far_into_a_picture_changes_the_hash_of_its_folder(folder, tmp_path):
    photos(tmp_path / "photos")
    victim = tmp_path / "photos" / "cat" / "large.png"
    picture(victim, size=(97, 89))
    before = images.load(str(tmp_path / "photos"), "label")
    content = bytearray(victim.read_bytes())
    content[9001] ^= 1  # far behind what older versions looked at
    victim.write_bytes(content)
    after = images.load(str(tmp_path / "photos"), "label")
    assert after.hash != before.hash
    assert after.former_hash() == before.former_hash()


def test_the_hash_of_a_folder_does_not_depend_on_where_it_is(folder, tmp_path):
    album(tmp_path / "here", [f"dot {i}" for i in range(7)])
    before = images.load(str(tmp_path / "here"), "caption").hash
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert images.load(str(tmp_path / "there"), "caption").hash == before


def test_a_second_time_only_what_changed_is_read(folder, tmp_path, monkeypatch):
    paths = [tmp_path / "data" / f"{i}.bin" for i in range(5)]
    paths[0].parent.mkdir()
    for i, path in enumerate(paths):
        path.write_bytes(bytes([i]) * 101)
    monkeypatch.setattr(cache, "SETTLED_NANOSECONDS", -(1 << 62))  # as if the files had been there for long
    read = []
    plain = cache.fingerprint
    monkeypatch.setattr(cache, "fingerprint", lambda path: read.append(path.name) or plain(path))
    first = cache.hash_files(tmp_path / "data", paths)
    assert len(read) == 5
    read.clear()
    assert cache.hash_files(tmp_path / "data", paths) == first
    assert read == []
    about = paths[2].stat()
    paths[2].write_bytes(b"x" * 101)  # of the same size, and with the old time put back
    os.utime(paths[2], ns=(about.st_atime_ns, about.st_mtime_ns))
    assert cache.hash_files(tmp_path / "data", paths)[paths[2]] != first[paths[2]]
    assert read == ["2.bin"]


def test_files_that_have_just_changed_are_not_trusted_by_their_time(folder, tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"abc")
    cache.hash_files(tmp_path, [path])
    assert not list(folder.glob("pictures-*"))


def test_one_makes_a_cached_file_and_the_others_wait(folder, capsys):
    folder.mkdir()
    path, order, inside = folder / "tokens-a.uint16", [], threading.Event()

    def second():
        inside.wait(30)
        with cache.making(path):
            order.append("second")

    other = threading.Thread(target=second)
    other.start()
    with cache.making(path):
        inside.set()
        other.join(1)
        order.append("first")
    other.join(30)
    assert order == ["first", "second"]
    assert "another process is making" in capsys.readouterr().err
    assert not list(folder.iterdir())


class Table:
    """In place of a data set of the hub: its cached files carry the commit."""

    def __init__(self, commit):
        self.cache_files = [{"filename": f"/cache/owner___pets/default/0.0.0/{commit}/pets-train.arrow"}]


def test_hub_data_is_known_by_its_commit():
    commit = "0123456789abcdef0123456789abcdef01234567"
    assert hub._version(Path("owner/pets"), {"train": Table(commit)}) == commit
    assert hub._version(Path("owner/pets"), {"train": Table("default-3f2a")}) is None


def test_a_revision_is_passed_on(monkeypatch):
    asked = []

    def load_dataset(name, **words):
        asked.append((name, words))
        raise RuntimeError("nothing here")

    monkeypatch.setitem(
        sys.modules,
        "datasets",
        types.SimpleNamespace(load_dataset=load_dataset, config=types.SimpleNamespace(HF_HUB_OFFLINE=True)),
    )
    for source in ("owner/pets@abc123", "owner/pets"):
        with pytest.raises(ValueError, match="hf:owner/pets cannot be loaded: nothing here"):
            images.load(f"hf:{source}", "label")
    assert asked == [("owner/pets", {"revision": "abc123"}), ("owner/pets", {})]
