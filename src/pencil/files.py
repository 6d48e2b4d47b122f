"""Files written so that a crash never leaves half of one, and read with limits: plain ones, by size, before parsing.

One place for what systems lack. `files.py` has the lock (`flock`, or `msvcrt` on Windows), the size of the memory, and
`WINDOWS`: there nothing that is open or mapped is renamed, so weights are copied out of their file.
`tests/helpers/windows.py` runs commands without the calls Windows lacks and with its rules for open files.

Limits come before parsing. A file is asked for its size and kind before it is opened, a header for its places before a
tensor is read, a config for its sizes before a model is built, an image for its pixels before it is decoded. Each limit
is far above what an honest file has, and its sentence names the file.
"""

import errno
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .config import UserError, expand_path

LARGEST_TEXT = 32_000_000  # the largest tokenizers in use have about that
LARGEST_TOML = 1_000_000
MOST_VALUES, MOST_SETTINGS, MOST_DOTS = 2_000_000, 100_000, 64
# what Git has in place of a large file until it is fetched
LFS_BEGINNING, LFS_LARGEST = b"version https://git-lfs.", 1024
LFS_POINTER, LFS_FETCH = "a Git LFS pointer, not the file itself", "run `git lfs pull` in its repository"
LOCK = ".lock"  # the file that a writer of a folder holds
WINDOWS = os.name == "nt"  # where nothing that is open, or mapped into memory, can be replaced or renamed


def flush_folder(folder: Path) -> None:
    """Make a rename in this folder outlast a power cut, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_flushed(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def beside(path: Path) -> Path:
    """A hidden name in the same folder, for a file that is not whole yet."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")


def write_aside(path: Path, content: bytes) -> None:
    """Replace a file whole, or leave it as it was."""
    with open_aside(path) as file:
        file.write(content)


@contextmanager
def open_aside(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to write piece by piece, which replaces this one when it is whole and on the disk, or never."""
    aside = beside(path)
    try:
        with open(aside, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def write_all(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Files of these names and contents in the folder; their paths."""
    for name, content in files.items():
        write_aside(folder / name, content)
    return [folder / name for name in files]


def user_folder() -> Path:
    """Where Pencil keeps what belongs to the user: $PENCIL_DATA, or pencil/ in the user's data folder."""
    shared = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return expand_path(os.environ.get("PENCIL_DATA") or f"{shared}/pencil")


def write_private(path: Path, content: str) -> None:
    """A text file that only its owner can read, from its first byte on; it replaces a file or link of that name."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open_aside(path, mode=0o600) as file:
        file.write(content.encode())


def read_private(path: Path, most: int = LARGEST_TOML) -> str:
    """The text of a file that only the present user can read or write; any other is refused."""
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK"):  # as far as the system has them
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EMLINK):
            raise
        raise UserError(f"{path} is a link, and must be a plain file of yours: remove it") from None
    with os.fdopen(handle, encoding="utf-8", errors="replace") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} must be a plain file: remove it")
        if not WINDOWS and status.st_uid != os.geteuid():
            raise UserError(f"{path} belongs to another user: remove it, or set PENCIL_DATA to a folder of yours")
        if not WINDOWS and status.st_mode & 0o077:
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            raise UserError(f"{path} is open to other users (mode {mode}): remove it, and a new one is made")
        return file.read(most)


def sweep(folder: Path, names: str) -> None:
    """Remove what a killed writer left half-written of files with these names, a regular expression.

    Call it only while no other writer is at work.
    """
    for path in folder.glob(".*"):
        if re.fullmatch(rf"\.({names})\.[0-9a-f]{{8}}", path.name) and path.is_file():
            path.unlink(missing_ok=True)


def sweep_folders(path: Path) -> None:
    """Remove what killed writers of a folder left beside it under hidden names; one that is locked is in use."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}.*") if path.parent.is_dir() else ():
        hidden = re.fullmatch(r"[0-9a-f]{8}", folder.name.removeprefix(f".{path.name}."))
        if hidden is None or folder.is_symlink() or not folder.is_dir():
            continue
        with suppress(UserError, OSError), locked(folder, "in use"):
            shutil.rmtree(folder)


