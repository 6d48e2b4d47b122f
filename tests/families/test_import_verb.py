"""The verb that imports: names of runs, what is refused and what is said."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import call
from foreign import MAKERS
from pencil.files import locked


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("foreign")
    return {name: MAKERS[name](root / name.lower()) for name in ("GPT-2", "Qwen2")}


@pytest.fixture
def gpt2(folders):
    shutil.copytree(folders["GPT-2"], "small")
    return Path("small")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def with_value(folder, name, value):
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[1] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_nan_is_said_at_import_and_equals_nothing(gpt2):
    with_value(gpt2, "transformer.h.0.ln_1.weight", float("nan"))
    printed = call("import", "small", "--parity", code=1).stderr
    assert "blocks.0.attn_norm.weight holds NaN or infinity: what the model computes will be NaN, too" in printed
    assert "NOT equal: " in printed
    assert " has NaN or infinity, which equals nothing" in printed
    assert Path("runs/small/model.safetensors").is_file()


def test_a_value_that_the_dtype_cannot_hold_is_refused(gpt2):
    with_value(gpt2, "transformer.h.0.ln_1.weight", 7e4)
    refusal = call("import", "small", "--dtype", "float16", code=2).stderr
    assert "blocks.0.attn_norm.weight has a value of 7e+04, which is too large for float16" in refusal
    assert not Path("runs/small").exists()


def test_parity_compares_the_weights_before_they_are_rounded(gpt2):
    printed = call("import", "small", "--dtype", "bfloat16", "--parity").stderr
    assert "equal: the largest error is" in printed
    assert "(computed in float32, from the weights as they are before they are rounded to bfloat16)" in printed
    kinds = {tensor.dtype for tensor in load_file("runs/small/model.safetensors").values()}
    assert kinds == {torch.bfloat16}


@pytest.mark.parametrize("name", ["FooForCausalLM", "Qwen2ForTokenClassification"])
def test_another_class_of_the_same_kind_is_refused_by_name(folders, name):
    shutil.copytree(folders["Qwen2"], "small")
    config = json.loads(Path("small/config.json").read_text())
    Path("small/config.json").write_text(json.dumps({**config, "architectures": [name]}))
    refusal = call("import", "small", code=2).stderr
    assert f"architectures has '{name}', which ours does not have: only Qwen2ForCausalLM or Qwen2Model" in refusal
    assert not Path("runs").exists()


def test_a_name_that_is_taken_is_said_and_force_replaces_it(gpt2):
    call("import", "small")
    printed = call("import", "small").stderr
    assert "runs/small exists already, so this run is runs/small-2" in printed
    first = Path("runs/small/config.toml").read_text()
    call("import", "small", "--force")
    assert sorted(path.name for path in Path("runs").iterdir()) == ["small", "small-2"]
    assert Path("runs/small/config.toml").read_text() != first  # it has an id of its own
    with locked(Path("runs/small"), "busy"):
        assert "runs/small is being written" in call("import", "small", "--force", code=2).stderr
    shutil.copytree("small", "runs/small/inner")
    refusal = call("import", "runs/small/inner", "--out", "runs/small", "--force", code=2).stderr
    assert "runs/small holds the checkpoint itself" in refusal


def test_a_prefix_of_another_library_is_refused(gpt2):
    refusal = call("import", "nanogpt:small", code=2).stderr
    assert "nanogpt:small is a GPT-2 of transformers, and not of nanogpt: leave nanogpt: out" in refusal


KILLED = """
import sys, time
from pencil.families import importing
def slowly(tensors, *rest):
    for pair in tensors:
        yield pair
        print("one", flush=True)
        time.sleep(60)
importing._finite = slowly
importing.import_checkpoint("small", name="kk")
"""


@pytest.mark.long
def test_what_a_killed_import_left_is_removed_by_the_next(gpt2):
    source = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, env=os.environ | source) as child:
        child.stdout.readline()
        (left,) = Path("runs").glob(".kk.*")
        call("import", "small", "--name", "kk")  # the other is still at work
        assert left.is_dir()
        child.send_signal(signal.SIGKILL)
        child.wait()
    time.sleep(0.05)
    assert left.is_dir()
    call("import", "small", "--name", "kk", "--force")
    assert [path.name for path in Path("runs").iterdir()] == ["kk"]


def test_mistakes_of_the_line_are_named_with_what_was_meant(gpt2):
    assert "import takes no --nmae; did you mean --name?" in call("import", "small", "--nmae", "x", code=2).stderr
    assert "export takes no --too; did you mean --to?" in call("export", "small", "--too", "hf", code=2).stderr
    assert "a gpt takes no --form; did you mean --from?" in call("train", "gpt", "--form", "x", code=2).stderr
    refusal = call("import", "foo:bar/baz", code=2).stderr
    assert (
        "foo:bar/baz is neither a path nor the name of a checkpoint; it begins with hf:, timm:, diffusers:" in refusal
    )
    Path("package").mkdir()
    shutil.copytree("small", "package/inner")
    assert "package holds no weights: " in (refusal := call("import", "package", code=2).stderr)
    assert "did you mean package/inner?" in refusal


def test_a_missing_shard_is_named_without_an_index(gpt2):
    Path("small/model.safetensors").rename("small/model-00001-of-00002.safetensors")
    assert "small has no model-00002-of-00002.safetensors" in call("import", "small", code=2).stderr


def test_an_error_of_a_tensor_names_the_checkpoint(gpt2):
    tensors = load_file("small/model.safetensors")
    del tensors["transformer.ln_f.bias"]
    save_file(tensors, "small/model.safetensors")
    refusal = call("import", "small", code=2).stderr.splitlines()[-1]
    assert refusal == "pencil: small: this GPT-2 has no transformer.ln_f.bias"


def test_the_cost_of_an_imported_run_has_its_biases_and_its_optimizer(folders):
    call("import", folders["Qwen2"])
    printed = call("cost", "runs/qwen2").stdout
    assert "d + biases of Q, K, V" in printed
    assert "AdamW" in printed
    assert "Muon and AdamW" not in printed
