"""Inputs of a prediction, one at a time: pictures or texts of files, folders, lists, tables and standard input.

Nothing is held but the names in one folder, so that there may be any number of them. An input that is no text or cannot
be read as a row is an `Input` with its fault, and those after it are read all the same.
"""

import csv
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from ..config import UserError, expand_path, nearest, package, refused
from ..files import check_regular, is_text, read_text
from .images.folders import ENDINGS, hidden
from .tables.tables import TEXTS

Kind = Literal["picture", "text"]
STDIN = "-"
MAX_LINE = 1 << 20  # characters of one line, of a list or a table
PARQUET_ROWS = 1024  # that are read at a time
PICTURE_COLUMNS = ("file_name", "image", "path", "file", "filename", "picture")
TEXT_COLUMNS = (*TEXTS, "source", "input", "prompt")
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
DELIMITED = {".csv": (",", ";", "|", "\t"), ".tsv": ("\t",)}


@dataclass(frozen=True)
class Input:
    """One input: how a row of the result names it, what is predicted from, and what is wrong with it."""

    name: str  # a path as it was given, or the text
    value: Any  # a path, or a text
    fault: str = ""


def inputs_of(sources: Sequence[str], kind: Kind, column: str | None = None) -> Iterator[Input]:
    """The inputs that these words name, in their order; a word that names nothing is refused before the first."""
    for source in sources:
        check_source(source, kind, column)
    for source in sources:
        yield from _of(source, kind, column)


def check_source(source: str, kind: Kind, column: str | None = None) -> None:
    """Refuse a word that names no input."""
    if source == STDIN:
        return
    path = expand_path(source)
    if not path.exists():
        raise UserError(f"there is no file or folder {source}")
    if path.is_file() and path.stat().st_size == 0 and kind == "text":
        raise UserError(f"{source} is empty: there is nothing to predict from")
    if column is not None and not (path.is_file() and path.suffix.lower() in TABLES):
        raise UserError(f"--column is for a table ({', '.join(TABLES)}), and {source} is none: leave it out")


def count_inputs(sources: Sequence[str], kind: Kind) -> int | None:
    """How many inputs files and folders of pictures have; None where that would need a table or a list to be read."""
    paths = [expand_path(source) for source in sources if source != STDIN]
    if len(paths) < len(sources) or kind == "text":
        return None
    if any(path.is_file() and path.suffix.lower() in (*TABLES, ".txt") for path in paths):
        return None
    return sum(sum(1 for _ in _files(path, ENDINGS)) if path.is_dir() else 1 for path in paths)


def _of(source: str, kind: Kind, column: str | None) -> Iterator[Input]:
    path = expand_path(source)
    ending = path.suffix.lower()
    if source == STDIN:
        yield from _lines(sys.stdin, "standard input", kind)
    elif path.is_dir():
        found = False
        for found_path in _files(path, ENDINGS if kind == "picture" else frozenset((".txt",))):
            found = True
            yield _file(str(found_path), kind)
        if not found:
            what = "picture" if kind == "picture" else ".txt file"
            raise UserError(f"{source} has no {what} in it")
    elif ending in TABLES:
        yield from _table(path, source, kind, column)
    elif ending == ".txt":
        check_regular(path)
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
            yield from _lines(file, source, kind)
    else:
        yield _file(source, kind)


def _files(folder: Path, endings: frozenset[str]) -> Iterator[Path]:
    """The files under a folder with one of these endings, sorted, without hidden ones."""

    def unreadable(error: OSError) -> None:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}")

    for root, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not hidden(name))
        for name in sorted(names):
            if os.path.splitext(name)[1].lower() in endings and not name.startswith("."):
                yield Path(root, name)


def _file(source: str, kind: Kind) -> Input:
    """One file: a picture, or a text as a whole."""
    if kind == "picture":
        return Input(source, expand_path(source))
    try:
        return Input(source, read_text(expand_path(source)).strip("\n"))
    except UserError as error:
        return Input(source, None, str(error))


def _lines(file: TextIO, where: str, kind: Kind) -> Iterator[Input]:
    """A path or a text a line, without blank lines; paths are those of the working folder.

    A blank line of standard input is a row with a fault, so that the result can be pasted beside what was piped in.
    """
    for number, line in enumerate(_limited(file), 1):
        line, place = line.rstrip("\r\n"), f"{where}, line {number}"
        if line.strip():
            yield _input(line, kind, Path(), place)
        elif file is sys.stdin:
            yield Input(place, None, f"{place}: the line is blank")


