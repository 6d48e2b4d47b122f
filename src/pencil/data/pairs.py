"""Pairs of texts, and texts with a label: embedded, tab-separated, or one JSON object a line; checked and split."""

import codecs
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..config import UserError, in_full, nearest
from .dates import CHARACTERS, VERSION, Dates

Pair = tuple[str, str]

EMBEDDED = ("dates",)
FEW = 20
SOURCE_KEYS = (
    ("source", "target"), ("text", "target"), ("input", "output"), ("question", "answer"), ("src", "tgt")
)  # fmt: skip
LABEL_KEYS = (("text", "label"),)
MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip


@dataclass
class PairData:
    """Pairs of a source and its target: what to train on and what to be judged by, which share no source."""

    name: str
    hash: str
    train: Dates | list[Pair]  # Dates are drawn
    test: list[Pair]
    # a test set others report on is never used to choose weights; a part the user's own data lent may be
    chosen_by: bool
    classes: tuple[str, ...] = ()
    pace: dict[str, int] = field(default_factory=dict)  # settings of a training that suits it

    def every(self) -> list[Pair]:
        """All pairs there are, held out or not; of those that are drawn, many."""
        return (_many(self.train) if isinstance(self.train, Dates) else self.train) + self.test

    def texts(self) -> Iterator[str]:
        """Texts to learn a tokenizer from."""
        if isinstance(self.train, Dates):
            yield CHARACTERS
        for pair in _many(self.train) if isinstance(self.train, Dates) else self.every():
            yield from pair


def _many(dates: Dates) -> list[Pair]:
    """Many drawn, and the longest there are."""
    return dates.draw(np.random.Generator(np.random.Philox(key=1)), 4000) + dates.longest()


def load(data: str) -> PairData:
    """The pairs a --data names: embedded, or a file of them."""
    if data == "dates":
        return _dates()
    return _from_file(data, SOURCE_KEYS)


def load_labelled(data: str) -> PairData:
    """The texts with a label each that a --data names."""
    if data in EMBEDDED:
        raise UserError(f"{data} has no labels; give a file with a text, a tab and its label a line")
    return _from_file(data, LABEL_KEYS)


def _dates() -> PairData:
    dates = Dates()
    drawn = dates.draw(np.random.Generator(np.random.Philox(key=2)), 1100, held_out=True)
    test = list(dict(drawn).items())[:1000]  # each source once
    version = hashlib.sha256(f"dates {VERSION}".encode()).hexdigest()
    pace = dict(batch=32, steps=900, eval_every=300, save_every=300)
    return PairData("dates", version, dates, test, chosen_by=False, pace=pace)


def _from_file(data: str, keys: tuple[Pair, ...]) -> PairData:
    labelled, (first, second) = keys is LABEL_KEYS, keys[0]
    what = f"one {first}, a tab and its {second} a line"
    if not data:
        raise UserError(f"--data is empty; give a file with {what}{'' if labelled else ', or dates'}")
    path = in_full(data)
    try:
        if path.is_dir():
            raise UserError(f"{data} is a folder; give a file with {what}")
        if not path.is_file():
            known = "" if labelled else f", and no embedded pairs of that name; {nearest(data, EMBEDDED)}"
            raise UserError(f"there is no file {data}{known or f'; give one with {what}'}")
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{data} cannot be read: {error.strerror}") from None
    lines = _lines(content, data)
    read = _from_json if path.suffix.lower() in (".jsonl", ".json") else _from_tabs
    headed = read is _from_tabs and tuple(lines[0].lower().split("\t")) in keys
    pairs = [read(line, f"{data}, line {number}:", keys) for number, line in enumerate(lines, 1)][headed:]
    if labelled:
        pairs = [(text, label.strip()) for text, label in pairs]
    if len(pairs) < 2:
        raise UserError(
            f"{data} has {'one pair' if pairs else 'no pair'}; at least two are needed, one to train on and one to be "
            "judged by"
        )
    classes = tuple(sorted({label for _, label in pairs})) if labelled else ()
    if len(classes) == 1:
        raise UserError(f"{data} has only one class, {_short(classes[0])}; a classifier needs at least two")
    if len({source for source, _ in pairs}) == 1:
        raise UserError(
            f"{data} has the same {first}, {_short(pairs[0][0])}, in all its {len(pairs)} lines, so none can be held "
            "out to be judged by; give at least two different ones"
        )
    held = _held_out(pairs, labelled)
    if not held:
        raise UserError(
            f"{data} has a single text of each class, so none can be held out to be judged by; give more of them"
        )
    train, test = ([pair for pair in pairs if (pair[0] in held) == part] for part in (False, True))
    # a handful is too few to choose weights by
    chosen = len(test) >= FEW
    return PairData(path.stem, hashlib.sha256(content).hexdigest(), train, test, chosen, classes)


