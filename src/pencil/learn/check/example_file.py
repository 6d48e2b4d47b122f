"""The file of a worked example: its tables with their line numbers, and its numbers as written."""

import keyword
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ...config import UserError, nearest
from ...files import slow_toml
from .formula import by, read, work_out
from .resource_limits import TooMuch

KEYS = {
    "": {"title", "source", "inputs", "step", "claim"},
    "step": {"name", "formula", "printed", "label", "line"},
    "claim": {"text", "formula", "measured", "right", "instead", "why", "command", "label", "line"},
}
TEXTS = {"title", "source", "name", "formula", "label", "text", "measured", "right", "instead", "why", "command"}
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?(?P<after>[0-9]*)|\.(?P<only>[0-9]+))(?:e(?P<power>[+-]?[0-9]+))?", re.I)
Known = dict[str, np.ndarray]


class Written(float):
    """A number with its text: 0.540 is more precise than 0.54."""

    def __new__(cls, text: str):
        number = super().__new__(cls, text)
        number.text = text.replace("_", "")
        return number

    text: str


@dataclass(frozen=True)
class Printed:
    """A printed number, and half a unit of its last digit, which is 0 for an exact expression."""

    text: str
    value: float
    half: float

    def fits(self, value: float) -> bool:
        """Whether the value rounds to the printed number; a tie may be rounded up or down."""
        if not math.isfinite(value):
            return value == self.value
        return abs(value - self.value) <= self.half * (1 + 1e-9) + 8 * math.ulp(value)

    def alike(self, value: float) -> str:
        """The value with one digit more than the printed number."""
        if not self.half or not math.isfinite(value):
            return f"{value:.10g}"
        digits = max(0, round(-math.log10(2 * self.half)))
        if float(short := f"{value:.{digits}f}") == value:
            return short
        longer = f"{value:.{digits + 1}f}"
        return longer if len(longer.lstrip("-0.")) > 1 else f"{value:.3g}"


class Tables:
    """The tables of a file, and the line of each of their keys."""

    def __init__(self, text: str, file: str):
        self.file, self.lines = file, text.split("\n")
        if why := slow_toml(text):
            raise UserError(f"{file} cannot be read: {why}")
        try:
            content = tomllib.loads(text, parse_float=Written)
        except RecursionError:
            raise UserError(f"{file}, line {_deepest(text)}: nested too deeply") from None
        except ValueError as error:
            found = re.search(r" \(at (?:line (\d+)|end of document)", str(error))
            # the only other error is for integers with thousands of digits
            long = next((n for n, line in enumerate(self.lines, 1) if re.search(r"\d{4000}", line)), len(self.lines))
            line = int(found[1]) if found and found[1] else len(text.rstrip().split("\n")) if found else long
            message = str(error)[: found.start()] if found else "a number has too many digits"
            raise self.error(message[:1].lower() + message[1:], "", line=line) from None
        self.places = self._find_places()
        self._refuse_unknown("", 0, content)
        self.inputs = content.get("inputs", {})
        if not isinstance(self.inputs, dict):
            raise self.error("inputs must be a table, [inputs]", "inputs")
        self.steps, self.claims = (content.get(key, []) for key in ("step", "claim"))
        for key, tables in (("step", self.steps), ("claim", self.claims)):
            if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
                raise self.error(f"each {key} must be a table, [[{key}]]", key)
        if not self.steps and not self.claims:
            raise self.error("there is no [[step]] to check, and no [[claim]]", "")
        for i, step in enumerate(self.steps):
            self._refuse_unknown("step", i, step)
            if "formula" not in step:
                raise self.error("this step has no formula", "", "step", i)
        for i, claim in enumerate(self.claims):
            self._refuse_unknown("claim", i, claim)
        self.title = one_line(content.get("title", Path(file).stem))

    def _find_places(self) -> dict[tuple[str, int], dict[str, int]]:
        """The line of each key, by (table, its index among those of this name); tomllib has no line numbers."""
        places = {("", 0): {"": 1}}
        here, within, seen = places["", 0], False, Counter[str]()
        for line, row in enumerate(self.lines, 1):
            if not within:
                if found := re.match(r"\s*\[+\s*([A-Za-z_][\w.-]*)\s*\]+\s*(#.*)?$", row):
                    here = places[found[1], seen[found[1]]] = {"": line}
                    seen[found[1]] += 1
                elif found := re.match(r"\s*[\"']?([\w-]+)[\"']?\s*=", row):
                    here.setdefault(found[1], line)
            within ^= (row.count('"""') + row.count("'''")) % 2 == 1
        return places

    def line(self, key: str, table: str = "", which: int = 0) -> int:
        top = self.places["", 0]
        if (table, which) not in self.places:  # written inline, as step = [{…}]
            return top.get(table, 1)
        place = self.places[table, which]
        if not table and key not in top and (key, 0) in self.places:
            place = self.places[key, 0]
        return place.get(key, place[""])

    def error(self, sentence: str, key: str, table: str = "", which: int = 0, line: int = 0) -> UserError:
        return UserError(f"{self.file}, line {line or self.line(key, table, which)}: {one_line(sentence)}")

    def on(self, key: str, table: str, which: int, work: Any, *what: Any) -> Any:
        """`work(*what)`; its errors get the line number of the key."""
        try:
            return work(*what)
        except _BadNumber as error:
            first = self.line(key, table, which)
            rows = enumerate(self.lines[first - 1 :], first)
            line = next((line for line, row in rows if error.text in row), first)
            raise self.error(str(error), key, table, which, line) from None
        except UserError as error:
            raise self.error(str(error), key, table, which) from None

    def _refuse_unknown(self, table: str, which: int, content: dict[str, Any]) -> None:
        for key, value in content.items():
            if key not in KEYS[table]:
                raise self.error(f"{key} is not understood here; {nearest(key, KEYS[table])}", key, table, which)
            if key == "line" and type(value) is not int:
                raise self.error("line must be a whole number", key, table, which)
            if key in TEXTS and not isinstance(value, str):
                raise self.error(f"{key} must be text in quotes", key, table, which)


