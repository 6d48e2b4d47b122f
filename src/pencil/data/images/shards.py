"""Pictures in shards: tar files in the form of the `webdataset` package (an extra), each indexed once and cached.

A shard is read by the offsets of its members, so that any sample can be read at any time: the order of training
follows from (seed, step), as with files in a folder. Of the package, `group_by_keys` says which members are one sample
(those in a row whose names agree up to the first dot; the rest of the name, in lower case, says what each is), and its
decoders read .cls, .txt and .json. Pictures are decoded as those in folders are. Nothing is unpacked, and no other
member is read.

A shard is read by offsets. The webdataset package reads tar files from end to end and shuffles in a buffer; its rules
group and decode the annotations, and an index of offsets by the shard's hash makes every image a source as a file is.
"""

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...config import UserError, expand_path, package
from ...console import note
from ...files import check_inside, check_regular
from ..cache import cache_folder, cached, hash_files, mark_of
from ..path_patterns import PREFIX, common_name, expand, is_several
from ..split import SPLIT
from .datasets import Skipped, Target
from .decoding import Header, SourceChanged, pool, read_header
from .folders import ENDINGS, SPLITS, count_of
from .image_data import Entry, ImageData, from_entries
from .limits import limits

FORMAT = 2  # of the index
MAX_ANNOTATION_BYTES = 1 << 20  # of a .cls, .txt or .json member
MAX_PICTURE_BYTES = 1 << 28  # of a picture's file
NOT_READ = -1  # the size of a member that is not read
ANNOUNCED_BYTES = 1 << 26  # of shards whose indexing takes long
NEEDS = {
    "label": "a .cls, or a .json with a label",
    "caption": "a .txt, or a .json with a text",
}
META = ("__", "__")  # how the name of a member begins and ends that is about the shard


class Sample(NamedTuple):
    """A picture in a shard, by its bytes; its annotations, and what its header says."""

    name: str  # of the member
    offset: int
    size: int
    label: str | int | None
    caption: str | None
    shape: tuple[int, int]
    grey: bool
    frames: bool
    fault: str | None
    content: str  # SHA-256 of its bytes; empty with a fault


class Member(NamedTuple):
    """One picture, read when it is decoded; a shard that was changed since it was indexed is refused."""

    shard: Path
    mark: tuple[int, int]  # size and time of the shard
    offset: int
    size: int
    name: str

    def open(self) -> io.BytesIO:
        try:
            with self.shard.open("rb") as file:
                if mark_of(os.fstat(file.fileno())) != self.mark:
                    raise SourceChanged(
                        f"{self.shard} has changed since it was read first: put it back, or start again"
                    )
                file.seek(self.offset)
                return io.BytesIO(file.read(self.size))
        except OSError as error:
            raise SourceChanged(f"{self.shard} cannot be read any more: {error.strerror}") from None


class Members(Sequence[Member]):
    """The pictures of many shards in little memory: each is made when it is asked for."""

    def __init__(self, shards: Sequence[Path], rows: Sequence[tuple[int, Sample]]):
        self.shards, self.marks = list(shards), [mark_of(shard.stat()) for shard in shards]
        self.places = np.array([(which, sample.offset, sample.size) for which, sample in rows], np.int64).reshape(-1, 3)
        self.names = [sample.name for _, sample in rows]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[at] for at in range(*i.indices(len(self)))]
        which, offset, size = self.places[i].tolist()
        name = f"{self.shards[which].name}/{self.names[i]}"
        return Member(self.shards[which], self.marks[which], offset, size, name)


def index_path(sha: str) -> Path:
    """Where the index of a shard with this SHA-256 is cached: which pictures are too large depends on a setting."""
    return cache_folder() / f"shards-{FORMAT}-{sha[:32]}-{limits()[0]}.json"


def read_index(path: Path, sha: str) -> list[Sample]:
    """The samples of a shard with this SHA-256: from the cache, or read once and kept there."""
    content = cached(index_path(sha), lambda: json.dumps([sample._asdict() for sample in _samples(path)]).encode())
    return [Sample(**row | {"shape": tuple(row["shape"])}) for row in json.loads(content)]


