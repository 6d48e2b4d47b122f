"""Snapshots of a training: which steps, whose weights, under the manifest, and the same after a kill."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_loop import trainer

from pencil.api.verifying import verify_run
from pencil.config import UserError
from pencil.files import fingerprint
from pencil.runs import snapshots
from pencil.runs.run import Run
from pencil.train.loop import checkpoint
from pencil.train.settings import TrainConfig
from training import Killed, interrupt_after, kill_after


def test_the_steps_are_log_spaced_few_and_follow_from_the_step_alone():
    for most in (3, 5, 24):
        before = []
        for step in (one for one in snapshots.SERIES if one < 3e6):
            kept = snapshots.kept_steps(step, most)
            assert set(kept) <= {*before, step}  # so what is kept was there, and a resumed training needs no more
            assert len(kept) == min(most, len(before) + 1)
            assert kept[:2] == [0, 1][: len(kept)]
            assert kept[-1] == step
            assert all(
                kept == snapshots.kept_steps(later, most) for later in range(step, min(int(1.4 * step), step + 9))
            )
            before = kept
        if most == 24:  # over more than twenty powers of two
            assert np.diff(np.log2(kept[1:])).max() < 2.01
    with pytest.raises(UserError, match="train.snapshots must be 0, which keeps none, or at least 3, not 2"):
        TrainConfig(snapshots=2)


def contents(folder):
    """The snapshots that the manifest lists, each as its file has it."""
    files = {path.name for path in (folder / "snapshots").iterdir()}
    assert files == {snapshots.path_of(folder, step).name for step in snapshots.listed(folder)}
    return {step: load_file(snapshots.path_of(folder, step)) for step in snapshots.listed(folder)}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(t, b[step][name]) for step in a for name, t in a[step].items())


@pytest.mark.usefixtures("fast_training")
def test_weights_are_those_after_each_step_and_the_series_goes_on_after_a_kill(tmp_path, notes):
    pace = dict(steps=12, schedule="constant", warmup=0, snapshots=5, keep=9, ema=0.9)
    made = trainer(tmp_path / "whole", notes, **pace)
    initial = {name: t.clone() for name, t in made.model.state_dict().items()}
    averages = {}
    update = made.update

    def watched():
        seen = update()
        averages[made.step] = {**made.model.state_dict(), **made.ema.values}
        averages[made.step] = {name: t.clone() for name, t in averages[made.step].items()}
        return seen

    made.update = watched
    made.train()
    whole = contents(tmp_path / "whole")
    assert list(whole) == snapshots.kept_steps(12, 5) == [0, 1, 2, 4, 11]
    assert same({0: initial}, {0: whole[0]})
    assert same({step: averages[step] for step in (1, 2, 4, 11)}, {step: whole[step] for step in (1, 2, 4, 11)})
    assert not [fault for _, fault in verify_run(tmp_path / "whole") if fault is not None]
    # killed after step 11, of which nothing but its snapshot was saved: it goes on from the checkpoint of step 8
    with pytest.raises(Killed):
        kill_after(trainer(tmp_path / "killed", notes, **pace), 12).train()
    assert checkpoint.saved_steps(tmp_path / "killed") == [4, 8]
    assert list(snapshots.listed(tmp_path / "killed")) == [0, 1, 2, 4, 11]
    again = trainer(None, notes, run=Run.open(tmp_path / "killed"), **pace)
    again.restore()
    assert list(snapshots.listed(tmp_path / "killed")) == [0, 1, 2, 4]  # another course may follow
    interrupt_after(trainer(None, notes, run=Run.open(tmp_path / "killed"), **pace), 10).train()
    trainer(None, notes, run=Run.open(tmp_path / "killed"), **pace).train()
    assert same(contents(tmp_path / "killed"), whole)
    # with 0 nothing is added, and what is there stays; a model that is too large keeps none
    more = {**pace, "steps": 23, "snapshots": 0}
    trainer(None, notes, run=Run.open(tmp_path / "killed"), **more).train()
    assert same(contents(tmp_path / "killed"), whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "MOST_PARAMETERS", sum(t.numel() for t in made.model.parameters()) - 1)
        trainer(tmp_path / "large", notes, **{**pace, "steps": 2}).train()
    assert not (tmp_path / "large" / "snapshots").exists()


def test_a_writer_killed_at_any_moment_leaves_what_is_listed_whole(tmp_path, run, monkeypatch):
    folder = shutil.copytree(run, tmp_path / "run")
    before = snapshots.listed(folder)
    assert list(before) == [0, 1, 2, 3, 4, 6, 8, 11, 16, 23]

    def killed(*_, **named):
        raise KeyboardInterrupt

    def write(path):
        path.write_bytes(b"weights")

    for where, name in (
        ("os", "replace"),
        ("pencil.runs.snapshots", "flush_folder"),
        ("pencil.runs.files", "write_aside"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"{where}.{name}", killed)
            with pytest.raises(KeyboardInterrupt):
                snapshots.add(folder, 32, 5, write)
        assert snapshots.listed(folder) == before
        assert not [fault for _, fault in verify_run(folder) if fault is not None]
        with pytest.raises(UserError, match="no snapshot of step 32; it has those of steps 0, 1, 2"):
            snapshots.read(folder, 32, {})
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", killed)  # listed, and the others are still to be removed
        with pytest.raises(KeyboardInterrupt):
            snapshots.add(folder, 32, 5, write)
    assert list(snapshots.listed(folder)) == [0, 1, 4, 11, 32]
    snapshots.forget_after(folder, 16)
    assert sorted(path.name for path in (folder / "snapshots").iterdir()) == [
        f"step-{step:08d}.safetensors" for step in (0, 1, 4, 11)
    ]
    damaged, missing = (snapshots.path_of(folder, step) for step in (4, 11))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    missing.unlink()
    faults = [str(fault) for _, fault in verify_run(folder) if fault is not None]
    assert faults == [f"{damaged} is damaged: it does not match manifest.json", f"{missing} is missing"]
    with pytest.raises(UserError, match="step-00000004.safetensors is missing or damaged"):
        snapshots.read(folder, 4, {})
    assert fingerprint(snapshots.path_of(folder, 1)) == before[1]
