"""Runs loaded in another dtype, in little memory, and checked by their hash as often as needed."""

import os
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from safetensors.torch import load_file

import pencil
from conftest import call
from pencil.api.loading import open_run
from pencil.config import UserError
from pencil.runs import files as run_files


@pytest.fixture
def half(run, tmp_path):
    """The small run with its weights in bfloat16."""
    copy = shutil.copytree(run, tmp_path / "half")
    loaded = pencil.load(copy, dtype="bfloat16")
    opened = open_run(copy)
    with opened.writing():
        opened.write_weights(loaded.model, {"step": 30})
    return copy


def test_weights_keep_their_dtype_unless_another_is_given(run, half):
    stored = load_file(half / "model.safetensors")
    for given, kind in ((None, torch.bfloat16), ("float32", torch.float32), (torch.float16, torch.float16),
                        ("auto", torch.float32)):  # fmt: skip
        found = pencil.load(half, dtype=given).model.state_dict()
        assert found.keys() == stored.keys()
        assert all(
            tensor.dtype == kind and torch.equal(tensor, stored[name].to(kind)) for name, tensor in found.items()
        )
    original = load_file(run / "model.safetensors")
    assert all(torch.equal(stored[name], tensor.bfloat16()) for name, tensor in original.items())
    assert next(pencil.load(run, dtype="auto").model.parameters()).dtype == torch.float32
    with pytest.raises(UserError, match=r"the dtype bfloat is not one .* did you mean bfloat16\?"):
        pencil.load(half, dtype="bfloat")


def test_writing_into_loaded_weights_leaves_the_file_alone(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    before = (copy / "model.safetensors").read_bytes()
    model = pencil.load(copy).model
    with torch.no_grad():
        for one in model.parameters():
            one.fill_(3)
    assert (copy / "model.safetensors").read_bytes() == before


def test_every_verb_takes_a_run_in_half_precision(half):
    assert call("sample", half, "--prompt", "line", "--max-new-tokens", "3", "--temperature", "0").stdout
    small = call("sample", half, "--prompt", "line", "--max-new-tokens", "2", "--dtype", "bfloat16")
    assert small.stdout.startswith("line")
    cell = "blocks.0.attn.pattern[0,0,1,0]"
    assert call("why", half, cell, "--input", "line").stdout
    loaded = pencil.load(half)
    trace = pencil.trace(loaded, "line")
    assert trace.logits.dtype == torch.float32
    assert pencil.trace(loaded, "line", double=True).logits.dtype == torch.float64
    assert next(loaded.model.parameters()).dtype == torch.bfloat16
    for verb in ("cost", "shapes", "heads", "verify"):
        call(verb, half)
    done = call("sample", half, "--prompt", "line", "--dtype", "float23", code=2)
    assert "the dtype float23 is not one that a model computes in; did you mean float32?" in done.stderr


# ---- how often large weights are hashed


@pytest.fixture
def large(run, tmp_path, monkeypatch):
    """A run whose weights count as large, its files two hours old; and how often they were hashed."""
    monkeypatch.setattr(run_files, "HASHED_AT_EVERY_LOAD", 1000)
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "cache"))
    copy, read = shutil.copytree(run, tmp_path / "run"), []
    from pencil import files
    from pencil.data import cache

    def counted(path):
        if path.name == "model.safetensors":
            read.append(path)
        return files.fingerprint(path)

    monkeypatch.setattr(cache, "fingerprint", counted)
    # a file that was changed within the clock's step is hashed again: these are older
    monkeypatch.setattr(cache, "SETTLED_NANOSECONDS", -(10**12))
    return copy, read


