"""Processes that share one GPU, and one process under torchrun with NCCL: the same run, restarts, failures."""

import json
import re
import subprocess
import sys

import pytest
import torch

from pencil.train.loop import checkpoint
from pencil.train.loop.report import Metrics
from several import environment, free_port
from training import bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")

# NCCL wants a GPU for each process; gloo moves the tensors of a shared one
SHARED = """
import json, os, signal, sys, torch, torch.distributed as dist
from pencil.collectives import processes
from pencil.cli.main import run
from pencil.train.tasks import language_modeling
from pencil.train.loop import trainer as loop

join, update, stop = dist.init_process_group, loop.Trainer.update, int(sys.argv[1])
dist.init_process_group = lambda backend, **given: join("gloo", **given)
processes._check_device = lambda device, here: torch.cuda.set_device(0)
language_modeling.PREVIEW_TOKENS = 7
torch.set_float32_matmul_precision = lambda precision: None  # float32 is not TF32: then two can be compared

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
         "--train.eval_every", "2", "--train.ema", "0.9", "--train.eps", "1e-4"]  # fmt: skip
DATA = {"gpt": ["--data", "notes.txt", "--model.context", "13"], "reader": ["--data", "rows.tsv"]}


@pytest.fixture(autouse=True)
def data_here(tmp_path, notes):
    (tmp_path / "notes.txt").write_bytes(notes.read_bytes())
    rows = [f"{'so ' * (i % 23)}{i}\t{'good' if i % 2 else 'bad'}\n" for i in range(97)]
    (tmp_path / "rows.tsv").write_text("".join(rows))


def command(name, out, *more):
    return ["train", name, *DATA.get(name, []), "--out", out, *SMALL, *more]


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


def losses(folder):
    """Each loss that a run reports, with its step."""
    kinds = ("train_loss", "val_loss")
    found = {(line["step"], kind): line[kind] for line in Metrics.read(folder) for kind in kinds if kind in line}
    assert found.keys() == {(7, "train_loss"), *((step, "val_loss") for step in (0, 2, 4, 6, 7))}
    return found


def apart(folder, other):
    """How far each tensor of the last checkpoints is from the other's, beside its norm."""
    found, expected = (checkpoint.read(one, 7).tensors for one in (folder, other))
    assert found.keys() == expected.keys()
    pairs = {key: (found[key].double(), tensor.double()) for key, tensor in expected.items()}
    return {key: float((a - b).norm() / b.norm().clamp(min=1e-6)) for key, (a, b) in pairs.items()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", ["gpt", "vit", "captioner", "seq2seq", "reader", "dit"])
def test_two_processes_train_as_one(tmp_path, name, optimizer):
    """With DDP: gloo has not what FSDP2 needs on a GPU."""
    still = [] if name == "dit" else ["--model.dropout", "0"]  # whose random numbers are each process's own
    still += ["--model.key_dropout", "0"] if name == "vit" else []
    same = [*still, "--train.optimizer", optimizer, "--train.dtype", "float32", "--train.compile", "off"]
    share(1, tmp_path, command(name, "one", *same))
    share(2, tmp_path, command(name, "two", *same))
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-3)
    if optimizer == "muon":  # its products are in bfloat16 on a GPU: its matrices differ by some percent
        return
    assert max(apart(tmp_path / "two", tmp_path / "one").values()) < 1e-3


@pytest.mark.parametrize("sync", ["update", "batch"])
def test_compiled_fsdp_in_bfloat16_accumulates_as_without(tmp_path, sync):
    same = ["--model.dropout", "0", "--train.accumulate", "3", "--train.compile", "on", "--train.dtype", "bfloat16",
            "--train.optimizer", "adamw"]  # fmt: skip
    share(1, tmp_path, command("gpt", "plain", *same))
    cut = command("gpt", "cut", *same, "--train.parallel", "fsdp", "--train.sync", sync)
    ended = torchrun(tmp_path, "-m", "pencil", *cut)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert losses(tmp_path / "cut") == pytest.approx(losses(tmp_path / "plain"), rel=0.01)
    # moments grow with the gradient: one of three micro-batches, or a wrong factor, would show
    found = apart(tmp_path / "cut", tmp_path / "plain")
    assert max(off for key, off in found.items() if key.endswith("exp_avg")) < 0.1, found


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
        "import os, signal\nfrom pathlib import Path\nfrom pencil.cli.main import main\nfrom pencil.train.loop.trainer import Trainer\n"
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
