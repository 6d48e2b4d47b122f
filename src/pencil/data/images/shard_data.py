"""A data set of pictures in shards: which tar files, what is trained on and what is held out."""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ...config import UserError, expand_path
from ...console import note, shortened
from ...files import check_inside
from ..cache import hash_files
from ..sources import PREFIX, common_name, expand, is_several
from ..split import SPLIT, Picture, copies, hold_out, in_both_parts, in_two_classes, not_evaluated
from .examples import FileExamples, Skipped, Target
from .folder_layout import ENDINGS, SPLITS, count_of
from .image_data import CAPTIONED_AUGMENTATION, PHOTO_AUGMENTATION, ImageData, check_classes
from .shards import Members, Sample, index_path, read_index

Row = tuple[tuple[int, Sample], Target]
ANNOUNCED = 1 << 26  # bytes of shards whose indexing takes long
NEEDS = {
    "label": "a .cls, or a .json with a label",
    "caption": "a .txt, or a .json with a text",
}


def find_shards(data: str) -> list[Path]:
    """The tar files that --data names: one, several, or a folder that has such files and no pictures, nor idx files."""
    if not data or data.startswith(PREFIX):
        return []
    if is_several(data):
        named = [path for path, _ in expand(data)]
        if any(path.suffix.lower() != ".tar" for path in named):
            raise UserError(f"--data {data} names several files, and pictures come in a folder or in .tar files")
        return named
    path = expand_path(data)
    if path.is_file():
        return [path] if path.suffix.lower() in (".tar", ".tgz") or path.name.lower().endswith(".tar.gz") else []
    if not path.is_dir():
        return []
    found = []
    for root, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        endings = {Path(name).suffix.lower() for name in names if not name.startswith(".")}
        if endings & ENDINGS or any("idx3" in name for name in names):
            return []
        found += [Path(root) / name for name in sorted(names) if name.lower().endswith(".tar") and name[0] != "."]
    for shard in found:
        check_inside(shard, path)
    return found


def annotations_of(shards: Sequence[Path]) -> set[str]:
    """What the pictures of the first shard have: captions, labels, both or nothing."""
    samples = read_index(shards[0], hash_files(shards[0].parent, shards[:1])[shards[0]])
    return {
        name
        for name, there in (
            ("caption", any(one.caption is not None for one in samples)),
            ("label", any(one.label is not None for one in samples)),
        )
        if there
    }


def from_shards(shards: Sequence[Path], want: str, whole: bool = False, split: int = SPLIT) -> ImageData:
    """The data set in tar files; broken pictures are left out and recorded in `skipped`.

    Shards that have train, and test or val, as a word of their names or as their folder are the two parts; else a tenth
    of the samples is held out, by the rule `split`. With `whole` nothing is trained on.
    """
    if want == "video":
        raise UserError(f"{shards[0]} has pictures, and videos are needed")
    try:
        root = Path(os.path.commonpath([shard.resolve().parent for shard in shards]))
    except ValueError:  # on Windows
        raise UserError(f"{shards[0]} and {shards[-1]} are on two drives: put all shards on one") from None
    name = common_name(list(shards)) if len(shards) > 1 else shards[0].stem
    hashes = hash_files(root, [shard.resolve() for shard in shards])
    new = [shard for shard in shards if not index_path(hashes[shard.resolve()]).exists()]
    if sum(shard.stat().st_size for shard in new) > ANNOUNCED:
        note(f"indexing {count_of(new, 'shard')}, once")
    parts, notes = _parts(shards, whole)
    shards = [shard for part in parts.values() for shard in part]
    skipped: Skipped = []
    rows: dict[str, list[Row]] = {part: [] for part in parts}
    number = {shard: i for i, shard in enumerate(shards)}
    for part, held in parts.items():
        for shard in held:
            samples = read_index(shard, hashes[shard.resolve()])
            _check_annotations(shard, samples, want)
            skipped += [(f"{shard.name}/{one.name}", one.fault) for one in samples if one.fault]
            rows[part] += [((number[shard], one), _target(one, want)) for one in samples if not one.fault]
    every = [row for found in rows.values() for row in found]
    if not every:
        first = f"; {skipped[0][0]}: {skipped[0][1]}" if skipped else ""
        raise UserError(f"{name} holds no picture that can be read{first}")
    classes = _classes(every, name, whole) if want == "label" else ()
    given = "all" not in rows
    if whole:
        rows = {"train": [], "test": every}
    elif not given:
        held_out, kept = hold_out(every, want, [one.content for (_, one), _ in every], split)
        rows = {"train": kept, "test": held_out}
        notes += not_evaluated(classes, {str(target) for _, target in held_out}, "pictures")
    pictures = {
        part: [Picture(f"{shards[which].name}/{one.name}", str(target), one.content) for (which, one), target in found]
        for part, found in rows.items()
    }
    same = copies([*pictures["train"], *pictures["test"]]) if classes and not given and split > 1 else []
    if classes:
        notes += in_two_classes([*pictures["train"], *pictures["test"]])
        notes += in_both_parts(pictures["train"], pictures["test"]) if given or split == 1 else []
        notes += same if not whole else []
    for part, found in rows.items():
        if not found and not whole:
            use = "evaluate on" if part == "test" else "train on"
            raise UserError("; ".join([f"{name} has too few pictures: none is left to {use}", *same]))
    absent = sorted(set(classes) - {str(target) for _, target in rows["train"]})
    if absent and not whole:
        named = ", ".join(map(shortened, absent[:3]))
        raise UserError(f"{name} has no training picture of {named}; each class needs at least two")
    index = {one: i for i, one in enumerate(classes)}

    def examples(part: str) -> FileExamples:
        targets: list[Target] = [index[str(target)] if classes else str(target) for _, target in rows[part]]
        return FileExamples(Members(shards, [place for place, _ in rows[part]]), targets, skipped)

    grey = all(one.grey for (_, one), _ in every)
    sha = hashlib.sha256(want.encode())
    for shard in shards:
        sha.update(repr((shard.resolve().relative_to(root).as_posix(), hashes[shard.resolve()])).encode())
    return ImageData(
        name,
        sha.hexdigest(),
        examples("train"),
        examples("test"),
        classes,
        dict(image_size=(64, 64), channels=1 if grey else 3, patch=(8, 8)),
        PHOTO_AUGMENTATION if want == "label" else CAPTIONED_AUGMENTATION,
        skipped=skipped,
        select_best=not any(_part(shard).startswith("test") for shard in parts.get("test", ())),
        shapes=[one.shape for (_, one), _ in every],
        notes=[f"{count_of(shards, 'shard')} with {count_of(every, 'picture')}", *notes],
        split=1 if given else split,
    )


