import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from conftest import TINY, call, unchecked
from pencil.api.loading import load
from pencil.api.run_data import task_of
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.cli.train import train_to_end
from pencil.config import UserError, build
from pencil.data.text import text_data as text
from pencil.device import pick_device
from pencil.families import configure, family
from pencil.runs.run import Run
from pencil.train.loop import checkpoint
from pencil.train.loop.report import Metrics
from pencil.train.loop.trainer import Stopping, Trainer, interruptible
from pencil.train.losses import cross_entropy as losses
from pencil.train.settings import TrainConfig
from pencil.train.task import Preview, Task, random_of
from pencil.train.tasks.language_modeling import LanguageModeling
from training import bits, interrupt_after

SIZES = dict(width=24, heads=3, depth=2, context=31, dropout=0.1)


def trainer(folder, notes, run=None, **settings):
    data = text.load(str(notes), "char")
    pace = dict(steps=12, batch=5, eval_every=6, eval_batches=7, save_every=4, warmup=2)
    config = build(TrainConfig, {**pace, **settings})
    sizes = configure("gpt", "nano", vocab=data.tokenizer.vocab, **SIZES)
    facts = {"family": "gpt", "preset": "nano", "data": str(notes), "tokenizer": "char", "pencil": "test"}
    run = run or Run.create(folder, {"run": facts, "model": sizes, "train": config}, data.tokenizer)
    task = LanguageModeling(family("gpt"), data, sizes, config)
    # generating a text takes long; random numbers are drawn for it all the same
    task.preview = lambda model: Preview(".txt", str(torch.rand(())).encode())
    return Trainer(task, run, config)


CUTS = {
    "muon": [(1, signal.SIGINT), (5, signal.SIGHUP), (8, signal.SIGTERM)],
    "adamw": [(5, signal.SIGINT)],
}


@pytest.mark.parametrize("optimizer", CUTS)
@pytest.mark.usefixtures("fast_training")
def test_an_interrupted_run_continues_to_the_same_bits(tmp_path, notes, optimizer):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the suite runs under nohup
    trainer(tmp_path / "whole", notes, optimizer=optimizer).train()
    expected = bits(tmp_path / "whole", 12)
    for cut, how in CUTS[optimizer]:
        folder = tmp_path / f"cut-{cut}"
        outcome = interrupt_after(trainer(folder, notes, optimizer=optimizer), cut, how).train()
        assert (outcome.finished, outcome.step) == (False, cut)
        torch.manual_seed(99)  # whatever the state of the generator, the rest is the same
        second = trainer(folder, notes, run=Run.open(folder), optimizer=optimizer)
        assert second.train().finished
        assert bits(folder, 12) == expected


