"""Read a file of pairs: a table, one JSON object a line, or Parquet; every fault is refused with its place."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from ...config import UserError, install
from ...files import check_inside, check_regular, fingerprint
from .columns import UNNAMED, Chosen, Kind, Names, label_names
from .file_kinds import not_text, to_utf8
from .tables import ANY, Format, Ragged, Table, read_table

Pair = tuple[str, str]

MAX_FILE, MAX_LINE = 1_000_000_000, 1 << 20  # bytes of a file, and characters of one of its lines
FORMER = Format("tab", None, quoted=False)  # how files of tabs were read before their format was recognised


class Read(NamedTuple):
    """The pairs of a file, with how it was read: as settings of a run, and in a sentence."""

    pairs: list[Pair]
    facts: dict[str, Any] = {}
    note: str = ""


def read_pairs(
    content: bytes, data: str, suffix: str, kind: Kind, given: Format = ANY, chosen: Chosen = UNNAMED
) -> Read:
    """The pairs in the content of a file; `data` is its name for errors. A first line of column names is skipped."""
    text = _decoded(content, data)
    if suffix in (".jsonl", ".json", ".ndjson"):
        return _from_objects(text, data, kind, given, chosen)
    if given == FORMER:
        return Read(_from_tabs(text, data, kind))
    try:
        table = read_table(text, data, suffix, kind, given, chosen)
    except Ragged:
        if suffix != ".csv" and given == ANY:
            _from_tabs(text, data, kind)  # names the line without a tab
        raise
    pairs = []
    for line, cells in table.rows:
        where, both = f"{data}, line {line}:", (cells[table.columns[0]], cells[table.columns[1]])
        for name, value in zip((kind.first, kind.second), both, strict=True):
            check_text(value, name, where)
        pairs.append(both)
    return Read(pairs, *_described(table, kind))


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
    long = next((number for number, line in enumerate(text.split("\n"), 1) if len(line) > MAX_LINE), None)
    if long:
        raise UserError(f"{data}, line {long}: longer than {MAX_LINE:,} characters; write one pair a line")
    return text


def _lines(text: str, data: str) -> list[str]:
    """The lines of a file without line ends; empty ones are refused, except at the end of the file."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    if "" in lines:
        raise UserError(f"{data}, line {lines.index('') + 1}: empty; take the line out or write a pair there")
    return lines


def _from_tabs(text: str, data: str, kind: Kind) -> list[Pair]:
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
    return pairs[tuple(lines[0].lower().split("\t")) in kind.names :]


def _from_objects(text: str, data: str, kind: Kind, given: Format, chosen: Chosen) -> Read:
    if given != ANY and given != FORMER:
        raise UserError(f"{data} is JSON: data.delimiter and data.header are for a table")
    lines, keys, facts = _lines(text, data), kind.names, {}
    if any(chosen):
        keys = ((chosen.first or kind.first, chosen.second or kind.second),)
    elif kind.labelled and (found := label_names(_keys(lines[0]))):
        keys = (found, *kind.names)
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
        found = f"the keys {', '.join(map(quote, list(row)[:7]))}" if row else "no keys"
        raise UserError(f"{where} {found}, not {' and '.join(keys[0])}; write {wanted}")
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
    try:
        import datasets
    except ImportError:
        raise UserError(f"{data} is a Parquet table, which needs the datasets package; {install('hub-data')}") from None
    try:
        datasets.disable_progress_bars()
        table: Any = datasets.Dataset.from_parquet([str(file) for file in files], keep_in_memory=True)
    except Exception as error:  # the package raises many kinds
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{data} cannot be read: {why}") from None
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
