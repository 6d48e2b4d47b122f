"""FSDP2: models that are cut among processes, each of which has its rows of every parameter.

A model too large for one device is never whole: each process keeps its rows of every parameter while it is built.
The random numbers of a new model are drawn as in one process, parameter by parameter and in the same order: each is
made whole, once, and only the rows of this process are kept. So the weights are those of one process.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...collectives.processes import World
from ...config import UserError
from ...core.attention import Attention
from ...core.layers import Norm
from ..recompute import model_blocks
from ..task import Task
from .dtensor_files import to_local

aten = torch.ops.aten
FILLS = (aten.normal_.default, aten.uniform_.default, aten.zero_.default, aten.fill_.Scalar)


class UnsupportedInitialisation(Exception):
    """An operation by which a model is initialised, and which is not one of FILLS."""


class ShardedBuild(TorchDispatchMode):
    """Tensors of `torch.empty` have no memory inside; of what fills them, the rows of this process are kept."""

    def __init__(self, here: World):
        super().__init__()
        self.here = here
        self.whole_sizes: dict[
            int, tuple[Any, torch.Size]
        ] = {}  # with the storage, so that its address is not used again
        self.own_rows: dict[int, Tensor] = {}

    def rows(self, count: int) -> slice:
        """As FSDP cuts them: equal parts, of which the last may be smaller, or empty."""
        each = -(-count // self.here.size)
        return slice(min(count, self.here.rank * each), min(count, (self.here.rank + 1) * each))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.empty.memory_format and len(args[0]):
            empty = func(*args, **{**kwargs, "device": "meta", "pin_memory": False})
            self.whole_sizes[_storage(empty)] = (empty.untyped_storage(), empty.shape)
            return empty
        if args and isinstance(args[0], Tensor) and args[0].is_meta and func._schema.is_mutable:
            self._fill(func, *args, **kwargs)
            return args[0]
        return func(*args, **kwargs)

    def _fill(self, func: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        storage = _storage(tensor)
        if func not in FILLS or storage not in self.whole_sizes or not tensor.is_contiguous():
            raise UnsupportedInitialisation(str(func))
        whole = self.whole_sizes[storage][1]
        row = whole[1:].numel()
        if not row or tensor.storage_offset() % row or tensor.numel() % row:
            raise UnsupportedInitialisation(str(func))
        values = func(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"), *args, **kwargs).view(-1, *whole[1:])
        own = self.rows(whole[0])
        if storage not in self.own_rows:
            self.own_rows[storage] = torch.empty(own.stop - own.start, *whole[1:], dtype=tensor.dtype, device="cpu")
        first = int(tensor.storage_offset()) // row
        begin, end = max(own.start, first), min(own.stop, first + len(values))
        if begin < end:
            self.own_rows[storage][begin - own.start : end - own.start] = values[begin - first : end - first]

    def values(self, model: nn.Module) -> dict[str, Tensor]:
        """The rows of this process of every parameter."""
        if empty := [name for name, buffer in model.named_buffers() if buffer.is_meta]:
            raise UnsupportedInitialisation(empty[0])
        rows = {}
        for name, parameter in model.named_parameters():
            value = parameter.detach()
            if not value.ndim:
                raise UnsupportedInitialisation(name)
            rows[name] = self.own_rows[_storage(value)] if value.is_meta else value[self.rows(len(value))].clone()
        return rows


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def build_sharded(task: Task, here: World) -> tuple[nn.Module, dict[str, Tensor] | None]:
    """A task's model without memory, and its rows of every parameter; or the whole model where that is not possible."""
    _ = getattr(task, "inputs", None)  # data that is encoded before the model is built
    state, build = torch.get_rng_state(), ShardedBuild(here)
    try:
        with build:
            model = task.build()
        return model, build.values(model)
    except (
        UnsupportedInitialisation,
        RuntimeError,
        KeyError,
    ):  # a value of a tensor without memory was read, or it was copied
        torch.set_rng_state(state)
        return task.build(), None


def materialize(model: nn.Module, values: dict[str, Tensor], device: torch.device) -> None:
    """Give a model without memory its memory on the device, and the rows of this process their values."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            to_local(parameter).copy_(values[name])
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def compile_blocks(model: nn.Module) -> None:
    """Compile each block by itself: FSDP gathers its weights before it runs, outside of the compiled code."""
    for block in model_blocks(model):
        block.forward = torch.compile(block.forward)


def shard(model: nn.Module, device: torch.device, size: int, bfloat16: bool = False) -> nn.Module:
    """Cut every parameter among the processes, block by block, so that a block can be gathered by itself.

    With `bfloat16` a block is gathered in bfloat16, in which autocast would copy it, and its gradient is summed in
    float32. What is outside blocks stays in float32: embeddings are what the residual stream begins with.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    for name, parameter in model.named_parameters():
        if not parameter.ndim:
            raise UserError(f"{name} is a single number, which fsdp cannot cut: give it a shape of 1, or use ddp")
    mesh = init_device_mesh(device.type, (size,))
    dtypes = (torch.bfloat16, torch.float32) if bfloat16 else (None, None)
    policy = MixedPrecisionPolicy(*dtypes, cast_forward_inputs=False)
    for block in model_blocks(model):
        if bfloat16:
            compute_norms_in_float32(block)
        cross = getattr(block, "cross", None)
        if isinstance(cross, Attention):  # it reads the source before its block runs
            warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # of values changed in place, which none is
            fully_shard(cross, mesh=mesh, mp_policy=policy)
            register_fsdp_forward_method(cross, "read")
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh)
    return model


def compute_norms_in_float32(block: nn.Module) -> None:
    """Make norms compute in float32 with weights in bfloat16; on a CPU autocast does not."""
    for part in block.modules():
        for kind, forward in FLOAT32_FORWARDS.items():
            if isinstance(part, kind):
                part.__class__ = _with_forward(type(part), forward)  # pyright: ignore


@cache
def _with_forward(kind: type[nn.Module], forward: Callable[..., Tensor]) -> type[nn.Module]:
    """The class with this forward; one that is set on each module would be compiled anew for each block."""
    return type(kind.__name__, (kind,), {"forward": forward})


def _norm(norm: Any, x: Tensor) -> Tensor:
    return norm.formula(x, *[_promote(getattr(norm, name), x) for name in norm.WEIGHTS])


def _layer_norm(norm: Any, x: Tensor) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, _promote(norm.weight, x), _promote(norm.bias, x), norm.eps)


def _rms_norm(norm: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, norm.normalized_shape, _promote(norm.weight, x), norm.eps)


def _promote(weight: Tensor | None, x: Tensor) -> Tensor | None:
    return weight if weight is None else weight.to(torch.promote_types(weight.dtype, x.dtype))


# the forward pass in float32 of Pencil's norms, and of torch's own in a model of the user's
FLOAT32_FORWARDS: dict[type[nn.Module], Callable[..., Tensor]] = {
    Norm: _norm,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
}
