"""Checkpoints: written aside, flushed, renamed; verified by a manifest; at least two kept; nothing is unpickled."""

import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ...collectives.processes import World, on_all_ranks, world
from ...config import UserError
from ...files import entry_of, fingerprint, flush_folder, matches, parse_json, read_bytes, read_json, write_flushed
from ...runs.manifest import Fault, Manifest, list_checkpoints
from ..parallel.shards import Cut, Pieces, write_file

SHARD_BYTES = 2 << 30
# the names in a checkpoint's folder; hidden ones are of file managers
FILES = r"manifest\.json|state\.json|shard-\d{5,}\.safetensors|\..*"
NO_MANIFEST = (ValueError, KeyError, TypeError, AttributeError)  # UserError among them: what reading a bad one raises


class Found(NamedTuple):
    """A folder in checkpoints/ whose manifest can be read; `step` is the manifest's, whatever the folder is called."""

    step: int
    folder: Path
    files: dict[str, dict[str, Any]]
    sha256: str  # of the manifest


class Checkpoint(NamedTuple):
    """Where a run stood after `step` updates."""

    step: int
    folder: Path
    tensors: Pieces
    state: dict[str, Any]
    sha256: str  # of the manifest


def folder_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def write(
    run: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    keep: int = 2,
    cuts: Mapping[str, Cut] | None = None,
    group: Any = None,
) -> Path:
    """Keep this step; the others are untouched until it stands, then all but the newest `keep` up to it go.

    With several processes each gives its own tensors, with `cuts` where they are pieces, and writes them to a file of
    its own. Rank 0 adds the state and the manifest when all of them are flushed: without a manifest in its place
    there is no checkpoint. `group` is the one by which they tell one another so.
    """
    final, here = folder_of(run, step), world()
    aside = final.with_name(f".tmp-{uuid.uuid4().hex}")
    try:
        name = on_all_ranks(lambda: _make(aside) if here.is_rank0 else None, group)[0]
        files: dict[str, Any] = {}
        for written in on_all_ranks(lambda: _write_shards(final.with_name(name), tensors, cuts, here), group):
            files |= written
        on_all_ranks(lambda: _commit(run, step, aside, files, state, keep) if here.is_rank0 else None, group)
    except BaseException:
        if here.is_rank0:
            shutil.rmtree(aside, ignore_errors=True)
        raise
    return final


def _make(aside: Path) -> str:
    aside.parent.mkdir(exist_ok=True)  # never the run itself, which may have been renamed
    aside.mkdir()
    return aside.name


def _write_shards(
    folder: Path, tensors: Mapping[str, Tensor], cuts: Mapping[str, Cut] | None, here: World
) -> dict[str, Any]:
    """This process's files, flushed: size and SHA-256 of each by its name. One process cuts large ones by size."""
    files, pieces = {}, cuts is not None
    for number, shard in enumerate([tensors] if pieces else _shards(tensors)):
        if shard or (here.is_rank0 and not pieces):
            path = folder / f"shard-{here.rank if pieces else number:05d}.safetensors"
            write_file(path, shard, cuts)
            files[path.name] = fingerprint(path)
    return files


def _commit(run: Path, step: int, aside: Path, files: dict[str, Any], state: Mapping[str, Any], keep: int) -> None:
    """Add the state, then the manifest, and give the folder its name."""
    final, path = folder_of(run, step), aside / "state.json"
    write_flushed(path, json.dumps({"step": step, **state}, indent=1).encode())
    listed = dict(sorted({**files, path.name: fingerprint(path)}.items()))
    write_flushed(aside / "manifest.json", json.dumps({"step": step, "files": listed}, indent=1).encode())
    flush_folder(aside)
    if os.path.lexists(final):
        listed = _listed(run)
        list_checkpoints(run, {n: sha for n, sha in listed.items() if n != step})
        if _written_here(final, listed):
            _remove(final)
        else:  # of somebody else: verify and resume name it
            final.rename(final.with_name(f"{final.name}-{uuid.uuid4().hex[:8]}"))
    aside.rename(final)
    flush_folder(final.parent)
    _prune(run, step, keep)


