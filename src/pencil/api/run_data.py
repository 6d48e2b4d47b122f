"""The data of a run: its task on it again, what changed in it since, and other data in its place.

What a run was trained on is recorded in it by hashes, so that what has changed since can be named.

Other data is evaluated whole. `eval --data` holds out all of it, with the run's classes and tokenizer; a class that the
model does not know is refused, since counting it as wrong would hide a misspelt folder. A run records the hash of each
file it was trained on (`data.json`; of a text, of each block of lines): images it was trained on are left out, and data
that has changed says what has.
"""

import hashlib
import inspect
import json
import os
import platform
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import UserError
from ..data import in_memory
from ..data.builtin import TEXTS
from ..data.cache import hash_files
from ..data.hub import PREFIX, current_form, say_current_form
from ..data.images.datasets import FileExamples
from ..data.path_patterns import absolute, is_several
from ..families.family import Family, family
from ..files import read_json
from ..runs.files import DATA_COPY, DATA_RECORD
from ..runs.run import Run
from ..train.settings import TrainConfig
from ..train.task import DataChanged, check_unchanged

MAX_LISTED_FILES = 50_000  # of a folder with more no list is kept
MAX_HASHED_BYTES = 1 << 28  # of a larger file only its size
MAX_BLOCKS = 1000  # of lines: a file with no more lines has a hash a line
HASH_DIGITS = 16  # of a SHA-256, enough to tell files apart
NAMED_FILES = 3  # files in one sentence
# of the values of a record; that of an older version has no hash, so damage to it is found by these alone
KINDS = {
    "python": str,
    "files": dict,
    "held_out": list,
    "size": int,
    "lines": int,
    "lines_a_block": int,
    "blocks": list,
}


def task_of(
    run: Run, config: TrainConfig, data: str | None = None, notify: Callable[[str], None] = lambda line: None
) -> Any:
    """The task of a run, on the data it was trained on, which may lie elsewhere; data that has changed is refused."""
    record, facts = family(run.family), run.config["run"]
    if "import" in run.config:
        raise UserError(
            f"{run.path} was imported, and has no data of its own: name some with --data, or train from it: "
            f"pencil train {run.family} --from {run.path} --data DATA"
        )
    if "data_path" not in facts or "data_hash" not in facts:
        raise UserError(
            f"{run.path} does not record where its data is: it was made by Pencil {facts.get('pencil', '?')}"
        )
    source = facts["data_path"] if data is None else whole_path(data, record.embedded)
    if in_memory.is_token(source) and not in_memory.is_registered(source):
        _restore_copy(run, source)
    one = source != "-" and not is_several(source)
    if data is None and one and Path(source).is_absolute() and not Path(source).exists():
        raise UserError(
            f"{source}, the data of {run.path}, is not there; if it was moved: pencil resume {run.path} --data PATH"
        )
    try:
        task = record.task.reopen(record, run, source, config)
        former = getattr(getattr(task, "data", None), "former_hash", None)
        if task.hash != facts["data_hash"] and former is not None and former() == facts["data_hash"]:
            notify(f"{source} is compared by what an older version recorded of it, which is not the whole of each file")
            return task
        check_unchanged(run, task.hash, source)
    except UserError as error:
        raise _explain_change(error, run, source, record) from None
    return task


def _restore_copy(run: Run, token: str) -> None:
    """Take in the copy that a run has of data that was in memory; without one, say how it is given."""
    if not (run.path / DATA_COPY).is_file():
        raise UserError(
            f"{run.path} was trained on data in the memory of a program, and has no copy of it: give it again, "
            f"pencil.resume({str(run.path)!r}, data) or pencil.evaluate({str(run.path)!r}, data); a training with "
            "keep_data=True keeps one"
        )
    run.verify(DATA_COPY)
    in_memory.restore(run.path / DATA_COPY, token)


def named_columns(run: Run) -> dict[str, str]:
    """The columns of a table in memory that were named in training: what each is, and its name."""
    pairs = (str(one).partition("=") for one in run.config["run"].get("columns") or ())
    return {what: column for what, _, column in pairs}


def _explain_change(error: UserError, run: Run, source: str, record: Family) -> UserError:
    """The error of data that cannot be used, with what has changed in it since the run was trained."""
    changes = what_changed(run, source, record.embedded)
    if not isinstance(error, DataChanged):
        # data that was changed so that it can no longer be read
        same = not changes or source in record.embedded
        place = in_memory.name_of(source)
        return error if same else UserError(f"{error} ({place} has changed since {run.path} was trained: {changes})")
    why = f"{error}: {changes}" if changes else str(error)
    evaluated = f"pencil eval {run.path} --data {shlex.quote(source)}"
    if in_memory.is_token(source):
        evaluated = f"pencil.evaluate({str(run.path)!r}, data)"
    version = "Python" if source in TEXTS else "Pencil"
    mend = f"use the version of {version} that made the run" if source in record.embedded else "put it back as it was"
    return DataChanged(f"{why}; {mend}, evaluate on it as it is ({evaluated}), or train a new run")


