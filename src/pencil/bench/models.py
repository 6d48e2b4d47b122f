"""Models to be measured: random weights, none of them zero, so that every part of a model changes its output."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..cost.count import count
from ..cost.devices import Workload, workloads
from ..cost.memory import train_memory
from ..families.family import Family
from .plan import Plan


def make(record: Family, config: Any, device: torch.device) -> Any:
    """A model in evaluation mode; parts that begin as zeros are given random values too."""
    torch.manual_seed(0)
    with device:
        model = record.create(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return model.eval()


def work_of(record: Family, config: Any, batch: int, plan: Plan, length: int | None = None) -> dict[str, Workload]:
    """FLOPs and the fewest bytes of each workload, as `pencil cost` counts them."""
    dtype = plan.dtype_name
    counts = count(record.create, record.cost, config, length)
    memory = train_memory(record.cost, config, counts, batch, length, dtype)
    return workloads(record.cost, config, counts, memory, batch, length, dtype, "adamw")


@contextmanager
def fast_products() -> Iterator[None]:
    """TF32 for float32 products on CUDA, as the trainer has it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