def _lines(content: bytes, data: str) -> list[str]:
    """The lines of a file without their ends; empty ones are refused, but for those at the end of the file."""
    mark = next((name for mark, name in MARKS.items() if content.startswith(mark)), None)
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
    if "" in lines:
        raise UserError(f"{data}, line {lines.index('') + 1}: empty; take the line out or write a pair there")
    return lines


def _from_tabs(line: str, where: str, keys: tuple[Pair, ...]) -> Pair:
    first, second = keys[0]
    source, *rest = line.split("\t")
    if len(rest) != 1:
        tabs = f"{len(rest)} tabs" if rest else "no tab"
        raise UserError(f"{where} {tabs} in {_short(line)}; write the {first}, one tab, and the {second}")
    for name, side in ((first, source), (second, rest[0])):
        _check(side, name, where)
    return source, rest[0]


def _from_json(line: str, where: str, keys: tuple[Pair, ...]) -> Pair:
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
        found = f"the keys {', '.join(map(_short, list(row)[:7]))}" if row else "no keys"
        raise UserError(f"{where} {found}, not {' and '.join(keys[0])}; write {wanted}")
    source, target = row[names[0]], row[names[1]]
    if names[1] == "label" and isinstance(target, int):  # true and false too
        target = str(target)
    for name, side in zip(names, (source, target), strict=True):
        if not isinstance(side, str):
            raise UserError(f"{where} the {name} is {_kind(side)}, not a text; write {wanted}")
        _check(side, name, where)
    return source, target


def _check(side: str, name: str, where: str) -> None:
    if not side.strip():
        raise UserError(f"{where} the {name} is empty; fill it in or take the line out")
    try:
        side.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(side[error.start]):04x}"
        raise UserError(f"{where} the {name} has half a character, {half}; write the whole of it") from None


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    kinds = {list: "a list", dict: "an object", str: "a text"}
    return kinds.get(type(value), "a number")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _held_out(pairs: list[Pair], labelled: bool) -> set[str]:
    """The sources held out: about a tenth, each by a hash of its own, so that lines added later do not move it.

    A class (without labels all pairs are one) of which nothing would be left to train on gets its sources back; if none
    is held out then, the first by its hash that leaves something of its classes is, and none if there is none.
    """
    sources: dict[str, set[str]] = {}  # of each class
    classes: dict[str, set[str]] = {}  # of each source
    for source, target in pairs:
        kind = target if labelled else ""
        sources.setdefault(kind, set()).add(source)
        classes.setdefault(source, set()).add(kind)
    rank = {source: _rank(source) for source in classes}
    held = {source for source in classes if rank[source] < 0.1}
    for own in [own for own in sources.values() if own <= held]:
        held -= own
    if not held:
        spare = [s for s in classes if all(len(sources[kind]) > 1 for kind in classes[s])]
        held = {min(spare, key=rank.__getitem__)} if spare else set()
    return held


def _rank(source: str) -> float:
    """A number from 0 to 1 for a text, the same everywhere."""
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8, key=b"held out").digest()) / 2**64
