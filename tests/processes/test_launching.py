"""Several processes as a user meets them: one writer, one sentence for a failure, signals, restarts."""

import os
import re
import signal
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import TEXT
from pencil.api.several_processes import _count_restart, _find_earlier_run
from pencil.cli.launch import _without_option, enter, launch, leave
from pencil.collectives.processes import (
    RankError,
    World,
    _check_device,
    _describe_difference,
    _open_store,
    agent_name,
    is_lost_connection,
    world,
)
from pencil.config import UserError

SMALL = ["--data", "notes.txt", "--out", "run", "--model.width", "12", "--model.depth", "1", "--model.heads", "3",
         "--model.context", "13", "--train.batch", "6", "--train.eval_batches", "1", "--train.warmup", "1",
         "--train.steps", "7"]  # fmt: skip
# a command in which one rank does something else at a step
AT_STEP = """
import os, signal, sys, time, torch
from pencil.cli.main import main
from pencil.config import UserError
from pencil.collectives.processes import world
from pencil.train.loop.trainer import Trainer

usual = Trainer.update

def update(self):
    if world().rank == int(sys.argv[1]) and self.step == int(sys.argv[2]):
        {what}
    return usual(self)

Trainer.update = update
main(sys.argv[3:])
"""


@pytest.fixture(autouse=True)
def notes_here(tmp_path):
    (tmp_path / "notes.txt").write_text(TEXT[:3001])


def lines(ended):
    """All that the processes printed on standard error."""
    return "".join(one.err for one in ended).splitlines()


def state(folder):
    """All bits of a run's last weights and moments."""
    found = {"": load_file(folder / "model.safetensors")}
    for path in sorted((folder / "checkpoints").glob("step-00000007/*.safetensors")):
        found[path.name] = load_file(path)
    assert len(found) > 1
    return {(file, name): t.numpy().tobytes() for file, tensors in found.items() for name, t in tensors.items()}


# ---- what the processes tell one another


def test_values_go_from_the_writer_and_from_all(together):
    script = """
import torch
from pencil.collectives.processes import *
assert world().is_rank0 == (world().rank == 0)
with process_group(torch.device("cpu")) as here:
    assert here == world() and here.size == 3
    assert all_reduce_any(*(here.rank == one for one in (0, 1, 2, 3))) == (True, True, True, False)
    assert broadcast({"é": [here.rank, None]}) == {"é": [0, None]}
    assert broadcast("x" * 997 if here.is_rank0 else None) == "x" * 997
    assert all_gather("y" * here.rank) == ["", "y", "yy"]
    assert all_reduce_sum(torch.tensor([1.0, here.rank])).tolist() == [3, 3]
    require_same_on_all_ranks({"a": {"b": 1}}, "settings")
    try:
        require_same_on_all_ranks({"a": {"b": 1, "lr": here.rank // 2}}, "settings")
        raise SystemExit(1)
    except RankError as error:
        print(error)
"""
    for ended in together(3, script):
        assert ended.out == (
            "rank 2: its settings differ from those of rank 0: a.lr is 1 here and 0 there; "
            "start all with the same command\n"
        )


def test_the_others_wait_for_what_the_writer_makes(together, tmp_path):
    script = """
import time, torch
from pathlib import Path
from pencil.collectives.processes import *
def make():
    if world().is_rank0:
        time.sleep(0.3)
        Path("cache").write_text("once")
    return Path("cache").read_text()
with process_group(torch.device("cpu")):
    print(rank0_first(make))
"""
    assert [ended.out for ended in together(3, script)] == ["once\n"] * 3
    failing = script.replace("print(rank0_first(make))", "rank0_first(lambda: 1 / 0 if world().is_rank0 else print(7))")
    ended = together(2, failing, code=1)
    assert "ZeroDivisionError" in ended[0].err
    assert "OtherRankFailed" in ended[1].err.splitlines()[-1]
    assert ended[1].out == ""


