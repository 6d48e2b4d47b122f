"""Texts of the Hugging Face hub, streamed into the cache as JSON lines, through the `datasets` package (an extra)."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...config import UserError, install
from ...console import note
from ...files import check_links, open_aside, read_json, write_aside
from ..cache import LARGEST_RECORD, cache_folder, making, record_of, seal, usable
from ..hub import contents_of, offline_if_unreachable
from .records import choose_column

PART = 1 << 26  # bytes of a file of the cache: what is lost at most when the stream breaks off


class Streamed(NamedTuple):
    """A data set of the hub in the cache."""

    name: str
    files: list[Path]
    hashes: list[str]
    column: str
    pinned: str


def from_hub(source: str, column: str | None) -> Streamed:
    """The texts of OWNER/NAME, with @REVISION or the newest, or of a folder of files that `datasets` reads.

    They are streamed once; a stream that broke off goes on after the last whole part.
    """
    name, _, revision = (source, "", "") if Path(source).is_dir() else source.partition("@")
    if Path(name).is_dir():
        check_links(Path(name))
    version = _version(name, revision)
    known = Path(name).resolve().name if Path(name).is_dir() else name
    commit = version if isinstance(version, str) else None
    if column is None:
        chosen = _listing(known, version, None)
        with making(chosen):
            if not usable(chosen):
                _keep(chosen, {"column": _recognised(name, commit)})
            column = str(read_json(chosen, LARGEST_RECORD)["column"])
    listing = _listing(known, version, column)
    with making(listing):
        if not usable(listing):
            _keep(listing, {"parts": _stream(name, commit, column, listing)})
        parts = [_part(listing, number) for number in range(read_json(listing, LARGEST_RECORD)["parts"])]
        if not all(map(usable, parts)):
            listing.unlink()
            raise UserError(f"hf:{name} is not whole in the cache: run the command again, which streams the rest")
    hashes = [str(read_json(record_of(part), LARGEST_RECORD)["sha256"]) for part in parts]
    pinned = f"hf:{name}@{commit}" if commit else ""
    return Streamed(known.rpartition("/")[2], parts, hashes, column, pinned)


def _listing(name: str, version: Any, column: str | None) -> Path:
    """The file that says which parts there are; without a column, the one that says which column was recognised."""
    return cache_folder() / f"hub-{hashlib.sha256(repr((name, version, column)).encode()).hexdigest()[:32]}.list"


def _keep(path: Path, content: dict[str, Any]) -> None:
    write_aside(path, json.dumps(content).encode())
    seal(path)


def _opened(name: str, revision: str | None) -> Any:
    """The stream of the part to train on, or of the first."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"hub data sets need the datasets package; {install('hub-data')}") from None
    try:
        with offline_if_unreachable(name):
            found = datasets.load_dataset(name, revision=revision, streaming=True)
    except Exception as error:  # the package raises many kinds
        raise _failed(name, error) from None
    return found["train" if "train" in found else next(iter(found))]


def _version(name: str, revision: str) -> str | list[tuple[str, str]]:
    """The commit of a data set of the hub; of a folder, its contents."""
    if Path(name).is_dir():
        return contents_of(Path(name))
    if len(revision) == 40 and not set(revision) - set("0123456789abcdef"):
        return revision  # known without asking the hub
    try:
        from huggingface_hub import HfApi

        return str(HfApi().dataset_info(name, revision=revision or None).sha)
    except Exception as error:  # the package raises many kinds
        raise _failed(name, error) from None


def _failed(name: str, error: Exception) -> UserError:
    return UserError(f"hf:{name} cannot be streamed: {(str(error) or type(error).__name__).splitlines()[0]}")


def _part(listing: Path, number: int) -> Path:
    return listing.with_name(f"{listing.stem}-{number:06}.jsonl")


def _recognised(name: str, revision: str | None) -> str:
    """The column of the text, by the first row."""
    try:
        first = next(iter(_opened(name, revision)), {})
    except UserError:
        raise
    except Exception as error:  # the package raises many kinds
        raise _failed(name, error) from None
    columns = [str(key) for key, value in first.items() if isinstance(value, str)]
    chosen = choose_column(columns)
    if chosen is None:
        has = f"the columns {', '.join(columns[:8])}" if columns else "no column of texts"
        raise UserError(f"hf:{name} has {has}: name the one of the text, --data.text_column")
    return chosen


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
            _write(_part(listing, count), batch)
            count += 1
            note(f"hf:{name}: {count} × {PART / 1e6:.0f} MB streamed")
    except UserError:
        raise
    except Exception as error:  # the package raises many kinds
        kept = "; run the command again, which keeps what is there" if count else ""
        raise UserError(f"{_failed(name, error)}{kept}") from None
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
            line = next(lines, None) if size < PART else None

    for first in lines:
        yield batch(first)


def _write(path: Path, lines: Iterator[bytes]) -> None:
    with open_aside(path) as file:
        file.writelines(lines)
    seal(path)
