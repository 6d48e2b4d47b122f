"""A run's training step at the command line: on an input, and an update that the training really made."""

import hashlib
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel

from conftest import call
from pencil.api.step import prepare_replay, trace_update
from pencil.core.probe import Probe
from pencil.runs.run import Run
from pencil.train.loop import checkpoint
from traced import unchecked, wrong

CELL = "grad:blocks.0.attn.w_q[1,3,5]"


def contents(folder):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_gradient_on_an_input(run):
    before = contents(run)
    out = call("why", run, CELL, "--input", "the pencil draws").stdout
    assert "∂L/∂W_Q[3,5] = " in out
    assert re.search(r"recorded −?[\d.e−]+ ✓", out)
    assert "blocks.0.attn_norm[0,0,3]" in out
    assert contents(run) == before


def test_a_weight_after_a_step_on_an_input(run):
    out = call("why", run, "new:norm.weight[17]", "--input", "the pencil draws").stdout
    assert "η_AdamW/(1 − β₁^step)" in out
    assert "✓" in out
    assert "old:" not in out  # on an input the optimizer remembers nothing
    row = call("why", run, "grad:tokens.weight[p,2]", "--input", "the pencil draws").stdout
    assert "   ∂L/∂Zᵀ X_f + onehot(t)ᵀ ∂L/∂X⁰\nV 'p'  D 2\n" in row
    left_out = call("why", run, "grad:logits[0,-1,2]", "--input", "the pencil draws").stdout
    assert "[targets ≠ −100]·(p − onehot(targets))/" in left_out
    assert " targets[" in left_out
    table = call("show", run, "grad:logits", "--input", "the pen").stdout
    assert "'p'" in table or "p" in table


def test_the_update_that_a_run_made(run):
    before = contents(run)
    done = call("why", run, "new:norm.weight[17]", "--update-at", "22")
    assert "making 2 updates again" in done.stderr  # there is a checkpoint of step 20
    assert "old:norm.weight.step" in done.stdout
    assert "✓" in done.stdout
    assert contents(run) == before


@unchecked()
def test_it_has_the_bits_of_the_trainers_own_update(run):
    """By the plain route of attention, on one thread; the training's own route differs by rounding."""
    trace = trace_update(run, 29)
    assert wrong(trace.graph, 50)[1] == []
    trainer, _ = prepare_replay(Run.open(run), print)
    with trainer.group:
        trainer.replay(29)
        trainer.model.register_forward_pre_hook(
            lambda module, args, given: (args, {**given, "probe": Probe()}), with_kwargs=True
        )
        with sdpa_kernel(SDPBackend.MATH):
            trainer.update()
    weights = dict(trainer.model.named_parameters())
    for name, weight in weights.items():
        np.testing.assert_array_equal(trace.new[name].value, weight.detach().numpy())
    newest, _ = checkpoint.latest(run)
    assert newest.step == 30
    off = max(np.abs(trace.new[name].value - newest.tensors[f"model.{name}"].numpy()).max() for name in weights)
    print(f"the training's own route differs by {off:.1e}")
    for name in weights:
        np.testing.assert_allclose(trace.new[name].value, newest.tensors[f"model.{name}"].numpy(), atol=1e-5)


def test_training_goes_on_from_the_state_it_was(run):
    """The random numbers and the number of threads of the caller are as they were."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with unchecked():
        trace_update(run, 10)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


@pytest.fixture(scope="module")
def digits_vit(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "digits-vit"
    call("train", "vit", "--data", "digits", "--out", path, "--model.width", "12", "--model.depth", "1", "--model.heads",
         "2", "--train.steps", "3", "--train.eval_every", "3", "--train.eval_batches", "1", "--train.batch", "5",
         "--train.dtype", "bfloat16")  # fmt: skip
    return path


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "seven.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    return path


def test_a_classifier_has_a_target(digits_vit, picture):
    done = call("why", digits_vit, "grad:logits[0,7]", "--input", picture, "--target", "7")
    out = done.stdout
    assert "✓" in out
    assert "trained in bfloat16, and the step on an input is recorded in single precision" in done.stderr
    assert out.count("−1") or "− 1" in out


def test_the_update_of_a_classifier(digits_vit):
    """Recorded in bfloat16, as it was made."""
    done = call("why", digits_vit, "new:head.weight[3,5]", "--update-at", "1")
    assert "✓" in done.stdout
    assert "single precision" not in done.stderr
    with unchecked():
        trace = trace_update(digits_vit, 1)
    assert {n.dtype for n in trace.graph.nodes if n.kind == "dot"} >= {"bfloat16"}
    assert wrong(trace.graph, 30)[1] == []


def test_the_update_of_a_diffusion_model(tmp_path):
    path = tmp_path / "digits-dit"
    call("train", "dit", "--data", "digits", "--out", path, "--model.width", "12", "--model.depth", "1", "--model.heads",
         "2", "--train.steps", "2", "--train.eval_every", "9", "--train.eval_batches", "1", "--train.batch", "5")  # fmt: skip
    assert "✓" in call("why", path, "grad:time.out[0,5]", "--update-at", "1").stdout


def test_a_step_has_a_file_and_a_page(run, tmp_path):
    saved = tmp_path / "step.trace.safetensors"
    call("trace", run, "--update", "--input", "the", "--out", saved)
    assert "✓" in call("why", saved, CELL).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--update-at", "30"], "has made 30 updates: choose one from 0 to 29, not 30"),
        (["--update-at", "-1"], "choose one from 0 to 29, not -1"),
        (["--update-at", "3", "--input", "the"], "leave the input out"),
        (["--update", "--input", "the", "--edit", "logits=0"], "--edit changes a forward pass"),
        (["--update"], "--input is missing"),
        (["--update", "--input", "t"], "no loss"),
    ],
)
def test_what_has_no_step_is_refused(run, words, said):
    assert said in call("trace", run, *words, code=2).stderr


def test_names_of_a_step_are_pointed_to(run):
    said = call("why", run, "baddbmm.3[0,1,2]", "--input", "the pencil", code=2).stderr
    assert "nothing in the trace is called baddbmm.3; " in said
    assert "--update adds the names of a training step" in said
    said = call("why", run, "new:blocks.0.attn.w_q[1,3,5]", "--input", "the pencil", code=2).stderr
    assert "blocks.0.attn.w_q is a view of blocks.0.attn.qkv.weight, and its cell [1,3,5] there is new:blocks." in said


@pytest.mark.parametrize(
    ("words", "said"), [(["--target", "eleven"], "--target eleven is not a class of this run"), ([], "--target")]
)
def test_a_classifier_without_its_target_is_refused(digits_vit, picture, words, said):
    assert said in call("trace", digits_vit, "--update", "--input", picture, *words, code=2).stderr