def test_a_restart_does_not_find_the_addresses_of_the_processes_before_it(together):
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True)
    script = "import torch\nfrom pencil.collectives.processes import *\nwith process_group(torch.device('cpu')): print(*all_reduce_any(False))"
    agent = {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for restart in range(3):
        found = together(2, script, env={**agent, "TORCHELASTIC_RESTART_COUNT": str(restart)}, timeout=30)
        assert [one.out for one in found] == ["False\n"] * 2


def test_nothing_listens_to_other_machines(together):
    script = """
import os, torch
from pencil.collectives.processes import *
with process_group(torch.device("cpu")):
    own = {os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")}
    rows = [line.split() for file in ("tcp", "tcp6") for line in open(f"/proc/net/{file}").readlines()[1:]]
    print(*{row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own})
"""
    for ended in together(2, script):
        assert ended.out == "0100007F\n"


def test_the_environment_of_torchrun_is_checked(monkeypatch, fails):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert world() == World(0, 1, 0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert world() == World(1, 2, 1)
    assert not world().is_rank0
    monkeypatch.setenv("RANK", "2")
    assert "RANK, WORLD_SIZE and LOCAL_RANK" in fails("train", "gpt")


def test_a_difference_is_shown_where_it_is():
    assert _describe_difference({"a": 1}, {"a": 1, "b": "x" * 99}) == f"b is {'x' * 60}… here and not given there"
    assert _describe_difference([1], [2]) == "it is [2] here and [1] there"


def test_a_process_that_waits_for_long_says_where(together, tmp_path):
    script = """
import sys, time, torch
from pathlib import Path
from pencil.collectives import processes
processes.WAIT_NOTICE_SECONDS = 0.01
if processes.world().is_rank0:
    sys.__stderr__ = open("waits", "w")
while not processes.world().is_rank0 and not (Path("waits").exists() and Path("waits").read_text()):
    time.sleep(0.01)
with processes.process_group(torch.device("cpu")): pass
"""
    assert together(2, script)[1].err == ""
    assert "rank 0 waits for the other processes, 1 of them, at 127.0.0.1:" in (tmp_path / "waits").read_text()


def test_what_is_no_training_runs_in_one_process(together):
    first = together(2, words=["eval", "run"], env={"TORCHELASTIC_RUN_ID": "tuesday"}, code=2)[0]
    assert first.err == "pencil: pencil eval runs in one process: start it without torchrun\n"


def test_what_is_made_for_a_training_that_is_gone_ends(together):
    script = """
import torch
from pencil.collectives import processes
from pencil.progress import pollable
with processes.process_group(torch.device("cpu")):
    processes.PARENT_PID = -1
    processes.rank0_first(lambda: [print(n) for n in pollable([2, 3])])
"""
    first, second = together(2, script, env={"TORCHELASTIC_RUN_ID": "tuesday"}, code=1)
    assert first.out + second.out == ""
    assert "OtherRankFailed" in first.err.splitlines()[-1]


def test_a_second_training_of_the_same_processes_meets_again(together):
    script = """
import torch
from pencil.collectives.processes import *
for turn in range(3):
    with process_group(torch.device("cpu")) as here:
        print(*all_gather(10 * turn + here.rank), *all_reduce_any(turn == here.rank))
"""
    for ended in together(2, script):
        assert ended.out == "0 1 True\n10 11 True\n20 21 False\n"


def test_devices_that_processes_cannot_share_are_refused():
    with pytest.raises(UserError, match="train on cpu or cuda, not mps: use --train.device cpu"):
        _check_device(torch.device("mps"), World(0, 2, 0))


def test_errors_of_the_network_are_not_all_taken_for_the_end_of_another():
    assert is_lost_connection(
        RuntimeError("[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:17")
    )
    assert is_lost_connection(torch.distributed.DistNetworkError("failed to recv, got 0 bytes"))
    assert not is_lost_connection(
        torch.distributed.DistBackendError("NCCL error: unhandled system error, /dev/shm is full")
    )
    assert not is_lost_connection(RuntimeError("[/gloo/transport/tcp/device.cc:84] rv != -1: unable to resolve host"))


# ---- a training of several processes


def test_only_the_writer_prints_and_makes_the_run(together, tmp_path):
    first, second = together(2, words=["train", "gpt", *SMALL])
    assert second.out + second.err == ""
    assert "; on cpu, 2 processes." in first.err
    assert "Trained 7 steps" in first.err
    assert "Warning" not in first.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [".printed", "notes.txt", "run"]
    resumed = together(1, words=["resume", "run", "--train.steps", "9"])[0].err
    assert "Trained 9 steps" in resumed
    more, silent = together(2, words=["resume", "run", "--train.steps", "10"])
    assert "Trained 10 steps" in more.err
    assert silent.out + silent.err == ""


def test_a_task_of_ones_own_trains_in_several_processes(together, tmp_path):
    script = """
import sys, torch
from torch import nn
import pencil

class Line(pencil.Task):
    def build(self): return nn.Linear(3, 1)
    def batch(self, step, micro=0):
        x = torch.randn(self.train.batch, 3, generator=torch.Generator().manual_seed(step))
        return x, x.sum(1, keepdim=True)
    def loss(self, model, batch): return (model(batch[0]) - batch[1]).square().mean()
    def held_out(self): return [self.batch(1000)]

print(pencil.fit(Line(), sys.argv[1], steps=5, batch=6, lr=0.1).best["val_loss"])
"""
    one = together(1, script, arguments=["alone"])[0]
    first, second = together(2, script, arguments=["both"])
    assert abs(float(first.out) / float(one.out) - 1) < 1e-5
    assert second.out == first.out
    assert second.err == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_of_one_rank_is_one_sentence(together, rank):
    sentence = "the lake is dry: fill it"
    failing = AT_STEP.replace("{what}", f"raise UserError({sentence!r})")
    ended = together(2, failing, arguments=[rank, 3, "train", "gpt", *SMALL], code=None)
    assert ended[rank].code == 2
    assert ended[1 - rank].code == 1
    assert [line for line in lines(ended) if "pencil: " in line] == [f"pencil: {'rank 1: ' * rank}{sentence}"]
    assert "Traceback" not in "".join(lines(ended))


def test_an_error_of_the_program_is_one_sentence_with_its_rank(together):
    failing = AT_STEP.replace("{what}", "raise KeyError('blocks')")
    ended = together(2, failing, arguments=[1, 3, "train", "gpt", *SMALL], code=1)
    found = "pencil: rank 1: KeyError: 'blocks'; --debug shows where it came from"
    assert [line for line in lines(ended) if "pencil: " in line] == [found]
    assert "Traceback" not in "".join(lines(ended))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_model_that_one_rank_cannot_build_ends_the_others(together, rank):
    """They wait for it, as long as it takes to prepare its data."""
    failing = """
import sys
from pencil.cli.main import main
from pencil.config import UserError
from pencil.collectives.processes import world
from pencil.train.loop import trainer as loop

usual = loop.build_model

def build(*given):
    if world().rank == int(sys.argv[1]):
        raise UserError("there is no room")
    return usual(*given)

loop.build_model = build
main(sys.argv[2:])
"""
    ended = together(2, failing, arguments=[rank, "train", "gpt", *SMALL], code=None)
    own = "pencil: there is no room" if rank == 0 else "pencil: rank 1: there is no room"
    assert [line for line in lines(ended) if "pencil: " in line] == [own]


def test_too_little_memory_names_settings_that_fit(together):
    failing = AT_STEP.replace("{what}", "raise torch.OutOfMemoryError('CUDA out of memory')")
    ended = together(2, failing, arguments=[1, 3, "train", "gpt", *SMALL], code=None)
    (sentence,) = [line for line in lines(ended) if "pencil: " in line]
    assert re.fullmatch(
        r"pencil: rank 1: out of memory with --train\.batch 6; --train\.batch 2 --train\.accumulate 3 would fit, .*",
        sentence,
    )


def test_what_the_processes_cannot_share_is_refused_before_a_folder_is_made(together, tmp_path):
    ended = together(2, words=["train", "gpt", *SMALL, "--train.batch", "5"], code=None)
    assert lines(ended) == ["pencil: train.batch 5 cannot be divided among 2 processes: 4 or 6 can"]
    assert not (tmp_path / "run").exists()


def test_ranks_with_other_settings_are_refused(together, tmp_path):
    script = """
import sys
from pencil.cli.main import main
from pencil.collectives.processes import world
main([*sys.argv[1:], "--train.lr", ("0.5", "0.25")[world().rank]])
"""
    ended = together(2, script, arguments=["train", "gpt", *SMALL], code=None)
    assert lines(ended) == [
        "pencil: rank 1: its settings differ from those of rank 0: train.lr is 0.25 here and 0.5 there; start all with the same command"
    ]
    assert not (tmp_path / "run").exists()


def test_a_rank_that_cannot_see_the_run_folder_says_so(together, tmp_path):
    script = """
import sys
from pathlib import Path
from pencil.cli.main import main
from pencil.api import several_processes as several
from pencil.collectives.processes import world
usual = several.open_run
several.open_run = lambda path: usual(Path("elsewhere", path.name) if world().rank else path)
main(sys.argv[1:])
"""
    script = script.replace("path.name", "Path(path).name")
    ended = together(2, script, arguments=["train", "gpt", *SMALL], code=None)
    (sentence,) = [line for line in lines(ended) if "pencil: " in line]
    assert sentence.startswith(f"pencil: rank 1: it cannot see the run folder {tmp_path / 'run'} that rank 0 has made")
    assert not (tmp_path / "run").exists()  # a second try finds nothing in its way


COMMAND = "  torchrun --nproc-per-node 2 -m pencil resume run"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_before_training_begins_it_does_not_end_with_success(monkeypatch, capsys, number):
    monkeypatch.setattr("pencil.cli.launch._run", lambda *given: os.kill(os.getpid(), number) or 0)
    before = signal.signal(number, signal.SIG_DFL)  # a suite in the background has SIGINT ignored
    try:
        assert launch(2, ["train", "gpt"]) == 128 + number
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err == "Stopped before training began; the same command starts it again.\n"


@pytest.mark.parametrize(("rank", "name"), [(0, "SIGTERM"), (1, "SIGINT")])
def test_a_signal_on_any_rank_stops_all_of_them_with_a_checkpoint(together, tmp_path, rank, name):
    stopped = AT_STEP.replace("{what}", f"os.kill(os.getpid(), signal.{name})")
    ended = together(2, stopped, arguments=[rank, 3, "train", "gpt", *SMALL])
    assert lines(ended)[-2:] == ["Stopped after step 4, and saved. Continue with:", COMMAND]
    assert (tmp_path / "run" / "checkpoints" / "step-00000004" / "manifest.json").is_file()


# ---- restarts


def test_a_restarted_training_goes_on_with_its_own_run_to_the_same_weights(together, tmp_path):
    words = ["train", "gpt", *SMALL, "--train.save_every", "2"]
    together(2, words=words)
    whole = state(tmp_path / "run")
    words[words.index("--out") + 1] = "again"
    torchrun = {"TORCHELASTIC_RUN_ID": "tuesday", "TORCHELASTIC_MAX_RESTARTS": "3"}
    # not before the second checkpoint stands, which is written while training goes on
    second = "os.path.exists('again/checkpoints/step-00000004/manifest.json')"
    wait = f"while self.step == 5 and not {second}: time.sleep(0.01)"
    killed = AT_STEP.replace("{what}", f"{wait}\n        os.kill(os.getpid(), signal.SIGKILL)")
    for restart, (step, count) in enumerate([(1, 0), (5, 4)]):  # before the first checkpoint, and after two of them
        at = {**torchrun, "TORCHELASTIC_RESTART_COUNT": str(restart)}
        ended = together(2, killed, arguments=[1, step, *words], code=None, env=at)
        assert [one.code for one in ended] == [1, -signal.SIGKILL]
        assert "pencil: " not in "".join(lines(ended))  # torchrun starts them again
        assert len(list((tmp_path / "again").glob("checkpoints/*"))) == count // 2
    ended = together(2, words=words, env={**torchrun, "TORCHELASTIC_RESTART_COUNT": "2"})
    assert "A process had ended: restart 2, on with again from step 4" in lines(ended)
    assert state(tmp_path / "again") == whole
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "again")]
    assert files[0] == files[1]


