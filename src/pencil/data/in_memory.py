"""Data that a program has in memory: tables of any library, pairs, arrays with labels. The rest knows it by a token.

A token is `memory:` and a hash of the content. It stands where --data has a path; the readers of texts, tables and
pictures ask here for its columns, and nobody else needs to know. A table is taken by its columns, so that pandas,
polars, pyarrow and datasets are read alike and none of them is imported. A run keeps the hash; on request also the
rows, as JSON lines that `--data` reads too if they are texts.
"""

import base64
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from ..config import UserError, nearest, package
from ..files import check_regular
from .images.decoding import image_of_array, reason

PREFIX = "memory:"
NAME = "memory"  # of the data, as a part of a run's name
WHERE = "the data in memory"  # its name in errors
COUNTED = "rows are counted from 1, whatever the index of the table"
PAIR = ("input", "target")  # the columns of data that names none
ONE = ("input",)
COLUMNS = ("text", "label", "source", "target", "image")  # what a column can be named as
DIGITS = 32  # of the hash in a token
MAX_COPY_BYTES = 1 << 32
LONGEST_NAME = 255  # bytes in the name of a file, on every usual file system
PNG_MODES = ("1", "L", "LA", "I", "I;16", "P", "RGB", "RGBA")  # of PIL images, that a PNG file has
CONTAINERS = (list, tuple, set, Mapping)  # that are no cell of a table
MISSING = ("NAType", "NaTType")  # pandas' missing values, which cannot be compared
_registered: dict[str, "Registered"] = {}


@dataclass(frozen=True)
class Table:
    """Columns of plain cells: text, numbers, the bytes of a picture's file; None where there is nothing."""

    names: tuple[str, ...]
    columns: list[list[Any]]

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[self.names.index(name)]

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def ordered(self) -> bool:
        """Whether the columns are an input and its target by their places."""
        return self.names == PAIR

    @property
    def token(self) -> str:
        sha = hashlib.sha256(repr(self.names).encode())
        for column in self.columns:
            for cell in column:
                sha.update(cell if isinstance(cell, bytes) else repr(cell).encode("utf-8", "surrogatepass"))
                sha.update(b"\0")
        return PREFIX + sha.hexdigest()[:DIGITS]


class Registered(NamedTuple):
    """Data that was taken in, by its token."""

    table: Table
    named: Mapping[str, str]  # what the user named columns as
    kept: bool  # whether a run trained on it gets a copy
    odd: Mapping[str, tuple[int, str]] = {}  # by column the first row whose value is no cell, and the value's type


def is_data(data: Any) -> bool:
    """Whether this is data itself, and not the name of some."""
    return data is not None and not isinstance(data, str | Path)


def check_name(data: Any) -> None:
    """Refuse a text given as the name of data, which is longer than any file's name."""
    if isinstance(data, str) and any(
        len(part.encode("utf-8", "replace")) > LONGEST_NAME for part in re.split("[/,]", data)
    ):
        raise UserError(
            f"data is a text of {len(data):,} characters, and a text alone is the name of a file: give the text itself "
            "in a list, [text]"
        )


def is_table(data: Any) -> bool:
    """Whether this is a table with named columns."""
    return isinstance(data, Mapping) or any(hasattr(data, name) for name in ("column_names", "columns"))


def is_token(data: str) -> bool:
    return data.startswith(PREFIX)


def name_of(data: str) -> str:
    """Data as a message names it."""
    return WHERE if is_token(data) else data


def column_as_given(token: str, name: str) -> list[str]:
    """A column by the name that the user knows it by, as texts."""
    table, named, *_ = _registered[token]
    renamed = next((what for what, column in named.items() if column == name), None if name in named else name)
    if renamed is None or renamed not in table.names or table.ordered:
        known = [] if table.ordered else [name_of_column(token, one) for one in table.names]
        raise UserError(
            f"{WHERE} has no column {name}; {nearest(name, known) if known else 'its columns have no names'}"
        )
    return ["" if cell is None else str(cell) for cell in table[renamed]]


def is_registered(token: str) -> bool:
    return token in _registered


def table_of(token: str) -> Table:
    """The columns of registered data."""
    if token not in _registered:
        raise UserError("the data was in the memory of another program: give the data itself")
    return _registered[token].table


