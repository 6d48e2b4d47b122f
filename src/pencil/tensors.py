"""Safetensors files, read with their header checked first: what it promises must be what the file holds.

The header is checked without torch, so a trace file opens without it too.
"""

import os
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from .config import UserError
from .files import WINDOWS, check_regular, parse_json

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_HEADER = 25_000_000  # a hundred thousand tensors need about ten megabytes
MOST_AXES = 16
BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


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
    path: Path, wanted: Mapping[str, tuple[int, ...]] | None = None, renamed: Mapping[str, str] | None = None
) -> dict[str, "Tensor"]:
    """The tensors of a safetensors file; with `wanted`, exactly those names and shapes, checked before any is read."""
    from safetensors import SafetensorError, safe_open

    try:
        header = check_tensors(path, wanted, renamed)
        with safe_open(path, framework="pt") as file:
            found = {rename(name, renamed): file.get_tensor(name) for name in header.tensors}
            # they are maps of the file, which can then not be replaced on Windows
            return {name: tensor.clone() for name, tensor in found.items()} if WINDOWS else found
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


def check_tensors(
    path: Path, wanted: Mapping[str, tuple[int, ...]] | None = None, renamed: Mapping[str, str] | None = None
) -> Header:
    """The header alone, refused as `read_tensors` would refuse the file: quick, however large the file is."""
    check_regular(path)
    with path.open("rb") as file:
        header = read_header(file, path)
    found = {rename(name, renamed): entry for name, entry in header.tensors.items()}
    if len(found) < len(header.tensors):
        raise UserError(f"{path} has two tensors of one name")
    if wanted is not None:
        for name in sorted(set(found) ^ set(wanted)):
            where = "not in it" if name in wanted else "not in this model"
            raise UserError(f"{path} is of another model: {name} is {where}")
        for name, shape in wanted.items():
            if found[name].shape != tuple(shape):
                raise UserError(
                    f"{path} is of another model: {name} has shape {found[name].shape} there and {tuple(shape)} here"
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
