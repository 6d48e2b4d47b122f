"""The files of a run: written by one process at a time, listed by the manifest, and checked against it.

A run is what its manifest lists. `manifest.json` has size and SHA-256 of config, tokenizer and weights, the hash of
each checkpoint's own manifest, and its own hash; entries are carried forward, never hashed anew. Every checkpoint
records the settings it was trained with, so that a setting changed in a file is noticed, and one changed on the command
line is announced and recorded. Where a run goes on, and how often it is looked at, may change freely
(`train/loop/resume_changes.py`: `FREE_SETTINGS`).

The run's own weights (`model.safetensors`, the best by validation) are listed in the run's `manifest.json` beside
`config.toml` and `tokenizer.json`. While a file is being replaced the manifest allows both the old and the new, so a
kill between two renames leaves a run that loads.
"""

import json
import os
import re
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ..config import EXAMPLE_RUNS, UserError, distance, to_toml
from ..data.cache import remembered_hash
from ..files import (
    check_inside,
    entry_of,
    fingerprint,
    is_text,
    locked,
    matches,
    read_json,
    read_toml,
    sweep,
    write_aside,
)

WEIGHTS = "model.safetensors"
ORIGINAL = "original.json"  # what an imported run keeps of the original's settings
# a thread lists a checkpoint while another replaces the weights: both read the manifest, and write it anew
CHANGING = threading.RLock()
CONTENTS = ("config.toml", "tokenizer.json", ORIGINAL, WEIGHTS)
DATA_COPY = "data.jsonl"  # the rows of data in memory, where they were to be kept
DATA_RECORD = "data.json"  # hashes of what the run was trained on; older runs do not list it
LISTED = (*CONTENTS, DATA_RECORD, DATA_COPY)
HEAD_SCORES = "heads.json"  # what each head attends to, as the explorer has measured it
UNLISTED = (
    "README.md",
    HEAD_SCORES,
    "heads.png",
    "loss.png",
    "metrics.jsonl",
)  # written into a run as well, and not hashed
SNAPSHOTS = "snapshots"  # weights kept on the way of the training (runs/snapshots.py)
FOLDERS = ("checkpoints", "eval", "samples", SNAPSHOTS, "tensorboard", "wandb")


class Fault(NamedTuple):
    """What is wrong with a file or a folder of a run."""

    path: Path
    kind: str  # damaged, missing, foreign or renamed
    why: str

    def __str__(self) -> str:
        return f"{self.path} {self.why}"


class Manifest(NamedTuple):
    """manifest.json of a run: what its files and its checkpoints must be."""

    run: str | None  # the id of the run; None in older versions
    files: dict[str, list[dict[str, Any]]]  # size and SHA-256; two while a file is being replaced
    checkpoints: dict[int, str] | None  # SHA-256 of each checkpoint's own manifest, by its step; None in older versions
    snapshots: dict[int, dict[str, Any]] | None = (
        None  # size and SHA-256 of each, by its step; None where there is none
    )

    @staticmethod
    def read(folder: Path) -> "Manifest | None":
        """The manifest in a run's folder; None if there is none."""
        path = folder / "manifest.json"
        if not os.path.lexists(path):
            return None
        table = read_json(path)
        try:
            files = {str(name): [dict(entry) for entry in entries] for name, entries in table["files"].items()}
            steps = table.get("checkpoints")
            checkpoints = None if steps is None else {int(step): str(sha) for step, sha in steps.items()}
            taken = table.get("snapshots")
            snapshots = None if taken is None else {int(step): dict(entry) for step, entry in taken.items()}
            unknown = [*(set(files) - set(LISTED)), *(set(table) - {*Manifest._fields, "sha256"})]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} cannot be read, or is damaged: {type(error).__name__} {error}") from None
        if unknown:
            raise UserError(f"{path} is damaged or was changed: a run has no {sorted(unknown)[0]}")
        if (table.get("run") or "sha256" in table) and table.get("sha256") != _own_hash(table):
            raise UserError(f"{path} is damaged or was changed: it does not match its own hash")
        return Manifest(table.get("run"), files, checkpoints, snapshots)

    def write(self, folder: Path) -> None:
        table = {name: value for name, value in self._asdict().items() if value is not None}
        table["sha256"] = _own_hash(table)
        write_aside(folder / "manifest.json", json.dumps(table, indent=1).encode())


