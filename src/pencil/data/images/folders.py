"""Images in folders: one folder a class, or a table metadata.jsonl or metadata.csv, or a text beside each image; with
train/ and test/, or a tenth held out here."""

import csv
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...config import UserError, refuse
from ...files import check_inside, check_regular, is_broken_link, is_text, leads_inside, read_bytes
from ..cache import hash_files
from ..split import SPLIT
from .datasets import Skipped
from .decoding import pool, read_header
from .image_data import Entry, ImageData, from_entries

MAX_TABLE_BYTES, MAX_LINE_BYTES = 500_000_000, 1 << 20  # of a metadata.jsonl, and of one of its lines
ENDINGS = frozenset((".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm"))
MAC = "__MACOSX"  # a folder that a Mac adds to its zip archives, of files that are no pictures
TABLES = ("metadata.jsonl", "metadata.csv")  # a row each picture
IGNORED = (*TABLES, "thumbs.db", "desktop.ini")  # besides hidden files
SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test", "val": "test", "valid": "test",
          "validation": "test"}  # fmt: skip


def from_folder(folder: Path, want: str, whole: bool = False, split: int = SPLIT) -> ImageData:
    """The data set in a folder; broken images are left out and recorded in `skipped`.

    With `whole` nothing is trained on: all of it is held out, however little it is. `split` is the rule of splitting.
    """
    own_parts, notes = find_splits(folder, whole)
    for path in own_parts.values():
        check_inside(path, folder)
    rows = {name: _rows(path, want) for name, path in (own_parts or {"all": folder}).items()}
    paths = [path for part in rows.values() for path, _ in part]
    headers = dict(zip(paths, pool().map(read_header, paths), strict=True))
    skipped: Skipped = [(str(path), header.fault) for path, header in headers.items() if header.fault]
    rows = {name: [row for row in part if not headers[row[0]].fault] for name, part in rows.items()}
    every = [row for part in rows.values() for row in part]
    hashes = hash_files(folder, dict.fromkeys(path for path, _ in every))

    def entry(path: Path, target: Any) -> Entry:
        name = path.relative_to(folder).as_posix()
        return Entry(path, target, name, hashes[path], headers[path].shape, headers[path].grey)

    data = from_entries(
        folder.resolve().name or "root",
        folder,
        {name: [entry(*row) for row in part] for name, part in rows.items()},
        want,
        lambda labels: sorted(map(str, labels)),
        skipped,
        whole,
        split,
        hash=_hash(folder, every, hashes),
        former_hash=lambda: _hash_of_heads(folder, every),
        hashes=hashes,
        select_best=not any(path.name.lower().startswith("test") for path in own_parts.values()),
    )
    layout = [note for path in own_parts.values() or [folder] for note in layout_notes(path, want)]
    data.notes = [*notes, *data.notes, *frame_notes([path for path, _ in every if headers[path].frames]), *layout]
    return data


def annotations_in(folder: Path) -> str:
    """The annotations of the images in a folder, or in its train/: "caption", "label", or "nothing" where none are in
    class folders or all are in one."""
    here = folder / "train" if (folder / "train").is_dir() else folder
    if table := _table(here):
        _, first = next(iter(_metadata(table)))
        return "label" if "label" in first and not first.keys() & {"text", "caption"} else "caption"
    pictures = _pictures(here)
    if len({path.relative_to(here).parts[:-1][:1] for path in pictures}) != 1:
        return "label"
    return "caption" if all(path.with_suffix(".txt").is_file() for path in pictures) else "nothing"


def has_labels(folder: Path) -> bool:
    """Whether the table of a folder, or of its train/, has labels."""
    table = _table(folder / "train" if (folder / "train").is_dir() else folder)
    return table is not None and "label" in next(iter(_metadata(table)))[1]


def _rows(folder: Path, want: str) -> list[tuple[Path, Any]]:
    if want == "nothing":
        return [(path, "") for path in _pictures(folder)]
    if table := _table(folder):
        return _album(table, want)
    return _texts_beside(folder) if want == "caption" else _class_folders(folder)


def _table(folder: Path) -> Path | None:
    """The table of the pictures in a folder, if it has one."""
    tables = [folder / name for name in TABLES if (folder / name).is_file()]
    for table in tables:
        check_inside(table, folder)
    refuse((len(tables) > 1, f"{folder} has {' and '.join(TABLES)}: remove one of them"))
    return next(iter(tables), None)


def _pictures(folder: Path) -> list[Path]:
    """Every image file under a folder, sorted."""
    paths = []

    def unreadable(error: OSError) -> None:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}")

    for root, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(f for f in folders if not hidden(f))
        pictures = [n for n in sorted(names) if Path(n).suffix.lower() in ENDINGS and not n.startswith(".")]
        for path in (Path(root) / name for name in (*folders, *pictures)):
            if not is_broken_link(path):  # which is a picture that cannot be read
                check_inside(path, folder)
        paths += [Path(root) / name for name in pictures]
    return paths


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


def _texts_beside(folder: Path) -> list[tuple[Path, str]]:
    """Pictures with a text of the same name beside each: 1.png and 1.txt."""
    every = _pictures(folder)
    bare = [path for path in every if not path.with_suffix(".txt").is_file()]
    if len(bare) == len(every):
        raise UserError(
            f'{folder} has no metadata.jsonl; one line a picture: {{"file_name": …, "text": …}}. A metadata.csv with '
            "these columns, or 1.txt beside 1.png, are read too"
        )
    refuse((bare, f"{folder} has {count_of(bare, 'picture')} without a .txt of the same name ({names_of(bare)})"))
    rows = []
    for path in every:
        file = path.with_suffix(".txt")
        check_inside(file, folder)
        try:
            text = read_bytes(file, MAX_LINE_BYTES).decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise UserError(f"{file} cannot be read: it is not UTF-8 text") from None
        if not text:
            raise UserError(f"{file} is empty: write what {path.name} shows")
        rows.append((path, text))
    return rows


