"""--from: weights of another run in every family, new heads, what is recorded, and refusals that write nothing."""

import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import pencil
from conftest import TEXT, call
from conftest import pencil as pencil_command
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.runs.run import Run
from pencil.train.loop import checkpoint

pytestmark = pytest.mark.usefixtures("fast_training")
SHORT = {"steps": 2, "eval_every": 2, "save_every": 1, "batch": 3, "eval_batches": 1, "warmup": 0}
WORDS = [word for name, value in SHORT.items() for word in (f"--train.{name}", value)]
TINY = {"width": 20, "heads": 5, "depth": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts, labelled texts, pairs, and pictures with classes or captions, in two versions each."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.Generator(np.random.Philox(key=3))
    (folder / "a.txt").write_text(TEXT)
    (folder / "b.txt").write_text(TEXT[::-1])
    for name, labels in (("a", "xyz"), ("b", "zyx"), ("c", "uvwxy")):
        lines = [f"line {i} draws {i * 7 % 13} strips\t{labels[i % len(labels)]}\n" for i in range(60)]
        (folder / f"{name}.tsv").write_text("".join(lines))
    for name in ("p", "q"):
        (folder / f"{name}.tsv").write_text("".join(f"say {i} {name}q\t{i} times p\n" for i in range(30)))
    for name, classes in (("three", "abc"), ("two", "ad")):
        for kind in classes:
            (folder / name / kind).mkdir(parents=True)
            for i in range(4):
                Image.fromarray(rng.integers(0, 255, (10, 14, 3), dtype=np.uint8)).save(
                    folder / name / kind / f"{i}.png"
                )
    for name in ("album", "walks"):
        (folder / name).mkdir()
        for i in range(9):
            Image.fromarray(rng.integers(0, 255, (10, 14, 3), dtype=np.uint8)).save(folder / name / f"{i}.png")
        rows = [f'{{"file_name": "{i}.png", "text": "cat {i % 3}"}}\n' for i in range(9)]
        (folder / name / "metadata.jsonl").write_text("".join(rows))
    return folder


def trained(family, data, out, **settings):
    """A short training; its run's folder."""
    pencil.train(family, data, out=out, quiet=True, **SHORT, **settings)
    return out


def first(out):
    """The weights before the first step; checkpoints of every step are kept."""
    found = load_file(out / "checkpoints" / "step-00000000" / "shard-00000.safetensors")
    return {name.removeprefix("model."): t for name, t in found.items() if name.startswith("model.")}


CASES = {
    "gpt": ("a.txt", "b.txt", dict(context=11)),
    "seq2seq": ("p.tsv", "q.tsv", dict()),
    "captioner": ("album", "walks", dict()),
    "dit": ("album", "walks", dict()),
    "reader": ("a.tsv", "b.tsv", dict()),
    "vit": ("three", "three", dict()),
}


@pytest.mark.parametrize(
    "family",
    [pytest.param(one, marks=pytest.mark.long) if one in ("captioner", "seq2seq", "dit") else one for one in CASES],
)
def test_every_family_starts_with_the_weights(family, data, tmp_path):
    source, other, sizes = CASES[family]
    a = trained(family, data / source, tmp_path / "a", **TINY, **sizes)
    b = trained(family, data / other, tmp_path / "b", from_run=a, keep=5)
    before = load_file(a / "model.safetensors")
    start = first(b)
    assert before.keys() == start.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, start[name]), name
    moved = load_file(b / "checkpoints" / "step-00000002" / "shard-00000.safetensors")
    assert any(not torch.equal(tensor, moved[f"model.{name}"]) for name, tensor in before.items())
    was, now = Run.open(a), Run.open(b)
    assert now.config["model"] == was.config["model"]
    facts = now.config["run"]
    assert (facts["from"], facts["from_id"], facts["from_step"]) == (str(a), was.id, was.weights_step)
    if (a / "tokenizer.json").exists():
        assert (a / "tokenizer.json").read_bytes() == (b / "tokenizer.json").read_bytes()
    assert f"It started from the weights of `{a}`" in (b / "README.md").read_text()
    if family == "reader":  # the same classes in the order of the source
        assert facts["classes"] == was.config["run"]["classes"] == ["x", "y", "z"]


