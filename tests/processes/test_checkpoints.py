"""Checkpoints of several processes: their pieces make up the tensors that one process would write."""

import random
import re

import pytest

from conftest import call
from pencil.api.loading import load
from pencil.config import UserError
from pencil.explore.session import load_checkpoint
from pencil.train.loop import checkpoint

# A model whose sizes are not divisible, one of them smaller than the number of processes; after two steps it is saved,
# or a checkpoint is loaded into it. What each rank has is printed as a hash of its pieces.
TOY = """
import sys
from pathlib import Path
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from pencil.collectives.processes import process_group, world, all_gather
from pencil.train.loop import checkpoint
from pencil.train.parallel import dtensor_files

verb, kind, step = sys.argv[1:4]
run, step = Path("run"), int(step)
with process_group(torch.device("cpu")) as here:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 11), nn.Linear(11, 3), nn.LayerNorm(3))
    model.register_buffer("scale", torch.tensor([2.0, 5.0]))
    if kind == "fsdp":
        fully_shard(model[0])
        fully_shard(model)
    names = {p: n for n, p in model.named_parameters()}
    adam = torch.optim.AdamW(model.parameters(), lr=0.1)
    if verb == "save":
        torch.manual_seed(1)
        for _ in range(2):
            model(torch.randn(5, 7)).square().mean().backward()
            adam.step()
            adam.zero_grad()
        tensors = {f"model.{n}": t for n, t in model.state_dict().items()}
        tensors |= {f"optim.{names[p]}.{k}": v for p, s in adam.state.items() for k, v in s.items()}
        pieces = dtensor_files.own_pieces(tensors, here.is_rank0)
        copies, copied = dtensor_files.HostCopy().take({n: p.tensor for n, p in pieces.items()})
        with torch.no_grad():
            for p in model.parameters():
                p.zero_()  # training goes on
        copied()
        cuts = {n: p.cut for n, p in pieces.items() if p.cut}
        spread = here.size > 1 and kind == "fsdp"
        group = torch.distributed.new_group(backend="gloo") if here.size > 1 else None
        run.mkdir(exist_ok=True)
        checkpoint.write(run, step, copies, {"best": {}}, 2, cuts if spread else None, group)
    else:
        kept = checkpoint.read(run, step)
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                tensor.copy_(kept.tensors.like(f"model.{name}", tensor))
                if name in names.values():
                    parameter = dict(model.named_parameters())[name]
                    moment = kept.tensors.like(f"optim.{name}.exp_avg", parameter)
                    assert type(moment) is type(parameter.data), (type(moment), type(parameter))
                    parameter.add_(moment)
        found = {n: t.full_tensor() if dtensor_files.is_dtensor(t) else t for n, t in model.state_dict().items()}
        if here.is_rank0:
            for name, tensor in found.items():
                print(name, tensor.flatten().tolist())
"""


def loaded(run):
    """What the script prints after it has loaded a checkpoint, computed from the file of one process."""
    kept = checkpoint.read(run, 1).tensors
    for name in (n for n in kept if n.startswith("model.")):
        whole = kept[name]
        if (moment := f"optim.{name.removeprefix('model.')}.exp_avg") in kept:
            whole = whole + kept[moment]
        yield f"{name.removeprefix('model.')} {whole.flatten().tolist()}"


def test_pieces_saved_by_some_processes_are_loaded_by_another_number_of_them(together, tmp_path):
    together(1, TOY, arguments=["save", "ddp", 1])
    one = {n: t.clone() for n, t in checkpoint.read(tmp_path / "run", 1).tensors.items()}
    expected = set(loaded(tmp_path / "run"))
    together(4, TOY, arguments=["save", "fsdp", 2])
    kept = checkpoint.read(tmp_path / "run", 2)
    assert sorted(path.name for path in kept.folder.glob("shard*")) == [f"shard-{r:05d}.safetensors" for r in range(4)]
    assert {n: t.tolist() for n, t in kept.tensors.items()} == {n: t.tolist() for n, t in one.items()}
    assert kept.tensors.shapes == {n: tuple(t.shape) for n, t in one.items()}
    for size, kind in ((1, "ddp"), (2, "fsdp"), (4, "fsdp")):
        ended = together(size, TOY, arguments=["load", kind, 2])
        assert set(ended[0].out.splitlines()) == expected, (size, kind)


