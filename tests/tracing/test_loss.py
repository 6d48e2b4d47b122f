"""The loss as named tensors of a trace: what cross-entropy gives for the same logits and targets, step by step."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pencil
from conftest import call
from pencil.config import UserError
from pencil.inference.text_batches import mask_token
from pencil.learn.worked.examples import example
from pencil.tracing.live_trace import trace
from pencil.tracing.trace import read
from traced import disagreeing, holds

RUNS = Path(__file__).parents[1] / "runs-0.6"
STEPS = ["targets", "probabilities", "target_probabilities", "losses", "loss"]


class Scores(nn.Module):
    """A model that gives its input as logits, under the name of `how` it gives them."""

    def __init__(self, how=""):
        super().__init__()
        self.how = how

    def forward(self, x):
        return {"": x * 1, "attribute": SimpleNamespace(logits=x * 1), "key": {"logits": x * 1}}[self.how]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_the_steps_are_those_of_cross_entropy(seed, dtype):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(2, 5, 7, generator=generator, dtype=torch.float64) * 3).to(dtype)
    targets = torch.randint(-3, 7, (2, 5), generator=generator)
    targets[1, 2] = 3
    t = trace(Scores(), logits, targets=targets)
    wide = logits.double()
    counted = (targets >= 0).numpy()
    each = F.cross_entropy(wide.flatten(0, 1), targets.flatten().clamp(min=0), reduction="none").reshape(2, 5).numpy()
    close = dict(rtol=1e-12, atol=1e-12) if dtype == torch.float64 else dict(rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(t["probabilities"].value, wide.softmax(-1).numpy(), **close)
    np.testing.assert_allclose(t["losses"].value, np.where(counted, each, 0), **close)
    np.testing.assert_allclose(np.exp(-each[counted]), t["target_probabilities"].value[counted], **close)
    assert float(t["loss"]) == pytest.approx(each[counted].mean(), rel=close["rtol"])
    holds(t, count=10**6)
    assert not disagreeing(t, 40)


@pytest.mark.parametrize("name", ["nanogpt-block", "vit-text", "original-transformer"])
def test_an_example_ends_with_its_loss(name, tmp_path):
    """The target of each token is the next one, which the labels of the example name."""
    t = example(name)
    assert t.names[-5:] == STEPS
    targets, logits = t["targets"].value.astype(int), torch.from_numpy(t["logits"].value)
    read_ids = t["tokens" if "tokens" in t else "given.tokens"].value.astype(int)
    assert np.array_equal(targets[0, :-1], read_ids[0, 1:])
    expected = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
    assert float(t["loss"]) == pytest.approx(float(expected), rel=1e-12)
    assert t["loss"].node.formula == f"Σ ℓ/{targets.size}"
    assert t["loss"].why().agrees
    assert t["losses"].node.axes == t["logits"].node.axes.removesuffix(" V")
    t.save(tmp_path / "a.safetensors")
    assert float(read(tmp_path / "a.safetensors")["loss"]) == float(t["loss"])


def test_an_edit_reaches_the_loss_and_a_step_of_it_can_be_edited():
    t = example("nanogpt-block")
    changed = t.edit("blocks.0.post[0,cat]", 0.0)
    assert changed["losses"].value[0, 1] != t["losses"].value[0, 1]
    assert changed["losses"].value[0, 2] == t["losses"].value[0, 2]
    known = t.edit("probabilities[0,0,cat]", 1.0)
    assert known["losses"].value[0, 0] == 0
    assert float(known["loss"]) == pytest.approx(t["losses"].value[0, 1:].sum() / 4, rel=1e-12)
    other = t.edit("targets[0,0]", 2)
    assert other["target_probabilities"].value[0, 0] == t["probabilities"].value[0, 0, 2]


def test_closed_blocks_leave_the_loss_open():
    t = example("nanogpt-block")
    closed = trace(t.traced_model.model, torch.arange(4)[None], targets=torch.arange(1, 5)[None], keep="blocks")
    assert float(closed["loss"]) == float(t["loss"])
    assert closed["blocks.0.mlp.act[0,1,2]"].why().agrees
    assert closed["loss"].node.formula == "Σ ℓ/4"


@pytest.mark.parametrize("how", ["attribute", "key"])
def test_logits_may_be_a_part_of_what_a_model_gives(how):
    x = torch.randn(1, 3, 5)
    t = trace(Scores(how), x, targets=[[1, 4, 0]])
    assert float(t["loss"]) == pytest.approx(float(F.cross_entropy(x[0], torch.tensor([1, 4, 0]))), rel=1e-5)


def test_classes_have_a_loss_too_and_a_models_own_targets_are_its_own():
    x = torch.randn(3, 5, dtype=torch.float64)
    t = trace(nn.Linear(5, 7).double(), x, targets=[2, 6, 0])
    expected = F.cross_entropy(torch.from_numpy(t["output"].value), torch.tensor([2, 6, 0]))
    assert float(t["loss"]) == pytest.approx(float(expected), rel=1e-12)

    class Own(nn.Module):
        def forward(self, x, targets):
            return F.mse_loss(x, targets)

    assert "probabilities" not in trace(Own(), x, targets=x * 2)


@pytest.mark.parametrize("targets, words", [
    ([[1, 2]], "targets are 1×2 and the logits 1×3×5: one target for each row"),
    ([[1, 2, 5]], "a target is 5, and the model tells 5 apart, from 0"),
    ([[0.5, 1.0, 2.0]], "whole numbers"),
    ([[-100, -1, -100]], "no position has a target"),
])  # fmt: skip
def test_targets_that_do_not_fit_are_refused(targets, words):
    with pytest.raises(UserError, match=words):
        trace(Scores(), torch.randn(1, 3, 5), targets=targets)


def test_the_loss_of_a_run_is_that_of_the_next_tokens():
    """Of a text the last token has no target; a target that ends has the end token as its last."""
    loaded = pencil.load(RUNS / "gpt")
    ids = loaded.tokenizer.encode("line one").tolist()
    t = pencil.trace(loaded, "line one")
    assert t["targets"].value[0, : len(ids) - 1].tolist() == ids[1:]
    expected = F.cross_entropy(torch.from_numpy(t["logits"].value)[0, :-1], torch.tensor(ids[1:]))
    assert float(t["loss"]) == pytest.approx(float(expected), rel=1e-5)
    assert t["losses"].value[0, -1] == 0
    assert "loss" not in pencil.trace(loaded, "l")  # one token is followed by none
    loaded = pencil.load(RUNS / "seq2seq")
    t = pencil.trace(loaded, "01.02.03", text="1")
    assert t["targets"].value[0].tolist() == [*loaded.tokenizer.encode_target("1").tolist(), loaded.tokenizer.end]


def test_the_loss_of_masked_tokens_needs_what_stands_there():
    loaded = pencil.load(RUNS / "reader")
    t = pencil.trace(loaded, "li[mask]e one", text="line one")
    at = t["tokens"].value[0].tolist().index(mask_token(loaded.tokenizer))
    assert np.flatnonzero(t["targets"].value[0] >= 0).tolist() == [at]
    assert "loss" not in pencil.trace(loaded, "li[mask]e one")
    for given_text, text, words in (
        ("line one", "line one", "--input has none"),
        ("li[mask]e one", "lane on", "--text must be"),
    ):
        with pytest.raises(UserError, match=words):
            pencil.trace(loaded, given_text, text=text)


def test_the_command_line_shows_it():
    assert (
        call("why", "example:nanogpt-block", "loss")
        .stdout.splitlines()[1]
        .startswith("loss = (4.016 + 1.83 + 2.582 + ")
    )
    assert "probabilities  B 1 T 4 V 6  p = softmax(Z)" in call("show", "example:nanogpt-block", "probabilities").stdout


def test_the_python_of_the_page_prints_what_it_says(capsys):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "traces.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page.partition("## The loss")[2].partition("\n## ")[0], re.M | re.S)
    exec(block, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^print\(.*\)  # (.+)$", block, re.M)
