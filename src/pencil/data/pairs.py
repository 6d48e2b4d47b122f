"""Data sets of text pairs, and of texts with a label: embedded or from a file; about a tenth is held out."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..config import UserError, expand_path, nearest
from .dates import CHARACTERS, VERSION, Dates
from .pair_files import LABEL_KEYS, MAX_FILE, SOURCE_KEYS, Keys, Pair, quote, read_pairs

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


def load(data: str) -> PairData:
    """The pairs that --data names: embedded, or in a file."""
    if data == "dates":
        return _dates()
    return _from_file(data, SOURCE_KEYS)


def load_labelled(data: str) -> PairData:
    """The texts with labels in the file that --data names."""
    if data in EMBEDDED:
        raise UserError(f"{data} has no labels; give a file with a text, a tab and its label a line")
    return _from_file(data, LABEL_KEYS)


def _dates() -> PairData:
    dates = Dates()
    drawn = dates.draw(np.random.Generator(np.random.Philox(key=2)), 1100, held_out=True)
    test = list(dict(drawn).items())[:1000]  # each source once
    version = hashlib.sha256(f"dates {VERSION}".encode()).hexdigest()
    defaults = dict(batch=32, steps=900, eval_every=300, save_every=300)
    return PairData("dates", version, dates, test, select_best=False, training_defaults=defaults)


def _from_file(data: str, keys: Keys) -> PairData:
    labelled, (first, second) = keys is LABEL_KEYS, keys[0]
    what = f"one {first}, a tab and its {second} a line"
    if not data:
        raise UserError(f"--data is empty; give a file with {what}{'' if labelled else ', or dates'}")
    path = expand_path(data)
    try:
        if path.is_dir():
            raise UserError(f"{data} is a folder; give a file with {what}")
        if not path.is_file():
            known = "" if labelled else f", and no embedded pairs of that name; {nearest(data, EMBEDDED)}"
            raise UserError(f"there is no file {data}{known or f'; give one with {what}'}")
        if path.stat().st_size > MAX_FILE:
            raise UserError(f"{data} has more than {MAX_FILE // 1_000_000} MB, the most that is read of pairs")
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{data} cannot be read: {error.strerror}") from None
    pairs = read_pairs(content, data, path.suffix.lower() in (".jsonl", ".json"), keys)
    if labelled:
        pairs = [(text, label.strip()) for text, label in pairs]
    if len(pairs) < 2:
        raise UserError(
            f"{data} has {'one pair' if pairs else 'no pair'}; at least two are needed, one to train on and one to "
            "evaluate on"
        )
    classes = tuple(sorted({label for _, label in pairs})) if labelled else ()
    if len(classes) == 1:
        raise UserError(f"{data} has only one class, {quote(classes[0])}; a classifier needs at least two")
    if len({source for source, _ in pairs}) == 1:
        raise UserError(
            f"{data} has the same {first}, {quote(pairs[0][0])}, in all its {len(pairs)} lines, so none can be held "
            "out to evaluate on; give at least two different ones"
        )
    held = _held_out(pairs, labelled)
    if not held:
        raise UserError(
            f"{data} has a single text of each class, so none can be held out to evaluate on; give more of them"
        )
    train, test = ([pair for pair in pairs if (pair[0] in held) == part] for part in (False, True))
    select_best = len(test) >= MIN_TO_SELECT_BEST
    return PairData(path.stem, hashlib.sha256(content).hexdigest(), train, test, select_best, classes)


def _held_out(pairs: list[Pair], labelled: bool) -> set[str]:
    """The held-out sources: about a tenth, each by its own hash, so that adding lines does not move the others.

    A class (without labels, all pairs are one class) that would have no source left to train on gets its sources back.
    If then none is held out, the source with the smallest hash is that leaves its classes another one; none if there is
    no such source.
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
    """A hash of a text as a value in [0, 1), equal on every machine."""
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8, key=b"held out").digest()) / 2**64