def test_a_port_that_was_taken_meanwhile_is_another_after_a_restart(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1]), "LOCAL_WORLD_SIZE": "2"}
        for name, value in at.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match="the processes cannot meet at 127.0.0.1:.*; use another MASTER_PORT"):
            _open_store(World(0, 2, 0))
        monkeypatch.setenv("PENCIL_LAUNCH", str(tmp_path))  # whose ports torchrun chooses
        with pytest.raises(RuntimeError, match="where the processes meet, was taken meanwhile"):
            _open_store(World(0, 2, 0))


def test_another_training_of_the_same_name_is_not_taken_for_a_restart(together, tmp_path):
    at = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RESTART_COUNT": "1"}
    together(1, words=["train", "gpt", *SMALL], env={**at, "TORCHELASTIC_RUN_ID": "tuesday"})
    ended = together(1, words=["train", "gpt", *SMALL], env={**at, "TORCHELASTIC_RUN_ID": "friday"}, code=2)
    assert "run already holds another run" in ended[0].err


def test_a_training_that_never_begins_is_given_up(monkeypatch, tmp_path):
    monkeypatch.setenv("PENCIL_LAUNCH", str(tmp_path))
    for _ in range(3):
        _count_restart(0, "before training began")
    with pytest.raises(
        UserError, match="^3 restarts in a row ended before training began, so the training is given up$"
    ):
        _count_restart(0, "before training began")


