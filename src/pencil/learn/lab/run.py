"""Running claims: every arm and seed in a process of its own thread, what measures time alone at the end."""

import json
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from .claim import Claim, Size
from .finding import Finding, judge, verdict

WORKERS = 8  # at most: each holds torch once more
FIRST = 101  # the first seed that is judged: claims were designed while looking at others
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Row:
    """One measurement: an arm, a seed, what came out, and how long it took."""

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
        """An arm's rows in the order of the seeds."""
        return sorted((row for row in self.rows if row.arm == arm), key=lambda row: row.seed)


@dataclass
class Plan:
    """Which claims at which sizes over which seeds."""

    claims: Sequence[Claim]
    seeds: int = 5
    quick: bool = True
    workers: int = field(default_factory=lambda: min(WORKERS, os.cpu_count() or 1))  # 0: here, one after another

    @property
    def each_seed(self) -> range:
        return range(FIRST, FIRST + self.seeds)


def measured(claim: Claim, arm: str, seed: int, size: Size) -> Row:
    """One measurement, here, on one thread."""
    import torch

    torch.set_num_threads(1)
    begun = time.perf_counter()
    found = claim.measure(arm, seed, size)
    return Row(claim.name, arm, seed, time.perf_counter() - begun, found)


def result_of(claim: Claim, size: Size, rows: Sequence[Row]) -> Result:
    """The findings of a claim whose rows are complete."""
    by_arm = {
        arm: [row.measured for row in sorted(rows, key=lambda row: row.seed) if row.arm == arm] for arm in claim.arms
    }
    findings = judge(claim, by_arm)
    return Result(claim, size, tuple(rows), tuple(findings), verdict(findings))


def _raise(claim: Claim, error: Exception) -> None:
    raise error


def run(
    plan: Plan, tell: Callable[[Row], None] = lambda row: None, failed: Callable[[Claim, Exception], None] = _raise
) -> Iterator[Result]:
    """Each claim's result as soon as its last measurement is in; `tell` hears of every measurement.

    What trains runs side by side, a process a core; what measures time runs after it, with nothing beside it. A claim
    that cannot be measured is told to `failed`, once; unless that raises, the others go on.
    """
    for alone in (False, True):
        chosen = [claim for claim in plan.claims if claim.alone == alone]
        if chosen and plan.workers:
            yield from _side_by_side(chosen, plan, 1 if alone else plan.workers, tell, failed)
        elif chosen:
            yield from _one_by_one(chosen, plan, tell, failed)


def _one_by_one(
    chosen: Sequence[Claim], plan: Plan, tell: Callable[[Row], None], failed: Callable[[Claim, Exception], None]
) -> Iterator[Result]:
    for claim in chosen:
        rows = []
        try:
            for seed in plan.each_seed:
                for arm in claim.arms:
                    rows.append(measured(claim, arm, seed, claim.size(plan.quick)))
                    tell(rows[-1])
        except Exception as error:
            failed(claim, error)
            continue
        yield result_of(claim, claim.size(plan.quick), rows)


def _side_by_side(
    chosen: Sequence[Claim],
    plan: Plan,
    workers: int,
    tell: Callable[[Row], None],
    failed: Callable[[Claim, Exception], None],
) -> Iterator[Result]:
    with _one_thread(), ProcessPoolExecutor(workers, get_context("spawn"), _leave_with_parent) as pool:
        try:
            # the first job starts the processes
            with _deaf():
                jobs: dict[Future[Row], Claim] = {
                    pool.submit(measured, claim, arm, seed, claim.size(plan.quick)): claim
                    for claim in chosen
                    for seed in plan.each_seed
                    for arm in claim.arms
                }
            rows: dict[str, list[Row]] = {claim.name: [] for claim in chosen}
            lost: set[str] = set()
            for done in as_completed(jobs):
                claim = jobs[done]
                if claim.name in lost:
                    continue
                try:
                    row = done.result()
                except Exception as error:
                    failed(claim, error)
                    lost.add(claim.name)
                    for job in (job for job, of in jobs.items() if of is claim):
                        job.cancel()
                    continue
                tell(row)
                rows[claim.name].append(row)
                if len(rows[claim.name]) == plan.seeds * len(claim.arms):
                    yield result_of(claim, claim.size(plan.quick), rows[claim.name])
        except BaseException:
            begun = list((getattr(pool, "_processes", None) or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in begun:
                worker.terminate()
            raise


def _leave_with_parent() -> None:
    """A process whose parent was killed has nobody to tell what it finds."""
    if (parent := parent_process()) is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes begun within do not hear Ctrl-C: the one that began them does, and ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes begun within have one thread each: two that share a core's threads wait for each other."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def here() -> dict[str, str]:
    """The versions and the machine a result belongs to."""
    import torch

    from ... import __version__

    cores = f"{os.cpu_count()} cores"
    # a time means little where others used the machine too
    busy = f"load {os.getloadavg()[1]:.1f}" if hasattr(os, "getloadavg") else ""
    return {
        "pencil": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": ", ".join(filter(None, (f"{platform.system()} {platform.machine()}", _processor(), cores, busy))),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "")


def plain(result: Result) -> dict[str, Any]:
    """A result as JSON holds it."""
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
                "says": f.prediction.says,
                "metric": f.prediction.metric,
                "label": f.prediction.label,
                "more": f.prediction.more,
                "less": f.prediction.less,
                "times": f.prediction.times,
                "by": f.prediction.by,
                "near": f.prediction.near,
                "values": f.values,
                "mean": f.mean,
                "low": f.low,
                "high": f.high,
                "verdict": f.verdict,
            }
            for f in result.findings
        ],
        "rows": [as_line(row) for row in result.rows],
    }


def as_line(row: Row) -> dict[str, Any]:
    """A measurement as a line of results.jsonl holds it."""
    return {"claim": row.claim, "arm": row.arm, "seed": row.seed, "seconds": row.seconds, "measured": row.measured}


def append(path: Path, row: Row) -> None:
    """One line more, flushed: what was measured before a kill is not lost."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(as_line(row), ensure_ascii=False) + "\n")
        file.flush()


def sizes_in_words(size: Mapping[str, Any]) -> str:
    """“width 32, depths 2 4 8, steps 100”."""

    def said(value: Any) -> str:
        return " ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)

    return ", ".join(f"{name} {said(value)}" for name, value in size.items())
