"""Read a file of pairs, tab-separated or one JSON object a line; every fault is refused with its line."""

import codecs
import json
from typing import Any

from ..config import UserError

Pair = tuple[str, str]
Keys = tuple[Pair, ...]  # the names of both columns; the first pair is used in errors

SOURCE_KEYS: Keys = (
    ("source", "target"), ("text", "target"), ("input", "output"), ("question", "answer"), ("src", "tgt")
)  # fmt: skip
LABEL_KEYS: Keys = (("text", "label"),)
MAX_FILE, MAX_LINE = 1_000_000_000, 1 << 20  # bytes of a file, and characters of one of its lines
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip


def read_pairs(content: bytes, data: str, is_json: bool, keys: Keys) -> list[Pair]:
    """The pairs in the content of a file; `data` is its name for errors. A first line of column names is skipped."""
    lines = _lines(content, data)
    read = _from_json if is_json else _from_tabs
    header = read is _from_tabs and tuple(lines[0].lower().split("\t")) in keys
    return [read(line, f"{data}, line {number}:", keys) for number, line in enumerate(lines, 1)][header:]


def quote(text: str) -> str:
    """The text in quotes, shortened for an error."""
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _lines(content: bytes, data: str) -> list[str]:
    """The lines of a file without line ends; empty ones are refused, except at the end of the file."""
    mark = next((name for mark, name in BYTE_ORDER_MARKS.items() if content.startswith(mark)), None)
    if mark:
        raise UserError(f"{data} is {mark} text; save it as UTF-8")
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
        raise UserError(
            f"{data}, line {line}: byte {content[at]:#04x}, number {column} of the line, is not UTF-8; save the file "
            "as UTF-8"
        ) from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise UserError(f"{data} is empty; write one pair a line")
    long = next((number for number, line in enumerate(lines, 1) if len(line) > MAX_LINE), None)
    if long:
        raise UserError(f"{data}, line {long}: longer than {MAX_LINE:,} characters; write one pair a line")
    if "" in lines:
        raise UserError(f"{data}, line {lines.index('') + 1}: empty; take the line out or write a pair there")
    return lines


def _from_tabs(line: str, where: str, keys: Keys) -> Pair:
    first, second = keys[0]
    source, *rest = line.split("\t")
    if len(rest) != 1:
        tabs = f"{len(rest)} tabs" if rest else "no tab"
        raise UserError(f"{where} {tabs} in {quote(line)}; write the {first}, one tab, and the {second}")
    for name, value in ((first, source), (second, rest[0])):
        _check(value, name, where)
    return source, rest[0]


def _from_json(line: str, where: str, keys: Keys) -> Pair:
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
        _check(value, name, where)
    return source, target


def _check(value: str, name: str, where: str) -> None:
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