def whole_path(data: str, embedded: Sequence[str]) -> str:
    """Where the data is, from any working folder: an absolute path; the name of embedded data as it is."""
    say_current_form(data)
    data = current_form(data)
    hub, bare = data.startswith(PREFIX), data.removeprefix(PREFIX)
    if is_several(data):
        return absolute(data)
    path = Path(bare).expanduser()
    return f"{PREFIX * hub}{path.resolve()}" if path.exists() and data not in embedded else data


def task_on(run: Run, config: TrainConfig, data: str, notify: Callable[[str], None]) -> tuple[Any, bool]:
    """The task of a run on this data, and whether it is other data than the run's own.

    Of the run's own data only what was held out is evaluated, as without --data. Of other data everything is, except
    files that the run was trained on.
    """
    record, facts = family(run.family), run.config["run"]
    source, name = whole_path(data, record.embedded), in_memory.name_of(data)
    own = source == current_form(facts.get("data_path", ""))
    if own:
        try:
            task = task_of(run, config, notify=notify)
        except DataChanged:
            notify(f"{name} has changed since {run.path} was trained on it: it is evaluated as it is")
        else:
            notify(f"{name} is the data of {run.path}: its held-out part is evaluated")
            return task, False
    if "whole" not in inspect.signature(record.task.reopen).parameters:
        raise UserError(f"a {record.name} can be evaluated on its own data only: leave --data out")
    task = record.task.reopen(record, run, source, config, whole=True)
    if not own and task.hash == facts.get("data_hash"):
        notify(f"{name} is the data that {run.path} was trained on: its held-out part is evaluated")
        return task_of(run, config, data, notify), False
    left = _leave_out_trained(task, run, notify)
    if own and not left:
        notify(f"most of it is what {run.path} was trained on, so these are not the metrics of unseen data")
    return task, True


def _leave_out_trained(task: Any, run: Run, notify: Callable[[str], None]) -> bool:
    """Take out the images that the run was trained on; whether that is known."""
    data, trained = task.data, trained_files(run)
    test, hashes = getattr(data, "test", None), getattr(data, "hashes", {})
    if not trained or not hashes or not isinstance(test, FileExamples):
        return False
    unseen = [i for i, source in enumerate(test.sources) if short_hash(hashes[source]) not in trained]
    if not unseen:
        raise UserError(f"{run.path} was trained on all {len(test):,} images of {data.name}: none is left to evaluate")
    if len(unseen) < len(test):
        notify(
            f"{run.path} was trained on {len(test) - len(unseen):,} of the {len(test):,} images of {data.name}: they "
            "are left out"
        )
        sources, targets = ([part[i] for i in unseen] for part in (test.sources, test.targets))
        task.data = replace(data, test=FileExamples(sources, targets, test.skipped))
    return True


def amount(task: Any) -> str:
    """How much a task evaluates on."""
    data = task.data
    if not hasattr(data, "test"):
        return f"{len(data.val):,} tokens"
    what = "videos" if getattr(task.config, "frames", 1) > 1 else "images" if hasattr(task, "transform") else "texts"
    return f"{len(data.test):,} {what if data.classes or what != 'texts' else 'pairs'}"


def data_record(source: str, embedded: Sequence[str], task: Any) -> bytes:
    """What a run is trained on, as the content of a file of it."""
    table = _contents(source, embedded)
    held = getattr(getattr(getattr(task, "data", None), "test", None), "sources", ())
    if "files" in table:
        paths = {one.resolve() for one in held if isinstance(one, Path)}
        table["held_out"] = [name for name in table["files"] if (Path(source) / name).resolve() in paths]
    return json.dumps(table).encode()


def _read_record(run: Run) -> dict[str, Any]:
    """What was recorded; nothing in a run of an older version, or where it is damaged."""
    try:
        run.verify(DATA_RECORD)
        table = read_json(run.path / DATA_RECORD)
    except (UserError, OSError):
        return {}
    if not isinstance(table, dict):
        return {}
    fine = all(isinstance(table[name], kind) for name, kind in KINDS.items() if name in table)
    return table if fine and ("blocks" not in table or table.keys() >= {"lines", "lines_a_block"}) else {}


