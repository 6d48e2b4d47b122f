"""The training loop where one comparison decides: what is logged when, which weights are kept, what is switched on."""

import json
import math

import pytest
import torch
from safetensors import safe_open
from test_loop import trainer

from conftest import unchecked
from pencil.config import UserError
from pencil.runs.run import Run
from pencil.train.loop import checkpoint
from pencil.train.loop import trainer as loop
from pencil.train.loop.report import Metrics
from pencil.train.loop.trainer import Prefetch
from training import interrupt_after

SMALL = dict(steps=13, eval_every=6, save_every=4, batch=3, eval_batches=1)


def watched(made):
    """The trainer, and the loss of each of its updates."""
    losses, loss = [], made.gradients.loss

    def kept(batch):
        found = loss(batch)
        losses.append(float(found.detach()))
        return found

    made.gradients.loss = kept
    return made, losses


def lines(folder, key):
    return {line["step"]: line for line in Metrics.read(folder) if key in line}


def weights_of(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


@pytest.mark.usefixtures("fast_training")
def test_every_tenth_step_and_the_last_log_the_mean_loss_since_the_line_before(tmp_path, notes, monkeypatch):
    opened = []

    class Kept(Metrics):
        def __init__(self, *given):
            super().__init__(*given)
            opened.append(self)

    monkeypatch.setattr(loop, "Metrics", Kept)
    made, losses = watched(trainer(tmp_path / "a", notes, **SMALL))
    made.train()
    found = lines(tmp_path / "a", "train_loss")
    assert list(found) == [10, 13]
    assert found[10]["train_loss"] == pytest.approx(sum(losses[:10]) / 10, rel=1e-6)
    assert found[13]["train_loss"] == pytest.approx(sum(losses[10:]) / 3, rel=1e-6)
    for step, line in found.items():
        # the rate of the update that was made last: two steps of warm-up, then half a cosine over the other eleven
        assert line["lr"] == pytest.approx(3e-3 * (1 + math.cos(math.pi * (step - 1 - 2) / 11)) / 2, rel=1e-9)
        assert line["rate"] > 0
    assert 0 < found[10]["time"] < found[13]["time"]
    assert list(lines(tmp_path / "a", "val_loss")) == [0, 6, 12, 13]
    assert checkpoint.saved_steps(tmp_path / "a") == [12, 13]
    assert opened[0].file.closed
    assert sorted(path.name for path in (tmp_path / "a" / "samples").iterdir()) == [
        f"step-{step:08d}.txt" for step in (0, 6, 12, 13)
    ]


@pytest.mark.usefixtures("fast_training")
def test_a_resumed_run_logs_on_and_repeats_no_evaluation(tmp_path, notes):
    interrupt_after(trainer(tmp_path / "a", notes, **SMALL), 6).train()
    assert list(lines(tmp_path / "a", "val_loss")) == [0]  # an interrupted run does not wait for an evaluation
    made, losses = watched(trainer(tmp_path / "a", notes, run=Run.open(tmp_path / "a"), **SMALL))
    evaluated, evaluate = [], made.evaluator.evaluate
    made.evaluator.evaluate = lambda: evaluated.append(made.step) or evaluate()
    made.train()
    assert evaluated == [6, 12, 13]
    assert len(losses) == 7
    assert list(lines(tmp_path / "a", "train_loss")) == [10, 13]
    evaluated.clear()
    made = trainer(tmp_path / "a", notes, run=Run.open(tmp_path / "a"), **SMALL)
    made.evaluator.evaluate = lambda: evaluated.append(made.step) or evaluate()
    assert made.train().finished  # nothing left to do
    assert evaluated == []


def test_of_weights_that_are_equally_good_the_first_are_kept(tmp_path, notes):
    made = trainer(tmp_path / "a", notes, **SMALL)
    for step, loss, kept in ((1, 2.0, 1), (2, 2.0, 1), (3, 1.5, 3), (4, 1.75, 3)):
        made.state.step = step
        made.checkpointer.keep_best({"val_loss": loss})
        assert made.state.best == {"step": kept, "val_loss": {1: 2.0, 3: 1.5}[kept]}
        assert weights_of(tmp_path / "a")[1]["step"] == str(kept)


@pytest.mark.parametrize("select, best, step, written", [
    (True, {}, 5, True),  # nothing was kept yet
    (True, {"step": 0, "val_loss": 9.0}, 5, True),  # only the weights it began with
    (True, {"step": 3, "val_loss": 1.0}, 5, False),
    (False, {"step": 3, "val_loss": 1.0}, 5, True),
    (False, {}, 0, False),
])  # fmt: skip
def test_which_weights_an_interrupted_run_is_used_with(tmp_path, notes, monkeypatch, select, best, step, written):
    made, kept = trainer(tmp_path / "a", notes, **SMALL), []
    monkeypatch.setattr(made.task, "select_best", select)
    monkeypatch.setattr(made.checkpointer, "write_weights", kept.append)
    made.state.best, made.state.step = best, step
    made.checkpointer.save_interrupted_weights()
    assert kept == ([{"step": step}] if written else [])


def test_weights_that_are_not_finite_are_never_written(tmp_path, notes):
    made = trainer(tmp_path / "a", notes, **SMALL)
    made.state.step = 1
    made.checkpointer.keep_best({"val_loss": 2.0})
    before = (tmp_path / "a" / "model.safetensors").read_bytes()
    with torch.no_grad():
        next(made.model.parameters())[0] = math.nan
    made.state.step = 2
    with pytest.raises(UserError, match="model.safetensors would hold NaN or infinity"):
        made.checkpointer.keep_best({"val_loss": 1.0})
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == before
    assert made.state.best["step"] == 1
    with pytest.raises(UserError, match="the checkpoint of step 2 would hold NaN or infinity"):
        made.checkpointer.save()
    assert checkpoint.saved_steps(tmp_path / "a") == []


@pytest.mark.parametrize("dtype, half", [("auto", False), ("float32", False), ("bfloat16", True)])
def test_autocast_is_on_where_it_was_requested(tmp_path, notes, dtype, half):
    made = trainer(tmp_path / "a", notes, dtype=dtype, device="cpu", **SMALL)
    with made.autocast():
        assert torch.is_autocast_enabled("cpu") == half
        if half:
            assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("setting, compiled", [("auto", False), ("off", False), ("on", True)])
def test_the_loss_is_compiled_where_it_was_requested(tmp_path, notes, monkeypatch, setting, compiled):
    seen = []
    monkeypatch.setattr(torch, "compile", lambda loss: seen.append(loss) or loss)
    trainer(tmp_path / "a", notes, compile=setting, device="cpu", **SMALL)
    assert len(seen) == compiled


def test_deterministic_kernels_are_chosen_by_a_setting(tmp_path, notes):
    torch.use_deterministic_algorithms(False)
    for chosen in (False, True):
        made = trainer(tmp_path / str(chosen), notes, deterministic=chosen, **SMALL)
        with made.group:
            assert torch.are_deterministic_algorithms_enabled() == chosen
        assert not torch.are_deterministic_algorithms_enabled()  # the rest of the program is as before


def test_a_model_is_made_of_its_seed_alone(tmp_path, notes):
    made = []
    for name, seed in (("a", 5), ("b", 5), ("c", 7)):
        torch.manual_seed(len(made))
        made.append(next(trainer(tmp_path / name, notes, seed=seed, **SMALL).model.parameters()))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


@pytest.mark.usefixtures("fast_training")
def test_a_stop_at_a_bad_update_saves_the_weights_before_it(tmp_path, notes):
    made = trainer(tmp_path / "a", notes, **{**SMALL, "save_every": 11, "eval_every": 11})
    loss, calls = made.gradients.loss, []
    made.gradients.loss = lambda batch: loss(batch) * (math.nan if calls.append(1) or len(calls) == 6 else 1)
    with pytest.raises(UserError, match="training stopped at step 6: .*; the checkpoint of step 5 is kept"):
        made.train()
    assert checkpoint.saved_steps(tmp_path / "a") == [5]
    kept = checkpoint.read(tmp_path / "a", 5).tensors
    weights, facts = weights_of(tmp_path / "a")
    assert facts["step"] == "5"
    assert all(torch.equal(weights[name], kept[f"model.{name}"]) for name in weights)


@pytest.mark.usefixtures("fast_training")
def test_a_training_is_the_only_writer_of_its_run_and_ends_its_threads(tmp_path, notes):
    made = trainer(tmp_path / "a", notes, **{**SMALL, "steps": 2})
    made.batch, loss, refused = Prefetch(made.task.batch, 1, 2), made.gradients.loss, []

    def tried(batch):
        with pytest.raises(UserError, match="is being written by another process"), Run.open(tmp_path / "a").writing():
            pass
        refused.append(made.step)
        return loss(batch)

    made.gradients.loss = tried
    made.train()
    assert refused == [0, 1]
    with Run.open(tmp_path / "a").writing():
        pass
    with pytest.raises(RuntimeError, match="after shutdown"):
        made.batch.pool.submit(int)


def test_the_state_of_a_checkpoint_records_where_it_was_saved(tmp_path, notes):
    made = trainer(tmp_path / "a", notes, **SMALL)
    with unchecked():
        made.update()
    made.checkpointer.save()
    state = json.loads((checkpoint.folder_of(tmp_path / "a", 1) / "state.json").read_text())
    assert state["threads"] == torch.get_num_threads()
    assert state["device"] == "cpu"
    assert state["versions"]["torch"] == torch.__version__
    assert state["optimizer"] == "muon"
    assert state["of"]["train"] == made.run.config["train"]
