"""Text corpora: which files they are made of, checked and hashed; read in pieces, never held whole in memory.

Texts of the Hugging Face hub are streamed into files of the cache, through the `datasets` package (an extra).
"""

import codecs
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...config import UserError, expand_path, first_line, nearest, package, refuse, refused
from ...console import note
from ...files import check_inside, check_links, check_regular, open_aside, read_json
from .. import in_memory
from ..builtin import TEXTS
from ..cache import LARGEST_RECORD_BYTES, cache_folder, cached, keep, making, record_of, remembered_hash, seal, usable
from ..hub import contents_of, offline_if_unreachable
from ..path_patterns import PREFIX, common_name, expand, is_several
from ..tables.not_text import WRITTEN_AS, not_text, to_utf8
from ..tokenizers.hf_tokenizers import pieces
from .records import choose_column, columns_of, kind_of, lines_of, text_columns, texts_of

CHUNK = 1 << 20  # bytes or characters that are read at a time
HEAD_BYTES = 1 << 24  # of a file in which other lines are looked for, if one is no UTF-8
LARGE_BYTES = 1 << 24  # of a file that is not read again to be checked, while its times and size are the same
PART_BYTES = 1 << 26  # of a stream of the hub, a file of the cache each: what is lost at most when it breaks off


@dataclass
class Corpus:
    """Texts in a fixed order, read in pieces; `hash` covers their contents."""

    name: str
    files: list[Path] = field(default_factory=list)
    text: str | None = None
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    hash: str = ""
    hashes: list[str] = field(default_factory=list)  # of each file
    column: str | None = None  # of files of records, the one that has the text; without one they are plain text
    pinned: str = ""  # what names exactly this version, where --data names the newest

    def recorded(self, path: Path) -> bool:
        """Whether each record of a file is a document; else the file is one."""
        return self.column is not None and kind_of(path) is not None

    @property
    def several(self) -> bool:
        """Whether it may have more than one document, which something must separate."""
        return len(self.files) > 1 or any(map(self.recorded, self.files))

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def notes(self) -> list[str]:
        """How records are read, and files whose names promise something else than plain text, which is how they are
        read."""
        kinds: dict[tuple[str, str], list[str]] = {}
        records = [path.name for path in self.files if self.recorded(path)]
        for path in self.files:
            if not self.recorded(path) and (kind := WRITTEN_AS.get(path.suffix.lower())):
                kinds.setdefault(kind, []).append(path.name)
        notes = [f"{_some(records)}: one document a record, its text from {self.column}"] if records else []
        if windows := [path.name for path in self.files if not self.recorded(path) and _ends_lines_in_crlf(path)]:
            notes.append(
                f"{_some(windows)}: lines end in CR LF, as on Windows, and the CR is learned as a character too; "
                "convert to LF (dos2unix) to leave it out"
            )
        return notes + [
            f"{_some(names)}: {kind} by the name, read as plain text, with {parts}"
            for (kind, parts), names in kinds.items()
        ]

    def documents(self) -> Iterator[Iterator[str]]:
        """Each document as an iterator of its pieces."""
        if self.text is not None:
            yield iter([self.text])
        for path in self.files:
            if self.recorded(path):
                assert self.column is not None
                yield from (pieces([text], CHUNK) for text in texts_of(path, self.column))
            else:
                yield pieces(decoded_blocks(path), CHUNK)

    def pieces(self) -> Iterator[str]:
        for document in self.documents():
            yield from document


