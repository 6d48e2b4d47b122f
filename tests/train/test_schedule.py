import math

import pytest

from pencil.api.fit import Task, fit
from pencil.api.run_setup import train_config
from pencil.api.training_request import TrainingRequest
from pencil.config import UserError
from pencil.families import configure, family
from pencil.train.schedule import factor
from pencil.train.settings import TrainConfig


def test_cosine_is_the_published_one():
    config = TrainConfig(steps=2000, warmup=100, final_lr_fraction=0.1)
    assert factor(0, config) == pytest.approx(1 / 101)
    assert factor(99, config) == pytest.approx(100 / 101)
    assert factor(100, config) == 1
    assert factor(1050, config) == pytest.approx(0.55)
    assert factor(2000, config) == pytest.approx(0.1)
    assert factor(575, config) == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi / 4)))


def test_warmup_stable_decay():
    config = TrainConfig(steps=1000, warmup=10, schedule="wsd", final_lr_fraction=0.0)
    assert [factor(s, config) for s in (10, 500, 800, 900, 1000)] == pytest.approx([1, 1, 1, 0.5, 0])


def test_constant():
    config = TrainConfig(warmup=0, schedule="constant")
    assert {factor(s, config) for s in range(0, 2000, 100)} == {1.0}


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 11, 59, 60])
def test_the_warm_up_is_linear_over_exactly_the_steps_it_was_set_to(schedule, warmup):
    config = TrainConfig(steps=60, warmup=warmup, schedule=schedule)
    assert [factor(s, config) for s in range(warmup)] == pytest.approx([(s + 1) / (warmup + 1) for s in range(warmup)])
    if warmup < 48:  # the decay of wsd has not begun yet
        assert factor(warmup, config) == 1


@pytest.mark.parametrize("preset, width", [("base", 512), ("big", 1024)])
def test_the_learning_rate_of_the_first_transformer_is_the_published_one(preset, width):
    config = train_config(family("seq2seq"), preset, {})
    assert configure("seq2seq", preset).width == width
    assert (config.schedule, config.warmup) == ("inverse-sqrt", 4000)
    for step in (1, 100, 4000, 4001, 100_000):  # counted from one
        published = width**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert config.lr * factor(step - 1, config) == pytest.approx(published, rel=1e-12)


def test_the_inverse_square_root_rises_to_its_peak_and_falls_from_it():
    config = TrainConfig(warmup=7, schedule="inverse-sqrt", steps=11)
    rates = [factor(step, config) for step in range(1000)]
    assert max(rates) == rates[6] == 1
    assert rates[:7] == sorted(rates[:7])
    assert rates[6:] == sorted(rates[6:], reverse=True)
    assert factor(0, TrainConfig(warmup=0, schedule="inverse-sqrt")) == 1


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_a_final_rate_is_refused_where_the_schedule_has_none(value, tmp_path, fails, vit_run):
    chosen = {"final_lr_fraction": value}
    for name, preset, train in (
        ("gpt", "nano", {"schedule": "constant"}), ("dit", "s/2", {}), ("seq2seq", "base", {})
    ):  # fmt: skip
        with pytest.raises(UserError, match=r"train.final_lr_fraction has no effect with train.schedule"):
            train_config(family(name), preset, {**train, **chosen})
    for schedule in ("cosine", "wsd"):
        assert train_config(family("gpt"), "nano", {"schedule": schedule, **chosen}).final_lr_fraction == value
    with pytest.raises(
        UserError, match=r"no effect with train.schedule inverse-sqrt: leave it out, or use cosine or wsd"
    ):
        fit(Task(), tmp_path / "own", steps=3, schedule="inverse-sqrt", **chosen)
    assert not (tmp_path / "own").exists()
    sentence = fails("resume", vit_run, "--train.schedule", "constant", "--train.final_lr_fraction", value)
    assert "has no effect with train.schedule constant" in sentence


def test_a_final_rate_of_a_preset_or_a_file_does_not_stop_another_schedule():
    constant = {"schedule": "constant"}
    assert train_config(family("gpt"), "nanogpt", constant).final_lr_fraction == 0.1
    for value, count in ((0.0, 0), (0.1, 1)):  # as a run of the preset records it
        file = TrainingRequest("gpt", train={"schedule": "constant", "final_lr_fraction": value})
        merged, notes = TrainingRequest("gpt").over(file, "a.toml")
        assert (merged.train, len(notes)) == (constant, count)
    merged, notes = TrainingRequest("gpt", train=constant).over(
        TrainingRequest("gpt", train={"final_lr_fraction": 0.1}), "a.toml"
    )
    assert merged.train == constant
    assert notes == ["train.final_lr_fraction of a.toml has no effect with the schedule, and is left out"]