def test_a_new_head_where_classes_change(data, tmp_path):
    a = trained("vit", data / "three", tmp_path / "a", **TINY, image_size=(10, 14), patch=(5, 7))
    out = tmp_path / "b"
    said = call("train", "vit", "--from", a, "--data", data / "two", "--out", out, *WORDS, "--train.keep", 5).stderr
    assert f"a new head of 2 classes: the 3 of {a} are left out" in said
    before, start = load_file(a / "model.safetensors"), first(out)
    new = {name for name in before if before[name].shape != start[name].shape}
    assert new == {"head.weight", "head.bias"}
    assert all(torch.equal(before[name], start[name]) for name in before.keys() - new)
    assert start["head.weight"].shape == (2, 20)
    frozen = call(
        "train", "vit", "--from", a, "--data", data / "two", "--out", tmp_path / "c", "--freeze", "head", code=2
    )
    assert "train.freeze head matches head.bias, which is new here and must be trained" in frozen.stderr
    assert Run.open(out).config["run"]["classes"] == ["a", "d"]


def test_images_of_another_size_stretch_the_positions(data, tmp_path):
    a = trained("vit", data / "three", tmp_path / "a", **TINY, image_size=(10, 14), patch=(5, 7), resize=(12, 22))
    out = tmp_path / "b"
    words = ("train", "vit", "--from", a, "--data", data / "two", "--out", out)
    said = call(*words, "--size", "20x35", *WORDS, "--train.keep", 5).stderr
    assert (
        "images of 20×35 in 4×5 patches instead of 10×14 in 2×2 patches; positions.table: interpolated (bicubic)"
        in said
    )
    assert "a new head of 2 classes" in said
    before, start = load_file(a / "model.safetensors"), first(out)
    changed = {name for name in before if before[name].shape != start[name].shape}
    assert changed == {"head.weight", "head.bias", "positions.table"}
    assert all(torch.equal(before[name], start[name]) for name in before.keys() - changed)
    wanted = pencil.load(a).model.resized((20, 35)).positions.table
    assert torch.equal(start["positions.table"], wanted)
    assert Run.open(out).config["model"]["image_size"] == [20, 35]
    assert Run.open(out).config["data"]["resize"] == [24, 55]  # in proportion
    assert "does not divide" in call(*words[:-1], tmp_path / "c", "--size", "20x34", code=2).stderr


@pytest.mark.long
@pytest.mark.parametrize("positions", ["rope", "alibi"])
def test_images_of_another_size_need_no_weight_without_a_table(positions, data, tmp_path):
    sizes = dict(image_size=(10, 14), patch=(5, 7), positions=positions)
    a = trained("vit", data / "three", tmp_path / "a", **{**TINY, "width": 40}, **sizes)
    out = tmp_path / "b"
    said = call(
        "train",
        "vit",
        "--from",
        a,
        "--data",
        data / "three",
        "--size",
        "20x35",
        "--out",
        out,
        *WORDS,
        "--train.keep",
        5,
    )
    assert "no weight depends on their number" in said.stderr
    before, start = load_file(a / "model.safetensors"), first(out)
    assert all(torch.equal(before[name], start[name]) for name in before)


@pytest.mark.long
@pytest.mark.parametrize("family", ["captioner", "dit"])
def test_images_of_another_size_are_refused_by_other_families(family, data, tmp_path):
    a = trained(family, data / "album", tmp_path / "a", **TINY)
    said = call("train", family, "--from", a, "--data", data / "album", "--size", "96", "--out", tmp_path / "b", code=2)
    assert "model.image_size 96×96 is not that of" in said.stderr


def test_reader_from_masked_words_to_labels_and_back(data, tmp_path):
    a = trained("reader", data / "a.txt", tmp_path / "a", **TINY, context=29)
    b = tmp_path / "b"
    said = call("train", "reader", "--from", a, "--data", data / "a.tsv", "--out", b, *WORDS, "--train.keep", 5).stderr
    assert f"a new head of 3 classes: {a} has none, and its head is left out" in said
    before, start = load_file(a / "model.safetensors"), first(b)
    assert all(torch.equal(before[name], start[name]) for name in before if not name.startswith("head."))
    assert {name for name in start if name not in before} == {"head.pool.weight", "head.pool.bias", "head.label.weight", "head.label.bias"}  # fmt: skip
    assert len(call("sample", b, "--prompt", "line 1 draws").stdout.split("\n")) == 4
    c = trained("reader", data / "c.tsv", tmp_path / "c", from_run=b, keep=5)
    kept = first(c)
    own = load_file(b / "model.safetensors")
    assert {name for name in kept if kept[name].shape != own[name].shape} == {"head.label.weight", "head.label.bias"}
    assert torch.equal(kept["head.pool.weight"], own["head.pool.weight"])
    d = tmp_path / "d"
    said = call("train", "reader", "--from", c, "--data", data / "a.txt", "--out", d, *WORDS, "--train.keep", 5).stderr
    assert f"the 5 classes of {c} are left out: the data has none" in said
    assert f"tokens.weight: 1 new row for tokens that {c} lacks" in said
    grown, table = first(d)["tokens.weight"], load_file(c / "model.safetensors")["tokens.weight"]
    assert grown.shape == (len(table) + 1, 20)
    assert torch.equal(grown[:-1], table)


