"""Processes that share one GPU, and one process under torchrun with NCCL: the same run, restarts, failures."""

import json
import re
import subprocess
import sys

import pytest
import torch

from several import environment, free_port
from training import bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")

# NCCL wants a GPU for each process; gloo moves the tensors of a shared one
SHARED = """
import json, os, signal, sys, torch, torch.distributed as dist
from pencil import processes
from pencil.cli.main import run
from pencil.train import language_modeling, loop

join, update, stop = dist.init_process_group, loop.Trainer.update, int(sys.argv[1])
dist.init_process_group = lambda backend, **given: join("gloo", **given)
processes._check_device = lambda device, here: torch.cuda.set_device(0)
language_modeling.PREVIEW_TOKENS = 7

def stopped(self):
    if self.step == stop and processes.world().rank == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    return update(self)

loop.Trainer.update = stopped
for words in json.loads(sys.argv[2]):
    assert run(words) == 0
"""
SMALL = ["--model.width", "24", "--model.depth", "2", "--model.heads", "3", "--train.device", "cuda", "--train.batch",
         "22", "--train.steps", "7", "--train.warmup", "2", "--train.eval_batches", "1", "--train.save_every", "3",
         "--train.ema", "0.9", "--train.eps", "1e-4"]  # fmt: skip


@pytest.fixture(autouse=True)
def notes_here(tmp_path, notes):
    (tmp_path / "notes.txt").write_bytes(notes.read_bytes())


def command(name, out, *more):
    data = ["--data", "notes.txt", "--model.context", "13"] if name == "gpt" else []
    return ["train", name, *data, "--out", out, *SMALL, *more]


def share(size, folder, *commands, stop=-1):
    """Run commands on so many processes of the one GPU; a signal comes before step `stop`."""
    words, port = [sys.executable, "-c", SHARED, str(stop), json.dumps(commands)], free_port()
    given = {"cwd": folder, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [
        subprocess.Popen(words, env={**environment(rank, size, port), "LOCAL_RANK": "0"}, **given)
        for rank in range(size)
    ]
    printed = [one.communicate(timeout=300) for one in started]
    assert [one.returncode for one in started] == [0] * size, "\n".join(err[-3000:] for _, err in printed)


def torchrun(folder, *words, restarts=0, **given):
    several = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    several += ["--max-restarts", str(restarts)]
    env = {**environment(0, 1, 0), "LOGLEVEL": "ERROR"}
    return subprocess.run([*several, *words], cwd=folder, env=env, text=True, capture_output=True, timeout=300, **given)


@pytest.mark.parametrize("name", ["gpt", "captioner", "dit"])
def test_exact_mode_has_the_same_bits_with_one_process_and_two(tmp_path, name):
    same = ["--train.exact", "true", "--train.compile", "on" if name == "gpt" else "off"]
    share(1, tmp_path, command(name, "one", *same))
    share(2, tmp_path, command(name, "two", *same))
    share(2, tmp_path, command(name, "cut", *same), stop=4)
    share(1, tmp_path, ["resume", "cut"])
    expected = bits(tmp_path / "one", 7)
    assert len(expected[0]) > len(expected[1]) > 0
    for other in ("two", "cut"):
        assert bits(tmp_path / other, 7)[:2] == expected[:2]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_killed_process_is_restarted_and_comes_to_the_same_bits(tmp_path, parallel):
    (tmp_path / "killed.py").write_text(
        "import os, signal\nfrom pathlib import Path\nfrom pencil.cli.main import main\nfrom pencil.train.loop import Trainer\n"
        "update = Trainer.update\n\n"
        "def once(self):\n"
        "    if self.step == 5 and not Path('killed').exists():\n"
        "        Path('killed').touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return update(self)\n\n"
        "Trainer.update = once\nmain()\n"
    )
    same = ["--train.parallel", parallel, "--train.deterministic", "true", "--train.compile", "off"]
    ended = torchrun(tmp_path, "-m", "pencil", *command("gpt", "whole", *same))
    assert ended.returncode == 0, ended.stderr[-3000:]
    ended = torchrun(tmp_path, "killed.py", *command("gpt", "again", *same), restarts=2)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "A process had ended: restart 1, on with again from step 3" in ended.stderr
    assert bits(tmp_path / "again", 7)[:2] == bits(tmp_path / "whole", 7)[:2]


def test_too_little_memory_names_settings_that_fit(tmp_path):
    large = ["--model.context", "1024", "--model.width", "768", "--model.heads", "12", "--train.batch", "65536"]
    ended = torchrun(tmp_path, "-m", "pencil", *command("gpt", "large", *large, "--train.parallel", "fsdp"))
    assert ended.returncode == 1  # of torchrun
    (sentence,) = [line for line in ended.stderr.splitlines() if "pencil: " in line]
    assert re.search(r"out of memory with --train\.batch 65536; --train\.batch \d+ --train\.accumulate \d+", sentence)
