"""Safetensors files: read with their header checked first, which must promise what the file holds; and written.

The header is checked without torch, so a trace file opens without it too.

Tensors are mapped one at a time (`map_file`). A tensor that is converted or moved to another device is copied out of a
map of its own, which goes away with it, so that file and model are never in memory together.
"""

import json
import os
import struct
from collections.abc import Iterable, Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from .config import UserError
from .files import WINDOWS, check_regular, is_text, parse_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LARGEST_HEADER = 25_000_000  # a hundred thousand tensors need about ten megabytes
MOST_AXES = 16
BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip

FILE_ORDER = (
    "U64", "I64", "F64", "C64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "F8_E8M0", "F8_E4M3", "F8_E5M2",
    "I8", "U8", "BOOL",
)  # fmt: skip


class Entry(NamedTuple):
    """One tensor as the header describes it; its bytes are from `begin` to `end` after the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """What a safetensors file promises to hold."""

    tensors: dict[str, Entry]
    metadata: dict[str, str]
    start: int  # where the bytes of the tensors begin


def read_header(file: BinaryIO, path: Path, kind: str = "a safetensors file") -> Header:
    """The header of an open file of this kind: every byte after it belongs to one tensor, or the file is refused."""
    size = os.fstat(file.fileno()).st_size
    first = file.read(8)
    length = struct.unpack("<Q", first)[0] if len(first) == 8 else size
    if length > size - 8:
        raise UserError(f"{path} is not {kind}, or is damaged: it ends within its header")
    if length > LARGEST_HEADER:
        raise UserError(
            f"{path} is not {kind}, or is damaged: its header has {length / 1e6:.0f} MB, and at most "
            f"{LARGEST_HEADER / 1e6:.0f} MB are read"
        )
    try:
        content = parse_json(file.read(length), str(path), kind)
        metadata = content.pop("__metadata__", None) or {}
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("its metadata is not text")
        tensors = {name: _entry(name, about) for name, about in content.items()}
        _check_places(tensors, size - 8 - length)
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not {kind}, or is damaged: {error}") from None
    return Header(tensors, metadata, 8 + length)


def _entry(name: str, about: Any) -> Entry:
    """One tensor of a header, with as many bytes as its shape and dtype need."""
    dtype, shape, places = about["dtype"], about["shape"], about["data_offsets"]
    if dtype not in BYTES:
        raise ValueError(f"{name} is of the unknown dtype {str(dtype)[:20]}")
    numbers = [*shape, *places]
    if not all(type(one) is int and 0 <= one < 1 << 62 for one in numbers) or len(shape) > MOST_AXES:
        raise ValueError(f"{name} has an impossible shape or place")
    begin, end = places
    if prod(shape) * BYTES[dtype] != end - begin:
        raise ValueError(f"the bytes of {name} do not fit its shape")
    return Entry(dtype, tuple(shape), begin, end)


def _check_places(tensors: Mapping[str, Entry], size: int) -> None:
    """Refuse tensors that overlap, leave a gap, or reach beyond the file."""
    at = 0
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin < at:
            raise ValueError(f"{name} overlaps another tensor")
        if entry.begin > at:
            raise ValueError(f"there is a gap before {name}")
        at = entry.end
    if at != size:
        raise ValueError(f"its tensors need {at} bytes, and it has {size}")


def read_tensors(
    path: Path,
    wanted: Mapping[str, tuple[int, ...]] | None = None,
    renamed: Mapping[str, str] | None = None,
    device: "torch.device | str" = "cpu",
    dtype: "torch.dtype | None" = None,
) -> dict[str, "Tensor"]:
    """The tensors of a safetensors file; with `wanted`, exactly those names and shapes, checked before any is read.

    Floating-point ones are converted to `dtype` where it is given. One tensor at a time is mapped, converted and
    copied, so that the file is never in memory beside the result.
    """
    header = check_tensors(path, wanted, renamed)
    tensors, content = {}, map_file(path)
    for name, entry in header.tensors.items():
        tensor = tensor_in(content, header.start, entry)
        converted = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        tensors[rename(name, renamed)] = moved = tensor.to(device, converted)
        if moved is not tensor:
            content = map_file(path)  # the pages read so far leave the memory with the former map
    return tensors


def map_file(path: Path) -> "Tensor":
    """The bytes of a file mapped into memory, read when they are used; writing into them never changes the file."""
    import torch

    size = check_regular(path).st_size
    if not is_text(str(path)):
        raise UserError(f"{path} cannot be read, since its path is not UTF-8: rename it")
    try:
        return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    except RuntimeError:
        raise UserError(f"{path} cannot be mapped into memory: it was changed meanwhile, or is too large") from None


def tensor_in(content: "Tensor", start: int, entry: Entry) -> "Tensor":
    """One tensor of a mapped file whose header was checked."""
    tensor = content[start + entry.begin : start + entry.end]
    if WINDOWS or start % BYTES[entry.dtype] or entry.begin % BYTES[entry.dtype]:
        tensor = tensor.clone()  # what is mapped cannot be replaced on Windows, and numbers must be aligned
    return tensor.view(torch_dtypes()[entry.dtype]).reshape(entry.shape)


@cache
def torch_dtypes() -> "dict[str, torch.dtype]":
    """The dtypes of safetensors files as torch has them."""
    import torch

    return {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "F8_E8M0": torch.float8_e8m0fnu,
        "C64": torch.complex64,
        "I64": torch.int64,
        "I32": torch.int32,
        "I16": torch.int16,
        "I8": torch.int8,
        "U64": torch.uint64,
        "U32": torch.uint32,
        "U16": torch.uint16,
        "U8": torch.uint8,
        "BOOL": torch.bool,
    }


def in_file_order(tensors: "Mapping[str, Tensor]") -> list[str]:
    """The names in the order in which the safetensors library writes them: the widest dtypes first, then by name."""
    dtypes = {dtype: at for at, dtype in enumerate(FILE_ORDER)}
    names = {kind: dtypes[name] for name, kind in torch_dtypes().items()}
    return sorted(tensors, key=lambda name: (names[tensors[name].dtype], name.encode()))


def write_tensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: "torch.dtype | Mapping[str, torch.dtype]",
    tensors: "Iterable[tuple[str, Tensor]]",
    metadata: Mapping[str, str],
) -> None:
    """Write tensors of these names, shapes and dtypes (one for all, or one for each), in whatever order they come.

    They are written one at a time, so that a large model is never in memory whole.
    """
    import torch

    names = {kind: name for name, kind in torch_dtypes().items()}
    dtypes = {name: dtype[name] if isinstance(dtype, Mapping) else dtype for name in shapes}
    at, places = 0, {}
    for name, shape in shapes.items():
        size = prod(shape) * BYTES[names[dtypes[name]]]
        places[name] = [at, at + size]
        at += size
    header = {"__metadata__": dict(metadata)} | {
        name: {"dtype": names[dtypes[name]], "shape": list(shape), "data_offsets": places[name]}
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
            whole = tensor.detach().to("cpu", dtypes[name]).contiguous()
            if whole.numel():
                file.write(whole.reshape(-1).view(torch.uint8).numpy().data)
            missing.discard(name)
        if missing:
            raise ValueError(f"{sorted(missing)[0]} was not written")
        file.flush()
        os.fsync(file.fileno())


def check_tensors(
    path: Path, wanted: Mapping[str, tuple[int, ...]] | None = None, renamed: Mapping[str, str] | None = None
) -> Header:
    """The header alone, refused as `read_tensors` would refuse the file: quick, however large the file is."""
    check_regular(path)
    with path.open("rb") as file:
        header = read_header(file, path)
    entries = {rename(name, renamed): entry for name, entry in header.tensors.items()}
    if len(entries) < len(header.tensors):
        raise UserError(f"{path} has two tensors of one name")
    if wanted is not None:
        for name in sorted(set(entries) ^ set(wanted)):
            where = "not in it" if name in wanted else "not in this model"
            raise UserError(f"{path} is of another model: {name} is {where}")
        for name, shape in wanted.items():
            if entries[name].shape != tuple(shape):
                raise UserError(
                    f"{path} is of another model: {name} has shape {entries[name].shape} there and {tuple(shape)} here"
                )
    return header


def check_bytes(path: Path, wanted: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a file that is far too large for these tensors, before it is read or hashed."""
    most = 8 + LARGEST_HEADER + 8 * sum(prod(shape) for shape in wanted.values())
    if (size := check_regular(path).st_size) > most:
        raise UserError(f"{path} has {size / 1e9:,.1f} GB, more than this model needs: it is of another, or damaged")


def rename(name: str, renamed: Mapping[str, str] | None) -> str:
    """A tensor's name with an old prefix replaced by the new one."""
    for old, new in (renamed or {}).items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