def _ends_lines_in_crlf(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\r\n" in file.read(CHUNK)


def _some(names: list[str]) -> str:
    return f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"


def decoded_blocks(path: Path) -> Iterator[str]:
    """A plain text, decoded in blocks of any length, without the mark that some files begin with."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            yield decoder.decode(block)
    yield decoder.decode(b"", final=True)


class _Fault(UserError):
    """What is wrong with a file as text."""


def _checked(path: Path, plain: bool) -> str:
    """The hash of a file; what is wrong with it as text is raised. A large one is read once while it stays the same."""
    packed = not plain and kind_of(path) in ("packed", "parquet")
    digest = _read_packed if packed else _read
    if path.stat().st_size < LARGE_BYTES:
        return digest(path)
    return remembered_hash(path, kind="checked" if not packed else "packed", digest=digest)


def _read(path: Path) -> str:
    """The hash of a plain text, read whole."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    sha, size, lines, begins = hashlib.sha256(), 0, 1, False
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            if not size and (kind := not_text(block[:1000], path.name)):
                raise _Fault(kind)
            if 0 in block:
                raise _Fault(f"binary data (a zero byte at {size + block.index(0)}); give a text in UTF-8")
            try:
                begins = not decoder.decode(block).isascii() or begins
            except UnicodeDecodeError as error:
                # the decoder puts what was left of the block before in front of this one
                at = size + error.start - (len(error.object) - len(block))
                before = error.object[: error.start]
                with path.open("rb") as again:
                    head = again.read(HEAD_BYTES)
                mend = to_utf8(path.name, lines + before.count(b"\n"), begins or not before.isascii(), head)
                raise _Fault(f"not UTF-8 text (byte {error.object[error.start]:#04x} at offset {at}); {mend}") from None
            lines += block.count(b"\n")
            sha.update(block)
            size += len(block)
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise _Fault("not UTF-8 text (it ends within a character); save it as UTF-8") from None
    if not size:
        raise _Fault("empty")
    return sha.hexdigest()


def _read_packed(path: Path) -> str:
    """The hash of a compressed file of records. Of JSON lines the first is read; what is further is checked later."""
    check_regular(path)
    if not path.stat().st_size:
        raise _Fault("empty")
    if kind_of(path) == "packed":
        next(lines_of(path), None)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find(data: str, column: str | None = None, plain: bool = False) -> Corpus:
    """The corpus that --data names: embedded, standard input ("-"), of the hub, a file, a folder, or several of them.

    `column` is the one of the text in files of records; unset, it is recognised. With `plain` every file is a plain
    text, as before Pencil read records.
    """
    refuse(
        (not data, "--data is empty; give a file, a folder, - or an embedded text"),
        (
            column is not None and (data in TEXTS or data == "-"),
            f"data.text_column is for .jsonl and Parquet files, and {data} is a plain text: leave it out",
        ),
    )
    if data in TEXTS:
        text = TEXTS[data]()
        return Corpus(data, text=text, hash=hashlib.sha256(text.encode()).hexdigest())
    if data == "-":
        return _from_stdin()
    if in_memory.is_token(data):
        return _from_memory(data, column)
    if data.startswith(PREFIX):
        return _from_hub(data.removeprefix(PREFIX), column)
    if is_several(data):
        paths = expand(data)
        corpus = Corpus(common_name([path for path, _ in paths]))
        for path, named in paths:
            _add_folder(corpus, path, plain) if path.is_dir() else _add(corpus, path, plain, refuse=named)
        return _finished(corpus, data, column, plain)
    path = expand_path(data)
    if path.is_file():
        corpus = Corpus(path.stem.partition(".jsonl")[0])
        _add(corpus, path, plain, refuse=True)
        return _finished(corpus, data, column, plain, single=True)
    if path.is_dir():
        corpus = Corpus(path.resolve().name or "root")
        _add_folder(corpus, path, plain)
        return _finished(corpus, data, column, plain)
    raise UserError(f"there is no file or folder {data}, and no embedded text of that name; {nearest(data, TEXTS)}")


def _from_memory(token: str, column: str | None) -> Corpus:
    """Texts in the memory of the program, a document each: written into the cache, as standard input is."""
    table = in_memory.table_of(token)
    texts = {name: cells for name, cells in zip(table.names, table.columns, strict=True) if _has_text(cells)}
    name = column if column in texts else choose_column(list(texts))
    if name is None and len(texts) == 1:
        name = next(iter(texts))
    if name is None:
        raise UserError(
            f"{in_memory.WHERE} has the columns {', '.join(table.names)}: say which has the texts, text=COLUMN"
        )
    rows = (json.dumps({"text": cell}) for cell in texts[name] if isinstance(cell, str) and cell)
    content = "".join(f"{row}\n" for row in rows).encode()
    path = cache_folder() / f"memory-{hashlib.sha256(content).hexdigest()[:32]}.jsonl"
    keep(path, content)
    corpus = find(str(path), "text")
    corpus.name = in_memory.NAME
    return corpus


def _has_text(cells: list[Any]) -> bool:
    return any(isinstance(cell, str) and cell.strip() for cell in cells)


def find_like(data: str, column: str | None) -> Corpus:
    """Other data than that of a run: the text is in the column of the run's, if all records have it. How files are read
    is reported."""
    corpus = find(data)
    if column is not None and any(map(kind_of, corpus.files)) and corpus.column != column:
        with suppress(UserError):
            corpus = find(data, column)
    for line in corpus.notes:
        note(line)
    return corpus


def _add(corpus: Corpus, path: Path, plain: bool, refuse: bool = False) -> None:
    """Put a file into the corpus, or among those that were skipped; one that the user named is refused."""
    try:
        sha = _checked(path, plain)
    except _Fault as fault:
        if refuse:
            raise UserError(f"{path} cannot be trained on: {fault}") from None
        corpus.skipped.append((path, str(fault)))
    except OSError as error:
        if refuse:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
        corpus.skipped.append((path, f"unreadable ({error.strerror})"))
    else:
        corpus.files.append(path)
        corpus.hashes.append(sha)


def _add_folder(corpus: Corpus, folder: Path, plain: bool) -> None:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        names = sorted(name for name in names if not name.startswith("."))
        for name in (*folders, *names):
            check_inside(Path(root) / name, folder)
        for name in [
            f
            for f in folders
            if (Path(root) / f / "config.toml").is_file() and (Path(root) / f / "manifest.json").is_file()
        ]:
            folders.remove(name)
            corpus.skipped.append((Path(root) / name, "a run, not a text"))
        for name in names:
            if (Path(root) / name).is_file():
                _add(corpus, Path(root) / name, plain)


def _finished(corpus: Corpus, data: str, column: str | None, plain: bool, single: bool = False) -> Corpus:
    """The corpus with its hash, and with the column of its records."""
    if not corpus.files:
        named = f"; skipped {corpus.skipped[0][0].name}: {corpus.skipped[0][1]}" if corpus.skipped else ""
        raise UserError(f"{data} holds no text file{named}")
    corpus.column = None if plain else _column(corpus, data, column)
    if single and corpus.column is None:
        corpus.hash = corpus.hashes[0]
        return corpus
    sha = hashlib.sha256(b"" if corpus.column is None else f"records {corpus.column}\n".encode())
    for path, digest in zip(corpus.files, corpus.hashes, strict=True):
        sha.update(bytes.fromhex(digest))
        if corpus.column is not None:
            sha.update(b"records" if corpus.recorded(path) else b"plain")
    corpus.hash = sha.hexdigest()
    return corpus


def _column(corpus: Corpus, data: str, column: str | None) -> str | None:
    """The column of the text, which every file of records must have; None where there is none, or all are plain."""
    files = [path for path in corpus.files if kind_of(path)]
    if column is not None and not files:
        raise UserError(f"data.text_column is for .jsonl and Parquet files, and {data} has none: leave it out")
    texts = {path: _columns(path) for path in files}
    choice = column or next(filter(None, map(choose_column, texts.values())), None)
    for path, columns in texts.items():
        if choice is not None and choice not in columns:
            has = f"has {', '.join(columns[:8])}" if columns else "has no record with a text"
            raise UserError(f"{path} {has}, and not {choice}: name the column of the text, --data.text_column")
        if choice is None and kind_of(path) != "lines":
            raise _unclear_column(path, columns)
    return choice


def _unclear_column(where: object, columns: list[str]) -> UserError:
    has = f"the columns {', '.join(columns[:8])}" if columns else "no column of texts"
    return UserError(f"{where} has {has}: name the one of the text, --data.text_column")


def _columns(path: Path) -> list[str]:
    """The columns of texts in a file; none where the lines are no JSON, which is then a plain text."""
    try:
        return columns_of(path)
    except UserError:
        if kind_of(path) == "lines":
            return []
        raise


def _from_hub(source: str, column: str | None) -> Corpus:
    """The texts of OWNER/NAME, with @REVISION or the newest, or of a folder of files that `datasets` reads.

    They are streamed once into the cache as JSON lines; a stream that broke off goes on after the last whole part.
    """
    name, _, revision = (source, "", "") if Path(source).is_dir() else source.partition("@")
    if Path(name).is_dir():
        check_links(Path(name))
    version = _version(name, revision)
    shown = Path(name).resolve().name if Path(name).is_dir() else name
    commit = version if isinstance(version, str) else None
    if column is None:
        content = cached(
            _listing(shown, version, None),
            lambda: json.dumps({"column": _recognised_column(name, commit)}).encode(),
        )
        column = str(json.loads(content)["column"])
    listing = _listing(shown, version, column)
    with making(listing):
        if not usable(listing):
            keep(listing, json.dumps({"parts": _stream(name, commit, column, listing)}).encode())
        parts = [_part(listing, number) for number in range(read_json(listing, LARGEST_RECORD_BYTES)["parts"])]
        if not all(map(usable, parts)):
            listing.unlink()
            raise UserError(f"hf:{name} is not whole in the cache: run the command again, which streams the rest")
    hashes = [str(read_json(record_of(part), LARGEST_RECORD_BYTES)["sha256"]) for part in parts]
    pinned = f"hf:{name}@{commit}" if commit else ""
    corpus = Corpus(shown.rpartition("/")[2], parts, hashes=hashes, column=column, pinned=pinned)
    return _finished(corpus, PREFIX + source, column, plain=False)


def _listing(name: str, version: Any, column: str | None) -> Path:
    """The file that says which parts there are; without a column, the one that says which column was recognised."""
    return cache_folder() / f"hub-{hashlib.sha256(repr((name, version, column)).encode()).hexdigest()[:32]}.list"


def _version(name: str, revision: str) -> str | list[tuple[str, str]]:
    """The commit of a data set of the hub; of a folder, its contents."""
    if Path(name).is_dir():
        return contents_of(Path(name))
    if len(revision) == 40 and not set(revision) - set("0123456789abcdef"):
        return revision  # known without asking the hub
    with refused(f"hf:{name} cannot be streamed"):
        from huggingface_hub import HfApi

        return str(HfApi().dataset_info(name, revision=revision or None).sha)


def _opened(name: str, revision: str | None) -> Any:
    """The stream of the part to train on, or of the first."""
    datasets = package("datasets", "hub data sets need the datasets package", "hub-data")
    with refused(f"hf:{name} cannot be streamed"), offline_if_unreachable(name):
        parts = datasets.load_dataset(name, revision=revision, streaming=True)
    return parts["train" if "train" in parts else next(iter(parts))]


def _recognised_column(name: str, revision: str | None) -> str:
    """The column of the text, by the first row."""
    with refused(f"hf:{name} cannot be streamed"):
        first = next(iter(_opened(name, revision)), {})
    columns = text_columns(first)
    column = choose_column(columns)
    if column is None:
        raise _unclear_column(f"hf:{name}", columns)
    return column


def _part(listing: Path, number: int) -> Path:
    return listing.with_name(f"{listing.stem}-{number:06}.jsonl")


def _stream(name: str, revision: str | None, column: str, listing: Path) -> int:
    """Write the texts in parts, after those that are there; how many parts there are."""
    count, rows = 0, 0
    while usable(part := _part(listing, count)):
        with part.open("rb") as file:
            rows += sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        count += 1
    if count:
        note(f"hf:{name}: {rows:,} texts are there from an earlier run, and the stream goes on after them")
    try:
        for batch in _batches(_texts(_opened(name, revision), name, column, rows), column):
            part = _part(listing, count)
            with open_aside(part) as file:
                file.writelines(batch)
            seal(part)
            count += 1
            note(f"hf:{name}: {count} × {PART_BYTES / 1e6:.0f} MB streamed")
    except UserError:
        raise
    except Exception as error:  # the package raises many kinds
        again = "; run the command again, which keeps what is there" if count else ""
        raise UserError(f"hf:{name} cannot be streamed: {first_line(error)}{again}") from None
    if not count:
        raise UserError(f"hf:{name} has no text")
    return count


def _texts(rows: Any, name: str, column: str, skip: int) -> Iterator[str]:
    """The texts of a stream after the first `skip` rows; a missing one is empty, so that rows are counted right."""
    for number, row in enumerate(rows.skip(skip) if skip else rows, skip + 1):
        text = row.get(column)
        if text is None and column in row:
            text = ""
        if not isinstance(text, str):
            has = "is no text" if column in row else f"is not there (it has {', '.join(row)})"
            raise UserError(f"hf:{name}, row {number}: {column} {has}; name another --data.text_column")
        yield text


def _batches(texts: Iterator[str], column: str) -> Iterator[Iterator[bytes]]:
    """Lines of JSON, in batches that make a part each."""
    lines = (json.dumps({column: text}).encode() + b"\n" for text in texts)

    def batch(line: bytes | None) -> Iterator[bytes]:
        size = 0
        while line is not None:
            yield line
            size += len(line)
            line = next(lines, None) if size < PART_BYTES else None

    for first in lines:
        yield batch(first)


def _from_stdin() -> Corpus:
    """Standard input can be read only once, so it is stored in the cache under its hash."""
    folder = cache_folder()
    with tempfile.NamedTemporaryFile(dir=folder, prefix="stdin-", delete=False) as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    spool = Path(file.name)
    try:
        sha = _read(spool)
    except _Fault as fault:
        spool.unlink()
        raise UserError(f"standard input cannot be trained on: {fault}") from None
    spool.replace(input_path(sha))
    return Corpus("stdin", [input_path(sha)], hash=sha, hashes=[sha])


def input_path(corpus_hash: str) -> Path:
    """Where a standard input is kept, which can be read only once."""
    return cache_folder() / f"text-{corpus_hash[:32]}.txt"
