"""Texts in the columns of a delimited file: its delimiter, its header and its columns are recognised, or asked for.

A table is read in one way, which is announced and recorded. Delimiter, header and columns are recognised: a delimiter
only if every row has as many cells with it, a header only by its names or by what is below it. Where two ways are
possible the file is refused, and `--data.delimiter`, `--data.header` or `--data.label_column` decides. What was
recognised is in the run's `[data]`, so that it is read so again, whatever a later version would recognise; a run
without it is of a file of tabs, whose quotes are letters.
"""

import csv
import io
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...config import UserError, nearest

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
Names = tuple[tuple[str, str], ...]
Cells = Sequence[Sequence[str]]

TEXTS = (
    "text", "review", "sentence", "comment", "content", "body", "message", "tweet", "document", "utterance", "post",
    "phrase", "headline", "description", "abstract", "question", "title",
)  # fmt: skip
LABELS = (
    "label", "class", "category", "sentiment", "topic", "intent", "emotion", "polarity", "rating", "stars", "score",
    "genre", "tag", "labels", "target", "language", "author", "spam", "type",
)  # fmt: skip
LANGUAGES = set(
    "ar cs da de el en es et fa fi fr he hi hu id it ja ko la lt lv nl no pl pt ro ru sk sl sv th tr uk vi zh arabic "
    "chinese czech danish dutch english finnish french german greek hebrew hindi hungarian indonesian italian japanese "
    "korean latin norwegian persian polish portuguese romanian russian slovak spanish swedish thai turkish ukrainian "
    "vietnamese".split()
)


LISTED_COLUMNS = 12  # in an error
ENOUGH_ROWS = 20  # fewer say little of what a column holds


class Kind(NamedTuple):
    """What a table is read for: two texts, or a text and its label."""

    first: str
    second: str
    names: Names  # pairs of column names, the most usual first
    labelled: bool


class NamedColumns(NamedTuple):
    """The columns that the user named: names of the header, or numbers from 1."""

    first: str | None = None
    second: str | None = None


UNNAMED = NamedColumns()
SOURCES: Names = (
    ("source", "target"), ("text", "target"), ("input", "output"), ("question", "answer"), ("src", "tgt"),
    ("prompt", "completion"),
)  # fmt: skip
PAIR_WORDS = {"id", "index", "", *(name for pair in SOURCES for name in pair)}
PAIRS = Kind("source", "target", SOURCES, labelled=False)
LABELLED = Kind("text", "label", (("text", "label"),), labelled=True)


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


# ---- which columns hold the text and its label, or a source and its target; and whether there is a header


def guess_header(cells: Cells, data: str, kind: Kind, named_columns: NamedColumns) -> bool:
    """Whether the first row names the columns; refused where that is not clear."""
    head, body = [_plain(cell) for cell in cells[0]], cells[1:]
    if any(name in cells[0] for name in named_columns if name is not None and not name.isdigit()):
        return True
    if not kind.labelled:
        return len({*head}) > 1 and {*head} <= {*LANGUAGES, *TEXTS, *LABELS, *PAIR_WORDS}
    texts, labels = [word for word in head if word in TEXTS], [word for word in head if word in LABELS]
    if texts and labels:
        return True
    if any(cell in {row[i] for row in body} for i, cell in enumerate(cells[0])):
        return False
    if texts or labels:
        return True
    words = [cell.strip() for cell in cells[0]]
    like_names = all(re.fullmatch(r"[^\W\d][\w-]*( [\w-]+)?", word) and len(word) <= 30 for word in words)
    try:
        column, label = find_columns([], cells, data, kind, named_columns)
    except UserError:  # which the columns are is not clear: it is asked with their names
        return like_names
    first, others = cells[0][label].strip(), Counter(row[label].strip() for row in body)
    if first in others or not others:
        return False
    if _number(first) is None and all(_number(word) is not None for word in others):
        return True
    # a class of its own in the first line: a header, or a class with one text
    if like_names and min(others.values()) > 1:
        if len(body) >= ENOUGH_ROWS and all(len(row[column]) > 2 * len(cells[0][column]) for row in body):
            return True  # a single short text, in a class of its own
        raise UserError(
            f"{data}: whether the first line, {' and '.join(repr(word) for word in words[:3])}, is a header is not "
            "clear; say so with --data.header true or false"
        )
    return False


def find_columns(
    names: Sequence[str], cells: Cells, data: str, kind: Kind, named_columns: NamedColumns
) -> tuple[int, int]:
    """The places of both columns: those chosen, those whose names say it, or those whose contents do."""
    width = len(names) or len(cells[0])
    places = [None if name is None else _place(name, names, width, data) for name in named_columns]
    if None in places:
        places = _others(places, width) or places
    if None in places:
        options = set(range(width)) - {*places}
        if kind.labelled:
            places = _labelled(names, cells, places, options)
        else:
            places = _pair(names, width, kind) or places
    first, second = places
    if first is None or second is None:
        raise UserError(_unclear(names, cells, data, kind, (first, second)))
    if first == second:
        raise UserError(f"{data}: the {kind.first} and the {kind.second} are the same column")
    return first, second


