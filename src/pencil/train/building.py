"""The model of a training, on its device; for FSDP, cut among the processes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ..collectives.processes import World
from ..config import UserError
from ..inference.int8 import refuse_int8
from .frozen import freeze_parameters
from .parallel.fsdp import build_sharded, compile_blocks, materialize, shard
from .parallel.gradients import Mode, compiles, uses_bfloat16
from .recompute import recompute_blocks
from .settings import TrainConfig
from .task import Task


def build_model(task: Task, config: TrainConfig, mode: Mode, device: torch.device, here: World) -> nn.Module:
    """The model with its first weights; for FSDP the part of each parameter that this process has."""
    start, sharded, values = task.start, mode == "fsdp", None
    if sharded and start is None:
        model, values = build_sharded(task, here)
    else:
        model = task.build()
    if start is not None:
        start.load_into(model)
    refuse_int8(model, "trained")
    if mode != "alone":
        refuse_running_statistics(model)
    if not sharded:
        model.to(device)
    freeze_parameters(model, config.freeze)
    if sharded and compiles(config, device):
        compile_blocks(model)
    if config.recompute == "blocks":
        recompute_blocks(model)
    if sharded:
        shard(model, device, here.size, uses_bfloat16(config, device))
    if values is not None:
        materialize(model, values, device)
    return model


@contextmanager
def deterministic_kernels(one_thread: bool) -> Iterator[None]:
    """A context of kernels that add in one order.

    Threads divide sums, and one process has more of them than each of several: with `one_thread` there is only one.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    if one_thread:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        if one_thread:
            torch.set_num_threads(threads)


def refuse_running_statistics(model: nn.Module) -> None:
    """Refuse what changes while it trains and is no parameter: each process would have its own."""
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats and not isinstance(module, nn.SyncBatchNorm):
            raise UserError(
                f"{name} is a {type(module).__name__}, whose running statistics the processes would not share: use "
                "nn.GroupNorm or nn.LayerNorm, or one process without --train.exact"
            )
