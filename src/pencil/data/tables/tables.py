"""Texts in the columns of a delimited file: its delimiter, its header and its columns are recognised, or asked for.

A table is read in one way, which is announced and recorded. Delimiter, header and columns are recognised
(`data/tables/tables.py`, `data/tables/columns.py`): a delimiter only if every row has as many cells with it, a header
only by its names or by what is below it. Where two ways are possible the file is refused, and `--data.delimiter`,
`--data.header` or `--data.label_column` decides. What was recognised is in the run's `[data]`, so that it is read so
again, whatever a later version would recognise; a run without it is of a file of tabs, whose quotes are letters.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...config import UserError
from .columns import Kind, NamedColumns, find_columns, guess_header

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}


@dataclass(frozen=True)
class Format:
    """How a table is written; what is None is recognised. `quoted` is false where quotes are letters like any other."""

    delimiter: str | None = None  # a key of DELIMITERS
    header: bool | None = None
    quoted: bool | None = None


ANY = Format()


class Ragged(UserError):
    """No delimiter makes a table of a text."""


class Row(NamedTuple):
    line: int  # the first of its lines
    cells: list[str]


class Table(NamedTuple):
    """A file as it was read."""

    format: Format
    names: list[str]  # of the header; of a table without one, empty
    rows: list[Row]
    columns: tuple[int, int]  # of both texts, or of the text and its label


def read_table(text: str, data: str, suffix: str, kind: Kind, stated: Format, named_columns: NamedColumns) -> Table:
    """The rows of a delimited text. `data` is its name in errors; `stated` is what the user says of its format;
    `suffix` tells which delimiter to try first."""
    if stated.delimiter:
        names = [stated.delimiter]
    else:
        # a .tsv is read by its tabs if that is possible at all
        names = [name for name in DELIMITERS if DELIMITERS[name] in text]
        if suffix != ".csv" and "tab" in names and _tables(text, ["tab"], stated):
            names = ["tab"]
    tables = _tables(text, names, stated)
    if not tables:
        raise _ragged(text, data, names, kind)
    read, faults = [], []
    for form, rows in tables:
        try:
            read.append(_recognised(form, rows, data, kind, stated.header, named_columns))
        except UserError as fault:
            faults.append(fault)
    if not read:
        raise faults[0]
    # columns that the user named may be those of one delimiter only
    if len(read) > 1 or (faults and not any(named_columns)):
        names = [str(form.delimiter) for form, _ in tables]
        both = " and ".join(f"by its {name}s" for name in names)
        raise UserError(f"{data} can be read {both}: say which with --data.delimiter {names[0]}")
    return read[0]


def _recognised(
    form: Format, rows: list[Row], data: str, kind: Kind, header: bool | None, named_columns: NamedColumns
) -> Table:
    cells = [row.cells for row in rows]
    if header is None:
        header = guess_header(cells, data, kind, named_columns)
    names = [name.strip() for name in cells[0]] if header else []
    if not cells[header:]:
        raise UserError(f"{data} has a header and nothing below it; write one {kind.first} a line")
    columns = find_columns(names, cells[header:], data, kind, named_columns)
    return Table(Format(form.delimiter, header, form.quoted), names, rows[header:], columns)


def _tables(text: str, names: Sequence[str], stated: Format) -> list[tuple[Format, list[Row]]]:
    """The ways to read a text as a table: quotes around a cell are taken off, unless no delimiter allows that."""
    for quoted in (True, False) if stated.quoted is None else (stated.quoted,):
        tables = []
        for name in names:
            rows = _rows(text, DELIMITERS[name], quoted)
            if rows and len(rows[0].cells) > 1 and len({len(row.cells) for row in rows}) == 1:
                tables.append((Format(name, None, quoted), rows))
        if tables:
            return tables
    return []


def _rows(text: str, delimiter: str, quoted: bool) -> list[Row] | None:
    """The rows with their lines, without empty ones at the end; none where a quote is out of place."""
    rows, line = [], 1
    if quoted:
        limit = csv.field_size_limit(1 << 30)  # the length of a line was checked before
        try:
            reader = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter, strict=True)
            for cells in reader:
                rows.append(Row(line, cells))
                line = reader.line_num + 1
        except csv.Error:
            return None
        finally:
            csv.field_size_limit(limit)
    else:
        lines = (whole_line.removesuffix("\r") for whole_line in text.split("\n"))
        rows = [
            Row(number, whole_line.split(delimiter) if whole_line else []) for number, whole_line in enumerate(lines, 1)
        ]
    while rows and not rows[-1].cells:
        rows.pop()
    return rows


def _ragged(text: str, data: str, names: Sequence[str], kind: Kind) -> Ragged:
    """Why no delimiter makes a table of a text: the first line that differs, by the delimiter that fits the most."""
    best: tuple[int, str, list[Row], int] | None = None
    for name in names:
        rows = _rows(text, DELIMITERS[name], True) or _rows(text, DELIMITERS[name], False) or []
        counts = [len(row.cells) for row in rows]
        usual = max(set(counts), key=counts.count, default=0)
        if usual > 1 and (best is None or counts.count(usual) > best[0]):
            best = counts.count(usual), name, rows, usual
    if best is None:
        other = f", or give text without {kind.second}s as a .txt file" if kind.labelled else ""
        return Ragged(f"{data} has a single column; write the {kind.first} and the {kind.second} in two{other}")
    _, name, rows, usual = best
    row = next(row for row in rows if len(row.cells) != usual)
    if not row.cells:
        return Ragged(f"{data}, line {row.line}: empty; take the line out or write a {kind.first} there")
    columns = f"{len(row.cells)} column{'s' * (len(row.cells) > 1)}"
    return Ragged(
        f"{data}, line {row.line}: {columns} where most lines have {usual}, by its {name}s; a text with a {name} in it "
        "goes in quotes"
    )
