"""Pickled checkpoints: their tensors are read, in a process with limits, and nothing in them is run."""

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import zipfile

import pytest
import torch

from pencil.config import UserError
from pencil.weights import pickled
from pencil.weights.checkpoint_files import open_checkpoint


class Executed:
    """Unpickled, it makes a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder / "executed"),)


def tensors():
    made = torch.Generator().manual_seed(5)
    shared = torch.randn(13, 7, generator=made)
    return {
        "a.weight": shared, "tied.weight": shared, "half": torch.randn(5, generator=made).bfloat16(),
        "turned": torch.randn(11, 3, generator=made).T, "part": torch.randn(17, 2, generator=made)[3:9],
        "one": torch.tensor(2.5), "nothing": torch.zeros(0, 3), "count": torch.arange(7),
    }  # fmt: skip


def same(source, wanted):
    assert source.shapes() == {name: tuple(t.shape) for name, t in wanted.items()}
    assert source.dtypes() == {name: t.dtype for name, t in wanted.items()}
    for name, tensor in wanted.items():
        assert torch.equal(source.read(name), tensor), name


def here(path, out):
    """What the other process would report, in this one."""
    try:
        return pickled._convert(path, out / "x.safetensors", path.stat().st_size)
    except pickled.Refused as error:
        return str(error)


def test_tensors_come_out_of_the_other_process_as_they_were_saved(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    torch.save({"model": tensors(), "model_args": {"n_layer": 3, "bias": False}, "iter_num": 7,
                "best_val_loss": torch.tensor(1.5), "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}},
               tmp_path / "ckpt.pt")  # fmt: skip
    said = []
    with open_checkpoint(tmp_path / "ckpt.pt", said.append) as found:
        same(found.source, tensors())
        assert found.values == {"model_args": {"n_layer": 3, "bias": False}, "iter_num": 7, "best_val_loss": 1.5}
        assert list((tmp_path / "tmp").iterdir())
    assert not list((tmp_path / "tmp").iterdir())
    assert "no code in it is run" in said[0]
    assert said[1].endswith("the part model is read; it also has optimizer.")


def in_this_process(monkeypatch):
    """The same work without a process of its own, which takes seconds to begin."""
    monkeypatch.setattr(pickled, "limit_process", lambda *_: None)
    monkeypatch.setattr(pickled.subprocess, "run", lambda words, **_: pickled.work(*words[4:]))


def test_code_is_not_run(tmp_path, monkeypatch):
    in_this_process(monkeypatch)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    torch.save({"a": torch.ones(3), "b": Executed(tmp_path)}, tmp_path / "a.bin")
    with pytest.raises(UserError, match=r"a\.bin holds code \(posix\.mkdir\), which is not run: ask .* safetensors"):
        open_checkpoint(tmp_path / "a.bin")
    assert not (tmp_path / "executed").exists()
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("zipped", [True, False])
def test_both_formats_of_torch(tmp_path, zipped):
    torch.save(tensors(), tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    assert here(tmp_path / "a.pt", tmp_path) == {"values": {}, "part": "", "others": []}
    from pencil.weights.checkpoint_files import FileSource

    same(FileSource([tmp_path / "x.safetensors"]), tensors())


def test_the_moving_average_comes_before_the_model(tmp_path):
    other = {name: tensor + 1 for name, tensor in tensors().items()}
    options = argparse.Namespace(lr=1e-4, model="DiT-XL/2")
    torch.save({"model": other, "ema": tensors(), "args": options, "opt": {"state": torch.ones(3)}}, tmp_path / "a.pt")
    found = here(tmp_path / "a.pt", tmp_path)
    assert found == {
        "values": {"args": {"lr": 1e-4, "model": "DiT-XL/2"}}, "part": "ema", "others": ["model", "opt"],
    }  # fmt: skip


def rezipped(path, out, change, how=zipfile.ZIP_STORED):
    """The same archive with some of its entries changed."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", how) as new:
        for one in old.infolist():
            new.writestr(one.filename, change(one.filename, old.read(one)))


def bitten(content):
    place = content.find(tensors()["a.weight"].numpy().tobytes())
    return content[: place + 5] + bytes([content[place + 5] ^ 255]) + content[place + 6 :]


def _laughing(folder):
    nested: object = [1]
    for _ in range(60):
        nested = [nested, nested]
    torch.save([nested], folder / "a.pt")


def _smaller(folder):
    torch.save(tensors(), folder / "b.pt")
    rezipped(folder / "b.pt", folder / "a.pt", lambda name, old: old[:40] if name.endswith("data/0") else old)


def _bomb(folder):
    torch.save(tensors(), folder / "b.pt")
    big = bytes(30_000_000)
    rezipped(folder / "b.pt", folder / "a.pt", lambda n, old: big if n.endswith("/0") else old, zipfile.ZIP_DEFLATED)
    assert (folder / "a.pt").stat().st_size < 100_000


