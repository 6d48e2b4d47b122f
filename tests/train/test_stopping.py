"""How a training is watched and stopped: evaluations that are abandoned, callbacks, early stopping, the card."""

import math
import os
import re
import signal
import sys
import types
from dataclasses import replace

import pytest
from safetensors import safe_open
from test_loop import trainer

from conftest import TINY, call, unchecked
from pencil.api.train import propose_shorter
from pencil.config import UserError, build
from pencil.families import family
from pencil.progress import duration
from pencil.runs.run import Run
from pencil.train.loop import checkpoint, evaluator
from pencil.train.loop import trainer as loop
from pencil.train.loop.evaluator import Evaluator
from pencil.train.loop.report import Metrics, numbers
from pencil.train.model_selection import Amount, Validation
from pencil.train.settings import TrainConfig
from training import bits, interrupt_after

PACE = dict(steps=12, eval_every=6, batch=2, eval_batches=7)


@pytest.fixture(scope="module")
def uninterrupted(notes, tmp_path_factory):
    """What a training that is never interrupted comes to."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch, unchecked():
        patch.setattr("pencil.train.loop.trainer.plot_losses", lambda run: None)
        trainer(folder, notes, **PACE).train()
    return bits(folder, 12)


@pytest.fixture
def whole(uninterrupted, fast_training):
    return uninterrupted


def interrupt_evaluation(made, step, after):
    """Ctrl-C after some batches of the evaluation of a step; the batches of it that were computed."""
    loss, seen = made.task.loss, []

    def watched(model, batch):
        if made.step == step and not model.training:
            seen.append(len(seen))
            if len(seen) == after:
                os.kill(os.getpid(), signal.SIGINT)
        return loss(model, batch)

    made.task.loss = watched
    return seen


@pytest.mark.parametrize("step", [6, 12])
def test_an_evaluation_that_was_abandoned_is_made_by_the_resumed_run(tmp_path, notes, whole, step):
    made = trainer(tmp_path / "a", notes, **PACE)
    seen = interrupt_evaluation(made, step, 3)
    outcome = made.train()
    assert (outcome.finished, outcome.step, len(seen)) == (False, step, 3)
    assert checkpoint.saved_steps(tmp_path / "a")[-1] == step
    assert [line["step"] for line in Metrics.read(tmp_path / "a") if "val_loss" in line] == list(range(0, step, 6))
    # killed once more after it was evaluated, but before it was saved: evaluated anew, with one line of metrics
    again = trainer(tmp_path / "a", notes, run=Run.open(tmp_path / "a"), **PACE)
    again.checkpointer.save = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        again.train()
    assert trainer(tmp_path / "a", notes, run=Run.open(tmp_path / "a"), **PACE).train().finished
    assert bits(tmp_path / "a", 12) == whole


def test_an_evaluation_is_not_begun_after_an_interruption(tmp_path, notes, whole):
    made = trainer(tmp_path / "a", notes, **PACE)
    seen = interrupt_evaluation(made, 6, 1)
    assert not interrupt_after(made, 6).train().finished
    assert seen == []
    assert trainer(tmp_path / "a", notes, run=Run.open(tmp_path / "a"), **PACE).train().finished
    assert bits(tmp_path / "a", 12) == whole


@pytest.mark.usefixtures("fast_training")
def test_a_run_interrupted_in_its_last_evaluation_is_not_finished(tmp_path, notes, monkeypatch):
    evaluate, out = Evaluator.evaluate, tmp_path / "a"

    def interrupted(self):
        if self.state.step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(self)

    words = ("train", "gpt", "--data", notes, "--out", out, *TINY, "--train.steps", "4", "--train.eval_batches", "1")
    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "evaluate", interrupted)
        assert f"pencil resume {out}" in call(*words, code=130).stderr
    assert "Trained 4 steps" in call("resume", out).stderr
    assert "has made 4 steps" in call("resume", out).stderr


class Tick:
    """A clock that goes on by itself, the same way every time."""

    def __init__(self, seconds):
        self.now, self.seconds = 1000.0, seconds

    def __call__(self):
        self.now += self.seconds
        return self.now


@pytest.mark.usefixtures("usual_seconds")
def test_the_pace_is_shown_before_a_first_evaluation_that_takes_long(tmp_path, notes, whole, monkeypatch, capsys):
    monkeypatch.setattr(evaluator.time, "monotonic", Tick(0.9))
    assert trainer(tmp_path / "a", notes, **PACE).train().finished
    printed = capsys.readouterr().err.splitlines()
    first = next(i for i, line in enumerate(printed) if "tokens/s: 12 steps take about" in line)
    assert printed[first].endswith("; first the untrained model is evaluated")
    assert any(line.startswith("step      0") for line in printed[first:])
    assert sum("steps take about" in line for line in printed) == 1
    assert bits(tmp_path / "a", 12) == whole


@pytest.mark.usefixtures("usual_seconds")
def test_the_rate_is_shown_after_two_seconds_of_steps(tmp_path, notes, whole, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(loop.time, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(loop.time, "perf_counter", Tick(0.7))  # which is looked at three times in a step
    made = trainer(tmp_path / "a", notes, **PACE)
    made.propose = lambda seconds: asked.append(seconds)
    made.train()
    shown = [line for line in capsys.readouterr().err.splitlines() if "tokens/s" in line]
    assert shown[0].startswith("step 3/12  loss ")  # the first warms up, and 1.4 s pass in each of the next
    assert shown[0].split("  ")[2] == f"{2 * 31 / 1.4:,.0f} tokens/s"
    assert asked == []
    assert bits(tmp_path / "a", 12) == whole


@pytest.mark.usefixtures("fast_training", "usual_seconds")
def test_a_training_of_hours_is_said_once_to_take_hours(tmp_path, notes, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(loop.time, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(loop.time, "perf_counter", Tick(1000.0))
    made = trainer(tmp_path / "a", notes, **PACE)
    made.propose = lambda seconds: asked.append(seconds) or "try something smaller"
    made.train()
    assert len(asked) == 1
    assert asked[0] > 12 * 1000
    assert capsys.readouterr().err.count("try something smaller") == 1


def test_callbacks_see_every_step_and_evaluation(tmp_path, notes, whole):
    steps, evaluations, losses = [], [], []
    made = trainer(tmp_path / "a", notes, **PACE)
    loss = made.gradients.loss
    made.gradients.loss = lambda batch: losses.append(loss(batch)) or losses[-1]
    made.on_step = lambda step, metrics: steps.append((step, metrics))
    made.on_evaluation = lambda step, metrics: evaluations.append((step, metrics))
    assert made.train().finished
    assert [step for step, _ in steps] == list(range(1, 13))
    assert [metrics["train_loss"] for _, metrics in steps] == pytest.approx([float(one.detach()) for one in losses])
    assert steps[0][1]["lr"] == pytest.approx(3e-3 / 3)  # the first of two steps of warm-up
    lines = {line["step"]: line["val_loss"] for line in Metrics.read(tmp_path / "a") if "val_loss" in line}
    assert {step: metrics["val_loss"] for step, metrics in evaluations} == lines
    assert bits(tmp_path / "a", 12) == whole


@pytest.mark.parametrize("which, step", [("on_step", 5), ("on_evaluation", 6)])
def test_a_callback_that_returns_false_stops_as_ctrl_c_does(tmp_path, notes, whole, which, step):
    made = trainer(tmp_path / "a", notes, **PACE)
    setattr(made, which, lambda at, metrics: at < step)
    outcome = made.train()
    assert (outcome.finished, outcome.step) == (False, step)
    assert checkpoint.saved_steps(tmp_path / "a")[-1] == step
    assert trainer(tmp_path / "a", notes, run=Run.open(tmp_path / "a"), **PACE).train().finished
    assert bits(tmp_path / "a", 12) == whole


def scripted(made, losses):
    """A trainer whose validation losses are given, by the number of the evaluation."""
    every = made.config.eval_every
    made.evaluator.evaluate = lambda: {"val_loss": losses[made.step // every]}
    return made


FALLING_THEN_RISING = [5.0, 3.0, 4.0, 4.5, 4.25, 4.5, 4.75, 5.0, 4.0, 4.5, 5.0, 5.5, 6.0]


@pytest.mark.usefixtures("fast_training")
def test_overfitting_is_announced_once_and_at_the_end(tmp_path, notes, capsys):
    made = scripted(trainer(tmp_path / "a", notes, eval_every=1), FALLING_THEN_RISING)
    tokens = f"{len(made.task.data.train):,} tokens"
    outcome = made.train()
    line = f"{tokens}: validation loss has risen for 3 evaluations; the weights of step 1 are kept; more data, or a smaller preset"
    printed = capsys.readouterr().err.splitlines()
    assert printed.count(line) == 1
    assert printed.index(line) == printed.index("step      7  val_loss 5.0000") + 1
    assert (outcome.overfits, outcome.early, outcome.finished) == (line, "", True)


@pytest.mark.usefixtures("fast_training")
def test_early_stopping_stops_where_it_would_have_without_an_interruption(tmp_path, notes):
    settings = dict(eval_every=1, patience=4)
    outcome = scripted(trainer(tmp_path / "a", notes, **settings), FALLING_THEN_RISING).train()
    # the best is at step 1; 2, 3, 4 and 5 are no better
    assert (outcome.step, outcome.finished, outcome.early) == (5, True, "no better validation loss in 4 evaluations")
    assert outcome.best["step"] == 1
    assert (
        not interrupt_after(scripted(trainer(tmp_path / "b", notes, **settings), FALLING_THEN_RISING), 3)
        .train()
        .finished
    )
    again = scripted(trainer(tmp_path / "b", notes, run=Run.open(tmp_path / "b"), **settings), FALLING_THEN_RISING)
    assert again.train().step == 5
    assert bits(tmp_path / "b", 5) == bits(tmp_path / "a", 5)
    # finished: it goes on only with more patience, and then as a run that never stopped
    idle = scripted(trainer(tmp_path / "b", notes, run=Run.open(tmp_path / "b"), **settings), FALLING_THEN_RISING)
    assert (idle.train().finished, idle.step) == (True, 5)
    on = scripted(trainer(tmp_path / "b", notes, run=Run.open(tmp_path / "b"), eval_every=1), FALLING_THEN_RISING)
    assert on.train().step == 12
    scripted(trainer(tmp_path / "c", notes, eval_every=1), FALLING_THEN_RISING).train()
    assert bits(tmp_path / "b", 12) == bits(tmp_path / "c", 12)


@pytest.mark.usefixtures("fast_training")
def test_early_stopping_from_the_command_line(tmp_path, notes, monkeypatch):
    out = tmp_path / "a"
    monkeypatch.setattr(Evaluator, "evaluate", lambda self: {"val_loss": 2.0 + self.state.step})
    words = ("train", "gpt", "--data", notes, "--out", out, *TINY, "--train.steps", "9", "--train.eval_every", "2")
    printed = call(*words, "--train.patience", "2").stderr
    assert "It stopped before step 9: no better validation loss in 2 evaluations. Go on with:" in printed
    assert f"pencil resume {out} --train.patience 0" in printed
    printed = call("resume", out).stderr
    assert (
        "stopped at step 4 of 9: no better validation loss in 2 evaluations; --train.patience 0 continues it" in printed
    )
    assert "Trained 9 steps" in call("resume", out, "--train.patience", "0").stderr
    refusal = call("train", "vit", "--data", "digits", "--out", tmp_path / "b", "--train.patience", "3", code=2).stderr
    assert "train.patience stops by the validation loss, and here a test set does not select weights" in refusal
    assert not (tmp_path / "b").exists()
    printed = call("train", "gpt", "--data", notes, "--out", tmp_path / "c", *TINY, "--train.steps", "3",
                   "--train.eval_every", "2", "--train.patience", "3").stderr  # fmt: skip
    assert "train.patience 3 has no effect: there are 2 evaluations in 3 steps (--train.eval_every 2)" in printed
    # the first loss was the best: the untrained weights are kept
    assert "No evaluation was better than that of the untrained model, so its weights are kept" in printed


def test_the_card_describes_the_weights_that_are_there(tmp_path, notes, whole):
    """Interrupted before the second evaluation: it does not have the results of the untrained weights."""
    interrupt_after(trainer(tmp_path / "a", notes, **PACE), 5).train()
    card = (tmp_path / "a" / "README.md").read_text()
    assert "are those of step 5, at which training was interrupted. They have not been evaluated: `pencil eval`" in card
    assert "val_loss" not in card
    with safe_open(tmp_path / "a" / "model.safetensors", "pt") as file:
        assert (file.metadata()["step"], "val_loss" in file.metadata()) == ("5", False)
    trainer(tmp_path / "a", notes, run=Run.open(tmp_path / "a"), **PACE).train()
    assert bits(tmp_path / "a", 12) == whole
    card, best = (tmp_path / "a" / "README.md").read_text(), whole[2]
    assert f"are those of step {best['step']}, the best by validation" in card
    assert f"| val_loss | {float(best['val_loss']):.4f} |" in card


@pytest.mark.usefixtures("fast_training")
def test_a_resumed_run_that_never_improves_keeps_the_weights_it_began_with(tmp_path, notes):
    worse = [1.0, 2.0, 3.0]
    scripted(trainer(tmp_path / "plain", notes), worse).train()
    interrupt_after(scripted(trainer(tmp_path / "cut", notes), worse), 5).train()
    assert Run.open(tmp_path / "cut").weights_step == 5
    scripted(trainer(tmp_path / "cut", notes, run=Run.open(tmp_path / "cut")), worse).train()
    assert bits(tmp_path / "cut", 12) == bits(tmp_path / "plain", 12)
    assert "are those of step 0, the best by validation" in (tmp_path / "cut" / "README.md").read_text()


@pytest.mark.usefixtures("fast_training")
def test_little_data_is_announced_before_the_first_step(tmp_path, notes, capsys, monkeypatch):
    made = trainer(tmp_path / "a", notes, steps=13_000, batch=5)
    interrupt_after(made, 1).train()
    tokens, passes = len(made.task.data.train), 13_000 * 5 * 31 / len(made.task.data.train)
    assert passes > 40
    line = (
        f"{tokens:,} tokens are little for 13,000 steps: each is seen {passes:.0f} times, and after about 40 a model "
        f"learns little but to repeat them; more data, a smaller preset, --from RUN with the weights of a run trained on "
        f"more, or --train.steps {40 * tokens // (5 * 31)}"
    )
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == line
    trainer(tmp_path / "b", notes, steps=40 * tokens // (5 * 31), batch=5)._begin(_Printer())
    assert _Printer.lines == []


class _Printer:
    lines: list = []

    def print(self, line):
        self.lines.append(line)


def test_passes_are_counted_over_all_examples_of_an_update():
    amount = Amount(100, "captions", 32)
    assert amount.too_little(TrainConfig(steps=125)) is None  # 40 times
    assert "each is seen 40 times" in amount.too_little(TrainConfig(steps=126))
    assert amount._replace(most_passes=200).too_little(TrainConfig(steps=625)) is None


def test_a_validation_survives_being_saved():
    seen = Validation()
    assert [seen.add(loss) for loss in (3.0, 2.0, 2.5, 2.25)] == [False] * 4
    assert (seen.rises, seen.without_better, seen.best, seen.last) == (0, 2, 2.0, 2.25)
    assert seen.exhausted(2)
    assert not seen.exhausted(3)
    assert not seen.exhausted(0)
    assert Validation.restored(seen.state(), {}) == seen
    assert Validation.restored(Validation().state(), {}) == Validation()
    old = Validation.restored(None, {"step": 4, "val_loss": 1.5})  # of an older version
    assert (old.best, old.last, old.without_better) == (1.5, math.inf, 0)


@pytest.mark.usefixtures("fast_training")
def test_training_says_first_which_folder_it_writes(tmp_path, notes, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("train", "gpt", "--data", notes, *TINY, "--train.steps", "1", "--train.eval_batches", "1")
    assert call(*words).stderr.startswith("Writing runs/notes-gpt.\n")
    second = "Writing runs/notes-gpt-2; runs/notes-gpt is an earlier run, and --name gives another name.\n"
    assert call(*words).stderr.startswith(second)
    assert call(*words, "--name", "mine").stderr.startswith("Writing runs/mine.\n")


@pytest.mark.usefixtures("fast_training")
def test_wandb_by_one_setting(tmp_path, notes, monkeypatch):
    """A stand-in with the three calls that are used; WANDB_MODE is read by the real one."""
    calls = []
    stand_in = types.SimpleNamespace(
        init=lambda **given: calls.append(given),
        log=lambda values, step: calls.append((step, set(values))),
        finish=lambda: calls.append("finished"),
    )
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    made = trainer(tmp_path / "a", notes, logger="wandb", steps=10)
    made.train()
    assert calls[0]["name"] == "a"
    assert calls[0]["dir"] == str(tmp_path / "a")
    assert calls[0]["config"]["model"]["width"] == 24
    assert (calls[0]["id"], calls[0]["resume"]) == (made.run.id, "allow")
    assert "mode" not in calls[0]
    assert (10, {"train_loss", "grad_norm", "lr", "rate", "time"}) in calls
    inside = {f"activation_scale.blocks.{i}" for i in range(2)} | {
        f"attention_entropy.blocks.{i}.attn" for i in range(2)
    }
    assert (10, {"val_loss", "perplexity", "bits_per_byte", *inside}) in calls
    assert calls[-1] == "finished"
    monkeypatch.setitem(sys.modules, "wandb", types.ModuleType("wandb"))  # a folder that wandb left behind
    with pytest.raises(UserError, match=r"wandb is not installed; pip install '\.\[wandb\]'"):
        trainer(tmp_path / "b", notes, logger="wandb").train()


def test_loggers_get_numbers_only():
    line = {"step": 3, "nonfinite": "loss is nan", "samples": ["a"], "train_loss": 0.5}
    assert numbers(line) == {"train_loss": 0.5}


@pytest.mark.long
def test_a_preset_that_takes_less_is_named_with_its_time():
    with unchecked():
        _check_proposals()


def _check_proposals():
    record = family("gpt")
    sizes = record.configure("small", vocab=97)
    config = build(TrainConfig, record.training["small"])
    nano, usual = record.configure("nano", vocab=97), build(TrainConfig, record.training["nano"])

    def work(model, train):
        """Three times (forward, and twice back) two operations a weight and token; and those of QKᵀ and AV."""
        weights = 12 * model.depth * model.width**2 + model.width * 97
        scores = 2 * model.depth * model.context * model.width
        return 6 * (weights + scores) * model.context * train.batch * train.steps

    seconds = 7200 * work(nano, usual) / work(sizes, config)
    two = replace(record, presets={name: record.presets[name] for name in ("nano", "small")})
    line = propose_shorter(two, "small", sizes, config, 7200.0)
    found = re.fullmatch(
        r"the preset small takes about 2.0 h here; --preset nano about (.+); --train.minutes 30 .*", line
    )
    assert found[1] in {duration(seconds * share / 100) for share in range(80, 121)}
    assert "--preset" not in propose_shorter(two, "nano", nano, usual, 7200.0)
