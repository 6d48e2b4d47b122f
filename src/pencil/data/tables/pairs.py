"""Data sets of text pairs, and of texts with a label: embedded or from a file; about a tenth is held out.

A file is a table, one JSON object a line, or Parquet; every fault is refused with its place.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...config import UserError, expand_path, nearest, package, refused
from ...files import check_inside, check_regular, fingerprint
from .. import in_memory
from ..path_patterns import PREFIX, is_several
from ..split import SPLIT, hold_out_texts, not_evaluated, with_two_labels
from .generated_dates import CHARACTERS, VERSION, Dates
from .not_text import not_text, to_utf8
from .tables import (
    ANY,
    LABELLED,
    PAIRS,
    UNNAMED,
    Format,
    Kind,
    NamedColumns,
    Names,
    Ragged,
    Table,
    find_columns,
    label_names,
    read_table,
)

EMBEDDED = ("dates",)
MIN_TO_SELECT_BEST = 20  # held-out pairs; a score on fewer is too noisy to select weights by
Pair = tuple[str, str]

LISTED_ROWS = 5  # in an error
MAX_FILE_BYTES, MAX_LINE_CHARACTERS = 1_000_000_000, 1 << 20  # of a file, and of one of its lines
FORMER = Format("tab", None, quoted=False)  # how files of tabs were read before their format was recognised


@dataclass
class PairData:
    """Pairs of a source and its target: what to train on and what is held out; the two share no source."""

    name: str
    hash: str
    train: Dates | list[Pair]  # Dates are generated
    test: list[Pair]
    # whether the best weights are selected on `test`: never on a published test set, only on a validation split
    select_best: bool
    classes: tuple[str, ...] = ()
    training_defaults: dict[str, int] = field(default_factory=dict)
    reading: dict[str, Any] = field(default_factory=dict)  # how the file is read, as settings of data
    note: str = ""  # the same in a sentence
    unevaluated: list[str] = field(default_factory=list)  # sentences about classes, such as one without held-out texts
    split: int = 1  # the rule by which a part was held out here (`split.py`)
    lines: Sequence[int] = ()  # of the file, where each held-out pair stands; rows of a table without lines

    @property
    def last_because(self) -> str:
        """Why the last weights are kept, where `select_best` is false."""
        if isinstance(self.train, Dates):
            return "a test set does not select weights"
        count = f"{len(self.test)} held-out text" + "s" * (len(self.test) != 1)
        return f"{count} are too few to select the best by ({MIN_TO_SELECT_BEST} are enough)"

    def all_pairs(self) -> list[Pair]:
        """All pairs, held out or not; of generated ones, many."""
        return (_many(self.train) if isinstance(self.train, Dates) else self.train) + self.test

    def texts(self) -> Iterator[str]:
        """Texts to learn a tokenizer from."""
        if isinstance(self.train, Dates):
            yield CHARACTERS
        for pair in _many(self.train) if isinstance(self.train, Dates) else self.all_pairs():
            yield from pair


def _many(dates: Dates) -> list[Pair]:
    """Many random pairs, and the longest ones."""
    return dates.draw(np.random.Generator(np.random.Philox(key=1)), 4000) + dates.longest()


TABLES = (".csv", ".tsv", ".tab", ".psv", ".jsonl", ".json", ".ndjson")  # endings of files of texts with labels


def is_table(data: str) -> bool:
    """Whether a file is one of texts with labels, by the ending of its name; a folder, by its Parquet files."""
    if is_several(data) or data.startswith(PREFIX):
        return False
    if in_memory.is_token(data):
        return len(in_memory.table_of(data).names) > 1
    path = Path(data).expanduser() if data not in ("", "-") else Path()
    return path.suffix.lower() in TABLES or (data not in ("", "-") and is_parquet(path))


class Read(NamedTuple):
    """The pairs of a file, with how it was read: as settings of a run, and in a sentence."""

    pairs: list[Pair]
    facts: dict[str, Any] = {}
    note: str = ""
    lines: Sequence[int] = ()  # where each stands; the row of each if empty


class Recorded(NamedTuple):
    """What a run recorded of its data: the hash, how it was read, and the rule by which a part was held out."""

    hash: str
    reading: Mapping[str, Any]
    split: int = 1


Reading = Mapping[str, Any] | Recorded  # settings of data that the user chose, or those of a run


def load(data: str, whole: bool = False, reading: Reading | None = None) -> PairData:
    """The pairs that --data names: embedded, or in a file. With `whole` all of a file is held out."""
    if data == "dates":
        if reading and not isinstance(reading, Recorded):
            raise UserError(f"data.{next(iter(reading))} has no effect on {data}: leave it out")
        return _dates()
    return _from_file(data, PAIRS, whole, reading or {})


def load_labelled(data: str, whole: bool = False, reading: Reading | None = None, split: int = SPLIT) -> PairData:
    """The texts with labels in the file that --data names. With `whole` all of it is held out.

    `split` is the rule by which a part is held out, unless a run has recorded one.
    """
    if data in EMBEDDED:
        raise UserError(f"{data} has no labels; give a file with a text, a tab and its label a line")
    return _from_file(data, LABELLED, whole, reading or {}, split)


def another_column(source: str, data: PairData, name: str) -> list[str]:
    """What another column of the table has in the line of each held-out text."""
    if in_memory.is_token(source):
        cells = in_memory.column_as_given(source, name)
        return [cells[line - 1] for line in data.lines]
    table = load_labelled(source, whole=True, reading={**data.reading, "label_column": name})
    if "label_column" not in table.reading:
        raise UserError(f"{data.name} has no named columns: leave --by out")
    cells = dict(zip(table.lines, (cell for _, cell in table.test), strict=True))
    return [cells[line] for line in data.lines]


def _dates() -> PairData:
    dates = Dates()
    drawn = dates.draw(np.random.Generator(np.random.Philox(key=2)), 1100, held_out=True)
    test = list(dict(drawn).items())[:1000]  # each source once
    version = hashlib.sha256(f"dates {VERSION}".encode()).hexdigest()
    defaults = dict(batch=32, steps=900, eval_every=300, save_every=300)
    return PairData("dates", version, dates, test, select_best=False, training_defaults=defaults)


def _from_file(data: str, kind: Kind, whole: bool, reading: Reading, split: int = SPLIT) -> PairData:
    labelled, first, second = kind.labelled, kind.first, kind.second
    what = f"one {first}, a tab and its {second} a line"
    if not data:
        raise UserError(f"--data is empty; give a file with {what}{'' if labelled else ', or dates'}")
    path = expand_path(data)
    try:
        if in_memory.is_token(data):
            read, sha = _from_memory(data, kind, reading)
            data, path = in_memory.WHERE, Path(in_memory.NAME)
        elif is_parquet(path):
            read, sha = _from_parquet(path, data, kind, reading)
        else:
            if path.is_dir():
                raise UserError(f"{data} is a folder; give a file with {what}")
            if not path.is_file():
                hint = "" if labelled else f", and no embedded pairs of that name; {nearest(data, EMBEDDED)}"
                raise UserError(f"there is no file {data}{hint or f'; give one with {what}'}")
            if path.stat().st_size > MAX_FILE_BYTES:
                raise UserError(
                    f"{data} has more than {MAX_FILE_BYTES // 1_000_000} MB, the most that is read of pairs"
                )
            content = path.read_bytes()
            sha = hashlib.sha256(content).hexdigest()
            read = _read(content, data, path.suffix.lower(), kind, reading, sha)
    except OSError as error:
        raise UserError(f"{data} cannot be read: {error.strerror}") from None
    pairs = [(text, label.strip()) for text, label in read.pairs] if labelled else read.pairs
    classes = tuple(sorted({label for _, label in pairs})) if labelled else ()
    lines = read.lines or range(1, len(pairs) + 1)
    note = f"{path.name}: {read.note}{f' ({len(classes)} classes)' * labelled}" if read.note else ""
    if whole and pairs:
        return PairData(path.stem, sha, [], pairs, False, classes, reading=read.facts, lines=lines)
    if len(pairs) < 2:
        many = f"{'one' if pairs else 'no'} {'labelled text' if labelled else 'pair'}"
        raise UserError(f"{data} has {many}; at least two are needed, one to train on and one to evaluate on")
    if len(classes) == 1:
        raise UserError(f"{data} has only one class, {quote(classes[0])}; a classifier needs at least two")
    if len({source for source, _ in pairs}) == 1:
        raise UserError(
            f"{data} has the same {first}, {quote(pairs[0][0])}, in all its {len(pairs)} lines, so none can be held "
            "out to evaluate on; give at least two different ones"
        )
    split = reading.split if isinstance(reading, Recorded) else split
    held_out = hold_out_texts(pairs, labelled, split)
    if not held_out:
        raise UserError(
            f"{data} has a single text of each class, so none can be held out to evaluate on; give more of them"
        )
    train, test = ([pair for pair in pairs if (pair[0] in held_out) == part] for part in (False, True))
    select_best = len(test) >= MIN_TO_SELECT_BEST
    unevaluated = not_evaluated(classes, {label for _, label in test}, "texts")
    unevaluated += with_two_labels(pairs) if labelled else []
    return PairData(
        path.stem,
        sha,
        train,
        test,
        select_best,
        classes,
        reading=read.facts,
        note=note,
        unevaluated=unevaluated,
        split=split if labelled else 1,
        lines=[line for line, (text, _) in zip(lines, pairs, strict=True) if text in held_out],
    )


def _read(content: bytes, data: str, suffix: str, kind: Kind, reading: Reading, sha: str) -> Read:
    """The pairs of a file: as the user says, as a run of this file read it, or else as the file looks."""
    if not isinstance(reading, Recorded):
        return read_pairs(content, data, suffix, kind, *_stated(kind, reading))
    if reading.hash == sha:
        form, named_columns = _stated(kind, reading.reading)
        return read_pairs(content, data, suffix, kind, form if reading.reading else FORMER, named_columns)
    try:  # another file, of the same columns or of others
        return read_pairs(content, data, suffix, kind, ANY, _stated(kind, reading.reading)[1])
    except UserError:
        return read_pairs(content, data, suffix, kind)


def _stated(kind: Kind, reading: Mapping[str, Any]) -> tuple[Format, NamedColumns]:
    columns = (reading.get(f"{name}_column") for name in (kind.first, kind.second))
    return Format(reading.get("delimiter"), reading.get("header")), NamedColumns(*columns)


def _from_parquet(path: Path, data: str, kind: Kind, reading: Reading) -> tuple[Read, str]:
    names, cells, sha = read_parquet(path, data)
    places = find_columns(names, cells, data, kind, _named_columns(kind, reading))
    facts = {f"{name}_column": names[i] for name, i in zip((kind.first, kind.second), places, strict=True)}
    rows = _checked_rows(cells, places, data, kind)
    columns = ", ".join(f"{name.removesuffix('_column')} from column {column}" for name, column in facts.items())
    return Read(rows, facts, f"a Parquet table; {columns}"), sha


def _from_memory(token: str, kind: Kind, reading: Reading) -> tuple[Read, str]:
    """The pairs of data in memory, and a hash of them."""
    table = in_memory.table_of(token)
    names, where = list(table.names), in_memory.WHERE
    if len(names) < 2:
        raise UserError(f"{where} has one column; give the {kind.first} and the {kind.second} of each row")
    columns = [["" if cell is None or isinstance(cell, bytes) else str(cell) for cell in one] for one in table.columns]
    cells = [list(row) for row in zip(*columns, strict=True)]
    named = _named_columns(kind, reading)
    named = NamedColumns(*(name if name in names else None for name in named))
    places = (0, 1) if table.ordered else find_columns(names, cells, where, kind, named)
    first, second = (names[place] for place in places)
    for name in (first, second):
        in_memory.check_cells(token, name)
    rows = _checked_rows(cells, places, where, kind)
    first, second = (in_memory.name_of_column(token, name) for name in (first, second))
    note = "" if table.ordered else f"{kind.first} from column {first}, {kind.second} from {second}"
    return Read(rows, note=note), hashlib.sha256(repr(rows).encode()).hexdigest()


def _named_columns(kind: Kind, reading: Reading) -> NamedColumns:
    return _stated(kind, reading.reading if isinstance(reading, Recorded) else reading)[1]


def _checked_rows(cells: list[list[str]], places: tuple[int, int], data: str, kind: Kind) -> list[Pair]:
    rows, names = [(row[places[0]], row[places[1]]) for row in cells], (kind.first, kind.second)
    empty = {name: [n for n, row in enumerate(rows, 1) if not row[i].strip()] for i, name in enumerate(names)}
    if sum(map(len, empty.values())) > 1:
        listed = " and ".join(
            f"the {name} is empty in {_listed(numbers)}" for name, numbers in empty.items() if numbers
        )
        raise UserError(f"{data}: {listed}; fill them in or take the rows out ({in_memory.COUNTED})")
    for name, numbers in empty.items():
        if numbers:
            raise UserError(
                f"{data}, row {numbers[0]}: the {name} is empty; fill it in or take the row out ({in_memory.COUNTED})"
            )
    for number, row in enumerate(rows, 1):
        for name, value in zip(names, row, strict=True):
            check_text(value, name, f"{data}, row {number}:")
    return rows


def _listed(numbers: Sequence[int]) -> str:
    """Rows by their count and the first of their numbers."""
    first = ", ".join(map(str, numbers[:LISTED_ROWS])) + ", …" * (len(numbers) > LISTED_ROWS)
    return f"{len(numbers):,} row{'s' * (len(numbers) > 1)} ({first})"


def read_pairs(
    content: bytes, data: str, suffix: str, kind: Kind, form: Format = ANY, named_columns: NamedColumns = UNNAMED
) -> Read:
    """The pairs in the content of a file; `data` is its name for errors. A first line of column names is skipped."""
    text = _decoded(content, data)
    if suffix in (".jsonl", ".json", ".ndjson"):
        return _from_objects(text, data, kind, form, named_columns)
    if form == FORMER:
        return _from_tabs(text, data, kind)
    try:
        table = read_table(text, data, suffix, kind, form, named_columns)
    except Ragged:
        if suffix != ".csv" and form == ANY:
            _from_tabs(text, data, kind)  # names the line without a tab
        raise
    pairs = []
    for line, cells in table.rows:
        where, both = f"{data}, line {line}:", (cells[table.columns[0]], cells[table.columns[1]])
        for name, value in zip((kind.first, kind.second), both, strict=True):
            check_text(value, name, where)
        pairs.append(both)
    return Read(pairs, *_described(table, kind), [row.line for row in table.rows])


def _described(table: Table, kind: Kind) -> tuple[dict[str, Any], str]:
    """How a table was read, as settings and in words."""
    form, names = table.format, table.names
    shown = [names[i] if names and names.count(names[i]) == 1 and names[i] else str(i + 1) for i in table.columns]
    facts = {"delimiter": form.delimiter, "header": form.header}
    facts |= {f"{name}_column": column for name, column in zip((kind.first, kind.second), shown, strict=True)}
    words = [f"{form.delimiter}-separated {'with' if form.header else 'without'} a header"]
    if not form.quoted and any('"' in cell for row in table.rows for cell in row.cells):
        words.append("its quotes are kept as letters")
    columns = (f"{name} from column {column}" for name, column in zip((kind.first, kind.second), shown, strict=True))
    return facts, "; ".join([*words, ", ".join(columns)])


def quote(text: str) -> str:
    """The text in quotes, shortened for an error."""
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _decoded(content: bytes, data: str) -> str:
    """The text of a file in UTF-8."""
    if fault := not_text(content[:1000], data):
        raise UserError(f"{data} is {fault}")
    if 0 in content:
        at = content.index(0)
        raise UserError(
            f"{data}, line {content.count(10, 0, at) + 1}: binary data (a zero byte at {at}); give a text in UTF-8"
        )
    try:
        text = content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        at = error.start
        line, column = content.count(10, 0, at) + 1, at - content.rfind(b"\n", 0, at)
        mend = to_utf8(data, line, not content[:at].isascii(), content)
        raise UserError(
            f"{data}, line {line}: byte {content[at]:#04x}, number {column} of the line, is not UTF-8; {mend}"
        ) from None
    if not text.strip("\r\n"):
        raise UserError(f"{data} is empty; write one pair a line")
    long = next((number for number, line in enumerate(text.split("\n"), 1) if len(line) > MAX_LINE_CHARACTERS), None)
    if long:
        raise UserError(f"{data}, line {long}: longer than {MAX_LINE_CHARACTERS:,} characters; write one pair a line")
    return text


def _lines(text: str, data: str) -> list[str]:
    """The lines of a file without line ends; empty ones are refused, except at the end of the file."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    if "" in lines:
        raise UserError(f"{data}, line {lines.index('') + 1}: empty; take the line out or write a pair there")
    return lines