def _part(shard: Path) -> str:
    """The word that says which part a shard is of, in its name or as its folder; or nothing."""
    words = (*re.split(r"[^a-z]+", shard.stem.lower()), shard.resolve().parent.name.lower())
    return next((word for word in words if word in SPLITS), "")


def _parts(shards: Sequence[Path], whole: bool) -> tuple[dict[str, list[Path]], list[str]]:
    """The shards to train on and to evaluate on, if all are named so; else all of them together."""
    words = {shard: _part(shard) for shard in shards}
    kinds = {SPLITS.get(word, "") for word in words.values()}
    if not whole and {"test", ""} <= kinds:
        held, other = (next(s for s, word in words.items() if SPLITS.get(word, "") == kind) for kind in ("test", ""))
        raise UserError(
            f"{held.name} is named as one to evaluate on, and {other.name} names no part: put train or test into the "
            "name of each shard, or give only those to train on"
        )
    if whole or kinds != {"train", "test"}:
        return {"all": list(shards)}, []
    # test is held out if it is there, else val under one of its names
    held = sorted({word for word in words.values() if SPLITS[word] == "test"})
    chosen = next((word for word in held if word.startswith("test")), held[0])
    unread = [word for word in held if word != chosen]
    parts = {
        "train": [shard for shard, word in words.items() if SPLITS[word] == "train"],
        "test": [shard for shard, word in words.items() if word == chosen],
    }
    train, test = (count_of(part, "shard") for part in parts.values())
    others = f"; not read: {', '.join(unread)}" if unread else ""
    return parts, [f"{train} to train on, {test} ({chosen}) to evaluate on{others}"]


def _target(sample: Sample, want: str) -> Target:
    return {"label": sample.label, "caption": sample.caption}.get(want, "")


def _check_annotations(shard: Path, samples: Sequence[Sample], want: str) -> None:
    without = [one for one in samples if want in NEEDS and not one.fault and _target(one, want) is None]
    if without:
        names = ", ".join(one.name for one in without[:3]) + (", …" if len(without) > 3 else "")
        many = count_of(without, "picture")
        raise UserError(f"{shard} has {many} without a {want} ({names}); each needs {NEEDS[want]} beside it")


def _classes(rows: Sequence[Row], name: str, whole: bool) -> tuple[str, ...]:
    """The classes: numbers in their order, or names sorted."""
    found = {target for _, target in rows}
    if not whole:
        check_classes([str(one) for one in found], name)
    if all(isinstance(one, int) for one in found):
        return tuple(map(str, sorted(found)))
    return tuple(sorted({str(one) for one in found}))
