import json
import os
import random
import shutil
import subprocess
import sys

import pytest
import torch

from pencil.config import UserError
from pencil.runs.files import Manifest
from pencil.train.loop import checkpoint


def tensors(step):
    return {"model.a": torch.full((7, 5), float(step)), "optim.b": torch.arange(11) + step}


def write(run, step, keep=2):
    return checkpoint.write(run, step, tensors(step), {"best": {}}, keep)


def test_a_checkpoint_is_read_back_and_the_newest_two_are_kept(tmp_path):
    for step in (10, 20, 30):
        write(tmp_path, step)
    assert checkpoint.saved_steps(tmp_path) == [20, 30]
    kept, faults = checkpoint.latest(tmp_path)
    assert kept.step == 30
    assert kept.state["step"] == 30
    assert not faults
    assert {n: t.tolist() for n, t in kept.tensors.items()} == {n: t.tolist() for n, t in tensors(30).items()}
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-00000020", "step-00000030"]


def test_damaged_later_checkpoints_do_not_crowd_out_an_intact_one(tmp_path):
    write(tmp_path, 100)
    for step in (200, 300):
        (write(tmp_path, step, keep=9) / "state.json").write_text("{}")
    assert checkpoint.latest(tmp_path)[0].step == 100
    write(tmp_path, 150)
    assert checkpoint.saved_steps(tmp_path) == [100, 150]
    assert checkpoint.latest(tmp_path)[0].step == 150


def test_only_what_was_written_here_is_removed(tmp_path):
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    listed(run)
    held = write(run, 10).parent
    shutil.copytree(held / "step-00000010", outside)
    shutil.copytree(held / "step-00000010", held / "step-00000010-mybackup")
    (held / "step-00000007").symlink_to(outside)
    for place in ("step-diary", "step-00000005", "step-00000030", ".tmp-mine"):
        (held / place).mkdir()
        (held / place / "precious.txt").write_text(place)
    shutil.copytree(held / "step-00000010", held / "step-00000011")
    (held / "step-00000011" / "precious.txt").write_text("notes about it")
    shutil.copytree(held / "step-00000010", held / "step-00000099")  # a copy that somebody keeps under another step
    for step in (20, 30, 40):
        write(run, step)
    assert checkpoint.latest(run)[0].step == 40
    assert not (held / "step-00000010").exists()
    assert sorted(outside.iterdir()) == sorted(
        outside / path.name for path in (held / "step-00000010-mybackup").iterdir()
    )
    assert (held / "step-00000007").is_symlink()
    assert (held / "step-00000099" / "state.json").exists()
    kept = ["step-00000005", "step-00000011", "step-diary"]
    assert all((held / place / "precious.txt").exists() for place in (*kept, ".tmp-mine"))
    (moved,) = held.glob("step-00000030-*")  # which stood where a checkpoint was written
    assert (moved / "precious.txt").read_text() == "step-00000030"


def test_a_run_without_checkpoints_has_none(tmp_path):
    assert checkpoint.latest(tmp_path) == (None, [])


def test_large_states_are_written_in_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 100)
    folder = write(tmp_path, 1)
    assert len(list(folder.glob("shard-*"))) == 2
    assert len(checkpoint.read(tmp_path, 1).tensors) == 2


def test_every_bit_flip_truncation_and_stray_file_is_detected_and_the_previous_checkpoint_is_used(tmp_path):
    write(tmp_path, 1)
    folder = write(tmp_path, 2)
    rng = random.Random(0)
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["manifest.json", "shard-00000.safetensors", "state.json"]
    caught = 0
    for trial in range(150):
        path = folder / names[trial % 3]
        whole = path.read_bytes()
        damaged = bytearray(whole)
        if trial % 2:
            at = rng.randrange(len(whole))
            damaged[at] ^= 1 << rng.randrange(8)
        else:
            del damaged[rng.randrange(len(whole)) :]
        path.write_bytes(damaged)
        try:
            kept, faults = checkpoint.latest(tmp_path)
        except UserError:
            pytest.fail("the intact one was not used")
        same = (
            json.loads(whole) == _loads(damaged) if path.suffix == ".json" and path.name == "manifest.json" else False
        )
        assert kept.step == 1 or same, (path.name, trial)
        caught += kept.step == 1
        if kept.step == 1:
            assert path.name in faults[0] or folder.name in faults[0]
        path.write_bytes(whole)
    assert caught >= 145
    (folder / "stray.bin").touch()
    assert "stray.bin is not part" in checkpoint.latest(tmp_path)[1][0]
    (folder / "stray.bin").unlink()
    (folder / "state.json").unlink()
    assert "state.json is missing" in checkpoint.latest(tmp_path)[1][0]


