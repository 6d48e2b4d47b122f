"""Tests run in forked processes, each over its own copy of a project: which lines each covers, and whether a set passes.

The parent imports what takes long (torch, pytest), never the project itself; a child imports that from its copy.
"""

import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

STALLED = 120  # seconds without CPU time, after which a child hangs
LOOK_EVERY = 10  # seconds
BROKEN = 70  # the exit status of a child that could not run its tests
OUTPUTS = {"runs", "build", "dist"}  # folders of the project that are not copied; src/pencil has a package `runs`


class Result(NamedTuple):
    """How a child ended: its exit status, or None where it was stopped; what it found out; its CPU time."""

    code: int | None
    found: Any
    seconds: float
    log: Path


def preload(names: Iterable[str]) -> None:
    """Import modules once for all children."""
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    gc.collect()
    gc.freeze()  # collections in a child do not look at what it shares with the parent


def copy_project(root: Path, folder: Path, bytecode: bool = False) -> Path:
    """A copy without hidden files and outputs; with its compiled files if they may be reused."""
    unwanted = shutil.ignore_patterns(".*", *([] if bytecode else ["__pycache__"]))

    def ignored(place: str, names: list[str]) -> set[str]:
        return unwanted(place, names) | (OUTPUTS & set(names) if Path(place) == root else set())

    shutil.copytree(root, folder, ignore=ignored, symlinks=True)
    return folder


def cpu_time() -> float:
    """Of this process and of the processes it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Select:
    """Runs the tests of a list, in its order; the first that fails is kept."""

    def __init__(self, nodeids: Iterable[str]):
        self.rank = {nodeid: i for i, nodeid in enumerate(nodeids)}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(f"{report.nodeid} (collected)")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def found(self) -> list[str]:
        return self.failed


def pytest_child(slot: Path, files: list[str], options: list[str], plugin: Any) -> Callable[[], tuple[int, Any]]:
    """What a child does: run the tests of these files with a plugin, whose `found` is handed back."""

    def work() -> tuple[int, Any]:
        import pytest

        begin = getattr(plugin, "begin", None)
        if begin:
            begin()
        ini = ["-c", str(slot / "pyproject.toml"), "--rootdir", str(slot), "-o", "addopts="]
        quiet = "-q --no-header --tb=short -p no:cacheprovider -W ignore::pytest.PytestAssertRewriteWarning".split()
        code = pytest.main([*ini, *quiet, f"--basetemp={slot / '.tmp'}", *options, *files], plugins=[plugin])
        return int(code), plugin.found()

    return work


class Child:
    """A forked process that works in a slot, with a limit of CPU time."""

    def __init__(self, slot: Path, work: Callable[[], tuple[int, Any]], limit: float, bytecode: bool = False):
        self.slot, self.seen = slot, -1.0
        self.moved = self.looked = time.monotonic()
        self.answer, self.log = slot / ".answer.json", slot / ".log"
        self.answer.unlink(missing_ok=True)
        self.pid = os.fork()
        if not self.pid:
            self._live(work, limit, bytecode)

    def _live(self, work: Callable[[], tuple[int, Any]], limit: float, bytecode: bool) -> None:
        code = BROKEN
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 10))
            os.chdir(self.slot)
            source = str(self.slot / "src")
            sys.path[:0] = [source]
            os.environ.update(PYTHONPATH=source, OMP_NUM_THREADS="1", CI="1")
            sys.dont_write_bytecode = not bytecode
            if not bytecode:
                os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            code, found = work()
            self.answer.write_text(json.dumps(found))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def ended(self) -> Result | None:
        """How it ended, or None while it runs; one that hangs is stopped."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if not pid:
            self._stop_if_stalled()
            return None
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # what it started and left behind
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        found = json.loads(self.answer.read_text()) if self.answer.is_file() else None
        return Result(code, found, usage.ru_utime + usage.ru_stime, self.log)

    def _stop_if_stalled(self) -> None:
        now = time.monotonic()
        if now - self.looked < LOOK_EVERY:
            return
        self.looked, spent = now, _session_cpu(self.pid)
        if spent != self.seen:
            self.seen, self.moved = spent, now
        elif now - self.moved > STALLED:
            os.killpg(self.pid, signal.SIGKILL)


def _session_cpu(session: int) -> float:
    """CPU time of all live processes of a session; where the system does not tell, the clock, which never stalls."""
    if not Path("/proc/self/stat").exists():
        return time.monotonic()
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                total += sum(map(int, fields[11:15]))
    return total


def in_parallel(
    jobs: list[Any], slots: list[Path], start: Callable[[Any, Path], Child], end: Callable[[Any, Result], Any]
):
    """Work through jobs, one a slot at a time; `end` may return another job, which is done next."""
    waiting, running, free = list(reversed(jobs)), {}, list(slots)
    try:
        while waiting or running:
            while waiting and free:
                slot, job = free.pop(), waiting.pop()
                running[slot] = (job, start(job, slot))
            time.sleep(0.05)
            for slot, (job, child) in list(running.items()):
                if (result := child.ended()) is not None:
                    del running[slot]
                    free.append(slot)
                    if (more := end(job, result)) is not None:
                        waiting.append(more)
    finally:
        for _, child in running.values():
            os.killpg(child.pid, signal.SIGKILL)
