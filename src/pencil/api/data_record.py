"""What a run was trained on, by hashes: recorded in the run, so that what has changed since can be named."""

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import UserError
from ..data.builtin import TEXTS
from ..data.cache import hash_files
from ..data.hub import PREFIX, current_form
from ..data.sources import is_several
from ..files import read_json
from ..runs.manifest import DATA_RECORD
from ..runs.run import Run

MAX_FILES = 50_000  # of a folder with more no list is kept
MAX_BYTES = 1 << 28  # of a larger file only its size
MAX_BLOCKS = 1000  # of lines: a file with no more lines has a hash a line
DIGITS = 16  # of a SHA-256, enough to tell files apart
NAMED = 3  # files in one sentence
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


def data_record(source: str, embedded: Sequence[str], task: Any) -> bytes:
    """What a run is trained on, as the content of a file of it."""
    table = _contents(source, embedded)
    held = getattr(getattr(getattr(task, "data", None), "test", None), "sources", ())
    if "files" in table:
        paths = {one.resolve() for one in held if isinstance(one, Path)}
        table["held_out"] = [name for name in table["files"] if (Path(source) / name).resolve() in paths]
    return json.dumps(table).encode()


def _recorded(run: Run) -> dict[str, Any]:
    """What was recorded; nothing in a run of an older version, or where it is damaged."""
    try:
        run.verify(DATA_RECORD)
        found = read_json(run.path / DATA_RECORD)
    except (UserError, OSError):
        return {}
    fine = all(isinstance(found[name], kind) for name, kind in KINDS.items() if name in found)
    return found if fine and ("blocks" not in found or found.keys() >= {"lines", "lines_a_block"}) else {}


def _contents(source: str, embedded: Sequence[str], lines_a_block: int | None = None) -> dict[str, Any]:
    """The hash of each file of a folder, or of each block of lines of a file; of other data only Python's version."""
    table: dict[str, Any] = {"python": platform.python_version()}
    path = Path(current_form(source).removeprefix(PREFIX))
    if source in embedded or not source or not path.is_absolute() or is_several(source):
        return table
    if path.is_dir():
        files = _files(path)
        if len(files) <= MAX_FILES:
            hashes = hash_files(path, files)
            table["files"] = {one.relative_to(path).as_posix(): short_hash(sha) for one, sha in hashes.items()}
    elif path.is_file():
        table["size"] = path.stat().st_size
        if table["size"] <= MAX_BYTES:
            lines = path.read_bytes().split(b"\n")
            step = lines_a_block or -(-len(lines) // MAX_BLOCKS)
            blocks = [b"\n".join(lines[i : i + step]) for i in range(0, len(lines), step)]
            table |= {"lines": len(lines), "lines_a_block": step}
            table["blocks"] = [hashlib.blake2b(block, digest_size=4).hexdigest() for block in blocks]
    return table


def _files(folder: Path) -> list[Path]:
    """The files under a folder that can be read, without hidden ones and without runs."""
    found = []
    for root, folders, names in os.walk(folder):
        here = Path(root)
        if {"config.toml", "manifest.json"} <= set(names):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (here / name for name in sorted(names) if not name.startswith("."))
        found += [path for path in paths if path.is_file() and os.access(path, os.R_OK)]
        if len(found) > MAX_FILES:
            break
    return found


def trained_files(run: Run) -> set[str]:
    """The hashes of the files that a run was trained on, as far as they are recorded."""
    table = _recorded(run)
    files, held = table.get("files"), set(table.get("held_out") or ())
    return {sha for name, sha in files.items() if name not in held} if isinstance(files, Mapping) and held else set()


def short_hash(sha: str) -> str:
    """A file's hash as it is recorded."""
    return sha[:DIGITS]


def what_changed(run: Run, source: str, embedded: Sequence[str]) -> str:
    """What is another than when the run was trained, in a few words; empty where that is not known."""
    was = _recorded(run)
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
        f"{len(names):,} {'file' if len(names) == 1 else 'files'} {what}: {', '.join(names[:NAMED])}"
        + (", …" if len(names) > NAMED else "")
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