def test_an_ignored_hangup_stays_ignored():
    """`nohup pencil train …` goes on when its terminal is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stopping = Stopping()
        with interruptible(stopping):
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stopping.is_set()
            os.kill(os.getpid(), signal.SIGTERM)
            assert stopping.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("fast_training")
def test_nothing_is_called_saved_that_was_not(tmp_path, notes, monkeypatch, capsys):
    made = trainer(tmp_path / "a", notes)
    evaluate = made.evaluator.evaluate

    def interrupted():
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate()

    made.evaluator.evaluate = interrupted
    monkeypatch.setattr("pencil.api.train.Trainer", lambda *_, **__: made)
    assert train_to_end(made.run, made.task, made.config) == 130
    printed = capsys.readouterr().err
    assert "Stopped before the first step. Continue with:" in printed
    assert "and saved" not in printed
    assert not checkpoint.saved_steps(tmp_path / "a")


def test_a_batch_is_a_function_of_seed_and_step_alone(notes):
    data = text.load(str(notes), "char")
    sizes = configure("gpt", "nano", vocab=data.tokenizer.vocab, **SIZES)
    task, other = (LanguageModeling(family("gpt"), data, sizes, TrainConfig(batch=5, seed=seed)) for seed in (3, 4))
    assert isinstance(task, Task)
    later = task.batch(7)
    for step in range(7):
        task.batch(step)
    assert all(torch.equal(a, b) for a, b in zip(later, task.batch(7), strict=True))
    assert not torch.equal(later[0], task.batch(8)[0])
    assert not torch.equal(later[0], task.batch(7, 1)[0])
    assert not torch.equal(later[0], other.batch(7)[0])
    assert torch.equal(later[0][:, 1:], later[1][:, :-1])
    assert random_of(1, 2).integers(1 << 60) == random_of(1, 2).integers(1 << 60)


def test_accumulated_gradients_equal_those_of_the_whole_batch(tmp_path, notes):
    made = trainer(tmp_path / "a", notes, accumulate=3)
    made.model.eval()
    whole = [torch.cat(parts) for parts in zip(*(made.task.batch(0, m) for m in range(3)), strict=True)]
    made.task.loss(made.model, tuple(whole)).backward()
    expected = {n: p.grad.clone() for n, p in made.model.named_parameters()}
    made.model.zero_grad()
    for micro in range(3):
        (made.task.loss(made.model, made.task.batch(0, micro)) / 3).backward()
    for name, p in made.model.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], atol=1e-6, rtol=1e-4)
    assert made.update() == 3 * 5 * 31


@pytest.mark.parametrize("poison", ["loss", "gradient"])
@pytest.mark.usefixtures("fast_training")
def test_a_loss_or_gradient_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    tmp_path, notes, poison
):
    made = trainer(tmp_path / "a", notes)
    clean = made.task.loss

    def poisoned(model, batch):
        loss = clean(model, batch)
        if model.training and made.step == 9:
            return loss * float("nan") if poison == "loss" else loss + 0 * (model.norm.weight / 0).sum().clamp(max=1)
        return loss

    made.gradients.loss = lambda batch: poisoned(made.model, batch)
    with pytest.raises(UserError, match=r"stopped at step 10: .*; the checkpoint of step 9 is kept"):
        made.train()
    kept, faults = checkpoint.latest(tmp_path / "a")
    assert kept.step == 9
    assert not faults
    assert all(t.isfinite().all() for t in kept.tensors.values())
    assert load(tmp_path / "a").model is not None


@pytest.mark.usefixtures("fast_training")
def test_bfloat16_on_a_cpu_trains_without_warnings(tmp_path, notes, recwarn, capsys):
    short = dict(steps=3, eval_every=3, eval_batches=1)
    outcome = trainer(tmp_path / "a", notes, dtype="bfloat16", **short).train()
    whole = trainer(tmp_path / "b", notes, dtype="float32", **short).train()
    assert outcome.best["val_loss"] == pytest.approx(whole.best["val_loss"], rel=0.01)
    assert outcome.best["val_loss"] != whole.best["val_loss"]
    assert not [one for one in recwarn if "mkldnn" in str(one.message)]
    assert "frame #" not in capsys.readouterr().err


def test_the_files_of_a_run(run, short_previews):
    names = {p.name for p in run.iterdir() if not p.name.startswith(".")}
    assert names == {"config.toml", "metrics.jsonl", "tokenizer.json", "README.md", "loss.png", "samples",
                     "model.safetensors", "manifest.json", "checkpoints", "data.json", "snapshots"}  # fmt: skip
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (run / "samples").iterdir()) == [f"step-{s:08d}.txt" for s in (0, 15, 30)]
    assert len((run / "samples" / "step-00000030.txt").read_text()) == 16 + short_previews + 1
    assert short_previews == 256
    assert checkpoint.saved_steps(run) == [20, 30]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "val_loss" in line] == [0, 15, 30]
    assert [line["step"] for line in lines if "train_loss" in line] == [10, 20, 30]
    assert all({"lr", "rate", "time"} <= set(line) for line in lines if "train_loss" in line)


def test_training_learns_and_the_best_weights_are_kept(run):
    lines = Metrics.read(run)
    losses_ = {line["step"]: line["val_loss"] for line in lines if "val_loss" in line}
    assert losses_[30] < losses_[0] - 0.5
    with safe_open(run / "model.safetensors", "pt") as file:
        facts = file.metadata()
    best = min(losses_, key=losses_.get)
    assert facts["step"] == str(best)
    assert float(facts["val_loss"]) == losses_[best]
    assert facts["family"] == "gpt"


def test_evaluation_is_the_mean_over_the_held_out_text(tmp_path, notes):
    made = trainer(tmp_path / "a", notes)
    made.model.eval()
    ids = torch.tensor(made.task.data.val.astype("int64"))
    total, count = 0.0, 0
    with torch.no_grad(), unchecked():
        for start in range(0, len(ids) - 31, 31):
            window = ids[start : start + 32]
            total += float(losses.next_token(made.model(window[None, :-1]), window[None, 1:])) * 31
            count += 31
    metrics = made.task.evaluate(made.model)
    assert metrics["val_loss"] == pytest.approx(total / count, abs=1e-5)
    assert metrics["perplexity"] == pytest.approx(2.718281828 ** metrics["val_loss"], rel=1e-5)
    text_bytes = len(made.task.data.tokenizer.decode(ids.tolist()).encode())
    assert metrics["bits_per_byte"] == pytest.approx(
        metrics["val_loss"] / 0.6931471806 * len(ids) / text_bytes, rel=1e-5
    )


def wait_for_checkpoint(folder, process):
    """Until a new checkpoint is written; the cap guards only against hanging."""
    before, began = checkpoint.saved_steps(folder), time.monotonic()
    while checkpoint.saved_steps(folder) == before:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() - began < 600, "no checkpoint came"
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_ctrl_c_saves_and_prints_the_command_that_continues(tmp_path, notes, how):
    folder = tmp_path / "my own"
    words = ["train", "gpt", "--data", notes, "--out", folder, *TINY, "--train.steps", 100_000, "--train.save_every", "5",
             "--train.eval_every", "50", "--train.eval_batches", "1"]  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "pencil", *map(str, words)], stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(folder, process)
    process.send_signal(how)
    printed = process.communicate(timeout=600)[1]
    assert process.returncode == 130
    step = checkpoint.saved_steps(folder)[-1]
    assert f"Stopped after step {step}, and saved" in printed
    assert f"pencil resume '{folder}'" in printed
    assert load(folder).model is not None


@pytest.mark.long
@pytest.mark.usefixtures("fast_training")
def test_a_killed_run_resumes_and_ends_as_one_never_killed(tmp_path, notes):
    rng = random.Random(0)
    # more steps than there is time for, with a schedule that does not depend on how many there are
    pace = dict(steps=100_000, batch=7, save_every=5, eval_every=30, eval_batches=1, warmup=0, schedule="constant")
    for name in ("killed", "whole"):
        new_run(TrainingRequest("gpt", str(notes), model=SIZES, train=pace), out=tmp_path / name)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "pencil", "resume", str(tmp_path / "killed")], stderr=subprocess.DEVNULL
        )
        wait_for_checkpoint(tmp_path / "killed", process)
        time.sleep(rng.uniform(0, 0.3))  # at any point of a step, an evaluation or a save
        process.kill()
        assert process.wait() == -signal.SIGKILL
    steps = checkpoint.saved_steps(tmp_path / "killed")[-1] + 7
    for name in ("killed", "whole"):
        run = Run.open(tmp_path / name)
        config = build(TrainConfig, {**run.config["train"], "steps": steps})
        assert Trainer(task_of(run, config), run, config).train().finished
    assert bits(tmp_path / "killed", steps) == bits(tmp_path / "whole", steps)


def test_a_run_has_one_writer_at_a_time(tmp_path, notes):
    made = trainer(tmp_path / "a", notes)
    lock = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-S", "-c", lock, str(tmp_path / "a" / ".lock")]
    with made.run.writing():
        assert "BlockingIOError" in subprocess.run(command, capture_output=True, text=True).stderr
        with (
            pytest.raises(UserError, match="is being written by another process"),
            Run.open(tmp_path / "a").writing(),
        ):
            pass
    assert subprocess.run(command).returncode == 0


def tmpfs(folder: Path, size: str):
    folder.mkdir()
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root may mount a small file system to fill")
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    ).returncode:
        pytest.skip("this machine does not allow mounting a small file system to fill")


def test_a_full_disk_is_reported_and_the_previous_checkpoint_loads(tmp_path, notes):
    disk = tmp_path / "disk"
    tmpfs(disk, "2m")
    try:
        words = ("train", "gpt", "--data", notes, "--out", disk / "run", *TINY, "--model.width", "48", "--train.eval_every",
                 "4", "--train.save_every", "4", "--train.steps", "40", "--train.eval_batches", "1", "--train.keep", "99")  # fmt: skip
        printed = call(*words, code=2).stderr
        assert "the disk is full" in printed
        assert f"pencil resume {disk / 'run'}" in printed
        assert "Traceback" not in printed
        kept, faults = checkpoint.latest(disk / "run")
        assert kept.step >= 4
        later = kept.step + 4
        assert (
            f"the checkpoint of step {later} could not be written; the checkpoint of step {kept.step} is kept"
            in printed
        )
        assert "training goes on" in printed
        assert f"step 40 could not be saved in {disk / 'run'}; the checkpoint of step {kept.step} is kept" in printed
        assert "step     40  val_loss" in printed
        assert not faults
        assert not list((disk / "run" / "checkpoints").glob(".tmp-*"))
        assert load(disk / "run").model is not None
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=False)


@pytest.mark.usefixtures("fast_training")
def test_tensorboard_by_one_setting(tmp_path, notes):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    trainer(tmp_path / "a", notes, logger="tensorboard", steps=10).train()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("train_loss")] == [10]
    assert [e.step for e in events.Scalars("val_loss")] == [0, 6, 10]


def test_a_logger_that_is_not_installed_is_reported(tmp_path, notes, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UserError, match=r"trackio is not installed; pip install '\.\[trackio\]'"):
        trainer(tmp_path / "a", notes, logger="trackio").train()


def test_a_device_that_is_not_there_is_refused():
    assert pick_device("cpu").type == "cpu"
    for name in ("cuda:99", "nonsense"):
        with pytest.raises(UserError, match=f"device {name} is not available on this machine"):
            pick_device(name)


@pytest.mark.usefixtures("fast_training")
def test_trackio_by_one_setting(tmp_path, notes, monkeypatch):
    """A stand-in with trackio's two calls: the real one is a large optional package."""
    import types

    logged = []
    stand_in = types.SimpleNamespace(
        init=lambda project, name: logged.append((project, name)),
        log=lambda values, step: logged.append((step, set(values))),
    )
    monkeypatch.setitem(sys.modules, "trackio", stand_in)
    trainer(tmp_path / "a", notes, logger="trackio", steps=10).train()
    assert logged[0] == (tmp_path.name, "a")
    assert (10, {"train_loss", "grad_norm", "lr", "rate", "time"}) in logged
