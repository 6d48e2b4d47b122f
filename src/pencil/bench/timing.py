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
from .equality import Equality
from .plan import Plan, Row

OURS = "pencil"
WARM_UP = {"cuda": 3}  # calls before the first that counts; one elsewhere
SLOW = 5.0  # seconds of warming up that are reported
ENOUGH = 0.1  # seconds that one measurement takes at least


@dataclass
class Contender:
    """One library's way to do the work of a case; `call` does it once."""

    name: str
    call: Callable[[], object]
    models: Sequence[nn.Module] = ()  # whose weights it holds
    equality: Equality | None = None  # with ours
    startup: float = 0.0  # seconds of the first call
    calls: int = 1  # in one measurement
    kept: int = 0  # bytes that it keeps on the device between calls, without the weights
    peak: int = 0
    seconds: list[float] = field(default_factory=list)


def held_bytes(models: Sequence[nn.Module]) -> int:
    """Bytes of the parameters and buffers of these modules, each once."""
    found = {t.data_ptr(): t.nbytes for model in models for t in (*model.parameters(), *model.buffers())}
    return sum(found.values())


def timed(plan: Plan, call: Callable[[], object], calls: int = 1) -> float:
    """Seconds of a call, the mean of several, until the device has done its work."""
    synchronize(plan)
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(plan)
    return (time.perf_counter() - begun) / calls


def synchronize(plan: Plan) -> None:
    if plan.device.type != "cpu":
        torch.get_device_module(plan.device).synchronize()


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
    for one in contenders:
        _warm_up(plan, one)
        if (spent := sum(one.seconds)) > SLOW:
            plan.notify(f"{job}: {case}: {one.name} is warm after {spent:.0f} s")
        # a short call is timed several times in a row
        one.startup, one.calls, one.seconds = one.seconds[0], max(1, math.ceil(ENOUGH / one.seconds[-1])), []
    order = list(contenders)
    for _ in range(plan.repeat):
        for one in order:
            _round(plan, one)
        order = [*order[1:], order[0]]
    return [_row(plan, job, case, unit, amount, one, contenders[0], work) for one in contenders]


def _warm_up(plan: Plan, one: Contender) -> None:
    gc.collect()  # what an earlier case has left would be freed in this one, and make its memory too small
    before = torch.cuda.memory_allocated(plan.device) if plan.cuda else 0
    one.seconds = [timed(plan, one.call) for _ in range(WARM_UP.get(plan.device.type, 1))]
    one.kept = torch.cuda.memory_allocated(plan.device) - before if plan.cuda else 0


def _round(plan: Plan, one: Contender) -> None:
    if not plan.cuda:
        one.seconds.append(timed(plan, one.call, one.calls))
        return
    before = torch.cuda.memory_allocated(plan.device)
    torch.cuda.reset_peak_memory_stats(plan.device)
    one.seconds.append(timed(plan, one.call, one.calls))
    above = torch.cuda.max_memory_allocated(plan.device) - before
    one.peak = max(one.peak, held_bytes(one.models) + one.kept + above)


def _row(
    plan: Plan, job: str, case: str, unit: str, amount: float, one: Contender, ours: Contender, work: Workload | None
) -> Row:
    middle = median(one.seconds)
    row: Row = {
        "job": job,
        "case": case,
        "who": one.name,
        "unit": unit,
        "rate": amount / middle,
        "low": amount / max(one.seconds),
        "high": amount / min(one.seconds),
        "seconds": middle,
        "startup_seconds": max(0.0, one.startup - middle),
        **plan.shares(work, middle),
    }
    if plan.cuda:
        row["peak_bytes"] = one.peak
    if one.equality is not None:
        row |= {"equal": one.equality.equal, "errors": one.equality.errors, "bounds": one.equality.bounds}
        # models that are not the same function are not compared
        if one is not ours and one.equality.equal:
            row["ratio"] = median(their / own for their, own in zip(one.seconds, ours.seconds, strict=True))
    return row
