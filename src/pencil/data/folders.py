"""Images in folders: one folder a class, or metadata.jsonl; with train/ and test/, or a tenth held out here."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..config import UserError
from ..files import check_regular
from .cache import hash_files
from .decoding import Header, pool, read_header
from .examples import FileExamples, Skipped, Target
from .folder_layout import ENDINGS, count_of, find_splits, frame_notes, hidden, layout_notes, names_of
from .image_data import CAPTIONED_AUGMENTATION, PHOTO_AUGMENTATION, ImageData, check_classes

MAX_TABLE, MAX_LINE = 500_000_000, 1 << 20  # bytes of a metadata.jsonl, and of one of its lines


def from_folder(folder: Path, want: str, whole: bool = False) -> ImageData:
    """The data set in a folder; broken images are left out and recorded in `skipped`.

    With `whole` nothing is trained on: all of it is held out, however little it is.
    """
    split, notes = find_splits(folder, whole)
    for path in split.values():
        check_inside(path, folder)
    skipped: Skipped = []
    rows = {name: _rows(path, want) for name, path in (split or {"all": folder}).items()}
    headers = {path: header for found in rows.values() for path, header in _headers([path for path, _ in found])}
    skipped += [(str(path), header.fault) for path, header in headers.items() if header.fault]
    checked = {name: [row for row in found if not headers[row[0]].fault] for name, found in rows.items()}
    if not any(checked.values()):
        first = f"; {Path(skipped[0][0]).name}: {skipped[0][1]}" if skipped else ""
        raise UserError(f"{folder} holds no picture that can be read{first}")
    everything = [row for found in checked.values() for row in found]
    labels = [str(target) for _, target in everything] if want == "label" else []
    classes = tuple(sorted(set(labels))) if whole or not labels else check_classes(labels, str(folder))
    if whole:
        checked = {"train": [], "test": everything}
    elif not split:
        held, kept = hold_out(everything, want)
        checked = {"train": kept, "test": held}
    for name, found in checked.items():
        if not found and not whole:
            use = "evaluate on" if name == "test" else "train on"
            enough = "two of each class" if want == "label" else "two"
            raise UserError(f"{folder} has too few pictures: none is left to {use}; {enough} would do")
    notes += not_evaluated(classes, checked) if not whole and not split else []
    absent = sorted(set(classes) - {str(target) for _, target in checked["train"]})
    if absent and not whole:
        raise UserError(f"{folder} has no training picture of {', '.join(absent[:3])}; each class needs at least two")

    def examples(name: str) -> FileExamples:
        found = checked[name]
        index = {name: i for i, name in enumerate(classes)}
        targets: list[Target] = [index[str(t)] if classes else str(t) for _, t in found]
        return FileExamples([path for path, _ in found], targets, skipped)

    grey = all(headers[path].grey for path, _ in everything)
    notes += frame_notes([path for path, _ in everything if headers[path].frames])
    hashes = hash_files(folder, dict.fromkeys(path for path, _ in everything))
    return ImageData(
        folder.resolve().name or "root",
        _hash(folder, everything, hashes),
        examples("train"),
        examples("test"),
        classes,
        dict(image_size=(64, 64), channels=1 if grey else 3, patch=(8, 8)),
        PHOTO_AUGMENTATION if want == "label" else CAPTIONED_AUGMENTATION,
        skipped=skipped,
        select_best=not any(path.name.lower().startswith("test") for path in split.values()),
        former_hash=lambda: _hash_of_heads(folder, everything),
        shapes=[headers[path].shape for path, _ in everything],
        hashes=hashes,
        notes=notes + [note for path in split.values() or [folder] for note in layout_notes(path, want)],
    )


def annotations_in(folder: Path) -> str:
    """The annotations of the images in a folder, or in its train/: "caption", "label", or "nothing" where none are in
    class folders or all are in one."""
    here = folder / "train" if (folder / "train").is_dir() else folder
    table = here / "metadata.jsonl"
    if table.is_file():
        _, first = next(iter(_metadata(table)))
        return "label" if "label" in first and not first.keys() & {"text", "caption"} else "caption"
    parents = {path.relative_to(here).parts[:-1][:1] for path in _pictures(here)}
    return "nothing" if len(parents) == 1 else "label"


def has_labels(folder: Path) -> bool:
    """Whether the metadata.jsonl of a folder, or of its train/, has labels."""
    table = (folder / "train" if (folder / "train").is_dir() else folder) / "metadata.jsonl"
    return table.is_file() and "label" in next(iter(_metadata(table)))[1]


def _rows(folder: Path, want: str) -> list[tuple[Path, Any]]:
    if want == "nothing":
        return [(path, "") for path in _pictures(folder)]
    table = folder / "metadata.jsonl"
    check_inside(table, folder)
    if table.is_file():
        return _album(table, want)
    if want == "caption":
        raise UserError(f'{folder} has no metadata.jsonl; one line a picture: {{"file_name": …, "text": …}}')
    return _class_folders(folder)


def _pictures(folder: Path) -> list[Path]:
    """Every image file under a folder, sorted."""
    found = []

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}")

    for root, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(f for f in folders if not hidden(f))
        pictures = [n for n in sorted(names) if Path(n).suffix.lower() in ENDINGS and not n.startswith(".")]
        for path in (Path(root) / name for name in (*folders, *pictures)):
            check_inside(path, folder)
        found += [Path(root) / name for name in pictures]
    return found


def check_inside(path: Path, folder: Path) -> None:
    """Refuse a link that leads out of the folder: a data set that was received reads nothing else of this machine."""
    if path.is_symlink() and not _leads_inside(path, folder):
        raise UserError(f"{path} is a link that leads out of {folder}: copy there what it names, or remove it")


def _leads_inside(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a circle of links
        return False


def _class_folders(folder: Path) -> list[tuple[Path, str]]:
    every = _pictures(folder)
    loose = [path for path in every if path.parent == folder]
    if loose:
        raise UserError(
            f"{folder} has {count_of(loose, 'picture')} without a label ({names_of(loose)}): put each in the folder of "
            "its class, or write a metadata.jsonl with file_name and label"
        )
    rows = [(path, path.relative_to(folder).parts[0]) for path in every]
    named = {name for _, name in rows}
    bare = [path for path in sorted(folder.iterdir()) if path.is_dir() and path.name not in named | {".git"}]
    bare = [path for path in bare if not hidden(path.name)]
    if rows and bare:
        raise UserError(f"{folder} has {count_of(bare, 'class folder')} without a picture ({names_of(bare)})")
    for path, name in rows:
        _check_text(name, path)
    return rows


def _album(table: Path, want: str) -> list[tuple[Path, Any]]:
    folder, rows, missing = table.parent, [], []
    for number, row in _metadata(table):
        value = row.get("label") if want == "label" else row.get("text", row.get("caption"))
        if not isinstance(value, (str, int)) or isinstance(value, bool) or not str(value).strip():
            key = "label" if want == "label" else "text"
            raise UserError(
                f"{table}, line {number}: {row['file_name']} has no {key}; write "
                f'{{"file_name": …, "{key}": …}} for each picture'
            )
        _check_text(str(value), f"{table}, line {number}")
        path = folder / row["file_name"]
        if not _leads_inside(path, folder):
            raise UserError(f"{table}, line {number}: {row['file_name']} lies outside the folder")
        if path.is_file():
            rows.append((path, value))
        else:
            missing.append(path)
    named = {path for path, _ in rows}
    over = [path for path in _pictures(folder) if path not in named]
    if missing:
        raise UserError(f"{table} has lines for {count_of(missing, 'picture')} not there ({names_of(missing)})")
    if over:
        raise UserError(f"{folder} has {count_of(over, 'picture')} without a line in metadata.jsonl ({names_of(over)})")
    return rows


def _metadata(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    """The rows of a metadata.jsonl, each with its line number."""
    empty = True
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        empty = False
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        row = row if isinstance(row, dict) else {}
        if not isinstance(row.get("file_name"), str) or "\0" in row["file_name"]:
            raise UserError(f"{path}, line {number}: not a JSON object with a file_name")
        yield number, row
    if empty:
        raise UserError(f"{path} is empty")


def _lines(path: Path) -> Iterable[str]:
    """The lines of a UTF-8 text, read one at a time; a file or a line too large for captions is refused."""
    if check_regular(path).st_size > MAX_TABLE:
        raise UserError(f"{path} has more than {MAX_TABLE // 1_000_000} MB, the most that is read of captions")
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise UserError(f"{path}, line {number}: longer than {MAX_LINE:,} bytes")
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise UserError(f"{path} cannot be read: it is not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _check_text(text: str, where: object) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError(f"{where}: {text!r} is not text that can be written as UTF-8")


def _headers(paths: Sequence[Path]) -> Iterable[tuple[Path, Header]]:
    return zip(paths, pool().map(read_header, paths), strict=True)


def hold_out(rows: list[Any], want: str) -> tuple[list[Any], list[Any]]:
    """A random tenth of each class by a fixed seed, at least one; all captions of an image stay together."""
    groups: dict[Any, dict[Path, list[Any]]] = {}
    for row in rows:
        groups.setdefault(row[1] if want == "label" else None, {}).setdefault(row[0], []).append(row)
    held, kept = [], []
    for group in groups.values():
        paths = list(group)
        order = np.random.Generator(np.random.Philox(key=0)).permutation(len(paths)).tolist()
        count = max(1, round(len(paths) / 10)) if len(paths) > 1 else 0
        held += [row for i in sorted(order[:count]) for row in group[paths[i]]]
        kept += [row for i in sorted(order[count:]) for row in group[paths[i]]]
    return held, kept


def not_evaluated(classes: Sequence[str], parts: Mapping[str, list[Any]]) -> list[str]:
    """A note of the classes without a held-out picture."""
    alone = sorted(set(classes) - {str(target) for _, target in parts["test"]})
    if not alone:
        return []
    have, they = ("has", "it is") if len(alone) == 1 else ("have", "they are")
    return [f"{', '.join(alone[:3])}{', …' if len(alone) > 3 else ''} {have} a single picture: {they} trained on, and "
            "not evaluated"]  # fmt: skip


def _hash(folder: Path, rows: list[Any], hashes: Mapping[Path, str]) -> str:
    """Over the name, the target and the whole content of each file."""
    sha = hashlib.sha256()
    for path, target in rows:
        sha.update(repr((path.relative_to(folder).as_posix(), target, hashes[path])).encode())
    return sha.hexdigest()


def _hash_of_heads(folder: Path, rows: list[Any]) -> str:
    """The hash that older versions recorded: over the name, target, size and first 4 KiB of each file."""
    sha = hashlib.sha256()
    for path, target in rows:
        with path.open("rb") as file:
            head = file.read(4096)
        sha.update(repr((path.relative_to(folder).as_posix(), target, path.stat().st_size)).encode() + head)
    return sha.hexdigest()