def _samples(path: Path) -> Iterator[Sample]:
    need = f"{path} is a shard, which needs the webdataset package"
    tariterators, about = package("webdataset.tariterators", need, "shards"), mark_of(check_regular(path))
    members = ({"fname": member.name, "data": member, "__url__": str(path)} for member in _members(path, about))
    try:
        groups = list(tariterators.group_by_keys(members))
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} has two members of one name: {error.args[0].partition(':')[0]}") from None
    rows = [_row(path, group) for group in groups]
    headers = pool().map(_header, [member for member, _, _ in rows])
    for (member, label, caption), (header, content) in zip(rows, headers, strict=True):
        yield Sample(
            member.name,
            member.offset,
            member.size,
            label,
            caption,
            header.shape,
            header.grey,
            header.frames,
            header.fault,
            content,
        )


def _header(member: Member) -> tuple[Header, str]:
    """What the header of a picture says, and a hash of its bytes."""
    if member.size == NOT_READ:
        return Header("no picture that is read: a link, or a file of another kind"), ""
    if member.size > MAX_PICTURE_BYTES:
        return Header(f"a file of more than {MAX_PICTURE_BYTES:,} bytes"), ""
    header = read_header(member)
    return header, "" if header.fault else hashlib.sha256(member.open().getbuffer()).hexdigest()


