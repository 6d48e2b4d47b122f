"""Tensors and the memory they view; and work beside the tape that is not recorded."""

from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..config import UserError
from .graph import Array

KEPT = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip


def functional(func: Any) -> Any:
    """The same operation, writing nothing."""
    space, name = func._schema.name.split("::")
    packet = getattr(getattr(torch.ops, space), name.removesuffix("_"), None)
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments if a.name != "out"]
    for overload in packet.overloads() if packet is not None else ():
        other = getattr(packet, overload)
        if [(a.name, str(a.type)) for a in other._schema.arguments] == wanted:
            return other
    return None


def memory_of(value: Tensor) -> int:
    return value.untyped_storage()._cdata


def positions(value: Tensor) -> Array:
    """The place of each cell of a tensor in its memory."""
    at = np.full(value.shape, value.storage_offset(), np.int64)
    for axis, (n, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        at = at + (np.arange(n) * stride).reshape([-1 if d == axis else 1 for d in range(value.ndim)])
    return at.reshape(-1)


def laid_like(places: Tensor, like: Tensor) -> Tensor:
    """The same values in memory laid out as another tensor's is."""
    memory = torch.full((like.untyped_storage().nbytes() // like.element_size(),), -1)
    memory.as_strided(like.shape, like.stride(), like.storage_offset()).copy_(places)
    return memory.as_strided(like.shape, like.stride(), like.storage_offset())


@contextmanager
def off():
    """Work that is not the model's: not recorded."""
    with _disable_current_modes(), torch.no_grad():
        yield


def check_dtype(value: Tensor, name: str) -> None:
    """Refuse a tensor whose values have no exact form in numpy, such as float8."""
    if value.dtype not in KEPT:
        raise UserError(
            f"{name} is {str(value.dtype).removeprefix('torch.')}, which has no receipt yet; trace a wider dtype"
        )


def as_array(value: Tensor) -> Array:
    with off():
        value = value.detach().cpu().resolve_conj()
        if value.dtype in (torch.bfloat16, torch.float16):
            value = value.float()
        return value.contiguous().numpy()
