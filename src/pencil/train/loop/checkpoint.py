"""Checkpoints: written aside, flushed, renamed; verified by a manifest; at least two kept; nothing is unpickled.

A checkpoint is written aside, flushed, renamed, and its parent flushed; its manifest has the size and SHA-256 of every
file. At least two are kept. A damaged one is refused by name and the one before is used. Nothing is unpickled. It is
written by a thread (`train/loop/checkpointer.py`) from a copy in the host's memory, so that a step waits for the copy
only; the next save and every exit wait for the thread.

They are not written by `torch.distributed.checkpoint`, which does not keep these promises (measured with torch 2.13,
shards of three processes). It reshards to the same bits, but its own format has its plan in a pickle, and a payload put
there was executed by loading; its ranks exchange their plans as pickles too. Its safetensors format has no pickle, but
builds each shard in memory before it writes it (256 MiB more for a shard of 256 MiB; here one tensor at a time is
written, with no copy of the file), and does not record the shapes of the whole tensors: with the first shard missing it
loaded other values and raised nothing. Neither has digests: of 200 flipped bits 198 and 200 were loaded as other
values. Both flush their files, but not the folder, and write in place. The commit, the digests and the check that
pieces make a whole would still be ours, and so would the reader of the checkpoints that runs already have.
"""

import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from ...collectives.processes import World, on_all_ranks, world
from ...config import UserError
from ...files import entry_of, fingerprint, flush_folder, matches, parse_json, read_bytes, read_json, write_flushed
from ...runs.files import Fault, Manifest, list_checkpoints
from ..parallel.dtensor_files import Cut, Pieces, write_file

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

SHARD_BYTES = 2 << 30
# the names in a checkpoint's folder; hidden ones are of file managers
FILE_NAMES = r"manifest\.json|state\.json|shard-\d{5,}\.safetensors|\..*"
# reading a damaged manifest raises these, UserError among them
MANIFEST_ERRORS = (ValueError, KeyError, TypeError, AttributeError)


class CheckpointFolder(NamedTuple):
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
    group: "ProcessGroup | None" = None,
) -> Path:
    """Write the checkpoint of a step; only when it is complete, all but the newest `keep` up to it are removed.

    With several processes each gives its own tensors, with `cuts` where they are pieces, and writes them to a file of
    its own. Rank 0 adds the state and the manifest when all of them are flushed: without a manifest in its place
    there is no checkpoint. `group` is the process group of the threads that write.
    """
    final, here = folder_of(run, step), world()
    aside = final.with_name(f".tmp-{uuid.uuid4().hex}")

    def create_folder() -> str:
        if here.is_rank0:
            aside.parent.mkdir(exist_ok=True)  # never the run itself, which may have been renamed
            aside.mkdir()
        return aside.name

    try:
        name = on_all_ranks(create_folder, group)[0]
        files: dict[str, Any] = {}
        for written in on_all_ranks(lambda: _write_shards(final.with_name(name), tensors, cuts, here), group):
            files |= written
        on_all_ranks(lambda: _commit(run, step, aside, files, state, keep) if here.is_rank0 else None, group)
    except BaseException:
        if here.is_rank0:
            shutil.rmtree(aside, ignore_errors=True)
        raise
    return final


def _write_shards(
    folder: Path, tensors: Mapping[str, Tensor], cuts: Mapping[str, Cut] | None, here: World
) -> dict[str, Any]:
    """This process's files, flushed: size and SHA-256 of each by its name. One process cuts large ones by size."""
    files, pieces = {}, cuts is not None
    for number, shard in enumerate([tensors] if pieces else _split_shards(tensors)):
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
        listed = _listed_steps(run)
        list_checkpoints(run, {n: sha for n, sha in listed.items() if n != step})
        if _written_here(final, listed):
            _remove(final)
        else:  # it is of another run, and stays: verify and resume name it
            final.rename(final.with_name(f"{final.name}-{uuid.uuid4().hex[:8]}"))
    aside.rename(final)
    flush_folder(final.parent)
    _prune(run, step, keep)