def _contents(source: str, embedded: Sequence[str], lines_a_block: int | None = None) -> dict[str, Any]:
    """The hash of each file of a folder, or of each block of lines of a file; of other data only Python's version."""
    table: dict[str, Any] = {"python": platform.python_version()}
    path = Path(current_form(source).removeprefix(PREFIX))
    if source in embedded or not source or not path.is_absolute() or is_several(source):
        return table
    if path.is_dir():
        files = _files(path)
        if len(files) <= MAX_LISTED_FILES:
            hashes = hash_files(path, files)
            table["files"] = {one.relative_to(path).as_posix(): short_hash(sha) for one, sha in hashes.items()}
    elif path.is_file():
        table["size"] = path.stat().st_size
        if table["size"] <= MAX_HASHED_BYTES:
            lines = path.read_bytes().split(b"\n")
            step = lines_a_block or -(-len(lines) // MAX_BLOCKS)
            blocks = [b"\n".join(lines[i : i + step]) for i in range(0, len(lines), step)]
            table |= {"lines": len(lines), "lines_a_block": step}
            table["blocks"] = [hashlib.blake2b(block, digest_size=4).hexdigest() for block in blocks]
    return table


def _files(folder: Path) -> list[Path]:
    """The files under a folder that can be read, without hidden ones and without runs."""
    readable = []
    for root, folders, names in os.walk(folder):
        here = Path(root)
        if {"config.toml", "manifest.json"} <= set(names):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (here / name for name in sorted(names) if not name.startswith("."))
        readable += [path for path in paths if path.is_file() and os.access(path, os.R_OK)]
        if len(readable) > MAX_LISTED_FILES:
            break
    return readable


def trained_files(run: Run) -> set[str]:
    """The hashes of the files that a run was trained on, as far as they are recorded."""
    table = _read_record(run)
    files, held = table.get("files"), set(table.get("held_out") or ())
    return {sha for name, sha in files.items() if name not in held} if isinstance(files, Mapping) and held else set()


def short_hash(sha: str) -> str:
    """A file's hash as it is recorded."""
    return sha[:HASH_DIGITS]


def what_changed(run: Run, source: str, embedded: Sequence[str]) -> str:
    """What is another than when the run was trained, in a few words; empty where that is not known."""
    was = _read_record(run)
    if source in TEXTS:
        made = f", and {run.path} was made with Python {was['python']}" if "python" in was else ""
        return f"it is the documentation of Python itself{made}; this is Python {platform.python_version()}"
    now = _contents(source, embedded, was.get("lines_a_block"))
    if "files" in was and "files" in now:
        return _changed_files(was["files"], now["files"])
    if "blocks" in was and "blocks" in now:
        return _changed_lines(was, now)
    if "size" in was and "size" in now and was["size"] != now["size"]:
        return f"it had {was['size']:,} bytes and has {now['size']:,}"
    return ""


def _changed_files(was: Mapping[str, str], now: Mapping[str, str]) -> str:
    gone, new = ([name for name in one if name not in other] for one, other in ((was, now), (now, was)))
    if len(gone) == len(was) and not set(was.values()) & set(now.values()):
        return "all its files are others"
    place = {was[name]: name for name in gone}
    moved = [(place[now[name]], name) for name in new if now[name] in place]
    gone = [name for name in gone if name not in {old for old, _ in moved}]
    new = [name for name in new if name not in {name for _, name in moved}]
    kinds = {
        "removed": gone,
        "added": new,
        "changed": [name for name in was if name in now and was[name] != now[name]],
        "renamed": [f"{old} to {name}" for old, name in moved],
    }
    return "; ".join(
        f"{len(names):,} {'file' if len(names) == 1 else 'files'} {what}: {', '.join(names[:NAMED_FILES])}"
        + (", …" if len(names) > NAMED_FILES else "")
        for what, names in kinds.items()
        if names
    )


def _changed_lines(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if was["blocks"] == now["blocks"]:
        return ""
    pairs = list(zip(was["blocks"], now["blocks"], strict=False))
    same = next((i for i, (one, other) in enumerate(pairs) if one != other), len(pairs))
    step = was["lines_a_block"]
    last = min((same + 1) * step, max(was["lines"], now["lines"]))
    first = f"line {last:,}" if last == same * step + 1 else f"one of lines {same * step + 1:,} to {last:,}"
    count = "" if was["lines"] == now["lines"] else f"it had {was['lines']:,} lines and has {now['lines']:,}; "
    return f"{count}the first that differs is {first}"