def _prune(run: Path, step: int, keep: int) -> None:
    """List what is kept in the run's manifest, then remove the others: what is listed is always there.

    A later step than the one just written is damaged, or of a course not taken: it must not crowd out a whole one.
    """
    whole, _ = find(run)
    own = [found for found in whole if found.folder == folder_of(run, found.step)]
    kept = [found for found in own if found.step <= step][:keep]
    # what was listed before is carried forward, never hashed anew
    before = _listed(run)
    listed = {n: sha for n, sha in before.items() if n != step}
    list_checkpoints(
        run,
        {found.step: found.sha256 for found in kept}
        | {found.step: listed[found.step] for found in kept if found.step in listed},
    )
    folder = run / "checkpoints"
    for old in folder.glob("step-*"):
        if old not in [found.folder for found in kept] and _written_here(old, before):
            _remove(old)
    for stale in folder.glob(".tmp-*"):
        if re.fullmatch(r"\.tmp-[0-9a-f]{32}", stale.name):
            shutil.rmtree(stale, ignore_errors=True)  # which follows no link


def _written_here(folder: Path, listed: Mapping[int, str]) -> bool:
    """Whether a folder is a checkpoint that was written under this name, and holds nothing else.

    It has the manifest of a checkpoint of this step, where a copy under another name has that of another; where that is
    damaged, the run's manifest lists its step.
    """
    name = re.fullmatch(r"step-(\d{8,})", folder.name)
    if name is None or folder.is_symlink() or not folder.is_dir():
        return False
    if not all(re.fullmatch(FILES, path.name) and path.is_file() for path in folder.iterdir()):
        return False
    try:
        return _found(folder, folder / "manifest.json").step == int(name[1])
    except NO_MANIFEST:
        return int(name[1]) in listed


def _listed(run: Path) -> dict[int, str]:
    manifest = Manifest.read(run)
    return (manifest.checkpoints if manifest else None) or {}


def _shards(tensors: Mapping[str, Tensor]):
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


def find(run: Path) -> tuple[list[Found], list[Fault]]:
    """The checkpoints of a run by their manifests, newest first, and what is no checkpoint among them."""
    found, faults = [], []
    for folder in sorted((run / "checkpoints").glob("[!.]*")):
        path, fault = folder / "manifest.json", None
        if not folder.is_dir():
            fault = Fault(folder, "foreign", "is no checkpoint")
        elif not path.exists():
            fault = Fault(path, "missing", "is missing")
        else:
            try:
                found.append(_found(folder, path))
            except NO_MANIFEST as error:
                why = str(error).removeprefix(f"{path} ") if isinstance(error, UserError) else "is damaged"
                fault = Fault(path, "damaged", why)
        if fault is not None and os.path.lexists(folder):  # else a training has pruned it since it was listed here
            faults.append(fault)
    # of two with one step, the one under its own name comes first
    found.sort(key=lambda one: (one.step, one.folder == folder_of(run, one.step)), reverse=True)
    return found, faults


def survey(run: Path) -> tuple[list[Found], list[Fault], list[Fault]]:
    """What `find` finds, and what the run's manifest lists otherwise, at one moment of a training that goes on.

    A checkpoint is listed after it stands, and removed after it was unlisted. So what is listed is there, if the list
    is the same before and after looking.
    """
    while True:
        listed = _listed(run)
        found, strange = find(run)
        if _listed(run) == listed:
            return found, strange, compare_with_run(run, found, listed)


def pruned(run: Path, found: Found) -> bool:
    """Whether a checkpoint that was found has been removed by a training since: its run does not list it any more."""
    return not os.path.lexists(found.folder) and found.step not in _listed(run)


def _found(folder: Path, path: Path) -> Found:
    content = read_bytes(path)
    manifest = parse_json(content, str(path))
    files = {str(name): dict(entry) for name, entry in manifest["files"].items()}
    if type(manifest["step"]) is not int or set(manifest) != {"step", "files"} or "state.json" not in files:
        raise ValueError
    return Found(manifest["step"], folder, files, entry_of(content)["sha256"])


def saved(run: Path) -> list[int]:
    """The steps that have a checkpoint, oldest first."""
    return sorted({found.step for found in find(run)[0]})


