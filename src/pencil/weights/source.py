"""Tensors of a checkpoint, read one at a time: safetensors files, in one piece or in shards."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..tensors import Entry, check_tensors, map_file, tensor_in, torch_dtypes
from .maps import Source


class FileSource(Source):
    """The tensors of some safetensors files; every header is checked before the first tensor is read."""

    def __init__(self, files: list[Path], index: dict[str, str] | None = None):
        self.files = files
        self.values: dict[str, Any] = {}  # what a pickled file holds beside its tensors
        self.entries: dict[str, tuple[Path, int, Entry]] = {}
        self.temporary: TemporaryDirectory[str] | None = None  # with the tensors of pickled files
        for path in files:
            header = check_tensors(path)
            for name, entry in header.tensors.items():
                if name in self.entries:
                    raise UserError(f"{name} is in two shards, {self.entries[name][0].name} and {path.name}")
                self.entries[name] = (path, header.start, entry)
        for name, file in (index or {}).items():
            if name not in self.entries:
                raise UserError(f"the index of this checkpoint has {name} in {file}, which does not hold it")

    @property
    def bytes(self) -> int:
        return sum(entry.end - entry.begin for _, _, entry in self.entries.values())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, (_, _, entry) in self.entries.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        for name, (path, _, entry) in self.entries.items():
            if entry.dtype.startswith("F8"):
                raise UserError(f"{name} in {path} is {entry.dtype}, and weights are F32, F16 or BF16 here")
        return {name: torch_dtypes()[entry.dtype] for name, (_, _, entry) in self.entries.items()}

    def read(self, name: str) -> Tensor:
        """One tensor, mapped: it takes memory only while it is used."""
        path, start, entry = self.entries[name]
        return tensor_in(map_file(path), start, entry)

    def close(self) -> None:
        if self.temporary is not None:
            self.temporary.cleanup()

    def __enter__(self) -> "FileSource":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