def named_in(data: str) -> list[str]:
    """The columns that the user named, as a run records them: text=body."""
    return [f"{what}={column}" for what, column in _registered[data].named.items()] if data in _registered else []


def name_of_column(token: str, name: str) -> str:
    """A column as the user knows it, who may have named it as the text, the label, …"""
    return _registered[token].named.get(name, name)


def check_cells(token: str, name: str) -> None:
    """Refuse a column with lists or the like in it."""
    if odd := _registered[token].odd.get(name):
        row, kind = odd
        raise UserError(
            f"{WHERE}, row {row}: the {name_of_column(token, name)} is a {kind}; give a text or a number ({COUNTED})"
        )


def is_kept(data: str) -> bool:
    return data in _registered and _registered[data].kept


def register(data: Any, named: Mapping[str, str | None] | None = None, keep: bool = False) -> str:
    """Take data in, and give its token. `named` says which of its columns is the text, the label, …"""
    given = {what: column for what, column in (named or {}).items() if column is not None}
    names, columns = raw_columns(data)
    if not columns or not len(columns[0]):
        raise UserError(f"{WHERE} is empty")
    if len({len(column) for column in columns}) > 1:
        raise UserError(
            f"{WHERE} has columns of {' and '.join(str(len(one)) for one in columns)} values: make them equal"
        )
    features = getattr(data, "features", None)
    classes = [getattr(features[name], "names", None) if isinstance(features, Mapping) else None for name in names]
    names = renamed(names, given)
    kept = [i for i, name in enumerate(names) if name]
    table = Table(
        tuple(names[i] for i in kept),
        [[_cell(value, classes[i], f"{WHERE}, row {n}") for n, value in enumerate(columns[i], 1)] for i in kept],
    )
    token = table.token
    odd = {
        name: found for name, i in zip(table.names, kept, strict=True) if (found := _first_odd(columns[i], table[name]))
    }
    _registered[token] = Registered(table, given, keep, odd)
    return token


def _first_odd(values: Sequence[Any], cells: Sequence[Any]) -> tuple[int, str] | None:
    """The first row, from 1, with a list or a table where a text or a number is wanted, and what it is."""
    rows = zip(values, cells, strict=True)
    odd = (number for number, (value, cell) in enumerate(rows, 1) if cell is None and isinstance(value, CONTAINERS))
    return None if (row := next(odd, None)) is None else (row, type(values[row - 1]).__name__)


@contextmanager
def forgotten(data: Any, named: Mapping[str, str | None]) -> Iterator[str]:
    """Take data in for as long as it is read, unless it was taken in before."""
    before = set(_registered)
    token = register(data, named)
    try:
        yield token
    finally:
        if token not in before:
            del _registered[token]


def renamed(names: Sequence[str], named: Mapping[str, str]) -> list[str]:
    """The names of columns, with those that the user named; one that has the name of such a column is empty."""
    new = list(names)
    for what, column in named.items():
        if both := next((other for other in named if other != what and named[other] == column), None):
            raise UserError(f"{what} and {both} both name the column {column}: name two columns")
        if column not in names:
            raise UserError(f"{WHERE} has no column {column}; {nearest(column, names)}")
        new = ["" if name == what else name for name in new]
        new[list(names).index(column)] = what
    return new


def raw_columns(data: Any) -> tuple[list[str], list[Sequence[Any]]]:
    """The names and the values of the columns of a table, of two sequences, or of a list of rows."""
    if isinstance(data, tuple) and len(data) == 2 and not any(isinstance(one, str | bytes) for one in data):
        return list(PAIR), [_values(one) for one in data]
    if isinstance(data, Mapping):
        if any(hasattr(part, "column_names") for part in data.values()):
            raise UserError(f"{WHERE} has the parts {', '.join(map(str, data))}: give one of them")
        return [str(name) for name in data], [_values(column) for column in data.values()]
    if callable(getattr(data, "collect", None)) and not hasattr(data, "__len__"):
        raise UserError(f"{type(data).__name__} is a query that has not run: give its result, .collect()")
    names = getattr(data, "column_names", None)
    names = getattr(data, "columns", None) if names is None else names
    if names is not None and not callable(names):
        plain = [str(name) for name in names]
        if twice := next((name for name in plain if plain.count(name) > 1), None):
            raise UserError(f"{WHERE} has {plain.count(twice)} columns named {twice}: rename or drop all but one")
        return plain, [_values(data[name]) for name in names]
    if hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__len__"):  # a table that is only a stream
        arrow = package("pyarrow", f"{WHERE} is an Arrow stream, which needs pyarrow", "hub-data")
        return raw_columns(arrow.table(data))
    if not isinstance(data, Iterable):
        raise UserError(f"data is a path, a table, a list of rows or (inputs, labels), not {type(data).__name__}")
    return _rows(list(data))


