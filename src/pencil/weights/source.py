"""Tensors of a checkpoint, read one at a time: safetensors files, in one piece or in shards, memory-mapped."""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..files import read_json
from ..tensors import Entry, check_tensors
from .maps import Source

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
          "BOOL": torch.bool}  # fmt: skip
ONE_FILE = ("model.safetensors", "diffusion_pytorch_model.safetensors", "open_clip_pytorch_model.safetensors")
LARGEST_INDEX = 50_000_000


class FileSource(Source):
    """The tensors of some safetensors files; every header is checked before the first tensor is read."""

    def __init__(self, files: list[Path], index: dict[str, str] | None = None):
        self.files, self._open, self._stack = files, {}, ExitStack()
        self.entries: dict[str, tuple[Path, Entry]] = {}
        for path in files:
            for name, entry in check_tensors(path).tensors.items():
                if name in self.entries:
                    raise UserError(f"{name} is in two shards, {self.entries[name][0].name} and {path.name}")
                self.entries[name] = (path, entry)
        for name, file in (index or {}).items():
            if name not in self.entries:
                raise UserError(f"the index of this checkpoint has {name} in {file}, which does not hold it")

    @property
    def bytes(self) -> int:
        return sum(entry.end - entry.begin for _, entry in self.entries.values())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, (_, entry) in self.entries.items()}

    def dtypes(self) -> dict[str, torch.dtype]:
        for name, (path, entry) in self.entries.items():
            if entry.dtype not in DTYPES:
                raise UserError(f"{name} in {path} is {entry.dtype}, and weights are F32, F16 or BF16 here")
        return {name: DTYPES[entry.dtype] for name, (_, entry) in self.entries.items()}

    def read(self, name: str) -> Tensor:
        from safetensors import SafetensorError, safe_open

        path = self.entries[name][0]
        try:
            if path not in self._open:
                self._open[path] = self._stack.enter_context(safe_open(path, framework="pt"))
            return self._open[path].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None

    def close(self) -> None:
        self._stack.close()
        self._open.clear()

    def __enter__(self) -> "FileSource":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def safetensors_in(folder: Path) -> FileSource | None:
    """The safetensors of a folder: one file, or the shards that its index lists; None where there are none."""
    for index in sorted(folder.glob("*.safetensors.index.json")):
        places = read_json(index, LARGEST_INDEX).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
            raise UserError(f"{index} is damaged: it has no weight_map")
        for file in places.values():
            if not re.fullmatch(r"[\w.-]+\.safetensors", file):
                raise UserError(f"{index} names the file {file!r}, which is not a safetensors file beside it")
            if not (folder / file).is_file():
                raise UserError(f"{index} names {file}, which is not there: the copy of this checkpoint is not whole")
        return FileSource(sorted({folder / file for file in places.values()}), places)
    for name in ONE_FILE:
        if (folder / name).is_file():
            return FileSource([folder / name])
    found = sorted(folder.glob("*.safetensors"))
    if len(found) > 1:
        raise UserError(f"{folder} has {len(found)} safetensors files and no index that says how they belong together")
    return FileSource(found) if found else None