def test_on_several_machines_a_restart_that_is_not_counted_finds_its_run(together, tmp_path, monkeypatch):
    torchrun = {"TORCHELASTIC_RUN_ID": "tuesday", "TORCHELASTIC_MAX_RESTARTS": "3", "GROUP_WORLD_SIZE": "2"}
    together(1, words=["train", "gpt", *SMALL], env=torchrun)
    monkeypatch.chdir(tmp_path)
    config = (tmp_path / "run" / "config.toml").read_text()
    agent = re.search('agent = "(.*)"', config)[1]
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    assert _find_earlier_run(Path("run"), None) is None  # another torchrun, with the same name
    (tmp_path / "run" / "config.toml").write_text(config.replace(agent, agent_name()))
    assert _find_earlier_run(Path("run"), None).path == Path("run")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    assert _find_earlier_run(Path("run"), None) is None


# ---- the launcher


def test_a_command_runs_in_several_processes(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert launch(2, ["--version"]) == 0
    assert len(capfd.readouterr().out.split()) == 2
    assert launch(2, ["trian", "gpt"]) == 2
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err == "pencil: trian is not a command; did you mean train?\n"


def test_the_launching_process_and_its_processes_leave_word(monkeypatch, tmp_path):
    monkeypatch.delenv("PENCIL_LAUNCH", raising=False)
    assert enter() is None
    assert leave("reported")
    monkeypatch.setenv("PENCIL_LAUNCH", str(tmp_path))
    assert enter() is None
    assert (tmp_path / "process-0").is_file()
    for word in ("failed", "stopped"):
        assert leave(word)
        assert not leave(word)
        assert enter() == 0
        (tmp_path / word).unlink()


def test_the_option_is_not_given_on():
    words = ["train", "gpt", "--processes", "2", "--train.steps", "--processes=3", "5"]
    assert _without_option(words) == ["train", "gpt", "--train.steps", "5"]


def test_numbers_of_processes_that_make_no_sense_are_refused(fails, monkeypatch, tmp_path):
    (tmp_path / "notes.txt").write_text(TEXT)
    monkeypatch.setattr("pencil.cli.launch._cores", lambda: 2)
    for count in (0, 17):
        found = f"--processes {count} is not from 1 to 16, the most for the 2 cores here"
        assert found in fails("train", "gpt", *SMALL, "--processes", count)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "01"[name == "WORLD_SIZE"])
    assert "leave --processes out" in fails("train", "gpt", *SMALL, "--processes", "2")


def test_a_rank_is_in_its_sentence():
    assert str(RankError(3, "the lake is dry")) == "rank 3: the lake is dry"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_gpus_cuda_is_refused(together):
    assert "cuda is not available" in "".join(
        lines(together(2, words=["train", "gpt", *SMALL, "--train.device", "cuda"], code=None))
    )
