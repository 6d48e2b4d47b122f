"""Runs claims: arms and seeds side by side in processes of one thread each, then the claims that measure time."""

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from .claim import Claim, Size
from .verdict import Finding, findings, verdict

WORKERS = 8  # at most: each loads torch
FIRST = 101  # the first seed of a result: claims were designed with other seeds
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Row:
    """One measurement: an arm, a seed, the measured values, and how long it took."""

    claim: str
    arm: str
    seed: int
    seconds: float
    measured: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """A claim with all its measurements and findings."""

    claim: Claim
    size: Size
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    verdict: str

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    def of(self, arm: str) -> list[Row]:
        """The rows of an arm in the order of the seeds."""
        return sorted((row for row in self.rows if row.arm == arm), key=lambda row: row.seed)


@dataclass
class Plan:
    """Which claims at which sizes over which seeds."""

    claims: Sequence[Claim]
    seeds: int = 5
    quick: bool = True
    workers: int = field(
        default_factory=lambda: min(WORKERS, os.cpu_count() or 1)
    )  # 0: in this process, one after another
    earlier: Sequence[Row] = ()  # measurements of the same plan from before, which are not made again

    @property
    def each_seed(self) -> range:
        return range(FIRST, FIRST + self.seeds)

    def rows_of(self, claim: Claim) -> list[Row]:
        """The measurements of a claim from before."""
        return [row for row in self.earlier if row.claim == claim.name]

    def missing(self, claim: Claim) -> list[tuple[str, int]]:
        """The arms and seeds of a claim still to be measured."""
        made = {(row.arm, row.seed) for row in self.rows_of(claim)}
        return [(arm, seed) for seed in self.each_seed for arm in claim.arms if (arm, seed) not in made]


def measured(claim: Claim, arm: str, seed: int, size: Size) -> Row:
    """One measurement in this process, on one thread."""
    import torch

    torch.set_num_threads(1)
    start = time.perf_counter()
    numbers = claim.measure(arm, seed, size)
    return Row(claim.name, arm, seed, time.perf_counter() - start, numbers)


def result_of(claim: Claim, size: Size, rows: Sequence[Row]) -> Result:
    """The result of a claim from all its rows."""
    by_arm = {
        arm: [row.measured for row in sorted(rows, key=lambda row: row.seed) if row.arm == arm] for arm in claim.arms
    }
    each = findings(claim, by_arm)
    return Result(claim, size, tuple(rows), tuple(each), verdict(each))


def _raise(claim: Claim, error: Exception) -> None:
    raise error


def run(
    plan: Plan, on_row: Callable[[Row], None] = lambda row: None, failed: Callable[[Claim, Exception], None] = _raise
) -> Iterator[Result]:
    """The result of each claim as soon as its last measurement is done; `on_row` is called with every measurement.

    Claims of which all measurements are there already come first. The others run side by side, one process per core;
    those that measure time run after them, one at a time. For a claim that cannot be measured `failed` is called, once;
    unless it raises, the others go on.
    """
    rows = {claim.name: plan.rows_of(claim) for claim in plan.claims}
    done = [claim for claim in plan.claims if not plan.missing(claim)]
    lost: set[str] = set()

    def result(claim: Claim) -> Iterator[Result]:
        """The result of a claim; none where its numbers have no statistics, as those that are not finite."""
        try:
            found = result_of(claim, claim.size(plan.quick), rows[claim.name])
        except ValueError as error:
            failed(claim, error)
            lost.add(claim.name)
            return
        yield found

    for claim in done:
        yield from result(claim)
    for alone in (False, True):
        claims = [claim for claim in plan.claims if claim.alone == alone and claim not in done]
        jobs = [(claim, arm, seed, claim.size(plan.quick)) for claim in claims for arm, seed in plan.missing(claim)]
        workers = min(plan.workers, 1) if alone else plan.workers
        measurements = (
            _side_by_side(jobs, workers, lost) if workers else ((job[0], partial(measured, *job)) for job in jobs)
        )
        with closing(measurements):
            for claim, measurement in measurements:
                if claim.name in lost:
                    continue
                try:
                    row = measurement()
                except Exception as error:
                    failed(claim, error)
                    lost.add(claim.name)
                    continue
                on_row(row)
                rows[claim.name].append(row)
                if len(rows[claim.name]) == plan.seeds * len(claim.arms):
                    yield from result(claim)


def _side_by_side(
    jobs: Sequence[tuple[Claim, str, int, Size]], workers: int, lost: Collection[str]
) -> Generator[tuple[Claim, Callable[[], Row]]]:
    """Each claim and the result of one of its measurements as they end; those of lost claims are cancelled."""
    with ProcessPoolExecutor(workers, get_context("spawn"), _prepare_worker) as pool:
        try:
            # the first submit starts the processes
            with _holding_interrupts():
                claims: dict[Future[Row], Claim] = {pool.submit(measured, *job): job[0] for job in jobs}
            for done in as_completed(claims):
                yield claims[done], done.result
                for job, claim in claims.items():
                    if claim.name in lost:
                        job.cancel()
        except BaseException:
            processes = list((getattr(pool, "_processes", None) or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in processes:
                worker.terminate()
            raise


def _prepare_worker() -> None:
    """One thread for this process, since more threads than cores slow each other down; it ends when its parent does."""
    os.environ.update(dict.fromkeys(THREADS, "1"))  # before torch is imported
    if (parent := parent_process()) is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


@contextmanager
def _holding_interrupts() -> Iterator[None]:
    """Processes started within never see Ctrl-C: their parent handles it, and ends them; one that comes now waits."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # a blocked signal is inherited as blocked; here another thread may still take it, so its handler only notes it
    waiting: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if waiting and callable(handler):
        handler(signal.SIGINT, None)


def environment() -> dict[str, str]:
    """The versions and the machine of a result."""
    import torch

    from ... import __version__
    from ...cost.measure import processor

    cores = f"{os.cpu_count()} cores"
    # times are not reliable on a busy machine
    busy = f"load {os.getloadavg()[1]:.1f}" if hasattr(os, "getloadavg") else ""
    machine = f"{platform.system()} {platform.machine()}", processor() or platform.processor(), cores, busy
    return {
        "pencil": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": ", ".join(filter(None, machine)),
    }


def as_json(result: Result) -> dict[str, Any]:
    """A result as a JSON object."""
    claim = result.claim
    return {
        "name": claim.name,
        "title": claim.title,
        "hypothesis": claim.hypothesis,
        "removed": claim.removed,
        "source": claim.source,
        "caveat": claim.caveat,
        "arms": list(claim.arms),
        "size": dict(result.size),
        "seconds": round(result.seconds, 2),
        "verdict": result.verdict,
        "findings": [
            {
                **vars(f.prediction),
                "values": f.values,
                "mean": f.mean,
                "low": f.low,
                "high": f.high,
                "verdict": f.verdict,
            }
            for f in result.findings
        ],
        "rows": [vars(row) for row in result.rows],
    }


def append(path: Path, row: Row) -> None:
    """Append one line and flush it, so that a killed run keeps its measurements."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(vars(row), ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def sizes_in_words(size: Mapping[str, Any]) -> str:
    """“width 32, depths 2 4 8, steps 100”."""

    def text(value: Any) -> str:
        return " ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)

    return ", ".join(f"{name.replace('_', ' ')} {text(value)}" for name, value in size.items())
