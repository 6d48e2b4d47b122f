"""Tensors that are spread over processes: the piece that each has, written by it alone and read back in other pieces.

A piece is a part of a tensor along one axis. The metadata of its file says where it lies in the whole.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...config import UserError
from ...tensors import Entry, Header, check_tensors, in_file_order, map_file, tensor_in, write_tensors

PIECES = "pieces"  # the key of the metadata: {name: [axis, start, length]}


class Cut(NamedTuple):
    """Where a piece lies: it begins at `start` of the `length` entries that the whole has along `axis`."""

    axis: int
    start: int
    length: int


class Piece(NamedTuple):
    """What a process has of a tensor; `cut` is None where that is all of it."""

    tensor: Tensor
    cut: Cut | None


def spread(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor: each process has its own piece of it."""
    return hasattr(tensor, "device_mesh")


def piece_of(tensor: Any) -> Piece:
    """What this process has of a tensor."""
    if not spread(tensor):
        return Piece(tensor.detach(), None)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    whole, local = tuple(tensor.shape), tensor.detach().to_local()
    shape, offset = compute_local_shape_and_global_offset(whole, tensor.device_mesh, tensor.placements)
    axes = [axis for axis, size in enumerate(whole) if shape[axis] != size]
    if len(axes) > 1 or any(one.is_partial() for one in tensor.placements):
        raise NotImplementedError(f"a tensor of shape {whole} that is cut along several axes: {tensor.placements}")
    if not axes:
        return Piece(local, None)
    return Piece(local, Cut(axes[0], offset[axes[0]], whole[axes[0]]))


def own_pieces(tensors: Mapping[str, Tensor], writer: bool) -> dict[str, Piece]:
    """What this process writes: its pieces; rank 0 also what every process has."""
    found = {}
    for name, tensor in tensors.items():
        piece = piece_of(tensor)
        if (piece.tensor.numel() and _first_copy(tensor, writer)) or (writer and not tensor.numel()):
            found[name] = piece
    return found


def _first_copy(tensor: Any, writer: bool) -> bool:
    """Whether of all processes with the same values this is the one that writes them."""
    if not spread(tensor) or not any(one.is_shard() for one in tensor.placements):
        return writer
    place = tensor.device_mesh.get_coordinate()
    return place is not None and not any(
        at for at, one in zip(place, tensor.placements, strict=True) if one.is_replicate()
    )


