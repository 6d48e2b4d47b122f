"""Tokenize a corpus once, into a memory-mapped file of the cache: a large one by several processes, in parts that a
later run takes up where a killed one stopped."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

import numpy as np

from ...config import UserError
from ...console import Console, note
from ...files import open_aside, read_json
from ...progress import pollable
from ..cache import LARGEST_RECORD, cache_folder, making, record_of, seal, usable
from ..tokenizers.tokenizer import Tokenizer, digest
from .corpus import Corpus
from .token_workers import Workers, write_ids
from .units import Unit, check_same, closing, encoded, units_of

FORMAT = 1  # of the cache: raised by any change of tokenization
LARGE = 1 << 26  # bytes of a corpus that is tokenized in parts


def tokens_path(corpus_hash: str, tokenizer: Tokenizer) -> tuple[Path, np.dtype]:
    """Where the ids of a corpus are cached, and their dtype."""
    dtype = np.dtype(np.uint16 if tokenizer.vocab <= 1 << 16 else np.uint32)
    key = hashlib.sha256(f"{FORMAT} {corpus_hash} {digest(tokenizer)}".encode()).hexdigest()[:32]
    return cache_folder() / f"tokens-{key}.{dtype.name}", dtype


def tokenize(corpus: Corpus, tokenizer: Tokenizer) -> np.ndarray:
    """The ids of the corpus, memory-mapped, cached by content and tokenizer; uint16 if every id fits, else uint32."""
    kept, dtype = tokens_path(corpus.hash, tokenizer)
    with making(kept):
        if not usable(kept):
            if corpus.files and corpus.size >= LARGE:
                _tokenize_parts(corpus, tokenizer, kept, dtype)
            else:
                write_ids(kept, _ids(corpus, tokenizer), dtype)
                seal(kept)
        for part in kept.parent.glob(f"{kept.name}-part-*"):  # joined, or of other bytes that a killed run has read
            part.unlink(missing_ok=True)
        if not kept.stat().st_size:
            return np.zeros(0, dtype)
        return np.memmap(kept, dtype=dtype, mode="r")


def _ids(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The ids of a corpus, of which no file has changed since it was hashed."""
    yield from encoded(corpus, tokenizer)
    for path, sha in zip(corpus.files, corpus.hashes, strict=True):
        check_same(path, sha)


def part_path(kept: Path, number: int, unit: Unit) -> Path:
    """Where the ids of a unit are, until all parts are joined: by its content, since a killed run may have read other
    bytes than the next one."""
    return kept.with_name(f"{kept.name}-part-{number:07}-{unit.content}")


def _tokenize_parts(corpus: Corpus, tokenizer: Tokenizer, kept: Path, dtype: np.dtype) -> None:
    """The ids of each unit in a file of its own, then all of them in one; parts that are there and whole are kept."""
    for left in (*kept.parent.glob(f".{kept.name}-part-*"), *kept.parent.glob(f".{kept.name}.{'[0-9a-f]' * 8}")):
        left.unlink(missing_ok=True)  # what a killed process had not finished
    parts, done, running = list[Path](), 0, dict[Future[None], int]()
    with (
        Workers(tokenizer, dtype, closing(corpus, tokenizer), corpus.size) as workers,
        _Bar(corpus, workers.count) as bar,
    ):
        for unit in pollable(units_of(corpus, tokenizer.cuttable)):
            path = part_path(kept, len(parts), unit)
            parts.append(path)
            if usable(path):
                done += 1
                bar.advance(unit.size)
                continue
            while len(running) > workers.count:  # one more than is worked on, and no more are held in memory
                _collect(running, bar)
            running[workers.submit(unit, path)] = unit.size
        while running:
            _collect(running, bar)
    if done:
        note(f"{done:,} of the {len(parts):,} parts were there from an earlier run")
    _join(parts, kept)


def _collect(running: dict[Future[None], int], bar: "_Bar") -> None:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        size = running.pop(future)
        future.result()
        bar.advance(size)


def _join(parts: list[Path], kept: Path) -> None:
    """One file of all parts, each compared with its record while it is copied; they stay until it is sealed."""
    with open_aside(kept) as out:
        for part in parts:
            sha = hashlib.sha256()
            with part.open("rb") as file:
                while block := file.read(1 << 20):
                    sha.update(block)
                    out.write(block)
            if sha.hexdigest() != read_json(record_of(part), LARGEST_RECORD)["sha256"]:
                part.unlink()
                raise UserError(f"{part} was damaged on the disk: run the command again, which makes it again")
    seal(kept)


class _Bar:
    """A progress bar in a terminal, elsewhere a line for each tenth."""

    def __init__(self, corpus: Corpus, workers: int):
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        self.name, self.total, self.done = corpus.name, corpus.size, 0
        console = Console(stderr=True)
        how = f"{workers} processes" if workers > 1 else "one process"
        self.bar = (
            Progress(
                TextColumn(f"tokenizing in {how}"),
                BarColumn(),
                TaskProgressColumn(),
                DownloadColumn(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            if console.is_terminal
            else None
        )
        self.task = self.bar.add_task("", total=self.total) if self.bar is not None else None
        if self.bar is None:
            note(f"tokenizing {self.total / 1e9:.2f} GB of {self.name} in {how}")

    def __enter__(self) -> "_Bar":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, size: int) -> None:
        before, self.done = self.done, self.done + size
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=self.done)
        elif 10 * before // self.total < (tenths := 10 * self.done // self.total) < 10:
            note(f"tokenized {10 * tenths} % of {self.name}")
