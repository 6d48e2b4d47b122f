"""A corpus in units that are tokenized in any order: together they give the ids of the whole, to the byte.

A corpus is tokenized in units. The cuts of a text follow from its beginning alone (`pieces`), so one fast pass finds
them with a hash of each unit's bytes, and processes encode units in any order to the same ids. Each writes its ids as a
sealed file of the cache; a later command verifies and keeps them. Workers are commands, not forks: a fork copies
torch's threads, and a spawned process runs the user's script again. Processes that need the same cached file take turns
by a lock (`data/cache.py`: `making`).
"""

import codecs
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...config import UserError
from ...files import memory
from ..cache import mark_of
from ..tokenizers.hf_tokenizers import pieces
from ..tokenizers.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer
from .corpus import CHUNK, Corpus, decoded_blocks
from .records import Part, kind_of, lines_of, parquet, texts_of

UNIT_BYTES = 1 << 25  # of text
WHOLE_DOCUMENT = 12  # bytes of memory for each byte of a document that must be encoded whole


class Unit(NamedTuple):
    """A part of one file, by the bytes it is made of; its hash shows whether they are still the same."""

    path: str
    size: int  # bytes of the file that it covers
    hash: str = ""  # SHA-256 of these bytes; none where the whole file is checked instead
    start: int = 0
    pieces: tuple[int, ...] = ()  # of plain text, the bytes of each piece that is encoded by itself
    last: bool = True  # whether the document ends with it
    line: int = 1  # of JSON lines, the number of the first
    group: int | None = None  # of a Parquet file
    column: str | None = None  # of records
    whole: str = ""  # SHA-256 of the whole file, where a part of it has none
    mark: tuple[int, int] | None = None  # its size and time when that was taken

    @property
    def content(self) -> str:
        """A name for what it holds, wherever the file lies and whenever it was written."""
        return hashlib.sha256(repr(self._replace(path="", mark=None)).encode()).hexdigest()[:16]


def closing(corpus: Corpus, tokenizer: Tokenizer) -> np.ndarray:
    """What comes after each document: the end token; without one, a newline if there are several documents."""
    if not isinstance(tokenizer, CharTokenizer | ByteTokenizer) and tokenizer.end is not None:
        return np.array([tokenizer.end])
    return tokenizer.encode("\n" if corpus.several else "")


def encoded(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The ids of every document of a corpus, read once from its beginning to its end."""
    close = closing(corpus, tokenizer)
    for document in corpus.documents():
        # a tokenizer that puts a space before a text must read a document whole
        for piece in document if tokenizer.cuttable else ["".join(document)]:
            yield tokenizer.encode(piece)
        yield close


def units_of(corpus: Corpus, cuttable: bool, size: int = UNIT_BYTES) -> Iterator[Unit]:
    """The units of a corpus, in order; a file that is no longer what was checked is refused."""
    for path, sha in zip(corpus.files, corpus.hashes, strict=True):
        if not corpus.recorded(path):
            yield from _plain(path, sha, size) if cuttable else _document(path, sha)
        elif kind_of(path) == "lines":
            yield from _lines(path, sha, corpus.column, size)
        else:
            mark = mark_of(path.stat())
            check_same(path, sha)
            groups = range(parquet(path).num_row_groups) if kind_of(path) == "parquet" else [None]
            share = path.stat().st_size // max(1, len(groups))
            for group in groups:
                yield Unit(str(path), share, group=group, column=corpus.column, whole=sha, mark=mark)


def check_same(path: Path, expected: str, sha: Any = None) -> None:
    """Refuse a file that has another SHA-256 than when the corpus was listed; `sha` is that of a file just read."""
    if sha is None:
        with path.open("rb") as file:
            sha = hashlib.file_digest(file, "sha256")
    if sha.hexdigest() != expected:
        raise _changed(path)


def _changed(path: str | Path) -> UserError:
    return UserError(f"{path} has changed while it was read: leave it as it is, and run the command again")


def _plain(path: Path, expected: str, most: int) -> Iterator[Unit]:
    """Cut as the text is cut that is read from its beginning, so that the ids are the same."""
    whole, sha, lengths = hashlib.sha256(), hashlib.sha256(), []
    with path.open("rb") as file:
        start = len(mark) if file.read(len(mark := codecs.BOM_UTF8)) == mark else 0
    whole.update(codecs.BOM_UTF8[:start])
    for piece in pieces(_blocks(path), CHUNK):
        if sum(lengths) >= most:
            yield Unit(str(path), sum(lengths), sha.hexdigest(), start, tuple(lengths), last=False)
            start, sha, lengths = start + sum(lengths), hashlib.sha256(), []
        content = piece.encode()
        lengths.append(len(content))
        sha.update(content)
        whole.update(content)
    check_same(path, expected, whole)
    yield Unit(str(path), sum(lengths), sha.hexdigest(), start, tuple(lengths))


def _blocks(path: Path) -> Iterator[str]:
    try:
        yield from decoded_blocks(path)
    except (UnicodeDecodeError, OSError):
        raise _changed(path) from None


def _document(path: Path, sha: str) -> Iterator[Unit]:
    size = path.stat().st_size
    if WHOLE_DOCUMENT * size > memory():
        raise UserError(
            f"{path} has {size / 1e9:,.1f} GB, and this tokenizer encodes a document whole, which needs more memory "
            "than there is: divide it into several files, or write one document a line as .jsonl"
        )
    check_same(path, sha)
    yield Unit(str(path), size, sha, pieces=(size,))


def _lines(path: Path, expected: str, column: str | None, most: int) -> Iterator[Unit]:
    whole, sha, start, size, first, number = hashlib.sha256(), hashlib.sha256(), 0, 0, 1, 0
    for number, line in lines_of(path):
        if size >= most:
            yield Unit(str(path), size, sha.hexdigest(), start, line=first, column=column)
            start, size, first, sha = start + size, 0, number, hashlib.sha256()
        size += len(line)
        sha.update(line)
        whole.update(line)
    check_same(path, expected, whole)
    yield Unit(str(path), size, sha.hexdigest(), start, line=first, column=column)


def encode_unit(unit: Unit, tokenizer: Tokenizer, close: np.ndarray) -> Iterator[np.ndarray]:
    """The ids of a unit, in the same pieces as those of the whole corpus."""
    path = Path(unit.path)
    _check(unit)
    if unit.column is None:
        with path.open("rb") as file:
            file.seek(unit.start)
            for length in unit.pieces:
                yield tokenizer.encode(file.read(length).decode("utf-8-sig" if not tokenizer.cuttable else "utf-8"))
        if unit.last:
            yield close
        return
    part = Part(unit.start, unit.size if unit.hash else None, unit.line, unit.group)
    for text in texts_of(path, unit.column, part):
        for piece in pieces([text], CHUNK) if tokenizer.cuttable else [text]:
            yield tokenizer.encode(piece)
        yield close
    _check_mark(unit)


def _check_mark(unit: Unit) -> None:
    """Refuse a file that was written since its hash was taken."""
    if unit.mark is not None and mark_of(os.stat(unit.path)) != tuple(unit.mark):
        raise _changed(unit.path)


def _check(unit: Unit) -> None:
    """Refuse bytes that are others than when the units were made."""
    _check_mark(unit)
    if not unit.hash:
        return
    sha, left = hashlib.sha256(), unit.size
    with open(unit.path, "rb") as file:
        file.seek(unit.start)
        while left and (block := file.read(min(left, CHUNK))):
            sha.update(block)
            left -= len(block)
    if sha.hexdigest() != unit.hash:
        raise _changed(unit.path)
