"""The 2017 schedule and its Adam: the rate of the paper for the width and warm-up trained, and every constant settable."""

import pytest
import torch
from torch import nn

from conftest import HERE
from pencil.api.loading import open_run
from pencil.api.run_setup import new_run, settings_of
from pencil.api.training_request import TrainingRequest
from pencil.config import UserError, build
from pencil.families import FAMILIES
from pencil.train.optim import make_optimizers
from pencil.train.schedule import factor
from pencil.train.settings import TrainConfig

SIZES = dict(depth=1, heads=1, hidden=13, context=17, source_context=19)


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.tsv"
    path.write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcdefg" for b in "hijkl"))
    return str(path)


def settings(words, preset="base", model=None, **train):
    return settings_of(
        TrainingRequest("seq2seq", words, preset=preset, model={**SIZES, **(model or {})}, train=train or {})
    )


@pytest.mark.parametrize("width, warmup", [(512, 4000), (1024, 4000), (66, 4000), (512, 97), (46, 31), (14, 1)])
def test_the_rate_is_the_papers_for_any_width_and_warm_up(words, width, warmup):
    model, config = settings(words, model=dict(width=width), warmup=warmup, steps=10_007)
    assert (model.width, config.warmup) == (width, warmup)
    for step in (1, 2, 13, warmup, warmup + 1, 5003):  # counted from one
        published = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert config.lr * factor(step - 1, config) == pytest.approx(published, rel=1e-12)


def test_a_rate_that_was_chosen_is_the_peak(words):
    assert settings(words, model=dict(width=46), warmup=31, lr=0.0123)[1].lr == 0.0123
    # a preset that is not the paper's, and another schedule, keep their own
    assert settings(words, "nano", schedule="inverse-sqrt", warmup=31)[1].lr == TrainConfig.lr
    assert settings(words, model=dict(width=46), schedule="cosine")[1].lr == (512 * 4000) ** -0.5


def test_the_rate_is_announced_where_it_is_not_the_presets(words, tmp_path):
    notes: list[str] = []
    train = dict(steps=7, warmup=5, device="cpu")
    request = TrainingRequest("seq2seq", words, preset="base", model={**SIZES, "width": 46}, train=train)
    run, task, config = new_run(request, out=tmp_path / "a", notify=notes.append)
    assert notes[:2] == [
        f"Writing {tmp_path / 'a'}.",
        "words.tsv: tab-separated without a header; source from column 1, target from column 2",
    ]
    assert notes[3:] == [
        "learning rate 0.0659 at its peak: (width·warm-up)^−½ as published, for width 46 and 5 steps of warm-up; "
        "--train.lr sets another"
    ]
    assert open_run(run.path).config["train"]["lr"] == config.lr == task.train.lr == (46 * 5) ** -0.5


def test_the_papers_presets_have_its_adam_and_no_clipping():
    for preset in ("base", "big"):
        config = build(TrainConfig, FAMILIES["seq2seq"].training[preset])
        assert (config.beta1, config.beta2, config.eps, config.clip) == (0.9, 0.98, 1e-9, 0)
        assert (config.optimizer, config.weight_decay, config.label_smoothing) == ("adamw", 0, 0.1)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_adam_moves_weights_by_its_formula_with_the_constants_set(optimizer):
    """Three steps with other gradients each, against the formula in float64; what Muon moves has no ε."""
    config = TrainConfig(optimizer=optimizer, lr=0.07, beta1=0.61, beta2=0.83, eps=0.29, weight_decay=0.0)
    model = nn.Linear(5, 3)
    made = make_optimizers(model, config)["adamw"]
    draws = torch.Generator().manual_seed(3)
    weight = model.weight.detach().double()
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, 4):
        gradient = torch.randn(3, 5, generator=draws)
        model.weight.grad, model.bias.grad = gradient.clone(), torch.zeros(3)
        made.step()
        mean = 0.61 * mean + 0.39 * gradient
        square = 0.83 * square + 0.17 * gradient.double() ** 2
        weight = weight - 0.07 * (mean / (1 - 0.61**step)) / ((square / (1 - 0.83**step)).sqrt() + 0.29)
        torch.testing.assert_close(model.weight.detach().double(), weight, atol=1e-6, rtol=1e-6)


def test_runs_made_before_have_the_constants_they_were_trained_with():
    runs = sorted(path.parent for path in (HERE / "runs-0.6").glob("*/config.toml"))
    assert runs
    for path in runs:
        table = open_run(path).config["train"]
        assert not {"beta1", "eps"} & set(table)
        config = build(TrainConfig, table, "train.")
        assert (config.beta1, config.eps) == (0.9, 1e-8)


@pytest.mark.parametrize("values, words", [
    (dict(eps=0.0), "train.eps must be above 0"),
    (dict(eps=-1e-8), "train.eps must be above 0"),
    (dict(beta1=1.0), "train.beta1 must be at least 0 and under 1"),
    (dict(beta1=-0.1), "train.beta1 must be at least 0 and under 1"),
])  # fmt: skip
def test_constants_that_cannot_be_are_refused(values, words):
    with pytest.raises(UserError, match=words):
        TrainConfig(**values)
