"""What is held out of data that comes without a held-out part: about a tenth, always the same.

Equal examples are all trained on or all held out, and each class that can spare one has one held out. A run records the
rule by which it was split, so that a run of an older version keeps its own.

A held-out source is never trained on. Pairs are split by a hash of the source, so that the same sentence never stands
on both sides, and lines added later move none; images by class, those with the same bytes together. Each class that can
spare an example has one held out. Of `dates` a tenth of the days is held out, in every form. The rule has a number,
which a run records (`split` under `[run]`): a run without it is of the rule before, in which equal images could be in
both parts.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..console import shortened

# 1, of runs that record none: equal pictures could be in both parts, and a class of texts could have none held out
SPLIT = 2


class Picture(NamedTuple):
    """What the notes about a data set need of each picture."""

    name: str
    target: str
    content: str  # a hash of its bytes


def hold_out(rows: list[Any], want: str, contents: Sequence[str], split: int = SPLIT) -> tuple[list[Any], list[Any]]:
    """Rows (source, target) that are held out, and the others: a random tenth of each class, by a fixed seed.

    Rows of the same content stay together; `contents` has a hash for each row. By rule 1, only rows of one source do.
    """
    keys = contents if split > 1 else [(row[1] if want == "label" else None, row[0]) for row in rows]
    units: dict[Hashable, list[Any]] = {}
    for key, row in zip(keys, rows, strict=True):
        units.setdefault(key, []).append(row)
    classes = {key: frozenset(row[1] if want == "label" else None for row in own) for key, own in units.items()}
    strata: dict[frozenset[Any], list[Hashable]] = {}  # a picture in two classes is of neither's stratum
    for key, kinds in classes.items():
        strata.setdefault(kinds, []).append(key)
    held_out, shuffled = set(), []
    for own in strata.values():
        order = [own[i] for i in np.random.Generator(np.random.Philox(key=0)).permutation(len(own))]
        held_out.update(order[: max(1, round(len(own) / 10)) if len(own) > 1 else 0])
        shuffled += order
    if split > 1:
        held_out |= one_of_each(classes, held_out, shuffled)
    both = ([key for own in strata.values() for key in own if (key in held_out) == part] for part in (True, False))
    test, train = ([row for key in part for row in units[key]] for part in both)
    return test, train


def hold_out_texts(pairs: Sequence[tuple[str, str]], labelled: bool, split: int = SPLIT) -> set[str]:
    """The held-out sources: about a tenth, each by its own hash, so that adding lines does not move the others.

    A class (without labels, all pairs are one class) that would have no source left to train on gets its sources back.
    Then each class without a held-out source gets one, the one with the smallest hash that its classes can spare; by
    rule 1, only if no source at all is held out.
    """
    sources: dict[str, set[str]] = {}  # of each class
    classes: dict[str, set[str]] = {}  # of each source
    for source, target in pairs:
        kind = target if labelled else ""
        sources.setdefault(kind, set()).add(source)
        classes.setdefault(source, set()).add(kind)
    rank = {source: _rank(source) for source in classes}
    held_out = {source for source in classes if rank[source] < 0.1}
    for own in [own for own in sources.values() if own <= held_out]:
        held_out -= own
    if split > 1:
        return held_out | one_of_each(classes, held_out, sorted(classes, key=rank.__getitem__))
    if not held_out:
        spare = [s for s in classes if all(len(sources[kind]) > 1 for kind in classes[s])]
        held_out = {min(spare, key=rank.__getitem__)} if spare else set()
    return held_out


def one_of_each(classes: Mapping[Any, Collection[Any]], held_out: Collection[Any], order: Sequence[Any]) -> set[Any]:
    """What must be held out besides, so that each class has one; `classes` are those of each example.

    The first in this order that leaves each of its classes another one to train on.
    """
    evaluated = {kind for key in held_out for kind in classes[key]}
    trained = Counter(kind for key, kinds in classes.items() if key not in held_out for kind in kinds)
    besides = set()
    for key in order:
        kinds = classes[key]
        if not evaluated.issuperset(kinds) and all(trained[kind] > 1 for kind in kinds):
            besides.add(key)
            evaluated.update(kinds)
            trained.subtract(kinds)
    return besides


def _rank(source: str) -> float:
    """A hash of a text as a value in [0, 1), equal on every machine."""
    return int.from_bytes(hashlib.blake2b(source.encode(), digest_size=8, key=b"held out").digest()) / 2**64


def not_evaluated(classes: Sequence[str], held_out: Collection[str], what: str) -> list[str]:
    """A note of the classes of which nothing is held out."""
    alone = sorted(set(classes) - set(held_out))
    if not alone:
        return []
    have, they = ("has", "it is") if len(alone) == 1 else ("have", "they are")
    named = ", ".join(map(shortened, alone[:3]))
    return [
        f"{named}{', …' if len(alone) > 3 else ''} {have} too few different {what} to hold one out: "
        f"{they} trained on, and not evaluated"
    ]


def in_two_classes(pictures: Sequence[Picture]) -> list[str]:
    """A note of pictures that are there under two labels."""
    first: dict[str, Picture] = {}
    both = {
        picture.content: (first[picture.content], picture)
        for picture in pictures
        if first.setdefault(picture.content, picture).target != picture.target
    }
    if not both:
        return []
    picture, other = next(iter(both.values()))
    more = f", and {len(both) - 1:,} more are in two classes" if len(both) > 1 else ""
    return [
        f"{picture.name} ({shortened(picture.target)}) and {other.name} ({shortened(other.target)}) are the same "
        f"picture{more}: no model can be right about both; remove one of them"
    ]


def with_two_labels(texts: Sequence[tuple[str, str]]) -> list[str]:
    """A note of texts that are there under two labels."""
    first: dict[str, str] = {}
    both = {text: (first[text], label) for text, label in texts if first.setdefault(text, label) != label}
    if not both:
        return []
    text, labels = next(iter(both.items()))
    more = f", and {len(both) - 1:,} more texts have two labels" if len(both) > 1 else ""
    return [
        f"{shortened(text)!r} is labelled {' and '.join(map(shortened, labels))}{more}: no model can be right about "
        "both; remove one of them"
    ]


def copies(pictures: Sequence[Picture]) -> list[str]:
    """A note of pictures that are there several times."""
    first: dict[str, Picture] = {}
    again = [
        (picture, first[picture.content])
        for picture in pictures
        if first.setdefault(picture.content, picture).name != picture.name
    ]
    if not again:
        return []
    copy, original = again[0]
    are = "is a copy" if len(again) == 1 else "are copies"
    return [
        f"{len(again):,} of the {len(pictures):,} pictures {are} of another ({copy.name} of {original.name}): a "
        "picture and its copies are all trained on or all held out"
    ]


def in_both_parts(train: Sequence[Picture], test: Sequence[Picture]) -> list[str]:
    """A note of pictures that a data set has in both of its own parts."""
    trained = {picture.content: picture for picture in train}
    seen = [picture for picture in test if picture.content in trained]
    if not seen:
        return []
    return [
        f"{len(seen):,} of the {len(test):,} held-out pictures are trained on too ({seen[0].name} is "
        f"{trained[seen[0].content].name}): the figures are not those of unseen pictures"
    ]
