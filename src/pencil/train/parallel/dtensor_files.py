"""DTensors, which are cut among processes: each writes its own piece, and they are read back in other pieces.

A piece is a part of a tensor along one axis. The metadata of its file says where it lies in the whole.

A tensor that is cut among processes is saved in pieces. Each process writes one safetensors file with what it has; the
file's metadata says where each piece lies along one axis of the whole. The writer adds the manifest when all have
flushed theirs. `Pieces` reads any part of a tensor from the files that have it, so a checkpoint has no world size: one
process, or another number of them, reads it as its own. What fails on one process is known to all
(`collectives/processes.py`).
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


def to_local(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this process has, in the same memory; of any other tensor all of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # pyright: ignore


def is_dtensor(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor: each process has its own piece of it."""
    return hasattr(tensor, "device_mesh")


def piece_of(tensor: Any) -> Piece:
    """What this process has of a tensor."""
    if not is_dtensor(tensor):
        return Piece(tensor.detach(), None)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    whole, local = tuple(tensor.shape), tensor.detach().to_local()
    shape, offset = compute_local_shape_and_global_offset(whole, tensor.device_mesh, tensor.placements)
    axes = [axis for axis, size in enumerate(whole) if shape[axis] != size]
    if len(axes) > 1 or any(placement.is_partial() for placement in tensor.placements):
        raise NotImplementedError(f"a tensor of shape {whole} that is cut along several axes: {tensor.placements}")
    if not axes:
        return Piece(local, None)
    return Piece(local, Cut(axes[0], offset[axes[0]], whole[axes[0]]))


def own_pieces(tensors: Mapping[str, Tensor], is_rank0: bool) -> dict[str, Piece]:
    """What this process writes: its pieces; rank 0 also what every process has."""
    pieces = {}
    for name, tensor in tensors.items():
        piece = piece_of(tensor)
        if (piece.tensor.numel() and _writes(tensor, is_rank0)) or (is_rank0 and not tensor.numel()):
            pieces[name] = piece
    return pieces


def _writes(tensor: Any, is_rank0: bool) -> bool:
    """Whether of all processes with the same values this is the one that writes them."""
    if not is_dtensor(tensor) or not any(placement.is_shard() for placement in tensor.placements):
        return is_rank0
    coordinate = tensor.device_mesh.get_coordinate()
    return coordinate is not None and not any(
        at for at, placement in zip(coordinate, tensor.placements, strict=True) if placement.is_replicate()
    )


class HostCopy:
    """Copies tensors to the memory of the host, so that training may change them while they are written.

    On CUDA the memory is pinned and kept for the next copy: the copies then run beside the computation.
    """

    def __init__(self) -> None:
        self.pinned: dict[str, Tensor] = {}

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
        buffer = self.pinned.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = self.pinned[name] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return buffer


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


class _StoredPiece(NamedTuple):
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
        self._stored: dict[str, list[_StoredPiece]] = {}
        for path in paths:
            header = check_tensors(path)
            cuts = _read_cuts(path, header)
            for name, entry in header.tensors.items():
                self._stored.setdefault(name, []).append(_StoredPiece(path, header, entry, cuts.get(name)))
        for name, pieces in self._stored.items():
            _check_whole(name, pieces)

    def __getitem__(self, name: str) -> Tensor:
        first = self._stored[name][0]
        return self.part(name, first.cut.axis, 0, first.cut.length) if first.cut else first.read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each whole tensor; nothing is read."""
        return {name: pieces[0].whole for name, pieces in self._stored.items()}

    def part(self, name: str, axis: int, start: int, count: int) -> Tensor:
        """`count` entries of a tensor along an axis; only the pieces that have them are read."""
        pieces = self._stored[name]
        if pieces[0].cut is None:
            return pieces[0].read().narrow(axis, start, count)
        cut = pieces[0].cut.axis
        if cut != axis:
            return self[name].narrow(axis, start, count)
        overlaps = []
        for piece in pieces:
            begin, end = max(start, piece.start), min(start + count, piece.start + piece.entry.shape[axis])
            if begin < end:
                overlaps.append(piece.read().narrow(axis, begin - piece.start, end - begin))
        if not overlaps:
            return pieces[0].read().narrow(axis, 0, 0)
        return overlaps[0] if len(overlaps) == 1 else torch.cat(overlaps, axis)

    def renamed(self, rename: Callable[[str], str]) -> "Pieces":
        """The same tensors under other names."""
        other = Pieces()
        other._stored = {rename(name): pieces for name, pieces in self._stored.items()}
        return other

    def like(self, name: str, target: Any) -> Tensor:
        """A tensor in the form of another of its shape: on its device and, where that is a piece, the same piece."""
        piece = piece_of(target)
        if piece.cut is None:
            value = self[name]
        else:
            count = piece.tensor.shape[piece.cut.axis]
            value = self.part(name, piece.cut.axis, piece.cut.start, count).contiguous()
        if not is_dtensor(target):
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


def _read_cuts(path: Path, header: Header) -> dict[str, Cut]:
    """Where the pieces of a file lie in the whole tensors, by the metadata of the file."""
    try:
        table = json.loads(header.metadata.get(PIECES, "{}"))
        cuts = {name: Cut(*place) for name, place in table.items()}
        for name, (axis, start, length) in cuts.items():
            if not all(type(number) is int for number in (axis, start, length)):
                raise ValueError(f"{name} has an impossible place")
            size = header.tensors[name].shape[axis]
            if min(axis, start) < 0 or not start + size <= length < 1 << 62:
                raise ValueError(f"{name} has an impossible place")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise UserError(f"{path} is damaged: its list of pieces cannot be read: {error}") from None
    return cuts


def _check_whole(name: str, pieces: list[_StoredPiece]) -> None:
    """Refuse pieces that overlap, leave a gap or do not fit together, before memory is taken for the whole."""
    pieces.sort(key=lambda piece: piece.start)
    first = pieces[0]
    if first.cut is None and len(pieces) == 1:
        return
    at = 0
    for piece in pieces:
        same = piece.cut is not None and first.cut is not None and piece.cut.axis == first.cut.axis
        if not same or piece.whole != first.whole or piece.entry.dtype != first.entry.dtype or piece.start != at:
            raise UserError(f"{piece.path} does not fit the other files beside it: the pieces of {name} are no whole")
        at += piece.entry.shape[piece.cut.axis] if piece.cut else 0
    if first.cut is not None and at != first.cut.length:
        raise UserError(f"{pieces[-1].path} does not fit the other files beside it: the pieces of {name} are no whole")