@contextmanager
def locked(folder: Path, busy: str) -> Iterator[None]:
    """One writer of a folder at a time; a second one is refused with `busy`. The lock ends with the process."""
    lock = _open_lock(folder / LOCK)
    try:
        try:
            _lock(lock)
        except OSError:
            raise UserError(busy) from None
        yield
    finally:
        os.close(lock)


@contextmanager
def one_at_a_time(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Processes take turns by the lock of this file, which the last one removes; `waiting` is called by one that waits.

    A file system without locks, or that cannot be written, lets all of them in.
    """
    waits = False
    while True:
        try:
            handle = _open_lock(path)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
                raise
            yield
            return
        try:
            _lock(handle)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
                os.close(handle)
                if not waits:
                    waiting()
                waits = True
                time.sleep(0.2)
                continue
        with suppress(OSError):
            if os.path.samestat(os.fstat(handle), path.stat()):  # else its holder has removed it meanwhile
                break
        os.close(handle)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows does not remove what is open
            path.unlink()
        os.close(handle)


def lock_open_file(handle: int, busy: str) -> None:
    """Lock a file that is open, until it is closed; one that another process has locked is refused with `busy`."""
    try:
        _lock(handle)
    except OSError:
        raise UserError(busy) from None


def _lock(handle: int) -> None:
    """Lock an open file, or raise OSError; a system with neither of the two calls does not notice a second writer."""
    try:
        import fcntl
    except ImportError:
        try:
            import msvcrt
        except ImportError:
            return
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _open_lock(path: Path) -> int:
    """The lock's file, opened without following a link and without emptying it."""
    flags = os.O_RDWR | os.O_CREAT
    for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOINHERIT"):  # as far as the system has them
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
            raise
        handle = None
    if handle is not None and stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    if handle is not None:
        os.close(handle)
    raise UserError(f"{path} is a link or a folder or a pipe, and the lock of a run is a plain file: remove it")


def fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def memory() -> int:
    """The bytes of memory this machine has; without end where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


def limit_process(more_memory: int, seconds: int, file_size: int) -> None:
    """Limit this process for the rest of its life, as far as the system can: memory, time, and the files it writes."""
    try:
        import resource
    except ImportError:
        return
    limits = {"RLIMIT_CPU": seconds, "RLIMIT_FSIZE": file_size, "RLIMIT_CORE": 0}
    with suppress(OSError, ValueError):  # what is reserved already counts, and torch alone reserves gigabytes
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limits["RLIMIT_AS"] = used + more_memory
    for name, limit in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, name), (limit, limit))


def check_regular(path: Path) -> os.stat_result:
    """Refuse what is not a plain file, before it is opened: opening a pipe waits, and a device never ends.

    What only stands for a file, as Git's pointers do, is refused too.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:  # a zero byte in the name
        raise UserError(f"{str(path)!r} is not the name of a file") from None
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{path} is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is a pipe, a device or a socket; give a plain file")
    if status.st_size <= LFS_LARGEST and _begins(path, LFS_BEGINNING):
        raise UserError(f"{path} is {LFS_POINTER}: {LFS_FETCH}")
    return status


def _begins(path: Path, beginning: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(beginning)) == beginning
    except OSError:  # whoever reads it says so
        return False


def is_text(name: str) -> bool:
    """Whether a name can be written as UTF-8; bytes that cannot are lone surrogates in Python."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def leads_inside(path: Path, folder: Path) -> bool:
    """Whether a path, with the links in it followed, lies in the folder; or, of a snapshot in the hub's cache, in the
    blobs beside it."""
    try:
        place, folder = path.resolve(), folder.resolve()
    except (OSError, RuntimeError):  # a circle of links
        return False
    blobs = next((one.parent / "blobs" for one in folder.parents if one.name == "snapshots"), folder)
    return place.is_relative_to(folder) or place.is_relative_to(blobs)


def is_broken_link(path: Path) -> bool:
    """Whether a path is a link to nothing."""
    return path.is_symlink() and not path.exists()


def check_inside(path: Path, folder: Path) -> None:
    """Refuse a link that leads out of the folder: what others gave touches nothing else of this machine."""
    if path.is_symlink() and not leads_inside(path, folder):
        raise UserError(
            f"{path} is a link that leads out of {folder}: copy its target into the folder, or remove the link"
        )


def check_links(folder: Path) -> None:
    """Refuse a folder in which any link leads out of it."""
    for path in folder.rglob("*"):
        check_inside(path, folder)


def read_bytes(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """A plain file of at most this many bytes."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > most:
        raise UserError(f"{path} has more than {most / 1e6:g} MB, the most that is read of such a file")
    return content


def read_text(path: Path, most: int = LARGEST_TEXT) -> str:
    """The UTF-8 text of a plain file of at most this many bytes."""
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None


def parse_json(content: bytes | str, name: str, kind: str = "JSON") -> dict[str, Any]:
    """The object that JSON describes; refused, before it is built, when it would take much memory.

    The signs between values bound how many there are, and are quick to count.
    """
    refused = f"{name} is not {kind}, or is damaged"
    text = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if sum(text.count(sign) for sign in (b",", b":", b"[", b"{")) > MOST_VALUES:
        raise UserError(f"{refused}: it holds more than {MOST_VALUES:,} values")
    try:
        found = json.loads(text.decode("utf-8", "surrogatepass"), object_pairs_hook=_without_twins)
    except RecursionError:
        raise UserError(f"{refused}: nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{refused}: {_plainly(error)}") from None
    if not isinstance(found, dict):
        raise UserError(f"{refused}: it does not hold an object")
    return found


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ: readers do not agree on which of two equal keys counts."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands in it twice")
    return content


