"""The model of a training, on its device; for FSDP, cut among the processes."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..collectives.processes import World
from ..config import UserError
from ..core.attention import Attention
from ..core.layers import Norm
from ..inference.int8 import refuse_int8
from .frozen import freeze_parameters
from .parallel.modes import Mode, compiles, halves
from .parallel.sharded_build import build_cut, fill
from .recompute import blocks_of, compile_blocks, recompute_blocks
from .settings import TrainConfig


def build_model(task: Any, config: TrainConfig, mode: Mode, device: torch.device, here: World) -> nn.Module:
    """The model with its first weights; for FSDP the part of each parameter that this process has."""
    start, cut, values = getattr(task, "start", None), mode == "fsdp", None
    if cut and start is None:
        model, values = build_cut(task, here)
    else:
        model = task.build()
    if start is not None:
        start.load_into(model)
    refuse_int8(model, "trained")
    if mode != "alone":
        refuse_statistics(model)
    if not cut:
        model.to(device)
    freeze_parameters(model, config.freeze)
    if cut and compiles(config, device):
        compile_blocks(model)
    if config.recompute == "blocks":
        recompute_blocks(model)
    if cut:
        shard(model, device, here.size, halves(config, device))
    if values is not None:
        fill(model, values, device)
    return model


@contextmanager
def same_bits_again(one_thread: bool) -> Iterator[None]:
    """Kernels that add in one order. Threads divide sums, and one process has more of them than each of several."""
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


def refuse_statistics(model: nn.Module) -> None:
    """Refuse what changes while it trains and is no parameter: each process would have its own."""
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats and not isinstance(module, nn.SyncBatchNorm):
            raise UserError(
                f"{name} is a {type(module).__name__}, whose running statistics the processes would not share: use "
                "nn.GroupNorm or nn.LayerNorm, or one process without --train.exact"
            )


def shard(model: nn.Module, device: torch.device, size: int, half: bool = False) -> nn.Module:
    """Cut every parameter among the processes, block by block, so that a block can be gathered by itself.

    With `half` a block is gathered in bfloat16, in which autocast would copy it, and its gradient is summed in float32.
    What is outside blocks stays in float32: embeddings are what the residual stream begins with.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    for name, parameter in model.named_parameters():
        if not parameter.ndim:
            raise UserError(f"{name} is a single number, which fsdp cannot cut: give it a shape of 1, or use ddp")
    mesh = init_device_mesh(device.type, (size,))
    types = (torch.bfloat16, torch.float32) if half else (None, None)
    how = MixedPrecisionPolicy(*types, cast_forward_inputs=False)
    for block in blocks_of(model):
        if half:
            norm_in_full(block)
        cross = getattr(block, "cross", None)
        if isinstance(cross, Attention):  # it reads the source before its block runs
            warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # of values changed in place, which none is
            fully_shard(cross, mesh=mesh, mp_policy=how)
            register_fsdp_forward_method(cross, "read")
        fully_shard(block, mesh=mesh, mp_policy=how)
    fully_shard(model, mesh=mesh)
    return model


def norm_in_full(block: nn.Module) -> None:
    """Make norms compute in float32 with weights in bfloat16; on a CPU autocast does not."""
    for part in block.modules():
        for kind, forward in _IN_FULL.items():
            if isinstance(part, kind):
                part.__class__ = _with_forward(type(part), forward)  # pyright: ignore


@cache
def _with_forward(kind: type[nn.Module], forward: Callable[..., Tensor]) -> type[nn.Module]:
    """The class with this forward. One set on each module would be compiled anew for each block."""
    return type(kind.__name__, (kind,), {"forward": forward})


def _norm(norm: Any, x: Tensor) -> Tensor:
    return norm.formula(x, *[_full(getattr(norm, name), x) for name in norm.WEIGHTS])


def _layer_norm(norm: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, _full(norm.weight, x), _full(norm.bias, x), norm.eps)


def _rms_norm(norm: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, norm.normalized_shape, _full(norm.weight, x), norm.eps)


def _full(weight: Tensor | None, x: Tensor) -> Tensor | None:
    return weight if weight is None else weight.to(torch.promote_types(weight.dtype, x.dtype))


# the forward pass in full of Pencil's norms, and of torch's own in a model of the user's
_IN_FULL: dict[type[nn.Module], Callable[..., Tensor]] = {
    Norm: _norm,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
}
