"""The cache: files that can be made again, each with its size and SHA-256 beside it, and hashes of whole folders."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from ..config import UserError
from ..console import note
from ..files import entry_of, fingerprint, matches, one_at_a_time, read_json, write_aside

LARGE_BYTES = 1 << 26  # of a file that not every process of a training reads whole
LARGEST_RECORD_BYTES = 1 << 16  # of the record of one file
SETTLED_NANOSECONDS = 2_000_000_000  # a file changed twice within the clock's step may look unchanged


def cache_folder() -> Path:
    """The folder of the cache: $PENCIL_CACHE, or the user's cache folder."""
    base = os.environ.get("PENCIL_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pencil"
    folder = Path(base)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write the cache folder {folder} ({error.strerror}); set PENCIL_CACHE") from None
    return folder


def mark_of(about: os.stat_result) -> tuple[int, int]:
    """What shows that a file is still the same."""
    return about.st_size, about.st_mtime_ns


def record_of(path: Path) -> Path:
    """The file beside a cached one that has its size and hash."""
    return path.with_name(f"{path.name}.json")


def seal(path: Path) -> None:
    """Record what a cached file holds."""
    write_aside(record_of(path), json.dumps({"file": path.name, **fingerprint(path)}, indent=1).encode())


def cache_fault(path: Path, verified: bool = False) -> str | None:
    """What is wrong with a cached file; None if it is whole, or was never made.

    With `verified` it is not read again if another process has read it whole, and it was not written since.
    """
    record = record_of(path)
    if not path.exists():
        return f"is missing, and {record.name} is there" if record.exists() else None
    if not record.exists():
        return f"cannot be verified: {record.name}, the record of its content, is missing"
    try:
        entry = read_json(record, LARGEST_RECORD_BYTES)
    except UserError as error:
        return f"cannot be verified: {error}"
    if entry.get("file") != path.name or set(entry) != {"file", "size", "sha256"}:
        return f"cannot be verified: {record} is of another file, or is damaged"
    whole = path.is_file() and path.stat().st_size == entry["size"]
    if whole and path.stat().st_size < LARGE_BYTES:
        whole = matches(path, entry)
    elif whole:
        whole = remembered_hash(path, anew=not verified, kind="cache") == entry["sha256"]
    return None if whole else f"is damaged: it does not match {record.name}"


def usable(path: Path) -> bool:
    """Whether a cached file is there and whole; a damaged one is announced and removed, to be made again.

    Of the processes of a training the first verifies it, and the others only where they see another file.
    """
    fault = cache_fault(path, verified=os.environ.get("RANK", "0") != "0")
    if fault is not None:
        note(f"{path} {fault}: it is made again")
        for file in (path, record_of(path)):
            file.unlink(missing_ok=True)
        return False
    return path.exists()


def keep(path: Path, content: bytes) -> None:
    """Write a cached file, and record what it holds."""
    write_aside(path, content)
    write_aside(record_of(path), json.dumps({"file": path.name, **entry_of(content)}, indent=1).encode())


def cached(path: Path, make: Callable[[], bytes]) -> bytes:
    """The content of a cached file, which one process makes where it is not there."""
    with making(path):
        if not usable(path):
            keep(path, make())
        return path.read_bytes()


def making(path: Path) -> AbstractContextManager[None]:
    """One process makes a cached file; the others that need it wait until it is there."""
    return one_at_a_time(
        path.with_name(f".{path.name}.lock"), lambda: note(f"another process is making {path}: this one waits for it")
    )


def _sha256(path: Path) -> str:
    return fingerprint(path)["sha256"]


def hash_files(
    folder: Path,
    paths: Iterable[Path],
    name: str = "",
    anew: bool = False,
    written: str | None = None,
    digest: Callable[[Path], str] = _sha256,
) -> dict[Path, str]:
    """SHA-256 of each file, whole; one whose times and size are those of its last hashing is not read again.

    The hashes have a `name` in the cache, by default one of the folder's path. With `anew` every file is read.
    `written` is the hash of a file that was just written here. `digest` reads a file.
    """
    name = name or f"pictures-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]}"
    index = cache_folder() / f"{name}.json"
    with making(index):
        recorded = json.loads(index.read_bytes())["files"] if usable(index) else {}
        settled, hashes, read, now = {}, {}, set(), time.time_ns()
        for path in paths:
            file, about = path.relative_to(folder).as_posix(), path.stat()
            read.add(file)
            mark = [about.st_mtime_ns, about.st_ctime_ns, about.st_size]
            old = recorded.get(file)
            same = isinstance(old, list) and old[:3] == mark and not anew
            hashes[path] = written or (str(old[3]) if old and same else digest(path))
            if written or now - max(mark[:2]) > SETTLED_NANOSECONDS:
                settled[file] = [*mark, hashes[path]]
        # files that are not read now may be the next time
        others = {file: row for file, row in recorded.items() if file not in read and (folder / file).is_file()}
        if (files := others | settled) != recorded:
            keep(index, json.dumps({"files": files}).encode())
    return hashes


def remembered_hash(
    file: Path,
    anew: bool = False,
    written: str | None = None,
    kind: str = "weights",
    digest: Callable[[Path], str] = _sha256,
) -> str:
    """SHA-256 of a large file; without `anew`, the one of its last hashing if its size and times are still the same."""
    try:
        about = file.stat()  # by its place on the disk: a run keeps it when its folder is renamed
        return hash_files(file.parent, [file], f"{kind}-{about.st_dev}-{about.st_ino}", anew, written, digest)[file]
    except (UserError, OSError):  # the cache cannot be written
        return written or digest(file)
