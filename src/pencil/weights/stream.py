"""A safetensors file written one tensor at a time, so that a large model is never in memory whole."""

import json
import os
import struct
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from ..tensors import BYTES
from .source import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_tensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    tensors: Iterable[tuple[str, Tensor]],
    metadata: Mapping[str, str],
) -> None:
    """Write tensors of these names and shapes, in whatever order they come."""
    at, places = 0, {}
    for name, shape in shapes.items():
        size = prod(shape) * BYTES[NAMES[dtype]]
        places[name] = [at, at + size]
        at += size
    header = {"__metadata__": dict(metadata)} | {
        name: {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": places[name]}
        for name, shape in shapes.items()
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    missing = set(shapes)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in tensors:
            if tuple(tensor.shape) != tuple(shapes[name]):
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {tuple(shapes[name])}")
            file.seek(8 + len(text) + places[name][0])
            whole = tensor.detach().to("cpu", dtype).contiguous()
            if whole.numel():
                file.write(memoryview(whole.reshape(-1).view(torch.uint8).numpy()))
            missing.discard(name)
        if missing:
            raise ValueError(f"{sorted(missing)[0]} was not written")
        file.flush()
        os.fsync(file.fileno())