def _album(table: Path, want: str) -> list[tuple[Path, Any]]:
    folder, rows, missing = table.parent, [], []
    for number, row in _metadata(table):
        value = row.get("label") if want == "label" else row.get("text", row.get("caption"))
        if not isinstance(value, (str, int)) or isinstance(value, bool) or not str(value).strip():
            key = "label" if want == "label" else "text"
            raise UserError(
                f"{table}, line {number}: {row['file_name']} has no {key}; write "
                + (f'{{"file_name": …, "{key}": …}}' if table.suffix == ".jsonl" else f"a column {key}")
                + " for each picture"
            )
        _check_text(str(value), f"{table}, line {number}")
        path = folder / row["file_name"]
        broken = is_broken_link(path)
        if not broken and not leads_inside(path, folder):
            raise UserError(f"{table}, line {number}: {row['file_name']} lies outside the folder")
        if broken or path.is_file():
            rows.append((path, value))
        else:
            missing.append(path)
    named = {path for path, _ in rows}
    over = [path for path in _pictures(folder) if path not in named]
    refuse(
        (missing, f"{table} has lines for {count_of(missing, 'picture')} not there ({names_of(missing)})"),
        (over, f"{folder} has {count_of(over, 'picture')} without a line in {table.name} ({names_of(over)})"),
    )
    return rows


def _metadata(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    """The rows of a table, each with its line number."""
    if path.suffix == ".csv":
        yield from _csv_rows(path)
        return
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


def _csv_rows(path: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    """The rows of a metadata.csv, as the hub has them: its first line names the columns."""
    rows = csv.DictReader((f"{line}\n" for line in _lines(path)), strict=True)
    try:
        if "file_name" not in (rows.fieldnames or ()):
            raise UserError(f"{path} has no column file_name; its first line names the columns: file_name,text")
        empty = True
        for row in rows:
            empty = False
            if None in row or None in row.values() or "\0" in row["file_name"]:
                columns = ",".join(rows.fieldnames or ())
                raise UserError(
                    f"{path}, line {rows.line_num}: its cells are not those of {columns}; put a text with commas in "
                    "quotes"
                )
            yield rows.line_num, row
        refuse((empty, f"{path} is empty"))
    except csv.Error as error:
        raise UserError(f"{path}, line {rows.reader.line_num}: {error}") from None


def _lines(path: Path) -> Iterable[str]:
    """The lines of a UTF-8 text, read one at a time; a file or a line too large for captions is refused."""
    if check_regular(path).st_size > MAX_TABLE_BYTES:
        raise UserError(f"{path} has more than {MAX_TABLE_BYTES // 1_000_000} MB, the most that is read of captions")
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise UserError(f"{path}, line {number}: longer than {MAX_LINE_BYTES:,} bytes")
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise UserError(f"{path} cannot be read: it is not UTF-8 text") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _check_text(text: str, where: object) -> None:
    if not is_text(text):
        raise UserError(f"{where}: {text!r} is not text that can be written as UTF-8")


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
    evaluated = [name for name, part in parts.items() if part == "test"]
    evaluated = [name for name in evaluated if name.lower().startswith("test")] or evaluated
    train = min(name for name, part in parts.items() if part == "train")
    if not evaluated:
        raise UserError(
            f"{folder} has {train}/ but no test/ or val/ beside it; add one, or give --data {folder / train}, of which "
            "about a tenth is held out"
        )
    split = {parts[name]: folder / name for name in names if name in (train, min(evaluated))}
    if min(evaluated).lower().startswith("test"):
        split = {name: split[name] for name in ("train", "test")}
    unread = sorted(name for name in names if folder / name not in split.values())
    others = f"; not read: {', '.join(f'{name}/' for name in unread)}" if unread else ""
    return split, [f"{folder} has {train}/ to train on and {min(evaluated)}/ to evaluate on{others}"]


def frame_notes(paths: list[Path]) -> list[str]:
    """What is read of images that have several frames or pages."""
    if not paths:
        return []
    have = "has" if len(paths) == 1 else "have"
    return [f"{count_of(paths, 'picture')} {have} several frames, of which only the first is read ({names_of(paths)})"]


def layout_notes(folder: Path, want: str) -> list[str]:
    """What in a folder may be read otherwise than it looks: files that are not read, and folders in class folders."""
    others, inner, notes = [], [], []
    texts = want == "caption" and not _table(folder)  # beside the pictures
    for root, folders, names in os.walk(folder):
        if MAC in folders:
            notes.append(f"{Path(root) / MAC} is what a Mac adds to a zip archive, and not read")
        folders[:] = sorted(name for name in folders if not hidden(name))
        others += [
            Path(root) / name
            for name in sorted(names)
            if Path(name).suffix.lower() not in ENDINGS and not name.startswith(".") and name.lower() not in IGNORED
            if not (texts and name.endswith(".txt"))
        ]
        inner += [Path(root) / name for name in folders if Path(root) != folder]
    if others:
        which = "is no picture" if len(others) == 1 else "are no pictures"
        notes.append(
            f"{count_of(others, 'file')} of {folder} {which} by the ending, and not read ({names_of(others)}); "
            f"pictures end in {', '.join(sorted(ENDINGS))}"
        )
    if inner and want == "label" and not _table(folder):
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
