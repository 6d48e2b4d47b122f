"""Checkpoints in folders and files: which files are read, and hostile ones refused with a sentence."""

import json
import os
import pickle
import struct
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_pickled import Executed

from conftest import call
from pencil.config import UserError
from pencil.data.images import open_images as images
from pencil.data.images.open_images import read_idx
from pencil.data.tables import pairs
from pencil.data.text.corpus import find
from pencil.data.tokenizers.from_checkpoint import find_tokenizer
from pencil.tensors import write_tensors
from pencil.weights.checkpoint_files import open_checkpoint

CONFIG = {"model_type": "gpt2", "n_embd": 12, "n_head": 3, "n_layer": 1, "n_positions": 11, "vocab_size": 7}


def tensors(*names, rows=3):
    made = torch.Generator().manual_seed(len(names))
    return {name: torch.randn(rows, 5, generator=made) for name in names}


def sharded(folder, **places):
    """A folder with a shard for each keyword, and its index."""
    folder.mkdir(exist_ok=True)
    listed = {}
    for part, names in places.items():
        file = f"model-{part}.safetensors"
        save_file(tensors(*names), folder / file)
        listed |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    return listed


def test_shards_are_one_source(tmp_path):
    sharded(tmp_path, a=("x", "y"), b=("z",))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with open_checkpoint(tmp_path) as found:
        assert found.config == CONFIG
        assert set(found.source.shapes()) == {"x", "y", "z"}
        assert torch.equal(found.source.read("y"), tensors("x", "y")["y"])
        assert sum(entry.end - entry.begin for _, _, entry in found.source.entries.values()) == 3 * 15 * 4


def test_safetensors_come_before_pickles_and_usual_names_before_others(tmp_path):
    save_file(tensors("x"), tmp_path / "model.safetensors")
    save_file(tensors("y"), tmp_path / "other.safetensors")
    torch.save(tensors("z"), tmp_path / "pytorch_model.bin")
    with open_checkpoint(tmp_path) as found:
        assert list(found.source.shapes()) == ["x"]
    with open_checkpoint(tmp_path / "other.safetensors") as found:
        assert list(found.source.shapes()) == ["y"]


def test_files_that_nothing_tells_apart_are_refused(tmp_path):
    for name in ("a", "b"):
        save_file(tensors("x"), tmp_path / f"{name}.safetensors")
    with pytest.raises(
        UserError, match=r"2 files of weights and no index .*: a\.safetensors, b\.safetensors.*; name one"
    ):
        open_checkpoint(tmp_path)


def test_the_cache_of_the_hub_may_link_to_its_blobs(tmp_path):
    (tmp_path / "blobs").mkdir()
    folder = tmp_path / "snapshots" / "0123"
    folder.mkdir(parents=True)
    save_file(tensors("x"), tmp_path / "blobs" / "abc")
    (folder / "model.safetensors").symlink_to("../../blobs/abc")
    with open_checkpoint(folder) as found:
        assert list(found.source.shapes()) == ["x"]


@pytest.mark.parametrize("name, why", [
    ("nothing", "there is no file or folder nothing"), ("openai/gpt2", "on the hub it is hf:openai/gpt2"),
    ("hg:a/b", "did you mean hf"), ("nanogpt:ckpt.pt", "there is no file or folder ckpt.pt"),
])  # fmt: skip
def test_names_that_are_nothing(name, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=why):
        open_checkpoint(name)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "a" + "\nsize 548105171\n"
READ = {
    "model.safetensors": lambda path: open_checkpoint(path.parent),
    "pytorch_model.bin": open_checkpoint,
    "config.json": lambda path: open_checkpoint(path.parent),
    "tokenizer.json": lambda path: find_tokenizer(path.parent),
    "tokenizer.model": lambda path: find_tokenizer(path.parent),
    "vocab.txt": lambda path: find_tokenizer(path.parent),
    "notes.txt": lambda path: find(str(path)),
    "notes.jsonl": lambda path: find(str(path)),
    "notes.jsonl.gz": lambda path: find(str(path)),
    "notes.parquet": lambda path: find(str(path)),
    "pairs.tsv": lambda path: pairs.load(str(path)),
    "pairs.parquet": lambda path: pairs.load(str(path)),
    "train-images-idx3-ubyte": lambda path: read_idx(path, 3),
    "one.tar": lambda path: images.load(str(path), "classes"),
    "cat/one.png": lambda path: images.load(str(path.parents[1]), "classes"),
}


@pytest.mark.parametrize("name", READ)
def test_a_pointer_of_git_lfs_is_named_as_one(name, tmp_path):
    if name == "config.json":
        save_file(tensors("x"), tmp_path / "model.safetensors")
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(POINTER)
    with pytest.raises(UserError, match=r"a Git LFS pointer, not the file itself.*git lfs pull"):
        READ[name](path)


# ---- hostile folders, through the command


def _header(folder, content, rest=b""):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + rest)


def _index(folder, file):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": file}}))


