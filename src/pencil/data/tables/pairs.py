"""Data sets of text pairs, and of texts with a label: embedded or from a file; about a tenth is held out."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...config import UserError, expand_path, nearest
from ..sources import PREFIX, is_several
from ..split import SPLIT, hold_out_texts, not_evaluated, with_two_labels
from .columns import LABELLED, PAIRS, Chosen, Kind, find_columns
from .dates import CHARACTERS, VERSION, Dates
from .pair_files import FORMER, MAX_FILE, Pair, Read, check_text, is_parquet, quote, read_pairs, read_parquet
from .tables import ANY, Format

EMBEDDED = ("dates",)
MIN_TO_SELECT_BEST = 20  # held-out pairs; a score on fewer is too noisy to select weights by


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
    path = Path(data).expanduser() if data not in ("", "-") else Path()
    return path.suffix.lower() in TABLES or (data not in ("", "-") and is_parquet(path))


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
        if is_parquet(path):
            found, sha = _from_parquet(path, data, kind, reading)
        else:
            if path.is_dir():
                raise UserError(f"{data} is a folder; give a file with {what}")
            if not path.is_file():
                known = "" if labelled else f", and no embedded pairs of that name; {nearest(data, EMBEDDED)}"
                raise UserError(f"there is no file {data}{known or f'; give one with {what}'}")
            if path.stat().st_size > MAX_FILE:
                raise UserError(f"{data} has more than {MAX_FILE // 1_000_000} MB, the most that is read of pairs")
            content = path.read_bytes()
            sha = hashlib.sha256(content).hexdigest()
            found = _read(content, data, path.suffix.lower(), kind, reading, sha)
    except OSError as error:
        raise UserError(f"{data} cannot be read: {error.strerror}") from None
    pairs = [(text, label.strip()) for text, label in found.pairs] if labelled else found.pairs
    classes = tuple(sorted({label for _, label in pairs})) if labelled else ()
    note = f"{path.name}: {found.note}{f' ({len(classes)} classes)' * labelled}" if found.note else ""
    if whole and pairs:
        return PairData(path.stem, sha, [], pairs, False, classes)
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
    held = hold_out_texts(pairs, labelled, split)
    if not held:
        raise UserError(
            f"{data} has a single text of each class, so none can be held out to evaluate on; give more of them"
        )
    train, test = ([pair for pair in pairs if (pair[0] in held) == part] for part in (False, True))
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
        reading=found.facts,
        note=note,
        unevaluated=unevaluated,
        split=split if labelled else 1,
    )


def _read(content: bytes, data: str, suffix: str, kind: Kind, reading: Reading, sha: str) -> Read:
    """The pairs of a file: as the user says, as a run of this file read it, or else as the file looks."""
    if not isinstance(reading, Recorded):
        return read_pairs(content, data, suffix, kind, *_chosen(kind, reading))
    if reading.hash == sha:
        given, chosen = _chosen(kind, reading.reading)
        return read_pairs(content, data, suffix, kind, given if reading.reading else FORMER, chosen)
    try:  # another file, of the same columns or of others
        return read_pairs(content, data, suffix, kind, ANY, _chosen(kind, reading.reading)[1])
    except UserError:
        return read_pairs(content, data, suffix, kind)


def _chosen(kind: Kind, reading: Mapping[str, Any]) -> tuple[Format, Chosen]:
    columns = (reading.get(f"{name}_column") for name in (kind.first, kind.second))
    return Format(reading.get("delimiter"), reading.get("header")), Chosen(*columns)


def _from_parquet(path: Path, data: str, kind: Kind, reading: Reading) -> tuple[Read, str]:
    names, cells, sha = read_parquet(path, data)
    settings = reading.reading if isinstance(reading, Recorded) else reading
    chosen = _chosen(kind, settings)[1]
    places = find_columns(names, cells, data, kind, chosen)
    facts = {f"{name}_column": names[i] for name, i in zip((kind.first, kind.second), places, strict=True)}
    rows = []
    for number, row in enumerate(cells, 1):
        both = row[places[0]], row[places[1]]
        for name, value in zip((kind.first, kind.second), both, strict=True):
            check_text(value, name, f"{data}, row {number}:")
        rows.append(both)
    columns = ", ".join(f"{name.removesuffix('_column')} from column {column}" for name, column in facts.items())
    return Read(rows, facts, f"a Parquet table; {columns}"), sha
