"""Checkpoints: written aside, flushed, renamed; verified by a manifest; at least two kept; nothing is unpickled."""

import json
import shutil
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save
from torch import Tensor

from ..config import UserError
from ..files import fingerprint, flush_folder, write_flushed
from ..runs import read_tensors

SHARD_BYTES = 2 << 30


class Checkpoint(NamedTuple):
    """Where a run stood after `step` updates."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def folder_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def write(run: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any], keep: int = 2) -> Path:
    """Keep this step; the others are untouched until it stands, then all but the newest `keep` up to it go."""
    final = folder_of(run, step)
    aside = final.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        aside.mkdir(parents=True)
        for number, shard in enumerate(_shards(tensors)):
            content = save({n: t.detach().cpu().contiguous() for n, t in shard.items()}, {"format": "pt"})
            write_flushed(aside / f"shard-{number:05d}.safetensors", content)
        write_flushed(aside / "state.json", json.dumps({"step": step} | state, indent=1).encode())
        files = {path.name: fingerprint(path) for path in sorted(aside.iterdir())}
        write_flushed(aside / "manifest.json", json.dumps({"step": step, "files": files}, indent=1).encode())
        flush_folder(aside)
        if final.exists():
            _remove(final)
        aside.rename(final)
        flush_folder(final.parent)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    # a later step than the one just written is damaged, or of a course not taken: it must not crowd out a whole one
    steps = saved(run)
    here = steps.index(step) + 1
    for old in steps[: max(0, here - keep)] + steps[here:]:
        _remove(folder_of(run, old))
    for stale in final.parent.glob(".tmp-*"):
        shutil.rmtree(stale, ignore_errors=True)
    return final


def _shards(tensors: dict[str, Tensor]):
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if shard and size + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    yield shard


def _remove(folder: Path) -> None:
    """Gone at once under its own name, so that half a removal is never read."""
    aside = folder.with_name(f".tmp-{uuid.uuid4().hex}")
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def saved(run: Path) -> list[int]:
    """The steps that have a checkpoint, oldest first."""
    found = (run / "checkpoints").glob("step-*")
    return sorted(int(p.name.removeprefix("step-")) for p in found if p.name.removeprefix("step-").isdigit())


def read(run: Path, step: int) -> Checkpoint:
    """One checkpoint, every file of it checked against its manifest first."""
    folder = folder_of(run, step)
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        files = {str(name): dict(entry) for name, entry in manifest["files"].items()}
        if manifest["step"] != step:
            raise UserError(f"{folder} carries the manifest of step {manifest['step']}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{folder / 'manifest.json'} cannot be read: {error}") from None
    found = {p.name for p in folder.iterdir()} - {"manifest.json"}
    for name in sorted(found ^ set(files)):
        raise UserError(f"{folder / name} is {'missing' if name in files else 'not part of this checkpoint'}")
    for name, entry in files.items():
        if fingerprint(folder / name) != entry:
            raise UserError(f"{folder / name} is damaged: it does not match its manifest")
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    tensors: dict[str, Tensor] = {}
    for name in sorted(files):
        if name.endswith(".safetensors"):
            tensors |= read_tensors(folder / name)
    return Checkpoint(step, tensors, state)


def latest(run: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and what was wrong with newer ones; refused if all are damaged."""
    faults = []
    for step in reversed(saved(run)):
        try:
            return read(run, step), faults
        except UserError as error:
            faults.append(str(error))
    if faults:
        raise UserError(f"no checkpoint of {run} is whole: {faults[0]}")
    return None, faults