def _linked(folder, name):
    (folder.parent / "secret").write_text("{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("../secret")


def _pipe(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


def _large(folder):
    with (folder / "config.json").open("wb") as file:
        file.truncate(1_000_000_000)


def _cut(folder):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-7])


def _shard(folder, change):
    (folder / "model.safetensors").unlink()
    sharded(folder, a=("x",), b=("y",))
    change(folder / "model-b.safetensors")


ENTRY = {"dtype": "F32", "shape": [3, 5], "data_offsets": [0, 60]}
HOSTILE = {
    "cut": (_cut, r"model\.safetensors is not a safetensors file, or is damaged"),
    "a header longer than the file": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 16), "ends within its header"),
    "a header that is no JSON": (lambda f: _header(f, b"{" * 60), "is damaged"),
    "a header nested deeply": (lambda f: _header(f, b'{"a":' * 30_000), "nested too deeply"),
    "tensors that overlap": (lambda f: _header(f, {"x": ENTRY, "y": ENTRY}, bytes(60)), "overlaps another tensor"),
    "a shape without bytes": (lambda f: _header(f, {"x": ENTRY | {"shape": [1 << 40, 1 << 40]}}, bytes(60)), "do not fit its shape"),
    "an index that leaves the folder": (lambda f: _index(f, "../model.safetensors"), r"names the file '\.\./model\.safetensors'"),
    "an index with an absolute path": (lambda f: _index(f, "/etc/x.safetensors"), "is not a .safetensors file beside it"),
    "an index without its shard": (lambda f: _index(f, "b.safetensors"), "the copy of this checkpoint is not whole"),
    "an index without a map": (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "has no weight_map"),
    "a shard that is cut": (lambda f: _shard(f, lambda p: p.write_bytes(p.read_bytes()[:-3])), r"model-b\.safetensors"),
    "a shard of other tensors": (lambda f: _shard(f, lambda p: save_file(tensors("q"), p)), "the index of this checkpoint has y"),
    "a shard twice": (lambda f: _shard(f, lambda p: save_file(tensors("x"), p)), "x is in two shards"),
    "weights that are a link": (lambda f: _linked(f, "model.safetensors"), "is a link to .*secret, outside"),
    "a config that is a link": (lambda f: _linked(f, "config.json"), "is a link to .*secret, outside"),
    "weights that are a pipe": (lambda f: _pipe(f, "model.safetensors"), "is a pipe"),
    "a config that is a pipe": (lambda f: _pipe(f, "config.json"), "is a pipe"),
    "a config of a gigabyte": (_large, "has more than 10 MB"),
    "a config nested deeply": (lambda f: (f / "config.json").write_text('{"a":' * 10_000), "nested too deeply"),
    "a config that is a list": (lambda f: (f / "config.json").write_text("[]"), "does not hold an object"),
    "a pickle called safetensors": (lambda f: (f / "model.safetensors").write_bytes(pickle.dumps(Executed(f))), "is damaged"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "holds no weights"),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def imported():
    """The modules of the command, which take seconds to import once."""
    call("import", "--list")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders_are_refused_with_a_sentence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_file(tensors("x"), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    make, why = HOSTILE[name]
    make(folder)
    before = time.process_time()
    done = call("import", folder, "--out", tmp_path / "run", code=2)
    assert time.process_time() - before < 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("pencil: ")
    with pytest.raises(UserError, match=why):
        raise UserError(line)
    assert not (folder / "executed").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name != "secret"] == ["checkpoint"]


# ---- files written one tensor at a time


def test_written_files_are_what_the_library_reads(tmp_path):
    given = tensors("a", "b", rows=7) | {"c": torch.arange(11), "d": torch.zeros(0, 3), "e": torch.tensor(2.5)}
    kinds = {"a": torch.bfloat16, "b": torch.float32, "c": torch.int64, "d": torch.float16, "e": torch.float64}
    shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
    path = tmp_path / "x.safetensors"
    write_tensors(path, shapes, kinds, reversed(given.items()), {"format": "pt"})
    found = load_file(path)
    assert found.keys() == given.keys()
    for name, tensor in found.items():
        assert tensor.dtype == kinds[name]
        assert torch.equal(tensor, given[name].to(kinds[name]))
    with pytest.raises(ValueError, match="e was not written"):
        write_tensors(path, shapes, kinds, list(given.items())[:-1], {})
    with pytest.raises(ValueError, match="has shape"):
        write_tensors(path, shapes | {"a": (5, 7)}, kinds, given.items(), {})


def test_numbers_that_are_not_aligned_are_read(tmp_path):
    given = {"a": torch.tensor([True, False, True]), "b": torch.randn(5), "c": torch.randn(3).double()}
    shapes, kinds = {n: tuple(t.shape) for n, t in given.items()}, {n: t.dtype for n, t in given.items()}
    write_tensors(Path(tmp_path / "x.safetensors"), shapes, kinds, given.items(), {})
    with open_checkpoint(tmp_path / "x.safetensors") as found:
        assert all(torch.equal(found.source.read(name), tensor) for name, tensor in given.items())