def bitten(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    with path.open("r+b") as file:  # the same file, not another of its name
        file.write(content)


def test_large_weights_are_hashed_once_and_by_verify(large):
    run, read = large
    for _ in range(3):
        pencil.load(run)
    assert len(read) == 1
    call("verify", run)
    assert len(read) == 2
    os.utime(run / "model.safetensors")
    pencil.load(run)
    assert len(read) == 3


def test_changed_large_weights_are_refused(large):
    run, read = large
    pencil.load(run)
    bitten(run / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged or was changed"):
        pencil.load(run)
    assert len(read) == 2


def test_a_change_with_its_time_put_back_is_found(large, monkeypatch):
    run, _ = large
    path = run / "model.safetensors"
    pencil.load(run)
    before = path.stat()
    bitten(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    done = call("verify", run, code=1)
    assert any(line.startswith("damaged") and "model.safetensors" in line for line in done.stdout.splitlines())
    with pytest.raises(UserError, match="is damaged or was changed"):
        pencil.load(run)


def test_weights_written_here_are_not_hashed_again(large):
    run, read = large
    opened, model = open_run(run), pencil.load(run).model
    read.clear()
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    with opened.writing():
        opened.stream_weights(shapes, torch.bfloat16, model.state_dict().items(), {"step": 7})
    assert opened.weights_step == 7
    run = run.rename(run.with_name("renamed"))
    pencil.load(run)
    assert read == []
    call("verify", run)
    assert len(read) == 1


def test_small_weights_are_hashed_at_every_load(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    path = copy / "model.safetensors"
    pencil.load(copy)
    before = path.stat()
    bitten(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(UserError, match="is damaged or was changed"):
        pencil.load(copy)


def test_a_cache_that_cannot_be_written_means_hashing(large, monkeypatch, tmp_path):
    run, _ = large
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PENCIL_CACHE", str(tmp_path / "file"))
    pencil.load(run)
    bitten(run / "model.safetensors")
    with pytest.raises(UserError, match="is damaged or was changed"):
        pencil.load(run)


def test_writing_that_fails_leaves_the_former_weights(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    opened, model = open_run(copy), pencil.load(copy).model
    before = sorted(path.name for path in copy.iterdir())
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}

    def some():
        yield from list(model.state_dict().items())[:2]
        raise UserError("the third is damaged")

    with opened.writing(), pytest.raises(UserError, match="the third is damaged"):
        opened.stream_weights(shapes, torch.float32, some(), {})
    assert sorted(path.name for path in copy.iterdir() if path.name != ".lock") == [n for n in before if n != ".lock"]
    call("verify", copy)


PEAK = """
import gc, resource, sys, torch, pencil
from pencil.api import loading
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
torch.ones(3) @ torch.ones(3)
loading.open_run(sys.argv[1])
before = peak()
model = pencil.load(sys.argv[1], dtype=sys.argv[2] or None).model
touched = sum(float(one.sum()) for one in model.parameters())
print(peak() - before, sum(one.numel() * one.element_size() for one in model.parameters()))
"""


@pytest.mark.long
@pytest.mark.parametrize("stored, dtype", [("float32", ""), ("float32", "bfloat16"), ("bfloat16", "float32")])
def test_loading_takes_little_more_memory_than_the_model(run, tmp_path, stored, dtype):
    from pencil.families import family
    from pencil.runs.run import Run

    opened = open_run(run)
    record, kind = family("gpt"), getattr(torch, stored)
    table = {**opened.config, "model": {**opened.config["model"], "width": 768, "heads": 12, "depth": 14}}
    config = record.read_config(table["model"])
    made = Run.create(tmp_path / "big", table, opened.tokenizer)
    with torch.device("meta"):
        shapes = {name: tuple(t.shape) for name, t in record.create(config).state_dict().items()}
    made.stream_weights(shapes, kind, ((name, torch.zeros(shape)) for name, shape in shapes.items()), {"step": 1})
    done = subprocess.run([sys.executable, "-c", PEAK, tmp_path / "big", dtype], capture_output=True, text=True)
    used, size = map(int, done.stdout.split())
    stored_size = (tmp_path / "big" / "model.safetensors").stat().st_size
    assert stored_size > (390e6 if stored == "float32" else 190e6)
    assert used < 1.3 * size, f"{used / size:.2f} of the model, {used / stored_size:.2f} of the file"


def test_half_precision_on_a_cpu_without_units_for_it_prints_no_stack(run):
    """torch warns, with its C++ stack, that it uses another kernel; the result is right."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        pencil.load(run, dtype="bfloat16")
        warnings.warn("mkldnn_matmul failed, switching to BLAS gemm: could not create a primitive", stacklevel=1)
        warnings.warn("another", stacklevel=1)
    assert [str(one.message) for one in heard] == ["another"]