def _loads(content):
    try:
        return json.loads(content)
    except ValueError:
        return None


def test_a_manifest_of_another_step_is_noticed(tmp_path):
    one, two = write(tmp_path, 1), write(tmp_path, 2)
    (two / "manifest.json").write_bytes((one / "manifest.json").read_bytes())
    kept, faults = checkpoint.latest(tmp_path)
    assert kept.step == 1
    assert "step-00000002 was renamed: by its manifest it is the one of step 1" in faults[0]


def listed(run):
    """A run's manifest, which lists the checkpoints."""
    Manifest("7" * 16, {}, {}).write(run)
    return lambda: sorted(Manifest.read(run).checkpoints)


def test_the_manifest_of_the_run_lists_what_is_kept(tmp_path):
    steps = listed(tmp_path)
    for step, expected in ((7, [7]), (20, [7, 20]), (100, [20, 100])):
        write(tmp_path, step)
        assert steps() == expected
        assert checkpoint.latest(tmp_path)[1] == []


def test_a_kill_before_a_checkpoint_is_listed_leaves_it_usable(tmp_path, monkeypatch):
    steps = listed(tmp_path)
    for step in (10, 20):
        write(tmp_path, step)
    real, calls = checkpoint.list_checkpoints, []

    def killed_at_the_second(run, kept):
        calls.append(kept)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(run, kept)

    monkeypatch.setattr(checkpoint, "list_checkpoints", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(tmp_path, 20, tensors(21), {"best": {}})  # the same step again, with other content
    assert steps() == [10]
    kept, faults = checkpoint.latest(tmp_path)
    assert (kept.step, faults) == (20, [])
    assert kept.tensors["model.a"][0, 0] == 21


def test_what_is_listed_is_carried_forward_and_never_hashed_anew(tmp_path):
    listed(tmp_path)
    folder = write(tmp_path, 10)
    shutil.rmtree(folder)
    (tmp_path / "other").mkdir()
    checkpoint.write(tmp_path / "other", 10, tensors(11), {"best": {}}).rename(folder)
    write(tmp_path, 20)
    assert [fault.path for fault in checkpoint.survey(tmp_path)[2]] == [folder]
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000020")
    with pytest.raises(UserError, match="step-00000010 is not the checkpoint that this run wrote"):
        checkpoint.latest(tmp_path)


def test_without_an_intact_checkpoint_it_is_refused(tmp_path):
    (write(tmp_path, 1) / "state.json").write_text("{}")
    with pytest.raises(UserError, match="no checkpoint of .* is whole"):
        checkpoint.latest(tmp_path)


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    write(tmp_path, 1)

    def full(path, content):
        path.write_bytes(content[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_flushed", full)
    with pytest.raises(OSError):
        write(tmp_path, 2)
    assert checkpoint.latest(tmp_path)[0].step == 1
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


# imports once, then forks a writer for each kill: "STEP SECONDS" is the step to write after, and how long to let it
# write once it has written a checkpoint
WRITER = """
import os, signal, sys, time
from pathlib import Path
import torch
from pencil.train.loop import checkpoint
run = Path(sys.argv[1])
for line in sys.stdin:
    last, seconds = line.split()
    last = step = int(last)
    writer = os.fork()
    while not writer:
        step += 1
        checkpoint.write(run, step, {"model.a": torch.full((300, 700), float(step)), "optim.b": torch.full((300, 700), -float(step))}, {})
    while not any(step > last for step in checkpoint.saved_steps(run)):
        assert os.waitpid(writer, os.WNOHANG) == (0, 0)
        time.sleep(0.002)
    time.sleep(float(seconds))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    print("killed", flush=True)
"""


def kills(run, count):
    rng, last = random.Random(1), 0
    command = [sys.executable, "-c", WRITER, str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(count):
            print(last, rng.uniform(0, 0.05), file=process.stdin, flush=True)
            assert process.stdout.readline() == "killed\n"
            kept, faults = checkpoint.latest(run)
            assert not faults
            assert kept.step > last
            assert (kept.tensors["model.a"] == kept.step).all()
            assert (kept.tensors["optim.b"] == -kept.step).all()
            last = kept.step
        process.stdin.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the writers are forked")
def test_a_killed_writer_leaves_an_intact_unmixed_checkpoint(tmp_path):
    kills(tmp_path, 11)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the writers are forked")
def test_two_hundred_killed_writers_leave_intact_checkpoints(tmp_path):
    kills(tmp_path, 200)