def test_a_smaller_context_and_dropout_may_be_chosen(data, tmp_path):
    a = trained("gpt", data / "a.txt", tmp_path / "a", **TINY, context=13, positions="learned")
    b = trained("gpt", data / "b.txt", tmp_path / "b", from_run=a, context=7, dropout=0.1, keep=5)
    assert torch.equal(first(b)["positions.table"], load_file(a / "model.safetensors")["positions.table"][:7])
    assert Run.open(b).config["model"]["dropout"] == 0.1


@pytest.mark.parametrize("scaling, recorded", [("ntk", 13), (None, None)])
def test_a_smaller_context_keeps_the_one_that_scaled_rotations_were_trained_on(scaling, recorded, data, tmp_path):
    scaled = {} if scaling is None else {"rope_scaling": scaling, "rope_factor": 2.0}
    a = trained("gpt", data / "a.txt", tmp_path / "a", **TINY, context=26, positions="rope", **scaled)
    b = trained("gpt", data / "b.txt", tmp_path / "b", from_run=a, context=7)
    assert Run.open(b).config["model"].get("rope_original_context") == recorded


@pytest.mark.long
def test_the_config_file_starts_from_it_too(run, notes, tmp_path):
    b = trained("gpt", notes, tmp_path / "b", from_run=run, freeze=["tokens", "blocks.0"])
    c = tmp_path / "c"
    call("train", "--config", b / "config.toml", "--out", c)
    assert load_file(b / "model.safetensors").keys() == load_file(c / "model.safetensors").keys()
    for name, tensor in load_file(b / "model.safetensors").items():
        assert torch.equal(tensor, load_file(c / "model.safetensors")[name])
    listed = call("train", "gpt", "--from", run, "--data", notes, "--settings").stdout
    assert f'from = "{run}"' in listed
    assert 'optimizer = "adamw"' in listed
    file = tmp_path / "chosen.toml"
    file.write_text(listed)
    call("train", "--config", file, "--out", tmp_path / "d", *WORDS)
    assert Run.open(tmp_path / "d").config["run"]["from"] == str(run)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model.width", 48], "model.width 48 is not that of RUN, 24, and its weights fit no other"),
        (["--model.context", 64], "model.context 64 is not that of RUN, 31"),
        (["--tokenizer", "byte"], "--tokenizer has no effect beside --from: that of RUN is used"),
        (["--preset", "small"], "--preset small has no effect beside --from"),
    ],
)
def test_contradictions_are_refused(run, notes, tmp_path, words, said):
    done = call("train", "gpt", "--from", run, "--data", notes, "--out", tmp_path / "b", *words, code=2)
    assert said.replace("RUN", str(run)) in done.stderr
    assert not (tmp_path / "b").exists()


def test_other_runs_are_refused(run, notes, tmp_path):
    said = call("train", "reader", "--from", run, "--data", notes, "--out", tmp_path / "b", code=2).stderr
    assert f"{run} is a run of a gpt, and a reader cannot start from its weights" in said
    assert "there is no run" in call("train", "gpt", "--from", tmp_path / "no", "--data", notes, code=2).stderr
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.toml", "tokenizer.json", "manifest.json"):
        (bare / name).write_bytes((run / name).read_bytes())
    assert "has no weights yet" in call("train", "gpt", "--from", bare, "--data", notes, code=2).stderr
    (bare / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes()[:-9])
    damaged = call("train", "gpt", "--from", bare, "--data", notes, "--out", tmp_path / "b", code=2).stderr
    assert "model.safetensors" in damaged
    strange = tmp_path / "greek.txt"
    strange.write_text("λόγος " * 999)
    said = call("train", "gpt", "--from", run, "--data", strange, "--out", tmp_path / "b", code=2).stderr
    assert "has a tokenizer of characters; leave that character out" in said
    own = call("train", "gpt", "--from", run, "--data", notes, "--out", run, "--force", code=2).stderr
    assert "is the run to start from" in own
    assert not (tmp_path / "b").exists()


