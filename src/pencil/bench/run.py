"""Run the jobs of a benchmark; the result as plain data."""

import os
import platform
from collections.abc import Iterator
from typing import Any

import torch

from .. import __version__
from ..cost.measure import processor
from . import attention, decode, images, serve, train
from .plan import Plan, Row

RUNS = {module.JOB: module.run for module in (train, decode, attention, serve)} | images.RUNS


def rows_of(job: str, plan: Plan, scanned: str | None = None) -> Iterator[Row]:
    """The rows of a job, as they are measured."""
    # a case of another batch or rule is another compilation of the same functions
    with torch._dynamo.config.patch(recompile_limit=64):
        yield from decode.scan(plan, scanned) if scanned else RUNS[job](plan)
    torch.compiler.reset()
    if plan.cuda:
        torch.cuda.empty_cache()


def machine(plan: Plan) -> dict[str, Any]:
    """Where the figures were measured, and the rates they are compared with."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "pencil": __version__}
    return {
        "device": torch.cuda.get_device_name(plan.device) if plan.cuda else processor() or f"{platform.machine()} CPU",
        "kind": plan.device.type,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "dtype": str(plan.dtype).removeprefix("torch."),
        **versions,
        "matmul_flops": plan.ceilings.rate(plan.dtype_name),
        "copy_bytes": plan.ceilings.bandwidth,
    }
