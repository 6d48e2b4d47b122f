"""Pictures that a program has in memory, or the paths of some in a table of it, as a data set."""

import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ...config import UserError
from ..in_memory import NAME, PAIR, WHERE, Table, table_of
from .datasets import Skipped
from .decoding import pool, read_header
from .image_data import Entry, ImageData, from_entries

PICTURES = ("image", "picture", "img", "file_name", "path", "file")  # usual names of a column, the most usual first
TARGETS = {"label": ("label", "class", "category", "target"), "caption": ("text", "caption", "target")}


class MemoryPicture(NamedTuple):
    """The bytes of a picture's file."""

    name: str
    content: bytes

    def open(self) -> io.BytesIO:
        return io.BytesIO(self.content)


def from_memory(token: str, want: str, whole: bool, split: int) -> ImageData:
    """The data set of a table with pictures, or their paths, and what is wanted with them."""
    table = table_of(token)
    pictures = table[_column(table, PICTURES, "picture", lambda cell: isinstance(cell, bytes), "image")]
    if want == "nothing":
        targets: list[Any] = [""] * len(pictures)
    else:
        own = "label" if want == "label" else "text"
        targets = table[_column(table, TARGETS.get(want, TARGETS["label"]), want, None, own)]
    rows = []
    for number, (cell, target) in enumerate(zip(pictures, targets, strict=True), 1):
        if not isinstance(cell, bytes | str) or not cell:
            raise UserError(f"{WHERE}, row {number}: there is no picture; take the row out")
        if target is None or isinstance(target, bytes) or (want != "nothing" and not str(target).strip()):
            raise UserError(f"{WHERE}, row {number}: the picture has no {want}; take the row out")
        source = MemoryPicture(f"row {number}", cell) if isinstance(cell, bytes) else Path(cell)
        rows.append((source, str(target)))
    headers = list(pool().map(read_header, [source for source, _ in rows]))
    skipped: Skipped = []
    entries, sha = [], hashlib.sha256()
    for (source, target), header in zip(rows, headers, strict=True):
        name = source.name if isinstance(source, MemoryPicture) else str(source)
        if header.fault:
            skipped.append((name, header.fault))
            continue
        content = hashlib.sha256(
            source.content if isinstance(source, MemoryPicture) else source.read_bytes()
        ).hexdigest()
        sha.update(repr((target, content)).encode())
        entries.append(Entry(source, target, name, content, header.shape, header.grey))
    return from_entries(
        NAME, WHERE, {"all": entries}, want, lambda labels: sorted(map(str, labels)), skipped, whole, split,
        hash=sha.hexdigest(),
    )  # fmt: skip


def annotations_in_memory(token: str) -> str:
    """What comes with the pictures of a table: "label", "caption" or "nothing"."""
    table = table_of(token)
    if table.ordered:
        return "label"
    names = {name.lower() for name in table.names}
    if names & {"text", "caption"}:
        return "caption"
    return "label" if names & {*TARGETS["label"]} else "nothing"


def _column(table: Table, usual: tuple[str, ...], what: str, fits: Callable[[Any], bool] | None, own: str) -> str:
    """The column of the pictures or of their targets: by its place, its name, or what it holds."""
    if table.ordered:
        return PAIR[0 if fits is not None else 1]
    if len(table.names) == 1 and fits is not None:
        return table.names[0]
    found = [name for name in table.names if fits is not None and any(map(fits, table[name]))]
    named = found or sorted((n for n in table.names if n.lower() in usual), key=lambda n: usual.index(n.lower()))
    if not named:
        columns = ", ".join(table.names)
        raise UserError(f"{WHERE} has the columns {columns}: say which has the {what}s, {own}=COLUMN")
    return named[0]
