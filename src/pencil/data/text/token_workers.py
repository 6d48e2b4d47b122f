"""Processes that tokenize the units of a corpus, and the files of ids that they write."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from ...config import UserError
from ...files import open_aside
from ..cache import seal
from ..tokenizers.tokenizer import Tokenizer, digest
from ..tokenizers.tokenizer import read_json as read_tokenizer
from .units import UNIT, Unit, encode_unit

SETTING = "PENCIL_WORKERS"  # in the environment: processes that tokenize; by default one a core
WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from pencil.data.text import token_workers; "
    "token_workers.work()"
)


def write_ids(path: Path, ids: Iterator[np.ndarray], dtype: np.dtype) -> None:
    """A file of these ids: whole, or not at all."""
    with open_aside(path) as file:
        for some in ids:
            file.write(some.astype(dtype).tobytes())


def _count(size: int) -> int:
    """How many processes tokenize a corpus of this size."""
    chosen = os.environ.get(SETTING)
    if chosen is not None and not (chosen.isdigit() and int(chosen)):
        raise UserError(f"{SETTING} in the environment is {chosen!r}, and should be the number of processes")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(int(chosen) if chosen else cores, -(-size // UNIT))


class Workers:
    """Processes that tokenize, each with a thread here that hands it one unit after another.

    They are started as commands: a fork would copy torch's threads, and a spawned process would run the user's script
    again. A tokenizer that cannot be written down is used in this process.
    """

    def __init__(self, tokenizer: Tokenizer, dtype: np.dtype, close: np.ndarray, size: int):
        self.tokenizer, self.dtype, self.close = tokenizer, dtype, close
        self.count = _count(size) if _portable(tokenizer) else 1
        self.here = self.count == 1
        self.own, self.lock = threading.local(), threading.Lock()
        self.started: list[subprocess.Popen[bytes]] = []
        self.threads = ThreadPoolExecutor(self.count, thread_name_prefix="tokenize")

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        for process in list(self.started) if error[0] else ():
            process.kill()
        self.threads.shutdown(cancel_futures=True)
        for process in self.started:  # one that a thread started meanwhile, too
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # it ended before it had read everything
                        pipe.close()
            process.wait()

    def submit(self, unit: Unit, path: Path) -> Future[None]:
        return self.threads.submit(self._run, unit, path)

    def _run(self, unit: Unit, path: Path) -> None:
        if self.here:
            write_ids(path, encode_unit(unit, self.tokenizer, self.close), self.dtype)
            seal(path)
            return
        first, process = b"", getattr(self.own, "process", None)
        if process is None:
            first, process = self._about(), self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        try:
            process.stdin.write(first)
            process.stdin.write(json.dumps([unit._asdict(), str(path)]).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:  # it has ended
            pass
        if not answer:
            raise UserError(
                f"a process that tokenizes ended (exit status {process.wait()}), perhaps for lack of memory: run the "
                f"command again, which keeps what is done; {SETTING}=1 needs the least memory"
            )
        if fault := json.loads(answer):
            raise UserError(fault)

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"},
        )
        with self.lock:
            self.started.append(process)
        self.own.process = process
        return process

    def _about(self) -> bytes:
        """What a process needs before its first unit."""
        special = None if self.tokenizer.special is None else self.tokenizer.special.table
        about = self.tokenizer.to_json(), special, self.dtype.name, self.close.tolist()
        return json.dumps(about).encode() + b"\n"


def _portable(tokenizer: Tokenizer) -> bool:
    """Whether another process makes the same tokenizer of what is written of it."""
    special = None if tokenizer.special is None else tokenizer.special.table
    try:
        return digest(read_tokenizer(tokenizer.to_json(), "the tokenizer", special)) == digest(tokenizer)
    except UserError:
        return False


def work() -> None:
    """What another process does: write a file of ids for each unit that it is handed, and answer with what failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out the units
    out, given = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)  # nothing else may answer
    text, special, dtype, close = json.loads(given.readline())
    tokenizer = read_tokenizer(text, "the tokenizer", special)
    for line in given:
        fields, path = json.loads(line)
        unit = Unit(**fields | {"pieces": tuple(fields["pieces"])})
        try:
            write_ids(Path(path), encode_unit(unit, tokenizer, np.array(close, dtype=np.int64)), np.dtype(dtype))
            seal(Path(path))
            fault = ""
        except (UserError, OSError) as error:
            fault = str(error)
        except Exception as error:
            fault = f"{unit.path} cannot be tokenized: {type(error).__name__}: {error}"
        try:
            out.write(json.dumps(fault).encode() + b"\n")
            out.flush()
        except BrokenPipeError:  # the other process was killed
            os._exit(1)
