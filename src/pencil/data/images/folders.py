"""Images in folders: one folder a class, or metadata.jsonl; with train/ and test/, or a tenth held out here."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...config import UserError
from ...console import shortened
from ...files import check_inside, check_regular, is_text, leads_inside
from ..cache import hash_files
from ..split import SPLIT, Picture, copies, hold_out, in_both_parts, in_two_classes, not_evaluated
from .decoding import Header, pool, read_header
from .examples import FileExamples, Skipped, Target
from .folder_layout import ENDINGS, count_of, find_splits, frame_notes, hidden, layout_notes, names_of
from .image_data import CAPTIONED_AUGMENTATION, PHOTO_AUGMENTATION, ImageData, check_classes

MAX_TABLE, MAX_LINE = 500_000_000, 1 << 20  # bytes of a metadata.jsonl, and of one of its lines


def from_folder(folder: Path, want: str, whole: bool = False, split: int = SPLIT) -> ImageData:
    """The data set in a folder; broken images are left out and recorded in `skipped`.

    With `whole` nothing is trained on: all of it is held out, however little it is. `split` is the rule of splitting.
    """
    given, notes = find_splits(folder, whole)
    for path in given.values():
        check_inside(path, folder)
    skipped: Skipped = []
    rows = {name: _rows(path, want) for name, path in (given or {"all": folder}).items()}
    headers = {path: header for found in rows.values() for path, header in _headers([path for path, _ in found])}
    skipped += [(str(path), header.fault) for path, header in headers.items() if header.fault]
    checked = {name: [row for row in found if not headers[row[0]].fault] for name, found in rows.items()}
    if not any(checked.values()):
        first = f"; {Path(skipped[0][0]).name}: {skipped[0][1]}" if skipped else ""
        raise UserError(f"{folder} holds no picture that can be read{first}")
    everything = [row for found in checked.values() for row in found]
    labels = [str(target) for _, target in everything] if want == "label" else []
    classes = tuple(sorted(set(labels))) if whole or not labels else check_classes(labels, str(folder))
    hashes = hash_files(folder, dict.fromkeys(path for path, _ in everything))
    if whole:
        checked = {"train": [], "test": everything}
    elif not given:
        held, kept = hold_out(everything, want, [hashes[path] for path, _ in everything], split)
        checked = {"train": kept, "test": held}
    parts = {
        name: [Picture(path.relative_to(folder).as_posix(), str(target), hashes[path]) for path, target in found]
        for name, found in checked.items()
    }
    same = copies([*parts["train"], *parts["test"]]) if classes and not given and split > 1 else []
    for name, found in checked.items():
        if not found and not whole:
            use = "evaluate on" if name == "test" else "train on"
            enough = "two different ones of each class" if want == "label" else "two different ones"
            few = f"{folder} has too few pictures: none is left to {use}; {enough} would do"
            raise UserError("; ".join([few, *same]))
    if not whole and not given:
        notes += not_evaluated(classes, {str(target) for _, target in checked["test"]}, "pictures")
    if classes:
        notes += in_two_classes([*parts["train"], *parts["test"]])
        notes += in_both_parts(parts["train"], parts["test"]) if given or split == 1 else []
        notes += same if not whole else []
    absent = sorted(set(classes) - {str(target) for _, target in checked["train"]})
    if absent and not whole:
        named = ", ".join(map(shortened, absent[:3]))
        raise UserError(f"{folder} has no training picture of {named}; each class needs at least two")

    def examples(name: str) -> FileExamples:
        found = checked[name]
        index = {name: i for i, name in enumerate(classes)}
        targets: list[Target] = [index[str(t)] if classes else str(t) for _, t in found]
        return FileExamples([path for path, _ in found], targets, skipped)

    grey = all(headers[path].grey for path, _ in everything)
    notes += frame_notes([path for path, _ in everything if headers[path].frames])
    return ImageData(
        folder.resolve().name or "root",
        _hash(folder, everything, hashes),
        examples("train"),
        examples("test"),
        classes,
        dict(image_size=(64, 64), channels=1 if grey else 3, patch=(8, 8)),
        PHOTO_AUGMENTATION if want == "label" else CAPTIONED_AUGMENTATION,
        skipped=skipped,
        select_best=not any(path.name.lower().startswith("test") for path in given.values()),
        former_hash=lambda: _hash_of_heads(folder, everything),
        shapes=[headers[path].shape for path, _ in everything],
        hashes=hashes,
        notes=notes + [note for path in given.values() or [folder] for note in layout_notes(path, want)],
        split=1 if given else split,
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
        if not leads_inside(path, folder):
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
    if not is_text(text):
        raise UserError(f"{where}: {text!r} is not text that can be written as UTF-8")


def _headers(paths: Sequence[Path]) -> Iterable[tuple[Path, Header]]:
    return zip(paths, pool().map(read_header, paths), strict=True)


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