class HostCopy:
    """Copies of tensors in the memory of the host, which training may go on without.

    On CUDA the memory is pinned and kept for the next copy: the copies then run beside the computation.
    """

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def take(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Callable[[], None]]:
        """Copies of the tensors, and a function that waits until they are whole."""
        copies, gpu = {}, None
        for name, tensor in tensors.items():
            if tensor.device.type == "cuda":
                gpu = tensor.device
                copies[name] = self._pinned(name, tensor).copy_(tensor, non_blocking=True)
            else:
                copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)
        if gpu is None:
            return copies, lambda: None
        copied = torch.cuda.Event()
        copied.record(torch.cuda.current_stream(gpu))  # which need not be the current GPU
        return copies, copied.synchronize

    def _pinned(self, name: str, tensor: Tensor) -> Tensor:
        held = self.kept.get(name)
        if held is None or held.shape != tensor.shape or held.dtype != tensor.dtype:
            held = self.kept[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return held


def write_file(path: Path, tensors: Mapping[str, Tensor], cuts: Mapping[str, Cut] | None = None) -> None:
    """A safetensors file, flushed, with the bytes that the safetensors library would write.

    It is written one tensor at a time, without a copy of the file in memory.
    """
    order = in_file_order(tensors)
    metadata = {"format": "pt"}
    if cuts:
        metadata[PIECES] = json.dumps({name: list(cuts[name]) for name in order if name in cuts})
    write_tensors(
        path,
        {name: tuple(tensors[name].shape) for name in order},
        {name: tensors[name].dtype for name in order},
        ((name, tensors[name]) for name in order),
        metadata,
    )


class _Held(NamedTuple):
    """A piece in a file."""

    path: Path
    header: Header
    entry: Entry
    cut: Cut | None

    @property
    def start(self) -> int:
        return self.cut.start if self.cut else 0

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        shape = list(self.entry.shape)
        if self.cut is not None:
            shape[self.cut.axis] = self.cut.length
        return tuple(shape)

    def read(self) -> Tensor:
        return tensor_in(map_file(self.path), self.header.start, self.entry)


class Pieces(Mapping[str, Tensor]):
    """The tensors of some files by name, read when they are asked for, whole or in part.

    The files must hold every tensor exactly once, however it is cut.
    """

    def __init__(self, paths: Iterable[Path] = ()):
        self._held: dict[str, list[_Held]] = {}
        for path in paths:
            header = check_tensors(path)
            cuts = _cuts(path, header)
            for name, entry in header.tensors.items():
                self._held.setdefault(name, []).append(_Held(path, header, entry, cuts.get(name)))
        for name, held in self._held.items():
            _check_whole(name, held)

    def __getitem__(self, name: str) -> Tensor:
        first = self._held[name][0]
        return self.part(name, first.cut.axis, 0, first.cut.length) if first.cut else first.read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each whole tensor; nothing is read."""
        return {name: held[0].whole for name, held in self._held.items()}

    def part(self, name: str, axis: int, start: int, count: int) -> Tensor:
        """`count` entries of a tensor along an axis; only the pieces that have them are read."""
        held = self._held[name]
        if held[0].cut is None:
            return held[0].read().narrow(axis, start, count)
        cut = held[0].cut.axis
        if cut != axis:
            return self[name].narrow(axis, start, count)
        found = []
        for one in held:
            begin, end = max(start, one.start), min(start + count, one.start + one.entry.shape[axis])
            if begin < end:
                found.append(one.read().narrow(axis, begin - one.start, end - begin))
        if not found:
            return held[0].read().narrow(axis, 0, 0)
        return found[0] if len(found) == 1 else torch.cat(found, axis)

    def renamed(self, rename: Callable[[str], str]) -> "Pieces":
        """The same tensors under other names."""
        other = Pieces()
        other._held = {rename(name): held for name, held in self._held.items()}
        return other

    def like(self, name: str, target: Any) -> Tensor:
        """A tensor in the form of another of its shape: on its device and, where that is a piece, the same piece."""
        piece = piece_of(target)
        if piece.cut is None:
            value = self[name]
        else:
            count = piece.tensor.shape[piece.cut.axis]
            value = self.part(name, piece.cut.axis, piece.cut.start, count).contiguous()
        if not spread(target):
            return value.to(target.device)
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(
            value.to(piece.tensor.device),
            target.device_mesh,
            target.placements,
            run_check=False,
            shape=target.shape,
            stride=target.stride(),
        )


def _cuts(path: Path, header: Header) -> dict[str, Cut]:
    """Where the pieces of a file lie, as its metadata says."""
    try:
        table = json.loads(header.metadata.get(PIECES, "{}"))
        cuts = {name: Cut(*place) for name, place in table.items()}
        for name, (axis, start, length) in cuts.items():
            if not all(type(one) is int for one in (axis, start, length)):
                raise ValueError(f"{name} has an impossible place")
            size = header.tensors[name].shape[axis]
            if min(axis, start) < 0 or not start + size <= length < 1 << 62:
                raise ValueError(f"{name} has an impossible place")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise UserError(f"{path} is damaged: its list of pieces cannot be read: {error}") from None
    return cuts


def _check_whole(name: str, held: list[_Held]) -> None:
    """Refuse pieces that overlap, leave a gap or do not fit together, before memory is taken for the whole."""
    held.sort(key=lambda one: one.start)
    first = held[0]
    if first.cut is None and len(held) == 1:
        return
    at = 0
    for one in held:
        same = one.cut is not None and first.cut is not None and one.cut.axis == first.cut.axis
        if not same or one.whole != first.whole or one.entry.dtype != first.entry.dtype or one.start != at:
            raise UserError(f"{one.path} does not fit the other files beside it: the pieces of {name} are no whole")
        at += one.entry.shape[one.cut.axis] if one.cut else 0
    if first.cut is not None and at != first.cut.length:
        raise UserError(f"{held[-1].path} does not fit the other files beside it: the pieces of {name} are no whole")
