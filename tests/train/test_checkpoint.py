import json
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

from pencil.config import UserError
from pencil.train import checkpoint


def tensors(step):
    return {"model.a": torch.full((7, 5), float(step)), "optim.b": torch.arange(11) + step}


def write(run, step, keep=2):
    return checkpoint.write(run, step, tensors(step), {"best": {}}, keep)


def test_what_is_written_is_read_and_the_newest_two_are_kept(tmp_path):
    for step in (10, 20, 30):
        write(tmp_path, step)
    assert checkpoint.saved(tmp_path) == [20, 30]
    kept, faults = checkpoint.latest(tmp_path)
    assert kept.step == 30
    assert kept.state["step"] == 30
    assert not faults
    assert {n: t.tolist() for n, t in kept.tensors.items()} == {n: t.tolist() for n, t in tensors(30).items()}
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-00000020", "step-00000030"]


def test_damaged_later_checkpoints_do_not_crowd_out_a_whole_one(tmp_path):
    write(tmp_path, 100)
    for step in (200, 300):
        (write(tmp_path, step, keep=9) / "state.json").write_text("{}")
    assert checkpoint.latest(tmp_path)[0].step == 100
    write(tmp_path, 150)
    assert checkpoint.saved(tmp_path) == [100, 150]
    assert checkpoint.latest(tmp_path)[0].step == 150


def test_a_run_without_checkpoints_has_none(tmp_path):
    assert checkpoint.latest(tmp_path) == (None, [])


def test_large_states_are_written_in_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 100)
    folder = write(tmp_path, 1)
    assert len(list(folder.glob("shard-*"))) == 2
    assert len(checkpoint.read(tmp_path, 1).tensors) == 2


def test_every_flip_truncation_and_stray_file_is_refused_and_the_one_before_is_used(tmp_path):
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
            pytest.fail("the whole one was not used")
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


def test_a_manifest_of_another_step_is_refused(tmp_path):
    one, two = write(tmp_path, 1), write(tmp_path, 2)
    (two / "manifest.json").write_bytes((one / "manifest.json").read_bytes())
    kept, faults = checkpoint.latest(tmp_path)
    assert kept.step == 1
    assert "manifest of step 1" in faults[0]


def test_when_nothing_is_whole_it_says_so(tmp_path):
    (write(tmp_path, 1) / "state.json").write_text("{}")
    with pytest.raises(UserError, match="no checkpoint of .* is whole"):
        checkpoint.latest(tmp_path)


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    write(tmp_path, 1)

    def full(path, content):
        path.write_bytes(content[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_flushed", full)
    with pytest.raises(OSError):
        write(tmp_path, 2)
    assert checkpoint.latest(tmp_path)[0].step == 1
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


WRITER = """
import sys, torch
from pathlib import Path
from pencil.train import checkpoint
run, step = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
while True:
    step += 1
    checkpoint.write(run, step, {"model.a": torch.full((300, 700), float(step)), "optim.b": torch.full((300, 700), -float(step))}, {})
"""


def kills(run, count):
    rng, last = random.Random(1), 0
    for _ in range(count):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(run), str(last)], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0.05, 0.25))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if not checkpoint.saved(run):
            continue
        kept, faults = checkpoint.latest(run)
        assert not faults
        assert kept.step >= last
        assert (kept.tensors["model.a"] == kept.step).all()
        assert (kept.tensors["optim.b"] == -kept.step).all()
        last = kept.step
    return last


def test_killed_anywhere_it_leaves_a_whole_unmixed_checkpoint(tmp_path):
    assert kills(tmp_path, 8) > 8


@pytest.mark.long
def test_killed_anywhere_two_hundred_times(tmp_path):
    assert kills(tmp_path, 200) > 200