def _limited(file: TextIO) -> Iterator[str]:
    """The lines of a file; of one that is longer than any input, as much as shows that."""
    while line := file.readline(MAX_LINE + 2):
        yield line
        while not line.endswith("\n") and line:
            line = file.readline(MAX_LINE)


def _input(value: Any, kind: Kind, folder: Path, where: str) -> Input:
    """The input of a cell or a line; paths are relative to the folder."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value != value:
        what = "missing" if value is None or value != value else f"no text but {type(value).__name__}"
        return Input(where, None, f"{where}: the input is {what}")
    text = str(value)
    if len(text) > MAX_LINE:
        return Input(where, None, f"{where}: longer than {MAX_LINE:,} characters")
    if not is_text(text):
        return Input(where, None, f"{where}: not UTF-8 text")
    return Input(text, folder / expand_path(text) if kind == "picture" else text)


def _table(path: Path, source: str, kind: Kind, column: str | None) -> Iterator[Input]:
    """The inputs in a column of a table, a row each; paths are relative to the table's folder."""
    check_regular(path)
    ending = path.suffix.lower()
    if ending == ".parquet":
        rows = _parquet_rows(path, source, kind, column)
    elif ending in DELIMITED:
        rows = _delimited_rows(path, source, kind, column)
    else:
        rows = _json_rows(path, source, kind, column)
    for where, value, fault in rows:
        yield Input(where, None, fault) if fault else _input(value, kind, path.parent, where)


Cell = tuple[str, Any, str]  # where it is, its value, and what is wrong with its row


def _delimited_rows(path: Path, source: str, kind: Kind, column: str | None) -> Iterator[Cell]:
    limit = csv.field_size_limit(2 * MAX_LINE)
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            lines = _limited(file)
            head = next(lines, "")
            signs = DELIMITED[path.suffix.lower()]
            delimiter = max(signs, key=head.count)
            names = [name.strip() for name in next(csv.reader([head], delimiter=delimiter), [])]
            if not names:
                raise UserError(f"{source} has no header: its first line names its columns")
            place = names.index(choose_column(names, source, kind, column))
            reader = csv.reader(lines, delimiter=delimiter)
            for cells in reader:
                where = f"{source}, line {reader.line_num + 1}"
                if not cells:
                    continue
                fault = (
                    "" if len(cells) == len(names) else f"{where}: {len(cells)} cells, and the header has {len(names)}"
                )
                yield where, None if fault else cells[place], fault
    except csv.Error as error:
        raise UserError(f"{source} cannot be read as a table: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _json_rows(path: Path, source: str, kind: Kind, column: str | None) -> Iterator[Cell]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, line in enumerate(_limited(file), 1):
            where = f"{source}, line {number}"
            if not line.strip():
                continue
            row: Any = None
            if len(line) <= MAX_LINE:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
            if not isinstance(row, Mapping):
                yield where, None, f"{where}: not a JSON object"
                continue
            column = column if column in row else choose_column(list(row), source, kind, column)
            yield where, row[column], ""


def _parquet_rows(path: Path, source: str, kind: Kind, column: str | None) -> Iterator[Cell]:
    parquet = package("pyarrow.parquet", f"{source} is a Parquet table, which needs pyarrow", "hub-data")
    with refused(f"{source} cannot be read"):
        file = parquet.ParquetFile(path)
        name = choose_column(list(file.schema_arrow.names), source, kind, column)
        number = 0
        for batch in file.iter_batches(PARQUET_ROWS, columns=[name]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield f"{source}, row {number}", value, ""


def choose_column(names: Sequence[str], source: str, kind: Kind, column: str | None) -> str:
    """The column with the inputs: the one that was named, the only one, or the only one with a usual name."""
    if column is not None:
        if column not in names:
            raise UserError(f"{source} has no column {column}; {nearest(column, names)}")
        return column
    usual = PICTURE_COLUMNS if kind == "picture" else TEXT_COLUMNS
    found = [name for name in names if name.strip().lower() in usual]
    if len(names) == 1 or len(found) == 1:
        return (found or list(names))[0]
    raise UserError(
        f"{source} has the columns {', '.join(names)}, and which has the {kind}s is not clear; name it with --column"
    )