def _saved(value, **options):
    return lambda folder: torch.save(value, folder / "a.pt", **options)


def _cut(share, **options):
    def make(folder):
        torch.save(tensors(), folder / "a.pt", **options)
        content = (folder / "a.pt").read_bytes()
        (folder / "a.pt").write_bytes(content[: int(len(content) * share)])

    return make


def _bitten(folder):
    torch.save(tensors(), folder / "a.pt")
    (folder / "a.pt").write_bytes(bitten((folder / "a.pt").read_bytes()))


HOSTILE = {
    "cut in the middle": (_cut(0.6), "was not copied to its end"),
    "an old one cut": (_cut(0.3, _use_new_zipfile_serialization=False), "is damaged"),
    "a byte changed": (_bitten, "is damaged: the checksum of a/data/0 is wrong"),
    "a bomb": (_bomb, "is a compressed archive"),
    "storages smaller than they say": (_smaller, "its tensors are not of the sizes that it stores"),
    "a tensor that is one number": (_saved({"a": torch.zeros(1).expand(10**6, 10**5)}), "its tensors would take 400,000"),
    "a list of lists of lists": (_laughing, "holds a list"),
    "a sparse tensor": (_saved({"a": torch.eye(3).to_sparse()}), "has a, a torch.sparse_coo tensor"),
    "a number among the tensors": (_saved({"a": torch.ones(3), "b": 3}), "has 'b' among its weights, which is int"),
    "nothing": (lambda folder: (folder / "a.pt").write_bytes(b""), "is not a file that torch.save wrote"),
    "text": (lambda folder: (folder / "a.pt").write_text("{}"), "is not a file that torch.save wrote"),
    "a plain pickle": (lambda f: (f / "a.pt").write_bytes(pickle.dumps(Executed(f))), "is not a file that torch.save"),
    "an empty table": (_saved({}), "holds no table of tensors"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_with_a_sentence(name, tmp_path):
    make, why = HOSTILE[name]
    make(tmp_path)
    found = here(tmp_path / "a.pt", tmp_path)
    assert isinstance(found, str)
    assert why in found
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "x.safetensors").exists()


def test_values_that_would_grow_without_end_are_left_out(tmp_path):
    nested: object = [1]
    for _ in range(15):
        nested = [nested] * 9
    torch.save({"model": tensors(), "laughs": nested, "step": 3}, tmp_path / "a.pt")
    found = here(tmp_path / "a.pt", tmp_path)
    assert found["others"] == ["laughs"]


def test_the_limits_of_the_process_hold():
    code = (
        "from pencil.files import limit_process; import resource, torch\n"
        "limit_process(300_000_000, 77, 5_000)\n"
        "print(resource.getrlimit(resource.RLIMIT_CPU)[0], resource.getrlimit(resource.RLIMIT_FSIZE)[0])\n"
        "try: torch.ones(10**9)\nexcept (RuntimeError, MemoryError): print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["77", "5000", "refused"], done.stderr
    assert resource.getrlimit(resource.RLIMIT_CPU)[0] == resource.RLIM_INFINITY


def test_a_process_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    torch.save(tensors(), tmp_path / "a.pt")
    monkeypatch.setattr(pickled, "SECONDS", 0.2)
    monkeypatch.setattr(pickled, "WORKER", "import time; time.sleep(60)")
    with pytest.raises(UserError, match=r"a\.pt could not be read in 0\.2 seconds"):
        open_checkpoint(tmp_path / "a.pt")


def test_a_process_that_dies_is_one_sentence(tmp_path, monkeypatch):
    torch.save(tensors(), tmp_path / "a.pt")
    monkeypatch.setattr(pickled, "WORKER", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(
        UserError, match=r"a\.pt could not be read: the process that reads it failed \(exit status -9\)"
    ):
        open_checkpoint(tmp_path / "a.pt")


def test_shards_with_an_index(tmp_path, monkeypatch):
    in_this_process(monkeypatch)
    names = {"one": "pytorch_model-00001-of-00002.bin", "two": "pytorch_model-00002-of-00002.bin"}
    wanted = tensors()
    parts = {"one": {k: wanted[k] for k in ("a.weight", "half")}, "two": {k: wanted[k] for k in ("turned", "count")}}
    for part, table in parts.items():
        torch.save(table, tmp_path / names[part])
    places = {key: names[part] for part, table in parts.items() for key in table}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with open_checkpoint(tmp_path) as found:
        same(found.source, parts["one"] | parts["two"])
        assert found.config == {"model_type": "llama"}
        assert len({path for path, _, _ in found.source.entries.values()}) == len(names)