def _from_tabs(text: str, data: str, kind: Kind) -> Read:
    """Two columns with a tab between them, and nothing quoted."""
    lines, pairs = _lines(text, data), []
    for number, line in enumerate(lines, 1):
        where = f"{data}, line {number}:"
        source, *rest = line.split("\t")
        if len(rest) != 1:
            tabs = f"{len(rest)} tabs" if rest else "no tab"
            raise UserError(f"{where} {tabs} in {quote(line)}; write the {kind.first}, one tab, and the {kind.second}")
        for name, value in ((kind.first, source), (kind.second, rest[0])):
            check_text(value, name, where)
        pairs.append((source, rest[0]))
    header = tuple(lines[0].lower().split("\t")) in kind.names
    return Read(pairs[header:], lines=range(1 + header, len(pairs) + 1))


def _from_objects(text: str, data: str, kind: Kind, form: Format, named_columns: NamedColumns) -> Read:
    if form != ANY and form != FORMER:
        raise UserError(f"{data} is JSON: data.delimiter and data.header are for a table")
    lines, keys, facts = _lines(text, data), kind.names, {}
    if any(named_columns):
        keys = ((named_columns.first or kind.first, named_columns.second or kind.second),)
    elif kind.labelled and (names := label_names(_keys(lines[0]))):
        keys = (names, *kind.names)
    if keys[0] != kind.names[0]:
        facts = {f"{name}_column": key for name, key in zip((kind.first, kind.second), keys[0], strict=True)}
    pairs, used = [], {}
    for number, line in enumerate(lines, 1):
        pair, names = _from_json(line, f"{data}, line {number}:", keys)
        pairs.append(pair)
        used[names] = None
    ways = (f"{kind.first} from {first}, {kind.second} from {second}" for first, second in used)
    return Read(pairs, facts, f"one JSON object a line; {', or '.join(ways)}")


