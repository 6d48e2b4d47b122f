"""A loss or gradient that is NaN or infinite reaches neither weights nor moments nor the disk."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from albums import photos
from conftest import call
from pencil.api.loading import load
from pencil.api.run_data import task_of
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.config import UserError
from pencil.runs.run import Run
from pencil.train.loop import checkpoint
from pencil.train.loop.nonfinite import FiniteGuard, name_samples
from pencil.train.loop.trainer import Trainer
from pencil.train.optim import Muon, step_unless
from training import bits

SIZES = dict(width=24, heads=3, depth=2, context=31, dropout=0.1)
PACE = dict(steps=23, batch=5, eval_every=50, save_every=50, eval_batches=1, warmup=2, ema=0.9)


def trainer(folder, notes, **settings):
    run, task, config = new_run(TrainingRequest("gpt", str(notes), model=SIZES, train={**PACE, **settings}), out=folder)
    return Trainer(task, run, config)


def poison(made, *steps, how="loss"):
    """Let the loss (or only its gradient) of these steps be NaN."""
    clean = made.task.loss

    def poisoned(batch):
        loss = clean(made.model, batch)
        if made.step not in steps:
            return loss
        return loss * float("nan") if how == "loss" else loss + 0 * (made.model.norm.weight / 0).sum().clamp(max=1)

    made.gradients.loss = poisoned
    return made


def state(made):
    tensors = {f"model.{n}": t for n, t in made.model.state_dict().items()} | {
        f"ema.{n}": t for n, t in made.ema.values.items()
    }
    for kind, optimizer in made.optimizers.items():
        for i, values in enumerate(optimizer.state.values()):
            tensors |= {f"{kind}.{i}.{key}": value for key, value in values.items()}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
@pytest.mark.parametrize("how", ["loss", "gradient"])
@pytest.mark.usefixtures("fast_training")
def test_a_bad_update_changes_no_bit(tmp_path, notes, optimizer, how):
    made = poison(trainer(tmp_path / "a", notes, optimizer=optimizer, nonfinite="skip"), 3, how=how)
    for _ in range(3):
        made.update()
    before = state(made)
    made.update()
    assert made.step == 4
    assert all(torch.equal(tensor, before[name]) for name, tensor in state(made).items())
    made.update()
    assert not torch.equal(state(made)["model.tokens.weight"], before["model.tokens.weight"])
    assert all(tensor.isfinite().all() for tensor in state(made).values())


@pytest.mark.usefixtures("fast_training")
def test_a_stopped_run_is_saved_as_it_was_before_the_bad_update(tmp_path, notes):
    """The host reads of it steps later: what is saved is all the same the state before, to the bit."""
    made = poison(trainer(tmp_path / "bad", notes), 13)
    with pytest.raises(UserError, match="training stopped at step 14: the loss is nan") as stopped:
        made.train()
    message = str(stopped.value)
    assert "the checkpoint of step 13 is kept" in message
    assert "--train.nonfinite skip" in message
    starts = made.task._starts(13, 0)
    assert all(f"{made.task.data.corpus.name} at token {start}" in message for start in starts)
    line = json.loads((tmp_path / "bad" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["step"] == 14
    assert line["nonfinite"] == "loss is nan"
    assert len(line["samples"]) == 5
    whole = trainer(tmp_path / "whole", notes, save_every=13)
    whole.train()
    assert bits(tmp_path / "bad", 13)[0] == bits(tmp_path / "whole", 13)[0]
    again = Run.open(tmp_path / "bad")
    resumed = Trainer(task_of(again, made.config), again, made.config)
    assert resumed.train().finished
    assert bits(tmp_path / "bad", 23)[0] == bits(tmp_path / "whole", 23)[0]


@pytest.mark.usefixtures("fast_training")
def test_skipping_goes_on_and_stops_after_too_many(tmp_path, notes, capsys):
    outcome = poison(trainer(tmp_path / "few", notes, nonfinite="skip"), 3, 17).train()
    assert outcome.finished
    printed = capsys.readouterr().err
    assert "step 4: the loss is nan, and its update was left out; its batch: notes at token" in printed
    assert "(2 of at most 10)" in printed
    assert load(tmp_path / "few").model is not None
    made = poison(trainer(tmp_path / "many", notes, nonfinite="skip", max_skipped=2), *range(3, 20))
    with pytest.raises(UserError, match=r"stopped at step 6: .*; --train.max_skipped 2 allows no more"):
        made.train()


@pytest.mark.usefixtures("fast_training")
def test_what_was_skipped_counts_on_after_a_resume(tmp_path, notes):
    made = poison(trainer(tmp_path / "a", notes, nonfinite="skip", max_skipped=2, steps=10), 3, 4)
    assert made.train().finished
    run = Run.open(tmp_path / "a")
    config = replace(made.config, steps=19)
    second = poison(Trainer(task_of(run, config), run, config), 12)
    with pytest.raises(UserError, match="stopped at step 13"):
        second.train()


def test_a_huge_learning_rate_leaves_nothing_that_is_not_finite(tmp_path):
    """Weights that overflow in a step with a finite gradient are found before anything is written."""
    words = ["train", "vit", "--data", photos(tmp_path / "photos"), "--model.image_size", "16", "--model.width", "24",
             "--model.heads", "3", "--model.depth", "1", "--train.optimizer", "adamw", "--train.warmup", "0",
             "--train.eval_every", "1", "--train.save_every", "1", "--train.steps", "5", "--train.batch", "3"]  # fmt: skip
    for i, rate in enumerate(("1e38", "3e38")):
        folder = tmp_path / str(i)
        printed = call(*words, "--out", folder, "--train.lr", rate, code=2).stderr
        assert "training stopped" in printed or "NaN or infinity" in printed
        for path in folder.rglob("*.safetensors"):
            assert all(tensor.isfinite().all() for tensor in load_file(path).values()), path
        assert not checkpoint.saved_steps(folder)


def test_a_setting_that_is_no_number_is_refused():
    for value in ("nan", "inf"):
        assert f"train.lr must be a number, not '{value}'" in call("train", "vit", "--train.lr", value, code=2).stderr


@pytest.mark.parametrize("stop", [True, False])
def test_the_guard_reads_what_happened(stop):
    guard = FiniteGuard(torch.device("cpu"), stop)
    values = [(2.0, 1.0), (1.5, float("inf")), (1.0, 3.0), (float("nan"), 1.0), (0.5, 0.25)]
    flags = [float(guard.check(*map(torch.tensor, pair))) for pair in values]
    losses, norms, left_out = guard.read(12)
    if stop:
        assert flags == [0, 1, 1, 1, 1]
        assert (losses, norms) == ([2.0], [1.0])
        assert [(one.step, one.what) for one in left_out] == [(9, "gradient norm is inf")]
    else:
        assert flags == [0, 1, 0, 1, 0]
        assert (losses, norms) == ([2.0, 1.0, 0.5], [1.0, 3.0, 0.25])
        assert [(one.step, one.what) for one in left_out] == [(9, "gradient norm is inf"), (11, "loss is nan")]
    assert guard.read(12) == ([], [], [])


def test_muon_applies_its_update_unless_it_is_left_out():
    torch.manual_seed(0)
    start, gradients = torch.randn(13, 7), torch.randn(3, 13, 7)
    plain, guarded = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    one, two = Muon([plain], 0.02, 0.1), Muon([guarded], 0.02, 0.1)
    for gradient in gradients:
        plain.grad, guarded.grad = gradient.clone(), gradient.clone()
        one.step()
        step_unless(two, torch.tensor(0.0))
        guarded.grad = torch.full((13, 7), float("nan"))
        step_unless(two, torch.tensor(1.0))
    torch.testing.assert_close(plain, guarded, atol=1e-7, rtol=1e-6)


def test_a_few_samples_are_named_and_the_rest_counted():
    assert name_samples(list("abcde")) == "a, b, c, d, e"
    assert name_samples(list("abcdefg")) == "a, b, c, d, e and 2 more"
