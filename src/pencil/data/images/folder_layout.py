"""How a folder of images is laid out: train/ and test/, class folders, and what in it is not read."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...config import UserError

ENDINGS = frozenset((".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm"))
MAC = "__MACOSX"  # a folder that a Mac adds to its zip archives, of files that are no pictures
IGNORED = ("metadata.jsonl", "thumbs.db", "desktop.ini")  # besides hidden files
SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test", "val": "test", "valid": "test",
          "validation": "test"}  # fmt: skip


def hidden(name: str) -> bool:
    """Whether a file or a folder is not read, by its name."""
    return name.startswith(".") or name == MAC


def find_splits(folder: Path, whole: bool) -> tuple[dict[str, Path], list[str]]:
    """The folders train/ and test/ (or val/ under one of its names), if there are any, and a sentence about them.

    With `whole`, all of them, unless there are class folders beside them.
    """
    names = [entry.name for entry in os.scandir(folder) if entry.is_dir() and not hidden(entry.name)]
    parts = {name: SPLITS[name.lower()] for name in names if name.lower() in SPLITS}
    if whole and len(parts) == len(names):
        return {name: folder / name for name in sorted(parts)}, []
    if "train" not in parts.values():
        return {}, []
    # test/ is held out if it exists, else val/ under one of its names
    held = [name for name, part in parts.items() if part == "test"]
    held = [name for name in held if name.lower().startswith("test")] or held
    train = min(name for name, part in parts.items() if part == "train")
    if not held:
        raise UserError(
            f"{folder} has {train}/ but no test/ or val/ beside it; add one, or give --data {folder / train}, of which "
            "about a tenth is held out"
        )
    split = {parts[name]: folder / name for name in names if name in (train, min(held))}
    if min(held).lower().startswith("test"):
        split = {name: split[name] for name in ("train", "test")}
    unread = sorted(name for name in names if folder / name not in split.values())
    others = f"; not read: {', '.join(f'{name}/' for name in unread)}" if unread else ""
    return split, [f"{folder} has {train}/ to train on and {min(held)}/ to evaluate on{others}"]


def frame_notes(paths: list[Path]) -> list[str]:
    """What is read of images that have several frames or pages."""
    if not paths:
        return []
    have = "has" if len(paths) == 1 else "have"
    return [f"{count_of(paths, 'picture')} {have} several frames, of which only the first is read ({names_of(paths)})"]


def layout_notes(folder: Path, want: str) -> list[str]:
    """What in a folder may be read otherwise than it looks: files that are not read, and folders in class folders."""
    others, inner, notes = [], [], []
    for root, folders, names in os.walk(folder):
        if MAC in folders:
            notes.append(f"{Path(root) / MAC} is what a Mac adds to a zip archive, and not read")
        folders[:] = sorted(name for name in folders if not hidden(name))
        others += [
            Path(root) / name
            for name in sorted(names)
            if Path(name).suffix.lower() not in ENDINGS and not name.startswith(".") and name.lower() not in IGNORED
        ]
        inner += [Path(root) / name for name in folders if Path(root) != folder]
    if others:
        which = "is no picture" if len(others) == 1 else "are no pictures"
        notes.append(
            f"{count_of(others, 'file')} of {folder} {which} by the ending, and not read ({names_of(others)}); "
            f"pictures end in {', '.join(sorted(ENDINGS))}"
        )
    if inner and want == "label" and not (folder / "metadata.jsonl").is_file():
        classes = sorted({path.relative_to(folder).parts[0] for path in inner})
        some = ", ".join(f"{path.relative_to(folder).as_posix()}/" for path in inner[:3])
        notes.append(
            f"a class is a folder of {folder}: what is in {some}{', …' if len(inner) > 3 else ''} counts as "
            f"{', '.join(classes[:3])}{', …' if len(classes) > 3 else ''}"
        )
    return notes


def count_of(things: Sequence[Any], what: str) -> str:
    return f"{len(things)} {what}{'s' if len(things) > 1 else ''}"


def names_of(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths[:3]) + (", …" if len(paths) > 3 else "")