def _keys(line: str) -> list[str]:
    """The keys of the object in a line; none if it is no object, which is refused later."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return []
    return list(row) if isinstance(row, dict) else []


def _from_json(line: str, where: str, keys: Names) -> tuple[Pair, tuple[str, str]]:
    """The pair in a line, and the keys it is under."""
    wanted = f'{{"{keys[0][0]}": …, "{keys[0][1]}": …}}'
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        why = f"{error.msg} at column {error.colno}"
        raise UserError(f"{where} not JSON ({why}); write one object a line, {wanted}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{where} a number too long or lists too deep; write one object a line, {wanted}") from None
    if not isinstance(row, dict):
        raise UserError(f"{where} {_kind(row)}, not an object; write one object a line, {wanted}")
    names = next((pair for pair in keys if pair[0] in row and pair[1] in row), None)
    if names is None:
        has = f"the keys {', '.join(map(quote, list(row)[:7]))}" if row else "no keys"
        raise UserError(f"{where} {has}, not {' and '.join(keys[0])}; write {wanted}")
    source, target = row[names[0]], row[names[1]]
    if names[1] == "label" and isinstance(target, int):  # bool is an int too
        target = str(target)
    for name, value in zip(names, (source, target), strict=True):
        if not isinstance(value, str):
            raise UserError(f"{where} the {name} is {_kind(value)}, not a text; write {wanted}")
        check_text(value, name, where)
    return (source, target), names


def check_text(value: str, name: str, where: str) -> None:
    """Refuse a text that is empty or that no file can hold."""
    if not value.strip():
        raise UserError(f"{where} the {name} is empty; fill it in or take the line out")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise UserError(f"{where} the {name} has half a character, {half}; write the whole of it") from None


def _kind(value: Any) -> str:
    """The JSON type of a value, for an error."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    kinds = {list: "a list", dict: "an object", str: "a text"}
    return kinds.get(type(value), "a number")


