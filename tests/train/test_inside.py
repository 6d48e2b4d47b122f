"""What is measured inside a model at an evaluation, against scipy's entropy of the patterns that a probe records."""

import json

import pytest
import torch
from scipy.stats import entropy
from torch import nn

from conftest import unchecked
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.core.probe import Probe
from pencil.families import configure, create
from pencil.train.loop import inside
from pencil.train.loop.inside import first_examples, measure_inside
from pencil.train.loop.trainer import Trainer
from pencil.train.settings import TrainConfig
from pencil.train.task import Task

DECODER = dict(vocab=11, width=24, heads=3, depth=3)


def _model(family, **values):
    torch.manual_seed(7)
    model = create(family, configure(family, None, **values)).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


class Known(Task):
    """A task whose loss is a call of the model with inputs that are known."""

    train = TrainConfig(batch=5)

    def __init__(self, *inputs):
        self.inputs = inputs

    def batch(self, step, micro=0):
        return self.inputs

    def loss(self, model, batch):
        return model(*batch).square().mean()


CASES = {
    "gpt": ("gpt", dict(DECODER, context=7), (torch.arange(35).reshape(5, 7) % 11,)),
    "rope and grouped heads": (
        "gpt",
        dict(DECODER, heads=4, kv_heads=2, positions="rope", context=13),
        (torch.arange(65).reshape(5, 13) % 11,),
    ),
    "seq2seq": (
        "seq2seq",
        dict(DECODER, context=7, source_context=13),
        (torch.arange(35).reshape(5, 7) % 11, torch.arange(65).reshape(5, 13) % 11),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_scales_and_entropies_are_those_of_what_a_probe_records(name):
    family, values, inputs = CASES[name]
    model = _model(family, **values)
    measured, left_out = measure_inside(Known(*inputs), model, inputs)
    probe = Probe("*.post", "*.pattern")
    with torch.no_grad():
        model(*inputs, probe=probe)
    expected = {}
    for path, value in probe.values.items():
        module, _, what = path.rpartition(".")
        if what == "post":
            expected[f"activation_scale.{module}"] = float(value.square().mean().sqrt())
        else:
            expected[f"attention_entropy.{module}"] = entropy(value.numpy(), axis=-1).mean()
    assert measured == pytest.approx(expected, rel=1e-5)
    assert not left_out
    assert len({round(number, 6) for number in measured.values()}) == len(measured) >= 6
    modules = list(model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def test_groups_of_tokens_are_measured_together():
    """Factored attention of a video runs on the patches of each frame, then on each position across frames."""
    sizes = dict(image_size=(4, 6), frames=3, channels=1, patch=(2, 2), classes=3, width=24, depth=2, heads=3)
    model = _model("dit", **sizes, attention="factored")
    inputs = (torch.rand(5, 1, 3, 4, 6).double(), torch.rand(5).double(), torch.arange(5) % 3)
    measured, _ = measure_inside(Known(*inputs), model, inputs)
    probe = Probe("*.pattern")
    with torch.no_grad():
        model(*inputs, probe=probe)
    for path, pattern in probe.values.items():
        name = f"attention_entropy.{path.removesuffix('.pattern')}"
        assert measured[name] == pytest.approx(entropy(pattern.numpy(), axis=-1).mean(), rel=1e-5)


def test_a_pattern_that_is_too_large_is_left_out_in_a_sentence(monkeypatch):
    family, values, inputs = CASES["seq2seq"]
    monkeypatch.setattr(inside, "MOST_PATTERN_VALUES", 5 * 3 * 7 * 13)
    measured, left_out = measure_inside(Known(*inputs), _model(family, **values), inputs)
    # the source attends to itself with 5·3·13·13 values, and no other pattern is as large
    assert sum(name.startswith("attention_entropy.blocks") for name in measured) == 6
    assert not any(name.startswith("attention_entropy.encoder") for name in measured)
    assert "attention in encoder.blocks.0.attn and of 2 others is not measured" in left_out
    assert "2,535 values" in left_out
    assert "1,365" in left_out


def test_a_model_without_blocks_is_not_run():
    class Refusing(nn.Linear):
        def forward(self, x):
            raise AssertionError("it was run")

    assert measure_inside(Known(torch.ones(5, 3)), Refusing(3, 2), (torch.ones(5, 3),)) == ({}, "")


def test_the_first_examples_are_the_same_rows_by_either_way():
    class Rows(Known):
        def batch(self, step, micro=0, rows=slice(None)):
            return tuple(t[rows] for t in self.inputs)

    x, number = torch.arange(35).reshape(5, 7), torch.tensor(3)
    for batch in (first_examples(Rows(x)), first_examples(Known(x, number))):
        assert torch.equal(batch[0], x[:4])
    odd = torch.arange(3)  # no row for each example
    assert [len(t) for t in first_examples(Known(x, odd))] == [5, 3]


@pytest.mark.usefixtures("fast_training")
def test_a_training_writes_them(tmp_path, notes):
    sizes = dict(width=24, heads=3, depth=2, context=31)
    pace = dict(steps=12, batch=5, eval_every=6, eval_batches=1)
    run, task, config = new_run(TrainingRequest("gpt", str(notes), model=sizes, train=pace), out=tmp_path / "run")
    task.preview = lambda model: None
    with unchecked():
        Trainer(task, run, config, quiet=True).train()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "train_loss" in line]
    assert [line["step"] for line in trained] == [10, 12]
    assert all(0 < line["grad_norm"] < 100 for line in trained)
    evaluated = [line for line in lines if "val_loss" in line]
    assert [line["step"] for line in evaluated] == [0, 6, 12]
    names = [name for name in evaluated[0] if name.startswith(("activation_scale.", "attention_entropy."))]
    assert names == [
        "activation_scale.blocks.0",
        "activation_scale.blocks.1",
        "attention_entropy.blocks.0.attn",
        "attention_entropy.blocks.1.attn",
    ]
    # the weights change, the examples do not
    assert all(len({line[name] for line in evaluated}) == 3 for name in names)
    # untrained queries attend nearly alike to all they may: the mean of ln 1 … ln 31
    alike = float(torch.arange(1, 32).log().mean())
    assert evaluated[0]["attention_entropy.blocks.0.attn"] == pytest.approx(alike, rel=0.05)