def test_a_file_of_another_process_that_is_damaged_missing_or_swapped_is_named(together, tmp_path):
    together(2, TOY, arguments=["save", "fsdp", 1])
    folder, rng = tmp_path / "run" / "checkpoints" / "step-00000001", random.Random(0)
    first, second = sorted(folder.glob("shard-*"))
    whole = second.read_bytes()
    for trial in range(40):
        damaged = bytearray(whole)
        if trial % 2:
            damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        else:
            del damaged[rng.randrange(len(whole)) :]
        second.write_bytes(damaged)
        with pytest.raises(UserError, match=r"shard-00001\.safetensors is damaged"):
            checkpoint.read(tmp_path / "run", 1)
    second.write_bytes(first.read_bytes())
    with pytest.raises(UserError, match=r"shard-00001\.safetensors is damaged"):
        checkpoint.read(tmp_path / "run", 1)
    second.unlink()
    with pytest.raises(UserError, match=r"shard-00001\.safetensors is missing"):
        checkpoint.read(tmp_path / "run", 1)


SMALL = (
    "--model.width 12 --model.depth 1 --model.heads 3 --train.batch 4 --train.eval_batches 1 --train.warmup 0 "
    "--train.save_every 2 --train.eval_every 3 --train.seed 7"
).split()


@pytest.fixture
def notes(tmp_path):
    """A text, and the words that train a small GPT on it."""
    path = tmp_path / "notes.txt"
    path.write_text("".join(f"line {i}: {i * 7 % 13} strips of {i * 5 % 11} squares\n" for i in range(200)))
    return ["train", "gpt", "--data", path, "--out", tmp_path / "run", "--model.context", 17, *SMALL]


def tensors(run, step):
    """Everything in a checkpoint, as bytes."""
    return {n: t.numpy().tobytes() for n, t in checkpoint.read(run, step).tensors.items()}


# restores a run on some processes, and saves it again as it is, under another step
AGAIN = """
import sys
from pathlib import Path
import torch
from pencil.config import build
from pencil.api.loading import open_run
from pencil.api.run_data import task_of
from pencil.collectives.processes import process_group, world
from pencil.train.loop.trainer import Trainer
from pencil.train.settings import TrainConfig

run, (kind, step) = open_run(Path("run")), sys.argv[1:]
config = build(TrainConfig, {**run.config["train"], "parallel": kind, "keep": 9})
with process_group(torch.device("cpu"), alone=kind == "fsdp"):
    trainer = Trainer(task_of(run, config), run, config)
    notes = trainer.restore()
    if world().is_rank0:
        print(*notes, sep="\\n")
    trainer.state.step = int(step)
    trainer.checkpointer.save()
"""


@pytest.mark.parametrize("optimizer", ["muon", pytest.param("adamw", marks=pytest.mark.long)])
def test_a_run_saved_by_some_processes_goes_on_with_any_number_and_is_used_by_one(together, tmp_path, notes, optimizer):
    fsdp = ["--train.parallel", "fsdp", "--train.optimizer", optimizer, "--train.ema", 0.9]
    together(2, words=[*notes, *fsdp, "--train.steps", 3])
    run = tmp_path / "run"
    assert len(list((run / "checkpoints" / "step-00000003").glob("shard-*"))) == 2
    saved = tensors(run, 3)
    assert {name.split(".")[0] for name in saved} == {"model", "ema", "optim"}
    assert any("exp_avg_sq" in name for name in saved)
    assert any("momentum" in name for name in saved) == (optimizer == "muon")
    was, order = 2, [(4, "fsdp"), (2, "ddp"), (1, "auto"), (2, "fsdp"), (1, "fsdp")]
    for step, (size, kind) in enumerate(order, 4):
        shown = together(size, AGAIN, arguments=[kind, step])[0].out
        assert tensors(run, step) == saved, (size, kind)
        assert (f"processes was {was} and is {size} now" in shown) == (was != size)
        was = size
    # in one process a file is the same whether the model is cut or not
    one, other = ((run / "checkpoints" / f"step-0000000{n}" / "shard-00000.safetensors") for n in (6, 8))
    assert one.read_bytes() == other.read_bytes()
    _use(run)