def _prune(run: Path, step: int, keep: int) -> None:
    """List what is kept in the run's manifest, then remove the others: what is listed is always there.

    A later step than the one just written is damaged, or of a course not taken: it must not crowd out a whole one.
    """
    whole, _ = find(run)
    own = [stored for stored in whole if stored.folder == folder_of(run, stored.step)]
    newest = [stored for stored in own if stored.step <= step][:keep]
    # what was listed before is carried forward, never hashed anew
    before = _listed_steps(run)
    listed = {n: sha for n, sha in before.items() if n != step}
    list_checkpoints(
        run,
        {stored.step: stored.sha256 for stored in newest}
        | {stored.step: listed[stored.step] for stored in newest if stored.step in listed},
    )
    folder = run / "checkpoints"
    for old in folder.glob("step-*"):
        if old not in [stored.folder for stored in newest] and _written_here(old, before):
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
    if not all(re.fullmatch(FILE_NAMES, path.name) and path.is_file() for path in folder.iterdir()):
        return False
    try:
        return _read_manifest(folder, folder / "manifest.json").step == int(name[1])
    except MANIFEST_ERRORS:
        return int(name[1]) in listed


def _listed_steps(run: Path) -> dict[int, str]:
    manifest = Manifest.read(run)
    return (manifest.checkpoints if manifest else None) or {}


def _split_shards(tensors: Mapping[str, Tensor]):
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
    """Remove a folder: it is renamed first, so that one that is half removed is never read."""
    aside = folder.with_name(f".tmp-{uuid.uuid4().hex}")
    folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def find(run: Path) -> tuple[list[CheckpointFolder], list[Fault]]:
    """The checkpoints of a run by their manifests, newest first, and what is no checkpoint among them."""
    checkpoints, faults = [], []
    for folder in sorted((run / "checkpoints").glob("[!.]*")):
        path, fault = folder / "manifest.json", None
        if not folder.is_dir():
            fault = Fault(folder, "foreign", "is no checkpoint")
        elif not path.exists():
            fault = Fault(path, "missing", "is missing")
        else:
            try:
                checkpoints.append(_read_manifest(folder, path))
            except MANIFEST_ERRORS as error:
                why = str(error).removeprefix(f"{path} ") if isinstance(error, UserError) else "is damaged"
                fault = Fault(path, "damaged", why)
        if fault is not None and os.path.lexists(folder):  # else a training has pruned it since it was listed here
            faults.append(fault)
    # of two with one step, the one under its own name comes first
    checkpoints.sort(key=lambda stored: (stored.step, stored.folder == folder_of(run, stored.step)), reverse=True)
    return checkpoints, faults


def survey(run: Path) -> tuple[list[CheckpointFolder], list[Fault], list[Fault]]:
    """The result of `find`, and how the run's manifest differs from it, at one moment of a training that goes on.

    A checkpoint is listed after it stands, and removed after it was unlisted. So what is listed is there, if the list
    is the same before and after looking.
    """
    while True:
        listed = _listed_steps(run)
        checkpoints, faults = find(run)
        if _listed_steps(run) == listed:
            return checkpoints, faults, compare_with_run(run, checkpoints, listed)


def was_pruned(run: Path, stored: CheckpointFolder) -> bool:
    """Whether a checkpoint that was found has been removed by a training since: its run does not list it any more."""
    return not os.path.lexists(stored.folder) and stored.step not in _listed_steps(run)


def _read_manifest(folder: Path, path: Path) -> CheckpointFolder:
    content = read_bytes(path)
    manifest = parse_json(content, str(path))
    files = {str(name): dict(entry) for name, entry in manifest["files"].items()}
    if type(manifest["step"]) is not int or set(manifest) != {"step", "files"} or "state.json" not in files:
        raise ValueError
    return CheckpointFolder(manifest["step"], folder, files, entry_of(content)["sha256"])


def saved_steps(run: Path) -> list[int]:
    """The steps that have a checkpoint, oldest first."""
    return sorted({stored.step for stored in find(run)[0]})


def faults_of(stored: CheckpointFolder) -> list[Fault]:
    """What is wrong with the files of a checkpoint: each is compared with the manifest."""
    try:
        return _compare_with_manifest(stored)
    except (OSError, UserError) as error:
        if not os.path.lexists(stored.folder):
            return [Fault(stored.folder, "missing", "is missing or cannot be read")]
        why = getattr(error, "strerror", None) or error
        return [Fault(stored.folder, "damaged", f"cannot be read: {why}")]


