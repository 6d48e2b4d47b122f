"""`--processes`: torchrun's agent starts this command several times on this machine, and again if one of them ends.

The processes and the one that started them leave word for each other in a folder, PENCIL_LAUNCH: `process-RANK` has
its id, `stopped` and `failed` say why none is started again, and `reported` that rank 0 has shown how it ended.
"""

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..collectives.processes import LOOPBACK, RANK0_REPORT_SECONDS, RankError, World, launch_folder, world
from ..config import UserError
from ..console import note

OPTION = "--processes"
RESTARTS = 1000  # a training that comes no further is given up long before
SHUTDOWN_SECONDS = 600  # seconds for a checkpoint, where torchrun itself is asked to end
PROCESSES_PER_CORE = 8  # processes that a core may be given


class Several(Exception):
    """The command is to run in so many processes."""

    def __init__(self, count: int):
        super().__init__(count)
        self.count = count


def start_several(count: int | None) -> None:
    """Leave a command that asks for several processes to `launch`; in one of them, or for one, go on."""
    if count is None:
        return
    cores = _cores()
    if "RANK" in os.environ:
        raise UserError(f"torchrun has started the processes, {world().size} of them: leave {OPTION} out")
    if count < 1 or count > PROCESSES_PER_CORE * cores:
        raise UserError(
            f"{OPTION} {count} is not from 1 to {PROCESSES_PER_CORE * cores}, the most for the {cores} cores here"
        )
    if count > 1:
        raise Several(count)


def began() -> float:
    """When this command was started, by time.perf_counter; in a process of `--processes`, when that one was."""
    return float(os.environ.get("PENCIL_BEGAN") or _began)


_began = time.perf_counter()


def enter(since: float | None = None) -> int | None:
    """Let the launching process know this one; the exit status, if the training has ended meanwhile.

    It is 0 after a failure too: torchrun would start the processes again after any other. `since` is when it began.
    """
    global _began
    _began = time.perf_counter() if since is None else since
    if "RANK" in os.environ:  # that another process is gone is reported once, in our words
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    folder = launch_folder()
    if folder is None or not folder.is_dir():
        return None
    (folder / f"process-{world().rank}").write_text(str(os.getpid()))
    return 0 if (folder / "stopped").exists() or (folder / "failed").exists() else None


def leave(word: str) -> bool:
    """Leave word for the launching process, and for processes that it starts later; whether this one is the first."""
    folder = launch_folder()
    try:
        if folder is not None:
            (folder / word).touch(exist_ok=False)
    except OSError:
        return False
    return True


def say_failure(error: UserError | str) -> None:
    """Report why the training fails, once for all its processes, and have it not started again.

    What `process_group` has not settled is an error from before, most likely the same everywhere: rank 0 reports it.
    """
    try:
        here = world()
    except UserError:  # the very error
        here = World(0, 1, 0)
    if not here.is_rank0 and not isinstance(error, RankError):
        time.sleep(RANK0_REPORT_SECONDS)
        error = RankError(here.rank, str(error))
    if leave("failed"):
        _record(str(error))
        note(f"pencil: {error}")


def say_unexpected(error: Exception) -> None:
    """Report an error of the program on one rank; the training is started again, as often as it comes further."""
    words = str(error).strip().partition("\n")[0]
    kind = type(error).__name__
    sentence = f"rank {world().rank}: {f'{kind}: {words}' if words else kind}; --debug shows where it came from"
    _record(sentence)
    note(f"pencil: {sentence}")


def _record(sentence: str) -> None:
    """Have torchrun's own report show the sentence as the cause, where the user started torchrun."""
    with suppress(KeyError, OSError):
        report = {"message": {"message": sentence, "extraInfo": {"timestamp": int(time.time())}}}
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(report))


def end_after_another() -> None:
    """Another process says why it has failed: end after it, or torchrun takes this one for the cause."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        time.sleep(RANK0_REPORT_SECONDS)


def launch(count: int, words: Sequence[str], debug: bool = False) -> int:
    """Run a command in several processes; the exit status of all together."""
    folder = Path(tempfile.mkdtemp(prefix="pencil-"))
    command = ["-m", "pencil", *_without_option(words), *(["--debug"] if debug else [])]
    try:
        with _environment(count, folder), _signals(folder):
            status = _run(count, command, folder, debug)
        if (folder / "failed").exists():
            return 2
        if (folder / "stopped").exists() and not (folder / "reported").exists():
            note("Stopped before training began; the same command starts it again.")
            return 128 + int((folder / "stopped").read_text())
        return status
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(count: int, command: Sequence[str], folder: Path, debug: bool) -> int:
    """Start the processes, and wait for their end; torch is imported where signals are already taken."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if (folder / "stopped").exists():
        return 0
    if not debug:
        logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        1,
        1,
        count,
        run_id=uuid.uuid4().hex,
        max_restarts=RESTARTS,
        local_addr=LOOPBACK,
        rdzv_backend="c10d",
        rdzv_endpoint=str(folder / "rendezvous"),
        rdzv_configs={"store_type": "file"},
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
        signals_to_handle="SIGQUIT",
    )
    try:
        elastic_launch(config, sys.executable)(*command)
        return 0
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        ended = failure.signal_name() if failure.exitcode < 0 else f"status {failure.exitcode}"
        note(f"pencil: rank {rank} ended with {ended}, and so did every restart")
        return 1


def _without_option(words: Sequence[str]) -> list[str]:
    """The words without --processes and its value."""
    rest, skip = [], False
    for word in words:
        if skip or word == OPTION:
            skip = word == OPTION and not skip
        elif not word.startswith(f"{OPTION}="):
            rest.append(word)
    return rest


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _environment(count: int, folder: Path) -> Iterator[None]:
    """What the processes find in their environment: a fair share of the cores, and no store of an earlier start."""
    before = dict(os.environ)
    os.environ |= {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SHUTDOWN_SECONDS),
        "PENCIL_LAUNCH": str(folder),
        "PENCIL_BEGAN": repr(began()),
    }
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // count)))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


@contextmanager
def _signals(folder: Path) -> Iterator[None]:
    """Pass Ctrl-C, SIGTERM and SIGHUP on, so that the processes save and end; a second Ctrl-C ends them at once."""

    def send(number: int) -> None:
        for file in folder.glob("process-*"):
            with suppress(OSError, ValueError):
                os.kill(int(file.read_text()), number)

    def stop(number: int, frame: Any) -> None:
        if (folder / "stopped").exists() and number == signal.SIGINT:
            send(getattr(signal, "SIGKILL", signal.SIGTERM))
            shutil.rmtree(folder, ignore_errors=True)
            os.write(2, b"pencil: interrupted\n")
            os._exit(130)
        if not (folder / "stopped").exists():
            (folder / "stopped").write_text(str(int(number)))
        send(signal.SIGTERM)

    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # `nohup` has SIGHUP ignored, and means it
    taken = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