def is_parquet(path: Path) -> bool:
    """Whether a path is a Parquet file, or a folder that has such files."""
    if path.is_dir():
        return any(path.rglob("*.parquet"))
    return path.suffix.lower() == ".parquet"


def read_parquet(path: Path, data: str) -> tuple[list[str], list[list[str]], str]:
    """The names of the columns, the rows as text, and a hash of a Parquet file, or of a folder of them.

    The columns that hold no text are empty. The `datasets` package (an extra) reads them.
    """
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not path.exists():
        raise UserError(f"there is no file {data}")
    for file in files:
        check_regular(file)
        if path.is_dir():
            check_inside(file, path)
    datasets = package("datasets", f"{data} is a Parquet table, which needs the datasets package", "hub-data")
    datasets.disable_progress_bars()
    try:
        with refused(f"{data} cannot be read"):
            table = datasets.Dataset.from_parquet([str(file) for file in files], keep_in_memory=True)
    finally:
        datasets.enable_progress_bars()
    names = list(table.features)
    columns = [_texts(table[name], table.features[name], datasets) for name in names]
    if not len(table):
        raise UserError(f"{data} is empty; write one pair a row")
    sha = hashlib.sha256(repr([(file.name, fingerprint(file)["sha256"]) for file in files]).encode()).hexdigest()
    return names, [list(row) for row in zip(*columns, strict=True)], sha


def _texts(column: Any, feature: Any, datasets: Any) -> list[str]:
    """A column as text: a class by its name, a number as it is written, and nothing for what is neither."""
    if isinstance(feature, datasets.ClassLabel):
        return ["" if value is None or value < 0 else feature.int2str(value) for value in column]
    return [str(value) if isinstance(value, (str, int, float)) else "" for value in column]