def _use(run):
    """What one process makes of the run: all verbs that open one."""
    opened = load(run)
    assert {n: t.numpy().tobytes() for n, t in opened.model.state_dict().items()} == {
        n.removeprefix("ema."): b for n, b in tensors(run, 3).items() if n.startswith("ema.")
    }  # it is used with the average
    call("verify", run)
    call("sample", run, "--max-new-tokens", 3, "--prompt", "line")
    call("eval", run)
    call("export", run, "--to", "hf", "--out", run.parent / "hf")
    load_checkpoint(opened, 3)
    damaged = run / "checkpoints" / "step-00000004" / "shard-00002.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    shown = call("verify", run, code=1)
    assert "step-00000004/shard-00002.safetensors is damaged" in shown.stdout + shown.stderr


def test_a_number_of_processes_that_cannot_share_the_batch_is_refused(together, tmp_path, notes):
    together(1, words=[*notes, "--train.steps", 2])
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    ended = together(3, words=["resume", tmp_path / "run", "--train.steps", 4], code=None)
    assert all(one.code for one in ended)
    printed = "".join(one.err + one.out for one in ended)
    assert printed.count("train.batch 4 cannot be divided among 3 processes") == 1
    assert "Traceback" not in printed
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_rank_that_does_not_see_the_folder_of_the_run_is_named(together, tmp_path):
    (tmp_path / "run").mkdir()
    script = """
import os, time
from pathlib import Path
import torch
from pencil.collectives.processes import OtherRankFailed, process_group, world
from pencil.train.loop import checkpointer
checkpointer.time.sleep = lambda seconds: None
if world().rank == 1:
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
with process_group(torch.device("cpu")):
    try:
        checkpointer.check_shared(Path("run"))
    except OtherRankFailed:
        print("ended")
    except ValueError as error:
        print(error)
"""
    shown = [one.out.strip() for one in together(2, script)]
    assert shown[0] == "ended"
    assert re.fullmatch(r"rank 1: \S+ does not see the folder run of rank 0: choose one that .*", shown[1])
    assert not list((tmp_path / "run").iterdir())


def test_a_failure_of_one_process_leaves_no_checkpoint_and_is_known_to_all(together, tmp_path):
    script = """
import errno, sys
from pathlib import Path
import torch
from pencil.collectives.processes import OtherRankFailed, process_group, world
from pencil.train.loop import checkpoint
from pencil.train.parallel import dtensor_files

def fail(path, *_):
    path.write_bytes(b"half")
    raise kind(*arguments)

with process_group(torch.device("cpu")) as here:
    for step, (kind, arguments) in enumerate([(OSError, (errno.ENOSPC, "No space left on device")), (KeyError, ("x",))]):
        if here.rank == 1:
            checkpoint.write_file = fail
        tensor = torch.full((3,), float(here.rank))
        try:
            checkpoint.write(Path("run"), step, {"a": tensor}, {}, 2, {"a": dtensor_files.Cut(0, 3 * here.rank, 6)})
        except (OSError, KeyError, OtherRankFailed) as error:
            print(type(error).__name__, getattr(error, "errno", None))
"""
    (tmp_path / "run").mkdir()
    shown = [one.out.splitlines() for one in together(2, script)]
    assert shown == [["OSError 28", "OtherRankFailed None"], ["OSError 28", "KeyError None"]]
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
