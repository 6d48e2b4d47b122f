"""The cache: files that can be made again, each with its size and SHA-256 beside it, and hashes of whole folders."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..config import UserError
from ..console import note
from ..files import entry_of, fingerprint, matches, one_at_a_time, read_json, write_aside

LARGE = 1 << 26  # bytes of a file that not every process of a training reads whole
LARGEST_RECORD = 1 << 16  # bytes of the record of one file
SETTLED = 2_000_000_000  # nanoseconds; a file changed twice within the clock's step may look unchanged


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
        known = read_json(record, LARGEST_RECORD)
    except UserError as error:
        return f"cannot be verified: {error}"
    if known.get("file") != path.name or set(known) != {"file", "size", "sha256"}:
        return f"cannot be verified: {record} is of another file, or is damaged"
    whole = path.is_file() and path.stat().st_size == known["size"]
    if whole and path.stat().st_size < LARGE:
        whole = matches(path, known)
    elif whole:
        whole = remembered_hash(path, anew=not verified, kind="cache") == known["sha256"]
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


@contextmanager
def making(path: Path) -> Iterator[None]:
    """One process makes a cached file; the others that need it wait until it is there."""
    with one_at_a_time(
        path.with_name(f".{path.name}.lock"), lambda: note(f"another process is making {path}: this one waits for it")
    ):
        yield


def _sha256(path: Path) -> str:
    return fingerprint(path)["sha256"]


def hash_files(
    folder: Path,
    paths: Iterable[Path],
    kept_as: str = "",
    anew: bool = False,
    written: str | None = None,
    digest: Callable[[Path], str] = _sha256,
) -> dict[Path, str]:
    """SHA-256 of each file, whole; what is known of a file that has the same times and size is not read again.

    It is `kept_as` a name in the cache, by default one of the folder's path. With `anew` every file is read. `written`
    is the hash of a file that was just written here, to be kept. `digest` reads a file.
    """
    known_as = kept_as or f"pictures-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]}"
    index = cache_folder() / f"{known_as}.json"
    with making(index):
        return _hash_files(folder, paths, index, anew, written, digest)


def _hash_files(
    folder: Path, paths: Iterable[Path], index: Path, anew: bool, written: str | None, digest: Callable[[Path], str]
) -> dict[Path, str]:
    known = json.loads(index.read_bytes())["files"] if usable(index) else {}
    found, hashes, asked, now = {}, {}, set(), time.time_ns()
    for path in paths:
        name, about = path.relative_to(folder).as_posix(), path.stat()
        asked.add(name)
        mark = [about.st_mtime_ns, about.st_ctime_ns, about.st_size]
        old = known.get(name)
        same = isinstance(old, list) and old[:3] == mark and not anew
        hashes[path] = written or (str(old[3]) if old and same else digest(path))
        if written or now - max(mark[:2]) > SETTLED:
            found[name] = [*mark, hashes[path]]
    # files that were not asked for now may be the next time
    found = {n: mark for n, mark in known.items() if n not in asked and (folder / n).is_file()} | found
    if found != known:
        content = json.dumps({"files": found}).encode()
        write_aside(index, content)
        write_aside(record_of(index), json.dumps({"file": index.name, **entry_of(content)}).encode())
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