class _BadNumber(UserError):
    def __init__(self, text: str, why: str):
        super().__init__(f"{text if len(text) <= 40 else text[:39] + '…'} {why}")
        self.text = text


def one_line(text: str) -> str:
    """Text on one line, without control characters."""
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return text if len(text) <= 500 else text[:499] + "…"


def _deepest(text: str) -> int:
    depth = np.cumsum([(letter in "[{") - (letter in "]}") for letter in text])
    return text[: int(depth.argmax())].count("\n") + 1


def new_name(name: str, known: Known) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UserError(f"{name!r} cannot be used in a formula; a name is letters, digits and _")
    if name in known:
        raise UserError(f"{name} is already the name of a value above")


def as_input(name: str, value: Any) -> np.ndarray:
    new_name(name, {})
    cells = _cells(value)
    shape = _shape(cells)
    return np.array([number(cell, {}).value for cell in _flat(cells)]).reshape(shape)


def as_printed(value: Any, exact: np.ndarray, known: Known) -> dict[tuple[int, ...], Printed]:
    """Each printed number by its index; _ is one that is not printed."""
    cells = _cells(value)
    shape = _shape(cells)
    wanted = exact.shape
    rows = (prod(wanted[:-1]), *wanted[-1:])
    if _slim(shape) not in (_slim(wanted), _slim(rows)):
        raise UserError(f"the printed numbers are {by(shape)}, and the formula gives {by(wanted)}")
    found = {}
    for index, cell in zip(np.ndindex(wanted), _flat(cells), strict=True):
        if cell != "_":
            found[index] = number(cell, known)
            true = float(exact[index])
            if not math.isfinite(true) and true != found[index].value:
                at = f" at {list(index)}" if index else ""
                raise UserError(f"the formula gives {true}{at}, which cannot be compared with a printed number")
    return found


def _slim(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(side for side in shape if side != 1)


def _cells(value: Any) -> Any:
    """The numbers as text, in nested lists; the lines of a string are rows, its brackets and commas are ignored."""
    if isinstance(value, list):
        return [_cells(part) for part in value]
    if isinstance(value, str):
        rows = [row.split() for row in re.sub(r"[\[\],;|]", " ", value).splitlines()]
        rows = [row for row in rows if row]
        return rows if len(rows) != 1 else rows[0] if len(rows[0]) > 1 else rows[0][0]
    if isinstance(value, Written):
        return value.text
    if type(value) is int:
        return str(value)
    raise UserError(f"{value} is not a number, nor numbers in rows")


def _shape(cells: Any) -> tuple[int, ...]:
    if not isinstance(cells, list):
        return ()
    if not cells:
        raise UserError("there are no numbers here")
    inner = [_shape(part) for part in cells]
    for i, shape in enumerate(inner):
        if shape != inner[0]:
            raise UserError(f"row {i} is {by(shape)}, and the rows before it {by(inner[0])}")
    if len(inner[0]) > 7:
        raise UserError("the numbers are nested too deeply")
    return (len(cells), *inner[0])


def _flat(cells: Any) -> Iterator[str]:
    if isinstance(cells, list):
        for part in cells:
            yield from _flat(part)
    else:
        yield cells


def number(text: str, known: Known) -> Printed:
    """A printed number, or an exact expression of names above, such as B or C*P*P."""
    plain = text.replace("−", "-").replace("∞", "inf")
    if plain.lstrip("+-") == "inf":
        return Printed(text, float(plain), 0.0)
    if found := NUMBER.fullmatch(plain):
        digits = len(found["after"] or found["only"] or "") - int((found["power"] or "0")[:9])
        value, half = float(plain), float(f"5e{-digits - 1}")
        if math.isinf(value) or math.isinf(half):
            raise _BadNumber(text, "is too large")
        return Printed(text, value, half)
    try:
        value = work_out(read(plain), known)
    except TooMuch:
        raise
    except UserError:
        value = np.zeros(0)
    if value.shape != () or not math.isfinite(value):
        raise _BadNumber(text, "is not a number" + (", nor made of the names above" if known else ""))
    return Printed(f"{text} ({float(value):g})", float(value), 0.0)