def _unclear(names: Sequence[str], cells: Cells, data: str, kind: Kind, places: Sequence[int | None]) -> str:
    """The columns with an example each, and the settings that name those that are not clear."""
    width = len(cells[0])
    called = [name if name and list(names).count(name) == 1 else str(i) for i, name in enumerate(names, 1)]
    called = called or [str(i + 1) for i in range(width)]
    listed = [f"{name} ({_example(cells, i)})" for i, name in enumerate(called)]
    listed = listed[:LISTED_COLUMNS] + ["…"] * (width > LISTED_COLUMNS)
    columns = f"the columns {', '.join(listed)}{'' if names else ' (no header was recognised)'}"
    unclear, settings, why = [], [], ""
    for name, place, guess in zip((kind.first, kind.second), places, _proposed(cells, kind, places), strict=True):
        if place is None:
            unclear.append(f"the {name}")
            settings.append(f"--data.{name}_column {'COLUMN' if guess is None else shlex.quote(called[guess])}")
            why = ", whose values repeat" if name == "label" and guess is not None else ""
    which, it = " and which ".join(unclear), "them" if len(unclear) > 1 else "it"
    return f"{data} has {columns}, and which is {which} is not clear; name {it} with {' '.join(settings)}{why}"


def _proposed(cells: Cells, kind: Kind, places: Sequence[int | None]) -> list[int | None]:
    """A guess for each column that is not clear: the longest text, a label whose values repeat; two texts in order."""
    first, second = places
    columns = {i: [row[i].strip() for row in cells] for i in range(len(cells[0])) if i not in places}
    words = {i: sum(map(len, column)) for i, column in columns.items() if not _numbers(column)}
    if kind.labelled:
        if first is None and words:
            first = max(words, key=words.__getitem__)
        values = {i: len(set(column)) for i, column in columns.items() if i != first}
        repeated = {i: count for i, count in values.items() if 1 < count <= len(cells) // 2}
        if second is None and repeated:
            # of words rather than of numbers, which may be ids or counts; then the one with the fewest values
            second = min(repeated, key=lambda i: (i not in words, repeated[i]))
        return [first, second]
    rest = iter([i for i in sorted(words) if len(set(columns[i])) > 1])
    return [next(rest, None) if place is None else place for place in places]


def _example(cells: Cells, column: int) -> str:
    value = next((row[column].strip() for row in cells if row[column].strip()), "")
    return repr(value if len(value) <= 20 else value[:19] + "…") if value else "empty"


def _numbers(column: Sequence[str]) -> bool:
    """Whether a column has only numbers, below what may be its name."""
    return all(_number(cell) is not None for cell in column[1:] or column)


def label_names(names: Sequence[str]) -> tuple[str, str] | None:
    """The names of the text and of its label among these, if both are clear."""
    plain, options = [_plain(name) for name in names], set(range(len(names)))
    first, second = _named(plain, TEXTS, options), _named(plain, LABELS, options)
    return None if first is None or second is None else (names[first], names[second])


def _place(name: str, names: Sequence[str], width: int, data: str) -> int:
    """The place of a column that the user named."""
    plain = [_plain(column) for column in names]
    if name in names or _plain(name) in plain:
        return list(names).index(name) if name in names else plain.index(_plain(name))
    if name.isdigit() and 1 <= int(name) <= width:
        return int(name) - 1
    hint = nearest(name, names) if names else f"it has no header, so its columns are 1 to {width}"
    raise UserError(f"{data} has no column {name}; {hint}")


def _others(places: list[int | None], width: int) -> list[int | None] | None:
    """Of two columns, the one that was not named."""
    if width != 2 or places == [None, None]:
        return None
    first, second = places
    return [1 - (second or 0) if first is None else first, 1 - (first or 0) if second is None else second]


def _pair(names: Sequence[str], width: int, kind: Kind) -> list[int | None] | None:
    plain = [_plain(name) for name in names]
    for pair in kind.names:
        if pair[0] in plain and pair[1] in plain:
            return [plain.index(name) for name in pair]
    return [0, 1] if width == 2 else None


def _labelled(names: Sequence[str], cells: Cells, places: list[int | None], options: set[int]) -> list[int | None]:
    """The columns of the text and of its label: by their names, else the label is the one with few values."""
    first, second = places
    plain = [_plain(name) for name in names]
    if first is None:
        first = _named(plain, TEXTS, options)
    if second is None:
        second = _named(plain, LABELS, options - {first})
    width = len(cells[0])
    if width == 2 and (first is None) != (second is None):
        return _others([first, second], 2) or [first, second]
    columns = {i: [row[i].strip() for row in cells] for i in options}
    values = {i: len(set(column)) for i, column in columns.items()}
    if width == 2 and first is None and second is None:
        if len(cells) >= ENOUGH_ROWS and values[0] > 1 and values[0] * 2 <= values[1]:
            return [1, 0]
        few = len(cells) < ENOUGH_ROWS or min(values.values()) * 2 <= len(cells)
        return [0, 1] if few else [0, None]
    if first is None:
        lengths = {i: sum(map(len, column)) for i, column in columns.items() if i != second}
        longest = max(lengths, key=lengths.__getitem__)
        rest = [length for i, length in lengths.items() if i != longest]
        first = longest if not rest or lengths[longest] > 2 * max(rest) else None
    if second is None and first is not None:
        few = [i for i in options - {first} if 1 < values[i] <= len(cells) // 3]
        second = few[0] if len(few) == 1 else None
    return [first, second]


def _named(plain: Sequence[str], usual: Sequence[str], options: set[int]) -> int | None:
    """The column with a known name; of several, the one with the most usual name of all, if it is there."""
    places = [i for i in sorted(options) if i < len(plain) and plain[i] in usual]
    if len(places) > 1:
        places = [i for i in places if plain[i] == usual[0]]
    return places[0] if len(places) == 1 else None


def _plain(name: str) -> str:
    return name.strip().lower()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