def _members(path: Path, mark: tuple[int, int]) -> Iterator[Member]:
    """The plain files in a tar file; one that is damaged or cut short is refused."""
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            raise UserError(f"{path} is compressed, and members are read by their offsets: unpack it with gunzip")
    try:
        with tarfile.open(path, "r:") as archive:
            end = -1
            while (member := archive.next()) is not None:
                if member.size < 0 or archive.offset <= end:
                    raise tarfile.ReadError(f"a header at byte {member.offset:,} leads back")
                end = archive.offset
                # else every header stays in memory
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]
                about = member.name.startswith(META[0]) and member.name.endswith(META[1])
                if member.isreg() and not member.issparse() and not about:
                    yield Member(path, mark, member.offset_data, member.size, member.name)
                elif not member.isdir() and not about:
                    yield Member(path, mark, 0, NOT_READ, member.name)
            end = archive.offset
    except (tarfile.TarError, OSError, EOFError, ValueError, ArithmeticError, MemoryError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UserError(f"{path} is not a whole tar file: {why}; copy or make it again") from None
    # the package takes a damaged header for the end
    with path.open("rb") as file:
        file.seek(end)
        if file.read(512) != bytes(512):
            raise UserError(f"{path} is damaged at byte {end:,}, or cut short: copy or make it again")


def _row(path: Path, group: dict[str, Any]) -> tuple[Member, str | int | None, str | None]:
    """The picture of a sample with its label and its caption; of a sample without one, some member that is not read."""
    key = group["__key__"]
    pictures = [kind for kind in group if f".{kind.rpartition('.')[2]}" in ENDINGS]
    plain = [kind for kind in pictures if "." not in kind] or pictures
    if len(plain) > 1:
        raise UserError(f"{path}: {key} has several pictures ({', '.join(plain)}); a sample has one")
    if not plain:
        member = next(value for value in group.values() if isinstance(value, Member))
        return member._replace(size=NOT_READ), None, None
    table = _annotation(path, group, "json")
    if table is not None and not isinstance(table, dict):
        raise UserError(f"{path}: {key}.json is not a JSON object")
    label, caption, table = _annotation(path, group, "cls"), _annotation(path, group, "txt"), table or {}
    label = table.get("label") if label is None else label
    caption = table.get("text", table.get("caption")) if caption is None else caption
    label = label if isinstance(label, (str, int)) and not isinstance(label, bool) else None
    label = label.strip() or None if isinstance(label, str) else label
    return group[plain[0]], label, (caption.strip() or None) if isinstance(caption, str) else None


def _annotation(path: Path, group: dict[str, Any], kind: str) -> Any:
    """What a .cls, .txt or .json member says; a class that is no number is its name."""
    member = group.get(kind)
    if member is None or member.size == NOT_READ:
        return None
    from webdataset.autodecode import decoders

    if member.size > MAX_ANNOTATION_BYTES:
        raise UserError(f"{path}: {member.name} is longer than {MAX_ANNOTATION_BYTES:,} bytes")
    content = member.open().getvalue()
    with suppress(ValueError, RecursionError):
        return decoders[kind](content)
    with suppress(UnicodeDecodeError):
        if kind == "cls":
            return content.decode()
    what = {"cls": "a number or a name", "txt": "a text in UTF-8", "json": "JSON"}[kind]
    raise UserError(f"{path}: {member.name} is not {what}")


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
    shards = []
    for root, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        endings = {Path(name).suffix.lower() for name in names if not name.startswith(".")}
        if endings & ENDINGS or any("idx3" in name for name in names):
            return []
        shards += [Path(root) / name for name in sorted(names) if name.lower().endswith(".tar") and name[0] != "."]
    for shard in shards:
        check_inside(shard, path)
    return shards


def annotations_of(shards: Sequence[Path]) -> set[str]:
    """What the pictures of the first shard have: captions, labels, both or nothing."""
    samples = read_index(shards[0], hash_files(shards[0].parent, shards[:1])[shards[0]])
    return {
        name
        for name, there in (
            ("caption", any(sample.caption is not None for sample in samples)),
            ("label", any(sample.label is not None for sample in samples)),
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
    if sum(shard.stat().st_size for shard in new) > ANNOUNCED_BYTES:
        note(f"indexing {count_of(new, 'shard')}, once")
    parts, notes = _parts(shards, whole)
    shards = [shard for part in parts.values() for shard in part]
    number = {shard: i for i, shard in enumerate(shards)}
    skipped: Skipped = []

    def entries(shard: Path) -> list[Entry]:
        samples = read_index(shard, hashes[shard.resolve()])
        _check_annotations(shard, samples, want)
        skipped.extend((f"{shard.name}/{sample.name}", sample.fault) for sample in samples if sample.fault)
        return [
            Entry((number[shard], s), _target(s, want), f"{shard.name}/{s.name}", s.content, s.shape, s.grey)
            for s in samples
            if not s.fault
        ]

    sha = hashlib.sha256(want.encode())
    for shard in shards:
        sha.update(repr((shard.resolve().relative_to(root).as_posix(), hashes[shard.resolve()])).encode())
    data = from_entries(
        name,
        name,
        {part: [entry for shard in members for entry in entries(shard)] for part, members in parts.items()},
        want,
        _classes,
        skipped,
        whole,
        split,
        lambda places: Members(shards, places),
        hash=sha.hexdigest(),
        select_best=not any(_part(shard).startswith("test") for shard in parts.get("test", ())),
    )
    data.notes = [f"{count_of(shards, 'shard')} with {count_of(data.shapes, 'picture')}", *notes, *data.notes]
    return data


def _part(shard: Path) -> str:
    """The word that says which part a shard is of, in its name or as its folder; or nothing."""
    words = (*re.split(r"[^a-z]+", shard.stem.lower()), shard.resolve().parent.name.lower())
    return next((word for word in words if word in SPLITS), "")


def _parts(shards: Sequence[Path], whole: bool) -> tuple[dict[str, list[Path]], list[str]]:
    """The shards to train on and to evaluate on, if all are named so; else all of them together."""
    words = {shard: _part(shard) for shard in shards}
    kinds = {SPLITS.get(word, "") for word in words.values()}
    if not whole and {"test", ""} <= kinds:
        test, other = (next(s for s, word in words.items() if SPLITS.get(word, "") == kind) for kind in ("test", ""))
        raise UserError(
            f"{test.name} is named as one to evaluate on, and {other.name} names no part: put train or test into the "
            "name of each shard, or give only those to train on"
        )
    if whole or kinds != {"train", "test"}:
        return {"all": list(shards)}, []
    # test is held out if it is there, else val under one of its names
    evaluated = sorted({word for word in words.values() if SPLITS[word] == "test"})
    test_word = next((word for word in evaluated if word.startswith("test")), evaluated[0])
    unread = [word for word in evaluated if word != test_word]
    parts = {
        "train": [shard for shard, word in words.items() if SPLITS[word] == "train"],
        "test": [shard for shard, word in words.items() if word == test_word],
    }
    train, test = (count_of(part, "shard") for part in parts.values())
    others = f"; not read: {', '.join(unread)}" if unread else ""
    return parts, [f"{train} to train on, {test} ({test_word}) to evaluate on{others}"]


def _target(sample: Sample, want: str) -> Target:
    return {"label": sample.label, "caption": sample.caption}.get(want, "")


def _check_annotations(shard: Path, samples: Sequence[Sample], want: str) -> None:
    without = [sample for sample in samples if want in NEEDS and not sample.fault and _target(sample, want) is None]
    if without:
        names = ", ".join(sample.name for sample in without[:3]) + (", …" if len(without) > 3 else "")
        many = count_of(without, "picture")
        raise UserError(f"{shard} has {many} without a {want} ({names}); each needs {NEEDS[want]} beside it")


def _classes(labels: set[Any]) -> Sequence[str]:
    """The classes: numbers in their order, or names sorted."""
    numbers = all(isinstance(label, int) for label in labels)
    return list(map(str, sorted(labels))) if numbers else sorted(map(str, labels))