def _rows(rows: list[Any]) -> tuple[list[str], list[Sequence[Any]]]:
    first = rows[0] if rows else None
    if isinstance(first, Mapping):
        return [str(name) for name in first], [[dict(row).get(name) for row in rows] for name in first]
    if isinstance(first, tuple | list):
        if odd := next((i for i, row in enumerate(rows, 1) if not isinstance(row, tuple | list) or len(row) != 2), 0):
            raise UserError(f"{WHERE}, row {odd}: not a pair; each row is an input and its label or target")
        return list(PAIR), [[row[i] for row in rows] for i in range(2)]
    if isinstance(first, str) and len(first) < 4096 and "\n" not in first and Path(first).exists():
        raise UserError(f"{first} is a file, and {WHERE} would be texts: give paths as one text with commas between")
    return list(ONE), [rows]


def _values(column: Any) -> Sequence[Any]:
    if not isinstance(column, np.ndarray):
        for way in ("to_pylist", "to_list", "tolist"):
            if hasattr(column, way):
                return getattr(column, way)()
    return list(column)


def _cell(value: Any, classes: Sequence[str] | None, where: str) -> Any:
    """A value as a plain cell; a picture as the bytes of a PNG file."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value).__name__ in MISSING or (isinstance(value, float) and value != value):
        return None
    if classes is not None and isinstance(value, int):
        return classes[value] if 0 <= value < len(classes) else None
    if isinstance(value, str | bytes | bool | int | float):
        return value
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "detach"):  # a tensor; a command checks its data before torch is imported
        value = value.detach().cpu().numpy()
    if isinstance(value, Mapping) and value.keys() >= {"bytes", "path"}:  # a picture of datasets, not decoded
        return value["bytes"] or value["path"]
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return _cell(value[()], classes, where)
    try:
        image = image_of_array(value) if isinstance(value, np.ndarray) else value
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if not isinstance(image, Image.Image):
        return None
    file = io.BytesIO()
    try:
        image = ImageOps.exif_transpose(image)  # a PNG file keeps no orientation
        (image if image.mode in PNG_MODES else image.convert("RGB")).save(file, "PNG", compress_level=1)
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{where}: the picture cannot be read: {reason(error)}") from None
    return file.getvalue()


# ---- a copy of the rows in a run


def copy_of(token: str) -> bytes:
    """The rows as JSON lines; the bytes of a picture in base64."""
    table = table_of(token)

    def plain(cell: Any) -> Any:
        return {"base64": base64.b64encode(cell).decode()} if isinstance(cell, bytes) else cell

    rows = zip(*table.columns, strict=True)
    lines = (json.dumps(dict(zip(table.names, map(plain, row), strict=True))) for row in rows)
    return "".join(f"{line}\n" for line in lines).encode()


def restore(path: Path, token: str) -> None:
    """Register the rows of a copy under the token that a run knows them by."""
    if check_regular(path).st_size > MAX_COPY_BYTES:
        raise UserError(f"{path} is larger than any copy of data that is read")
    rows = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                rows.append({str(name): _stored(cell) for name, cell in row.items()})
            except (ValueError, AttributeError, RecursionError):
                raise UserError(f"{path}, line {number}: not a row of data; put the file back as it was") from None
    if not rows or any(row.keys() != rows[0].keys() for row in rows):
        raise UserError(f"{path} is not a table; put the file back as it was")
    table = Table(tuple(rows[0]), [[row[name] for row in rows] for name in rows[0]])
    _registered[token] = Registered(table, {}, False)


def _stored(cell: Any) -> Any:
    return base64.b64decode(cell["base64"], validate=True) if isinstance(cell, dict) else cell
