"""Which columns of a table hold the text and its label, or a source and its target; and whether it has a header."""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ...config import UserError, nearest

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


COLUMNS = 12  # that an error lists
ENOUGH = 20  # rows; fewer say little of what a column holds


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
        if len(body) >= ENOUGH and all(len(row[column]) > 2 * len(cells[0][column]) for row in body):
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
    listed = listed[:COLUMNS] + ["…"] * (width > COLUMNS)
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
        if len(cells) >= ENOUGH and values[0] > 1 and values[0] * 2 <= values[1]:
            return [1, 0]
        few = len(cells) < ENOUGH or min(values.values()) * 2 <= len(cells)
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