def _own_hash(table: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest without its own: damage to the list is not taken for damage to what it lists."""
    rest = json.loads(json.dumps({name: value for name, value in table.items() if name != "sha256"}))  # keys as text
    return entry_of(json.dumps(rest, sort_keys=True).encode())["sha256"]


def list_checkpoints(folder: Path, steps: Mapping[int, str]) -> None:
    """Make these the checkpoints that a run's manifest lists."""
    with CHANGING:
        manifest = Manifest.read(folder)
        if manifest is not None:
            manifest._replace(checkpoints=dict(steps)).write(folder)


SHOWN = 5  # runs that an error names
SHARED = "shared"  # the file by which several processes see that they write to one folder
HASHED_AT_EVERY_LOAD = 1_000_000_000  # bytes; larger files are hashed when size or times changed, and by verify


def not_a_run(path: Path) -> UserError:
    """The error of a folder that is no run; one with a checkpoint of another library can become one."""
    foreign = any((path / name).is_file() for name in ("config.json", "model_index.json", "adapter_config.json"))
    foreign = foreign or any(path.glob("*.safetensors"))
    mend = f"; it looks like a checkpoint of another library: pencil import {path} makes a run of it" if foreign else ""
    return UserError(f"{path} is not a run: it has no config.toml{mend}")


def example_run(name: str | Path) -> Path | None:
    """The folder of a run that comes with Pencil, by its name: example:english."""
    folder = EXAMPLE_RUNS / str(name).removeprefix("example:")
    return folder if str(name).startswith("example:") and (folder / "config.toml").is_file() else None


def place_beside(run: Path, name: str) -> Path:
    """Where a file about a run is written by default: in its folder; for one that comes with Pencil, in this folder."""
    return Path(f"{run.name}-{name}") if run.parent == EXAMPLE_RUNS else run / name


def find_run(path: str | Path, families: Collection[str] = ()) -> Path:
    """The folder of a run, if it is one; needs no torch, so that a wrong path is answered at once."""
    if example := example_run(path):
        return example
    path = Path(path)
    if str(path).startswith("example:"):
        names = ", ".join(f"example:{folder.parent.name}" for folder in sorted(EXAMPLE_RUNS.glob("*/config.toml")))
        raise UserError(f"there is no trained model {path}; those that come with Pencil: {names or 'none'}")
    if str(path) in families and not path.exists():
        raise UserError(f"{path} is a kind of model, and there is no run of that name; train one: pencil train {path}")
    if not path.is_dir():
        meant = Path("runs", path.name)
        hint = f"; did you mean {meant}?" if meant != path and (meant / "config.toml").is_file() else ""
        what = f"{path} is a file, and a run is a folder" if path.exists() else f"there is no run {path}"
        raise UserError(f"{what}{hint or f'; {_known_runs(path)}'}")
    if not (path / "config.toml").is_file():
        raise not_a_run(path)
    return path


def _known_runs(wanted: Path) -> str:
    """Where the runs are, those first whose names are like the one wanted; or how to make the first."""
    folders = [wanted.parent, Path("runs")] if wanted.parent != Path() else [Path("runs")]
    configs = next((runs for folder in folders if (runs := sorted(folder.glob("*/config.toml")))), [])
    if not configs:
        return "there is none in runs/ yet, and pencil train --help says how to train one"
    name, paths = wanted.name.lower(), [config.parent for config in configs]
    paths.sort(key=lambda path: (name not in path.name.lower(), distance(name, path.name.lower(), len(str(path)))))
    more = f", … ({len(paths)} in all)" if len(paths) > SHOWN else ""
    return f"known: {', '.join(map(str, paths[:SHOWN]))}{more}"


def check_name(path: Path) -> None:
    """Refuse a folder to write a run into that no text can name: its card and its checkpoints could not be written."""
    if not is_text(str(path)):
        raise UserError(f"{path} is not a name in UTF-8: choose another for the run")


class RunFiles:
    """A run's folder as files, whatever they are for: replaced only together with their entry in the manifest."""

    def __init__(self, path: Path):
        self._path = path
        self._held: int | None = None  # the open folder, while it is being written

    @property
    def path(self) -> Path:
        """The folder. While it is being written it must stay the one that was opened, or a second one would grow."""
        if self._held is not None:
            self._check_place(self._held)
        return self._path

    def _check_place(self, held: int) -> None:
        there = os.fstat(held)
        try:
            here = self._path.stat()
        except OSError:
            here = None
        if here is not None and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
            return
        name = Path(f"/proc/self/fd/{held}")
        now = os.readlink(name) if there.st_nlink and name.is_symlink() else ""
        where = f"it is {now} now; go on with: pencil resume {now}" if now else "resume it under its new name"
        raise UserError(
            f"{self._path} was renamed or removed while it was being written, so the writing stopped; what was saved "
            f"before is in the renamed folder: {where}"
        )

    @contextmanager
    def writing(self):
        """One writer at a time: the lock ends with the process, however that ends."""
        check_name(self._path)
        with locked(self._path, f"{self._path} is being written by another process"):
            for name in FOLDERS:
                check_inside(self._path / name, self._path)
            sweep(self._path, "|".join(map(re.escape, (*LISTED, *UNLISTED, "manifest.json", SHARED))))
            sweep(self._path / "samples", r"step-\d{8,}\.\w+")
            if not hasattr(os, "O_DIRECTORY"):
                yield  # Windows opens no folder, and renames none in which a file is open
                return
            self._held = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                yield
            finally:
                held, self._held = self._held, None
                os.close(held)

    @cached_property
    def config(self) -> dict[str, Any]:
        path = self.path / "config.toml"
        config = read_toml(path)
        for section in ("run", "model", "train"):
            if not isinstance(config.get(section), dict):
                raise UserError(f"{path} has no [{section}]")
        return config

    @property
    def id(self) -> str | None:
        """The random name that a run gets when it is made; None for one made by an older version."""
        return self.config["run"].get("id")

    @property
    def manifest(self) -> Manifest | None:
        """What the files must be; None for a run of an older version that has no weights yet."""
        manifest = Manifest.read(self.path)
        if manifest is None and os.path.lexists(self.path / WEIGHTS):
            raise UserError(f"{self.path} has weights but no manifest.json to check them by")
        if manifest is None and self.id is not None:
            raise UserError(f"{self.path / 'manifest.json'} is missing, so the run cannot be verified")
        return manifest

    def check_files(self, *names: str, anew: bool = True) -> Iterator[tuple[Path, Fault | None]]:
        """Each file of the manifest (or only these) with what is wrong with it; a run without a manifest has none.

        Without `anew` a large file whose size and times are those of its last hashing is not read.
        """
        manifest = self.manifest
        for name in (names or CONTENTS) if manifest else ():
            file, entries = self.path / name, manifest.files.get(name) if manifest else None
            while (fault := self._fault_of(file, entries, anew)) is not None:
                now = self.manifest
                if now is None or now.files.get(name) == entries:
                    break
                entries = now.files.get(name)  # a training has replaced it meanwhile
            if fault is not None or os.path.lexists(file):
                yield file, fault
        if manifest and not names and manifest.run != self._facts().get("id", manifest.run):
            file = self.path / "manifest.json"
            yield file, Fault(file, "foreign", f"is of another run, {manifest.run}")

    def _fault_of(self, file: Path, entries: list[dict[str, Any]] | None, anew: bool) -> Fault | None:
        """What is wrong with a file, of which the manifest lists these entries."""
        if os.path.lexists(file):
            if entries and _matches(file, entries, anew):
                return None
            if not entries and file.name == DATA_RECORD:
                return None  # as older versions left it: it cannot be verified
            return _not_as_listed(file, bool(entries))
        needed = file.name == "config.toml" or (file.name == "tokenizer.json" and "tokenizer" in self._facts())
        return Fault(file, "missing", "is missing") if entries or needed else None

    def _facts(self) -> dict[str, Any]:
        """What config.toml records of the run; nothing if it cannot be read, which is reported elsewhere."""
        try:
            return self.config["run"]
        except UserError:
            return {}

    def verify(self, *names: str) -> None:
        """Refuse, by name, a file (or one of these) that does not match the manifest."""
        for _, fault in self.check_files(*names, anew=False):
            if fault is not None:
                raise UserError(str(fault))

    def accept(self, name: str) -> None:
        """Take a changed file for the run's own."""
        self._replace(name, (self.path / name).read_bytes())

    def write_config(self, config: Mapping[str, Any]) -> None:
        self._replace("config.toml", to_toml(config).encode())
        self.__dict__.pop("config", None)

    def _replace(self, name: str, content: bytes) -> None:
        """Replace a file of the manifest."""
        self._list(name, entry_of(content), lambda: write_aside(self.path / name, content))

    def _list(self, name: str, new: dict[str, Any], put: Callable[[], Any]) -> None:
        """List a file that `put` puts in its place; till then either may be found, so the manifest allows both.

        What the manifest has of the other files is carried forward: hashing them anew would accept any damage.
        """
        with CHANGING:
            manifest = self.manifest
            if manifest is None:  # of an older version, and without weights: there is nothing yet to carry forward
                entries = {n: [fingerprint(self.path / n)] for n in LISTED if (self.path / n).is_file()}
                manifest = Manifest(None, entries, None)
            files = manifest.files
            manifest._replace(files=files | {name: [new, *files.get(name, ())]}).write(self.path)
            put()
            manifest._replace(files=files | {name: [new]}).write(self.path)
        if new["size"] > HASHED_AT_EVERY_LOAD:
            remembered_hash(self.path / name, written=new["sha256"])

    def mend_manifest(self) -> str | None:
        """Write a manifest that is damaged or missing anew, of what lies there; what was wrong with it."""
        try:
            _ = self.manifest
        except UserError as error:
            entries = {n: [fingerprint(self.path / n)] for n in LISTED if (self.path / n).is_file()}
            taken = {
                int(path.stem[5:]): fingerprint(path) for path in (self.path / SNAPSHOTS).glob("step-*.safetensors")
            }
            Manifest(self.id, entries, None, taken or None).write(self.path)
            return str(error)
        return None


def _matches(file: Path, entries: list[dict[str, Any]], anew: bool) -> bool:
    if not file.exists() or not stat.S_ISREG((about := file.stat()).st_mode):
        return False
    if about.st_size <= HASHED_AT_EVERY_LOAD:
        return matches(file, *entries)
    same = [entry for entry in entries if entry.get("size") == about.st_size]
    return bool(same) and remembered_hash(file, anew) in [entry.get("sha256") for entry in same]


def _not_as_listed(file: Path, listed: bool) -> Fault:
    if listed:
        return Fault(file, "damaged", "is damaged or was changed: it does not match manifest.json")
    return Fault(file, "foreign", "is no part of the run: manifest.json does not list it")