def faults_of(found: Found) -> list[Fault]:
    """What is wrong with the files of a checkpoint: each is compared with the manifest."""
    try:
        return _compared(found)
    except (OSError, UserError) as error:
        if not os.path.lexists(found.folder):
            return [Fault(found.folder, "missing", "is missing or cannot be read")]
        why = getattr(error, "strerror", None) or error
        return [Fault(found.folder, "damaged", f"cannot be read: {why}")]


def _compared(found: Found) -> list[Fault]:
    folder, faults = found.folder, []
    there = {path.name for path in folder.iterdir()} - {"manifest.json"}
    for name in sorted(there | set(found.files)):
        if name not in found.files:
            faults.append(Fault(folder / name, "foreign", "is not part of this checkpoint"))
        elif name not in there:
            faults.append(Fault(folder / name, "missing", "is missing"))
        elif not (folder / name).is_file() or not matches(folder / name, found.files[name]):
            faults.append(Fault(folder / name, "damaged", "is damaged: it does not match its manifest"))
    return faults


def state_of(found: Found) -> dict[str, Any] | None:
    """What a checkpoint records of the run besides tensors; None if that file is damaged."""
    path = found.folder / "state.json"
    if not path.is_file() or not matches(path, found.files["state.json"]):
        return None
    return read_json(path)


def read(run: Path, step: int, checked: str = "") -> Checkpoint:
    """One checkpoint, every file of it checked against its manifest first.

    Where another process has checked them, `checked` is the SHA-256 of the manifest that it read.
    """
    for found in find(run)[0]:
        if found.step == step and (not checked or found.sha256 == checked):
            return _read(found, bool(checked))
    raise UserError(f"{run} has no checkpoint of step {step}{' like that of rank 0' if checked else ''}")


def _read(found: Found, checked: bool = False) -> Checkpoint:
    for fault in () if checked else faults_of(found):
        raise UserError(str(fault))
    state = read_json(found.folder / "state.json")
    if state.get("step") != found.step:
        raise UserError(str(mixed(found, state)))
    shards = [found.folder / name for name in sorted(found.files) if name.endswith(".safetensors")]
    return Checkpoint(found.step, found.folder, Pieces(shards), state, found.sha256)


def mixed(found: Found, state: dict[str, Any]) -> Fault:
    """A manifest and a state of different steps."""
    why = f"is of step {found.step}, and state.json beside it of step {state.get('step')}"
    return Fault(found.folder / "manifest.json", "damaged", why)


def latest(run: Path, foreign: bool = False) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and what was wrong with newer ones; refused if all are damaged.

    One that the run did not write is refused, unless `foreign` ones may be used.
    """
    found, strange, listed = survey(run)
    faults = [str(fault) for fault in [*strange, *listed]]
    for one in found:
        if not foreign and (wrong := [f for f in listed if f.path == one.folder and f.kind == "foreign"]):
            raise UserError(f"{wrong[0]}; put back the run's own, or take the folder away")
        try:
            return _read(one), faults
        except UserError as error:
            faults.append(str(error))
    if faults:
        raise UserError(f"no checkpoint of {run} is whole: {faults[0]}")
    return None, faults


def compare_with_run(run: Path, found: list[Found], listed: Mapping[int, str]) -> list[Fault]:
    """Checkpoints that the run's manifest lists and that are not there, or not as they were written; renamed ones."""
    faults = []
    for step, sha in listed.items():
        of_step = [one for one in found if one.step == step]
        if not of_step:
            faults.append(Fault(folder_of(run, step), "missing", "is missing or cannot be read"))
        for one in of_step:
            if one.sha256 != sha and faults_of(one):
                why = "is damaged or was changed: it does not match the run's manifest.json"
                faults.append(Fault(one.folder / "manifest.json", "damaged", why))
            elif one.sha256 != sha:
                faults.append(Fault(one.folder, "foreign", "is not the checkpoint that this run wrote"))
    for one in found:
        if one.folder != folder_of(run, one.step):
            faults.append(
                Fault(one.folder, "renamed", f"was renamed: by its manifest it is the one of step {one.step}")
            )
    return faults
