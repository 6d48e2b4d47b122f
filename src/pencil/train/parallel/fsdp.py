"""Models too large for one device: each process keeps its rows of every parameter while the model is built.

The random numbers of a new model are drawn as in one process, parameter by parameter and in the same order: each is
made whole, once, and only the rows of this process are kept. So the weights are those of one process.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...collectives.dtensor import to_local
from ...collectives.processes import World

aten = torch.ops.aten
FILLS = (aten.normal_.default, aten.uniform_.default, aten.zero_.default, aten.fill_.Scalar)


class NotFollowed(Exception):
    """An operation by which a model is initialised, and which is not one of FILLS."""


class CutBuild(TorchDispatchMode):
    """Tensors of `torch.empty` have no memory inside; of what fills them, the rows of this process are kept."""

    def __init__(self, here: World):
        super().__init__()
        self.here = here
        self.made: dict[int, tuple[Any, torch.Size]] = {}  # the memory, held so that its number stays its own
        self.kept: dict[int, Tensor] = {}

    def rows(self, count: int) -> slice:
        """As FSDP cuts them: equal parts, of which the last may be smaller, or empty."""
        each = -(-count // self.here.size)
        return slice(min(count, self.here.rank * each), min(count, (self.here.rank + 1) * each))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.empty.memory_format and len(args[0]):
            made = func(*args, **{**kwargs, "device": "meta", "pin_memory": False})
            self.made[_memory(made)] = (made.untyped_storage(), made.shape)
            return made
        if args and isinstance(args[0], Tensor) and args[0].is_meta and func._schema.is_mutable:
            self._fill(func, *args, **kwargs)
            return args[0]
        return func(*args, **kwargs)

    def _fill(self, func: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> None:
        memory = _memory(tensor)
        if func not in FILLS or memory not in self.made or not tensor.is_contiguous():
            raise NotFollowed(str(func))
        whole = self.made[memory][1]
        row = whole[1:].numel()
        if not row or tensor.storage_offset() % row or tensor.numel() % row:
            raise NotFollowed(str(func))
        values = func(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu"), *args, **kwargs).view(-1, *whole[1:])
        own = self.rows(whole[0])
        if memory not in self.kept:
            self.kept[memory] = torch.empty(own.stop - own.start, *whole[1:], dtype=tensor.dtype, device="cpu")
        first = int(tensor.storage_offset()) // row
        begin, end = max(own.start, first), min(own.stop, first + len(values))
        if begin < end:
            self.kept[memory][begin - own.start : end - own.start] = values[begin - first : end - first]

    def values(self, model: nn.Module) -> dict[str, Tensor]:
        """The rows of this process of every parameter."""
        if empty := [name for name, buffer in model.named_buffers() if buffer.is_meta]:
            raise NotFollowed(empty[0])
        found = {}
        for name, parameter in model.named_parameters():
            value = parameter.detach()
            if not value.ndim:
                raise NotFollowed(name)
            found[name] = self.kept[_memory(value)] if value.is_meta else value[self.rows(len(value))].clone()
        return found


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def build_cut(task: Any, here: World) -> tuple[nn.Module, dict[str, Tensor] | None]:
    """A task's model without memory, and its rows of every parameter; or the whole model where that is not possible."""
    _ = getattr(task, "inputs", None)  # data that is encoded before the model is built
    state, cut = torch.get_rng_state(), CutBuild(here)
    try:
        with cut:
            model = task.build()
        return model, cut.values(model)
    except (NotFollowed, RuntimeError, KeyError):  # a value of a tensor without memory was read, or it was copied
        torch.set_rng_state(state)
        return task.build(), None


def fill(model: nn.Module, values: dict[str, Tensor], device: torch.device) -> None:
    """Give a model that was cut its memory, and its values."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            to_local(parameter).copy_(values[name])
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
