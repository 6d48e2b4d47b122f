"""The one place that unpickles: .bin, .pt and .pth files, in a process of its own with limits on memory and time.

torch reads them with `weights_only`, which builds tensors and plain values and calls nothing else. What it reads is
written as safetensors, and everything after that reads those.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shutil import disk_usage
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..files import check_regular, limit_process, read_json
from ..tensors import torch_dtypes, write_tensors

ENDINGS = (".bin", ".pt", ".pth")
# where a file has its weights beside other things; those of the moving average are the ones a model is used with
PARTS = ("ema", "model", "state_dict", "model_state_dict", "module")
MEMORY = 1_500_000_000  # bytes, beside three times the size of the file
SECONDS, BYTES_A_SECOND = 60, 10_000_000
MOST_COPIES = 3  # of the file's bytes: a tied tensor stands in the result under each of its names
LARGEST_PICKLE = 200_000_000  # of the description of the tensors
DEEPEST, LONGEST = 16, 10_000  # of the values beside the tensors
MOST_VALUES = 100_000
WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from pencil.weights import pickled; "
    "pickled.work(*sys.argv[2:])"
)
OLD_FORMAT = "ask its author for safetensors"


class Refused(Exception):
    """Why a file is not read, to be put after its name."""


def unpickle(path: Path, out: Path, notify: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Write the tensors of a pickled file to a safetensors file; the plain values that are beside them."""
    size = check_regular(path).st_size
    needed, free = MOST_COPIES * size, disk_usage(out.parent).free
    if size > free:
        raise UserError(
            f"{path} has {size / 1e9:.1f} GB, and the temporary folder {out.parent.parent} has {free / 1e9:.1f} GB "
            "free; set TMPDIR to a folder with more"
        )
    notify(f"{path} is pickled: its tensors are read in a process of their own, and no code in it is run.")
    report, seconds = out.with_suffix(".json"), SECONDS + size // BYTES_A_SECOND
    arguments = [json.dumps(sys.path), str(path.resolve()), str(out), str(report), str(min(needed + 1_000_000, free))]
    try:
        done = subprocess.run(
            [sys.executable, "-c", WORKER, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{path} could not be read in {seconds} seconds; {OLD_FORMAT}") from None
    if not report.is_file():
        why = (done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UserError(f"{path} could not be read: the process that reads it failed ({why[:200]})")
    result = read_json(report)
    report.unlink()
    if "refused" in result:
        raise UserError(f"{path} {result['refused']}")
    if others := result["others"]:
        notify(f"Of {path} the part {result['part']} is read; it also has {', '.join(others[:8])}.")
    return result["values"]


def work(path: str, out: str, report: str, most: str) -> None:
    """What the other process does: limit itself, read, write; a refusal is its result too."""
    size = Path(path).stat().st_size
    limit_process(MOST_COPIES * size + MEMORY, SECONDS + size // BYTES_A_SECOND, int(most))
    try:
        result = _convert(Path(path), Path(out), size)
    except Refused as error:
        result = {"refused": str(error)}
    except MemoryError:
        result = {"refused": f"needs more memory than a checkpoint of its size may; {OLD_FORMAT}"}
    Path(report).write_text(json.dumps(result), encoding="utf-8")


def _convert(path: Path, out: Path, size: int) -> dict[str, Any]:
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"
    stored = _check_zip(path, size) if zipped else None
    content = _load(path, zipped)
    if not isinstance(content, Mapping):
        raise Refused(f"holds a {type(content).__name__}, not tensors by name")
    part, tensors = _tensors_of(content)
    if stored is not None:
        _check_storages(content, stored)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if total > MOST_COPIES * size:
        raise Refused(f"has {size / 1e6:.1f} MB, and its tensors would take {total / 1e6:,.1f} MB: it is damaged")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    try:
        write_tensors(out, shapes, dtypes, tensors.items(), {"format": "pt"})
    except OSError as error:
        raise Refused(f"cannot be converted: {error.strerror} ({out.parent})") from None
    rest = {} if part == "" else {name: value for name, value in content.items() if name != part}
    left = [MOST_VALUES]
    plain = {
        str(name): plain_value for name, value in rest.items() if (plain_value := _plain(value, left)) is not _DROPPED
    }
    return {"values": plain, "part": part, "others": [str(name) for name in rest if str(name) not in plain]}


def _check_zip(path: Path, size: int) -> list[int]:
    """The sizes of the storages in a zip file, each as it is declared: stored, within the file, with its checksum."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if any("/code/" in one.filename for one in entries):
                raise Refused(f"holds code (TorchScript), which is not run: {OLD_FORMAT}")
            if any(one.compress_type != zipfile.ZIP_STORED or one.flag_bits & 1 for one in entries):
                raise Refused("is a compressed archive, which torch.save does not write")
            if sum(one.file_size for one in entries) > size:
                raise Refused("declares more bytes than it has: it is damaged")
            if any(one.file_size > LARGEST_PICKLE for one in entries if one.filename.endswith(".pkl")):
                raise Refused(f"describes its tensors in more than {LARGEST_PICKLE / 1e6:.0f} MB: it is damaged")
            if bad := archive.testzip():
                raise Refused(f"is damaged: the checksum of {bad} is wrong")
            return sorted(one.file_size for one in entries if re.search(r"/data/[^/]+$", one.filename))
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError):
        raise Refused("is damaged, or was not copied to its end") from None


def _load(path: Path, zipped: bool) -> Any:
    try:
        # a Namespace only holds attributes; training scripts keep their options in one
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except MemoryError:
        raise
    except Exception as error:  # torch raises many kinds
        text = str(error)
    if name := re.search(r"GLOBAL ([\w.]+\w) (?:was not|whose)", text):
        raise Refused(f"holds code ({name[1]}), which is not run: {OLD_FORMAT}")
    if "alloc" in text and "memory" in text:
        raise MemoryError
    raise Refused("is damaged, or is not a file that torch.save wrote")


def _tensors_of(content: Mapping[Any, Any]) -> tuple[str, dict[str, Tensor]]:
    """The weights of a file, and under which name it has them; the empty name if the file is nothing else."""
    dtypes = set(torch_dtypes().values())
    for part in ("", *PARTS):
        table = content if part == "" else content.get(part)
        if not isinstance(table, Mapping) or not any(isinstance(value, Tensor) for value in table.values()):
            continue
        tensors = {name: value for name, value in table.items() if isinstance(value, Tensor)}
        if part == "" and len(tensors) < len(content) and any(isinstance(content.get(one), Mapping) for one in PARTS):
            continue  # single tensors beside the weights, such as a loss
        for name, value in table.items():
            if not isinstance(name, str) or not isinstance(value, Tensor):
                raise Refused(f"has {name!r} among its weights, which is {type(value).__name__} and not a tensor")
            if value.layout != torch.strided or value.is_quantized or value.dtype not in dtypes or value.is_meta:
                raise Refused(f"has {name}, a {value.layout} tensor of {value.dtype}, which cannot be converted")
        return part, tensors
    raise Refused("holds no table of tensors by name, alone or as " + ", ".join(PARTS))


def _check_storages(content: object, stored: list[int]) -> None:
    """Refuse tensors whose memory is not what the file has for them: torch does not compare the two."""
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors_in(content)}
    if sorted(size for size in sizes.values() if size) != [size for size in stored if size]:
        raise Refused("is damaged: its tensors are not of the sizes that it stores")


def _tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor of a value, however deep; what is in it several times is looked at once."""
    waiting, seen = [value], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, argparse.Namespace):
            waiting.append(vars(one))
        elif isinstance(one, Mapping | list | tuple | set):
            waiting += one.values() if isinstance(one, Mapping) else one


_DROPPED = object()


def _plain(value: Any, left: list[int], depth: int = 0) -> Any:
    """A value as JSON has it, within as many values as are `left`; tensors, and what holds them, are dropped."""
    left[0] -= 1
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) < LONGEST):
        return value
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return value.item()
    if depth == DEEPEST or not isinstance(value, Mapping | list | tuple) or len(value) > max(left[0], 0):
        return _DROPPED
    if isinstance(value, Mapping):
        plain = {str(name): _plain(one, left, depth + 1) for name, one in value.items()}
        return _DROPPED if any(one is _DROPPED for one in plain.values()) else plain
    items = [_plain(one, left, depth + 1) for one in value]
    return _DROPPED if any(one is _DROPPED for one in items) else items