def _compare_with_manifest(stored: CheckpointFolder) -> list[Fault]:
    folder, faults = stored.folder, []
    there = {path.name for path in folder.iterdir()} - {"manifest.json"}
    for name in sorted(there | set(stored.files)):
        if name not in stored.files:
            faults.append(Fault(folder / name, "foreign", "is not part of this checkpoint"))
        elif name not in there:
            faults.append(Fault(folder / name, "missing", "is missing"))
        elif not (folder / name).is_file() or not matches(folder / name, stored.files[name]):
            faults.append(Fault(folder / name, "damaged", "is damaged: it does not match its manifest"))
    return faults


def state_of(stored: CheckpointFolder) -> dict[str, Any] | None:
    """What a checkpoint records of the run besides tensors; None if that file is damaged."""
    path = stored.folder / "state.json"
    if not path.is_file() or not matches(path, stored.files["state.json"]):
        return None
    return read_json(path)


def read(run: Path, step: int, checked: str = "") -> Checkpoint:
    """One checkpoint, every file of it checked against its manifest first.

    Where another process has checked them, `checked` is the SHA-256 of the manifest that it read.
    """
    for stored in find(run)[0]:
        if stored.step == step and (not checked or stored.sha256 == checked):
            return _read(stored, bool(checked))
    raise UserError(f"{run} has no checkpoint of step {step}{' like that of rank 0' if checked else ''}")


def _read(stored: CheckpointFolder, checked: bool = False) -> Checkpoint:
    for fault in () if checked else faults_of(stored):
        raise UserError(str(fault))
    state = read_json(stored.folder / "state.json")
    if state.get("step") != stored.step:
        raise UserError(str(step_mismatch(stored, state)))
    shards = [stored.folder / name for name in sorted(stored.files) if name.endswith(".safetensors")]
    return Checkpoint(stored.step, stored.folder, Pieces(shards), state, stored.sha256)


def step_mismatch(stored: CheckpointFolder, state: dict[str, Any]) -> Fault:
    """A manifest and a state of different steps."""
    why = f"is of step {stored.step}, and state.json beside it of step {state.get('step')}"
    return Fault(stored.folder / "manifest.json", "damaged", why)


def latest(run: Path, foreign: bool = False, until: int | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and what was wrong with newer ones; refused if all are damaged.

    One that the run did not write is refused, unless `foreign` ones may be used. With `until` it is the newest that is
    not after that step, and None if there is no whole one.
    """
    checkpoints, faults_of_folders, faults_of_list = survey(run)
    if until is not None:
        checkpoints = [stored for stored in checkpoints if stored.step <= until]
    faults = [str(fault) for fault in [*faults_of_folders, *faults_of_list]]
    for stored in checkpoints:
        wrong = [fault for fault in faults_of_list if fault.path == stored.folder and fault.kind == "foreign"]
        if wrong and not foreign:
            raise UserError(f"{wrong[0]}; put back the run's own, or take the folder away")
        try:
            return _read(stored), faults
        except UserError as error:
            faults.append(str(error))
    if faults and until is None:
        raise UserError(f"no checkpoint of {run} is whole: {faults[0]}")
    return None, faults


def compare_with_run(run: Path, checkpoints: list[CheckpointFolder], listed: Mapping[int, str]) -> list[Fault]:
    """Checkpoints that the run's manifest lists and that are not there, or not as they were written; renamed ones."""
    faults = []
    for step, sha in listed.items():
        of_step = [stored for stored in checkpoints if stored.step == step]
        if not of_step:
            faults.append(Fault(folder_of(run, step), "missing", "is missing or cannot be read"))
        for stored in of_step:
            if stored.sha256 != sha and faults_of(stored):
                why = "is damaged or was changed: it does not match the run's manifest.json"
                faults.append(Fault(stored.folder / "manifest.json", "damaged", why))
            elif stored.sha256 != sha:
                faults.append(Fault(stored.folder, "foreign", "is not the checkpoint that this run wrote"))
    for stored in checkpoints:
        if stored.folder != folder_of(run, stored.step):
            faults.append(
                Fault(stored.folder, "renamed", f"was renamed: by its manifest it is the one of step {stored.step}")
            )
    return faults