def _plainly(error: ValueError) -> str:
    """What a parser found, without advice to programmers."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return "a number has thousands of digits" if "integer string conversion" in str(error) else str(error)


def slow_toml(text: str) -> str | None:
    """Why TOML would take long to parse: its parser takes time with the square of the parts of a dotted key."""
    if text.count(",") + text.count("=") > MOST_SETTINGS:
        return f"it holds more than {MOST_SETTINGS:,} values"
    keys = [before.rpartition("\n")[2] for before in text.split("=")[:-1]]
    headers = [line for line in text.split("\n") if line.lstrip().startswith("[") and "," not in line]
    return "nested too deeply" if any(key.count(".") > MOST_DOTS for key in keys + headers) else None


def read_toml(path: Path, most: int = LARGEST_TOML) -> dict[str, Any]:
    """The tables of a TOML file of at most this many bytes."""
    text = read_text(path, most)
    if why := slow_toml(text):
        raise UserError(f"{path} cannot be read: {why}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UserError(f"{path} cannot be read: nested too deeply") from None
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {_plainly(error)}") from None


def read_json(path: Path, most: int = LARGEST_TEXT) -> dict[str, Any]:
    """The object in a JSON file, within the limits of `read_text` and `parse_json`."""
    return parse_json(read_text(path, most), str(path))


def matches(path: Path, *entries: Mapping[str, Any]) -> bool:
    """Whether a file is one of these, by size and SHA-256; one of another size is not read at all."""
    size = check_regular(path).st_size
    same = [entry for entry in entries if entry.get("size") == size]
    return bool(same) and fingerprint(path)["sha256"] in [entry.get("sha256") for entry in same]


def entry_of(content: bytes) -> dict[str, Any]:
    """Size and SHA-256 of a file with this content."""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
