"""decode --scan: the time and memory of one decode step against one size, with the exponent that fits them."""

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from ..cost.memory import BYTES, kv_cache
from ..families.gpt import FAMILY
from ..inference.generation import Generation
from ..inference.sampling import Sampling
from .models import make
from .plan import Plan, Row
from .timing import OURS, held_bytes, synchronize

JOB = "decode"
STEPS = {"cuda": 256}  # decode steps that are timed together: enough to be captured on CUDA
FEW = 16  # elsewhere
# sizes of the model, the batch and the tokens before the timed ones, and the values of each that are tried
SMALL = dict(width=384, depth=6, heads=6, vocab=65)
LARGE = dict(width=1024, depth=12, heads=16, vocab=50304)
HEAD = 64  # channels of a head where the width is scanned
VALUES = {
    "context": ([64, 128, 256, 512, 1024, 2048, 4096], [256, 512, 1024, 2048, 4096, 8192, 16384]),
    "batch": ([1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 16, 32, 64, 128]),
    "depth": ([2, 4, 8, 16, 32], [4, 8, 16, 32, 64]),
    "width": ([128, 256, 512, 1024], [256, 512, 1024, 2048, 4096]),
}


def fit_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """p of values ≈ c·sizes^p, by least squares of the logarithms."""
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(values, float))
    return float(np.polyfit(x, y, 1)[0])


def scan(plan: Plan, size: str) -> Iterator[Row]:
    """A row for each value of the size; the last has the fitted exponents."""
    values = VALUES[size][plan.cuda and not plan.quick]
    values = values[:4] if plan.quick else values
    rows = []
    for value in values:
        rows.append(_measure(plan, size, value))
        if value != values[-1]:
            yield rows[-1]
    exponents = {
        name: fit_exponent(values, [row[name] for row in rows]) for name in ("seconds", "memory_bytes") if len(rows) > 1
    }
    yield rows[-1] | {"exponents": exponents}


def _measure(plan: Plan, size: str, value: int) -> Row:
    settings: dict[str, Any] = dict(LARGE if plan.cuda and not plan.quick else SMALL)
    before, batch = 64, plan.batch or 1
    if size == "context":
        before = value
    elif size == "batch":
        batch = value
    else:
        settings[size] = value
    if size == "width":
        settings["heads"] = value // HEAD
    steps = STEPS.get(plan.device.type, FEW)
    config = FAMILY.configure(None, **settings, context=before + steps + 1)
    model = make(FAMILY, config, plan.device).to(plan.dtype)
    prompts = torch.randint(config.vocab, (batch, before)).tolist()
    others = 0
    if plan.cuda:
        torch.cuda.reset_peak_memory_stats(plan.device)
        others = torch.cuda.memory_allocated(plan.device) - held_bytes([model])
    times = [_seconds(plan, model, prompts, steps) for _ in range(plan.repeat + 1)][1:]
    if plan.cuda:
        memory, how = torch.cuda.max_memory_allocated(plan.device) - others, "measured"
    else:
        each = plan.dtype_name
        weights = BYTES[each] * sum(p.numel() for p in model.parameters())
        memory, how = weights + kv_cache(config, batch, config.context, each), "counted"
    middle = median(times)
    plan.notify(f"{JOB}: {size} {value:,}: {1e3 * middle:.2f} ms a step")
    return {
        "job": JOB,
        "case": f"{size} {value}",
        "who": OURS,
        "unit": "tokens/s",
        "rate": batch / middle,
        "low": batch / max(times),
        "high": batch / min(times),
        "seconds": middle,
        "scan": size,
        "value": value,
        "memory_bytes": memory,
        "memory": how,
    }


def _seconds(plan: Plan, model: Any, prompts: list[list[int]], steps: int) -> float:
    """Seconds of one decode step, without the prefill, which gives the first token."""
    tokens = iter(Generation(model, prompts, steps + 1, Sampling(0), compile=plan.compile))
    next(tokens)
    synchronize(plan)
    begun = time.perf_counter()
    for _ in tokens:
        pass
    synchronize(plan)
    return (time.perf_counter() - begun) / steps
