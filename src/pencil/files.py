"""Files written so that a crash never leaves half of one: aside, flushed, then renamed into place."""

import hashlib
import os
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
    aside = beside(path)
    try:
        write_flushed(aside, content)
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


def sweep(folder: Path) -> None:
    """Remove what a killed writer left half-written; call it only while no other writer is at work."""
    for path in folder.glob(".*"):
        if re.fullmatch(r"\..+\.[0-9a-f]{8}", path.name) and path.is_file():
            path.unlink(missing_ok=True)


def fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
