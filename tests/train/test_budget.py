"""A time budget: its steps are decided once by the measured pace, and the run is then one with so many steps."""

import random
import tomllib
from pathlib import Path

import pytest
import torch
from test_loop import trainer

from conftest import TINY, call
from pencil.config import UserError
from pencil.runs import Run
from pencil.train import evaluation, loop
from pencil.train.pace import Pace, fit_budget, time_updates
from pencil.train.settings import TrainConfig
from training import Killed, bits

UNDECIDED = dict(minutes=2.0, steps=0, eval_every=0, save_every=0, warmup=5)


def whole_time(config, pace):
    """What a training takes, step by step."""
    total = 0.0
    for step in range(1, config.steps + 1):
        total += pace.update
        total += pace.evaluation * (step % config.eval_every == 0 or step == config.steps)
        total += pace.save * (step % config.save_every == 0 or step == config.steps)
    return total


@pytest.mark.parametrize("chosen", [{}, {"eval_every": 7}, {"save_every": 11}, {"eval_every": 13, "save_every": 5}])
def test_the_steps_of_a_budget_take_as_long_as_it(chosen):
    rng = random.Random(3)
    for _ in range(50):
        pace = Pace(3, rng.uniform(0.03, 1.5), 17, rng.uniform(0.0, 3.0), rng.uniform(0.0, 0.5))
        seconds = rng.uniform(60, 600)
        config = TrainConfig(**{**UNDECIDED, "minutes": seconds / 60, **chosen})
        found, (line, *_) = fit_budget(config, pace, seconds, Path("runs/a"))
        # two digits of the number of steps are kept: at most a tenth of the time is left over, and a step
        assert (
            0.9 * seconds - pace.update * 11 - pace.evaluation - pace.save <= whole_time(found, pace) <= seconds * 1.001
        )
        assert pace.left(0, found) == pytest.approx(whole_time(found, pace))
        assert f"are {found.steps:,} steps" in line
        assert {name: getattr(found, name) for name in chosen} == chosen
        assert found.warmup == min(5, found.steps // 5)
        if "eval_every" not in chosen:
            evaluations = -(-found.steps // found.eval_every)
            assert evaluations == 1 or (evaluations <= 10 and evaluations * pace.evaluation <= 0.1 * seconds)


def test_the_time_left_counts_what_is_still_to_come():
    pace, config = Pace(2, 6.0, 1, 5.0, 7.0), TrainConfig(steps=23, eval_every=5, save_every=10)
    # evaluated at 15, 20 and 23, saved at 20 and 23
    assert pace.left(12, config) == 11 * 3 + 3 * 5 + 2 * 7


def test_a_budget_without_room_for_a_step_is_refused():
    with pytest.raises(UserError, match=r"train.minutes 1 is too little here: a step takes 2.0 s, an evaluation 64 s"):
        fit_budget(TrainConfig(**{**UNDECIDED, "minutes": 1.0}), Pace(1, 2.0, 1, 64.0, 0.1), 60.0, Path("runs/a"))


@pytest.mark.usefixtures("fast_training")
def test_updates_that_were_only_timed_leave_no_trace(tmp_path, notes):
    settings = dict(ema=0.9, nonfinite="skip")
    trainer(tmp_path / "plain", notes, **settings).train()
    made = trainer(tmp_path / "timed", notes, **settings)
    state, pace, polled = torch.random.get_rng_state(), Pace(), []
    time_updates(made, pace, 0.0, lambda: polled.append(made.step))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert polled == [1, 2]  # one to warm up, and one that counts
    assert (pace.updates, pace.units) == (1, 5 * 31)
    made.train()
    assert bits(tmp_path / "timed", 12) == bits(tmp_path / "plain", 12)


@pytest.fixture
def slow_steps(monkeypatch):
    """A machine on which a step seems to take ten seconds."""
    monkeypatch.setattr(evaluation, "time_updates", lambda trainer, pace, seconds, poll: pace.count(1, 10.0, 5))


@pytest.mark.usefixtures("fast_training", "slow_steps")
def test_a_budget_run_is_a_run_with_the_steps_it_came_to(tmp_path, notes, capsys):
    assert trainer(tmp_path / "budget", notes, **UNDECIDED).train().finished
    decided = tomllib.loads((tmp_path / "budget" / "config.toml").read_text())["train"]
    assert 1 < decided["steps"] <= 12  # two minutes of ten seconds each, less what the evaluation took
    assert f"at 10 s a step, 2 minutes are {decided['steps']} steps, evaluated every" in capsys.readouterr().err
    assert f"{decided['steps']} steps in a budget of 2 minutes" in (tmp_path / "budget" / "README.md").read_text()
    names = ("steps", "eval_every", "save_every", "warmup")
    trainer(tmp_path / "plain", notes, **{name: decided[name] for name in names}).train()
    assert bits(tmp_path / "budget", decided["steps"]) == bits(tmp_path / "plain", decided["steps"])


@pytest.mark.usefixtures("fast_training", "slow_steps")
def test_a_budget_that_was_killed_before_its_decision_is_decided_anew(tmp_path, notes, monkeypatch):
    with monkeypatch.context() as patch:

        def killed(*_):
            raise Killed

        patch.setattr(loop, "fit_budget", killed)
        with pytest.raises(Killed):
            trainer(tmp_path / "a", notes, **UNDECIDED).train()
    assert Run.open(tmp_path / "a").config["train"]["steps"] == 0
    outcome = trainer(tmp_path / "a", notes, run=Run.open(tmp_path / "a"), **UNDECIDED).train()
    assert outcome.finished
    assert outcome.step == Run.open(tmp_path / "a").config["train"]["steps"] > 1


@pytest.mark.usefixtures("slow_steps")
def test_a_budget_from_the_command_line(tmp_path, notes):
    out = tmp_path / "run"
    call("train", "gpt", "--data", notes, "--out", out, *TINY, "--train.minutes", "0.5", "--train.eval_batches", "1")
    steps = Run.open(out).config["train"]["steps"]
    assert (
        f"has made {steps} steps and train.steps is {steps}; a larger --train.steps continues"
        in call("resume", out).stderr
    )
    refusal = call("resume", out, "--train.minutes", "3", code=2).stderr
    assert f"is trained for {steps} steps: --train.steps sets another number" in refusal
    both = ("train", "gpt", "--data", notes, "--train.minutes", "1", "--train.steps", "7")
    assert "train.steps and train.minutes both say how long to train" in call(*both, code=2).stderr
    assert "train.minutes must be above 0, not -1" in call(*both[:-2], "--train.minutes", "-1", code=2).stderr
