"""Texts in files of records: JSON lines, plain or compressed (.gz, .zst), and Parquet; each record is a document."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...config import UserError, package, refused
from ...files import check_regular

JSON_LINES = (".jsonl", ".ndjson")
PACKED = (".gz", ".zst")  # cannot be read from the middle
USUAL = ("text", "content")  # the column of the text, unless it is named
MAX_LINE_BYTES = 1 << 28  # of one record
PIECE_BYTES = 1 << 20  # that are read of it at a time


class Part(NamedTuple):
    """A part of a file of records: bytes of JSON lines, one row group of a Parquet file, or the whole file."""

    start: int = 0
    length: int | None = None  # bytes; None to the end
    line: int = 1  # the number of its first line
    group: int | None = None  # of a Parquet file


WHOLE = Part()


def kind_of(path: Path) -> str | None:
    """The kind of records by the ending of the name: "lines", "packed" or "parquet"; None for anything else."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes[-1:] == [".parquet"]:
        return "parquet"
    if suffixes and suffixes[-1] in JSON_LINES:
        return "lines"
    return "packed" if len(suffixes) == 2 and suffixes[0] in JSON_LINES and suffixes[1] in PACKED else None


def lines_of(path: Path, part: Part = WHOLE) -> Iterator[tuple[int, bytes]]:
    """The lines of a file of JSON lines, or of a part of it, each with its number and with its end."""
    check_regular(path)
    left, number = part.length, part.line
    try:
        with _opened(path) as file:
            if part.start:
                file.seek(part.start)
            while left is None or left > 0:
                line = b"".join(_pieces(file, MAX_LINE_BYTES + 1 if left is None else left, f"{path}, line {number}"))
                if not line:
                    return
                yield number, line
                number += 1
                left = None if left is None else left - len(line)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _pieces(file: Any, most: int, where: str) -> list[bytes]:
    """One line, of at most this many bytes, in pieces: joined only if it is not too long.

    A packed file of a megabyte may hold a line of a gigabyte, which must not be in memory twice before it is refused.
    """
    pieces, read = [], 0
    while read < most and (piece := file.readline(min(PIECE_BYTES, most - read))):
        pieces.append(piece)
        read += len(piece)
        if read > MAX_LINE_BYTES:
            raise UserError(f"{where}: longer than {MAX_LINE_BYTES:,} bytes")
        if piece.endswith(b"\n"):
            break
    return pieces


def _opened(path: Path) -> Any:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rb")
    if path.suffix.lower() != ".zst":
        return path.open("rb")
    # its stream has no readline of its own
    return io.BufferedReader(_pyarrow(path).input_stream(str(path), compression="zstd"), 1 << 20)


def _pyarrow(path: Path, module: str = "pyarrow") -> Any:
    return package(module, f"{path} needs the pyarrow package, which comes with datasets", "hub-data")


def records_of(path: Path, part: Part = WHOLE) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The records of JSON lines, each with where it stands."""
    for number, line in lines_of(path, part):
        if not (line := line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError(f"{where}: not JSON; write one object a line") from None
        if not isinstance(row, dict):
            raise UserError(f"{where}: not a JSON object; write one object a line")
        yield where, row


def texts_of(path: Path, column: str, part: Part = WHOLE) -> Iterator[str]:
    """The text of each record; empty ones are left out, and one without a text is refused."""
    rows = _rows(path, column, part.group) if kind_of(path) == "parquet" else records_of(path, part)
    for where, row in rows:
        text = row.get(column)
        if not isinstance(text, str):
            has = "is no text" if column in row else f"is not there (it has {_named(row)})"
            raise UserError(f"{where}: {column} {has}; leave the record out, or name another --data.text_column")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(f"{where}: {column} is not text that can be written as UTF-8") from None
        if text:
            yield text


def _rows(path: Path, column: str, group: int | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    file = parquet(path)
    first = sum(file.metadata.row_group(i).num_rows for i in range(group or 0))
    groups = range(file.num_row_groups) if group is None else [group]
    if column not in file.schema_arrow.names:
        raise UserError(f"{path} has no column {column}: name another --data.text_column")
    with refused(f"{path} cannot be read"):
        for batch in file.iter_batches(1024, row_groups=list(groups), columns=[column]):
            for text in batch.column(0).to_pylist():
                yield f"{path}, row {first + 1}", {column: text}
                first += 1


def parquet(path: Path) -> Any:
    """A Parquet file, opened; only its columns' descriptions are read."""
    pyarrow_parquet = _pyarrow(path, "pyarrow.parquet")
    with refused(f"{path} cannot be read"):
        return pyarrow_parquet.ParquetFile(str(path))


def columns_of(path: Path) -> list[str]:
    """The columns of a file of records that hold text; of JSON lines, by the first record."""
    if kind_of(path) == "parquet":
        fields = parquet(path).schema_arrow
        return [field.name for field in fields if str(field.type) in ("string", "large_string", "string_view")]
    _, first = next(records_of(path), ("", {}))
    return text_columns(first)


def text_columns(record: Mapping[str, Any]) -> list[str]:
    """The columns of a record that hold text."""
    return [str(key) for key, value in record.items() if isinstance(value, str)]


def choose_column(columns: Sequence[str]) -> str | None:
    """The column that has the text: one of the usual names, or the only one."""
    for name in USUAL:
        if name in columns:
            return name
    return columns[0] if len(columns) == 1 else None


def _named(row: Mapping[str, Any]) -> str:
    names = [str(name) for name in row]
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "") or "nothing"