def same_weights(a, b, step):
    one, other = (load_file(out / "checkpoints" / f"step-{step:08d}" / "shard-00000.safetensors") for out in (a, b))
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    best, other = (load_file(out / "model.safetensors") for out in (a, b))
    assert all(torch.equal(tensor, other[name]) for name, tensor in best.items())
    assert Run.open(a).weights_facts == Run.open(b).weights_facts


@pytest.mark.long
def test_stopped_before_the_first_save_it_resumes_without_the_source(run, notes, tmp_path):
    """A training that dies after one step, whose source is gone: the weights it began with are in the run."""
    source = tmp_path / "source"
    shutil.copytree(run, source)
    settings = SHORT | {"save_every": 2, "eval_every": 1, "steps": 3, "dropout": 0.2, "recompute": "blocks"}

    def dies(step, metrics):
        raise RuntimeError("killed")

    whole, out = tmp_path / "whole", tmp_path / "out"
    pencil.train("gpt", notes, out=whole, from_run=source, quiet=True, **settings | {"recompute": "none"})
    with pytest.raises(RuntimeError, match="killed"):
        pencil.train("gpt", notes, out=out, from_run=source, quiet=True, on_step=dies, **settings)
    shutil.rmtree(source)
    call("resume", out)
    same_weights(whole, out, 3)


def test_the_weights_it_began_with_stay_its_own_while_they_are_best(run, notes, tmp_path):
    """Interrupted and resumed; also by a version that put later weights in their place when it was interrupted."""
    settings = SHORT | {"steps": 5, "lr": 3.0, "muon_lr": 3.0}
    out, source = tmp_path / "out", load_file(run / "model.safetensors")
    pencil.train("gpt", notes, out=out, from_run=run, quiet=True, on_step=lambda step, _: step < 3, **settings)
    assert Run.open(out).weights_step == 0
    old = tmp_path / "old"
    shutil.copytree(out, old)
    other = pencil.load(run).model.requires_grad_(False)
    other.norm.weight.mul_(3)
    Run.open(old).write_weights(other, {**Run.open(old).weights_facts, "step": 3})
    call("resume", out)
    for name, tensor in load_file(out / "model.safetensors").items():
        assert torch.equal(tensor, source[name]), name
    assert Run.open(out).weights_step == 0
    said = call("resume", old).stderr
    assert "the weights that the run began with, its best, were replaced when it was interrupted, and the weights of " \
           "step 3 take its place" in said  # fmt: skip
    kept = checkpoint.read(old, Run.open(old).weights_step).tensors
    for name, tensor in load_file(old / "model.safetensors").items():
        assert torch.equal(tensor, kept[f"model.{name}"]), name


def test_killed_before_its_weights_are_kept_it_is_trained_anew(run, notes, tmp_path):
    new_run(TrainingRequest("gpt", str(notes), train=SHORT, from_run=str(run)), out=tmp_path / "b")
    said = call("resume", tmp_path / "b", code=2).stderr
    assert f"train it anew with --from {run} --out {tmp_path / 'b'} --force" in said


@pytest.mark.long
def test_killed_it_resumes_to_the_same_bits(run, notes, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(run, source)
    words = ["--from", source, "--data", notes, "--freeze", "blocks.0", "--train.steps", 60, "--train.eval_every", 20,
             "--train.save_every", 5, "--train.batch", 5, "--train.warmup", 3, "--model.dropout", 0.1]  # fmt: skip
    pencil_command("train", "gpt", *words, "--out", tmp_path / "whole")
    command = [sys.executable, "-m", "pencil", "train", "gpt", *words, "--out", tmp_path / "out"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(tmp_path.glob("out/checkpoints/step-0000001?")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    shutil.rmtree(source)
    pencil_command("resume", tmp_path / "out")
    same_weights(tmp_path / "whole", tmp_path / "out", 60)


def test_too_little_data_names_it(tmp_path, run, notes):
    few = tmp_path / "few.txt"
    few.write_text(TEXT[:700])
    words = ["--train.steps", 1, "--train.batch", 3000, "--train.eval_batches", 1, "--model.context", 11]
    tiny = ["--model.width", 4, "--model.heads", 2, "--model.depth", 1]
    assert "--from RUN" in call("train", "gpt", "--data", few, "--out", tmp_path / "a", *words, *tiny).stderr
    said = call("train", "gpt", "--from", run, "--data", few, "--out", tmp_path / "b", *words).stderr
    assert "are little for 1 steps" in said
    assert "--from RUN" not in said
