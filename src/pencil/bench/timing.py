"""Contenders timed in turn: warm, each round in another order, so that other load on the machine affects all alike."""

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import nn

from ..cost.devices import Workload
from ..cost.measure import synchronize
from .equality import Equality
from .plan import Plan, Row

OURS = "pencil"
WARM_UP = {"cuda": 3}  # calls before the first that counts; one elsewhere
SLOW_SECONDS = 5.0  # of warming up that are reported
LEAST_SECONDS = 0.1  # that one measurement takes


@dataclass
class Contender:
    """One library's way to do the work of a case; `call` does it once."""

    name: str
    call: Callable[[], object]
    models: Sequence[nn.Module] = ()  # whose weights it holds
    equality: Equality | None = None  # with ours
    startup: float = 0.0  # seconds of the first call
    calls: int = 1  # in one measurement
    persistent: int = 0  # bytes that stay on the device between calls, without the weights
    peak: int = 0
    seconds: list[float] = field(default_factory=list)


def weight_bytes(models: Sequence[nn.Module]) -> int:
    """Bytes of the parameters and buffers of these modules, each once."""
    sizes = {t.data_ptr(): t.nbytes for model in models for t in (*model.parameters(), *model.buffers())}
    return sum(sizes.values())


def timed(plan: Plan, call: Callable[[], object], calls: int = 1) -> float:
    """Seconds of a call, the mean of several, until the device has done its work."""
    synchronize(plan.device)
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(plan.device)
    return (time.perf_counter() - begun) / calls


def run_case(
    plan: Plan,
    job: str,
    case: str,
    unit: str,
    amount: float,
    contenders: Sequence[Contender],
    work: Workload | None = None,
) -> list[Row]:
    """Time the contenders, ours first; a row for each. `amount` is how many units a call does, `work` what it costs."""
    _ = plan.ceilings  # measured before the first model is warm
    for contender in contenders:
        _warm_up(plan, contender)
        if (spent := sum(contender.seconds)) > SLOW_SECONDS:
            plan.notify(f"{job}: {case}: {contender.name} is warm after {spent:.0f} s")
        # a short call is timed several times in a row
        contender.startup, contender.calls, contender.seconds = (
            contender.seconds[0],
            max(1, math.ceil(LEAST_SECONDS / contender.seconds[-1])),
            [],
        )
    order = list(contenders)
    for _ in range(plan.repeat):
        for contender in order:
            _round(plan, contender)
        order = [*order[1:], order[0]]
    return [_row(plan, job, case, unit, amount, contender, contenders[0], work) for contender in contenders]


def _warm_up(plan: Plan, contender: Contender) -> None:
    gc.collect()  # what an earlier case has left would be freed in this one, and make its memory too small
    before = torch.cuda.memory_allocated(plan.device) if plan.cuda else 0
    contender.seconds = [timed(plan, contender.call) for _ in range(WARM_UP.get(plan.device.type, 1))]
    contender.persistent = torch.cuda.memory_allocated(plan.device) - before if plan.cuda else 0


def _round(plan: Plan, contender: Contender) -> None:
    if not plan.cuda:
        contender.seconds.append(timed(plan, contender.call, contender.calls))
        return
    before = torch.cuda.memory_allocated(plan.device)
    torch.cuda.reset_peak_memory_stats(plan.device)
    contender.seconds.append(timed(plan, contender.call, contender.calls))
    above = torch.cuda.max_memory_allocated(plan.device) - before
    contender.peak = max(contender.peak, weight_bytes(contender.models) + contender.persistent + above)


def _row(
    plan: Plan,
    job: str,
    case: str,
    unit: str,
    amount: float,
    contender: Contender,
    ours: Contender,
    work: Workload | None,
) -> Row:
    middle = median(contender.seconds)
    row: Row = {
        "job": job,
        "case": case,
        "who": contender.name,
        "unit": unit,
        "rate": amount / middle,
        "low": amount / max(contender.seconds),
        "high": amount / min(contender.seconds),
        "seconds": middle,
        "startup_seconds": max(0.0, contender.startup - middle),
        **plan.shares(work, middle),
    }
    if plan.cuda:
        row["peak_bytes"] = contender.peak
    if contender.equality is not None:
        row |= {
            "equal": contender.equality.equal,
            "errors": contender.equality.errors,
            "bounds": contender.equality.bounds,
        }
        # models that are not the same function are not compared
        if contender is not ours and contender.equality.equal:
            row["ratio"] = median(their / own for their, own in zip(contender.seconds, ours.seconds, strict=True))
    return row
