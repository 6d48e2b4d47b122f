"""Texts to train on: a corpus, its tokenizer, and its ids, memory-mapped; no corpus is held whole in memory.

A corpus is tokenized once, into a file of the cache: a large one by several processes, in parts that a later run takes
up where a killed one stopped.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

import numpy as np

from ...config import UserError
from ...console import Console, note
from ...files import open_aside, read_json
from ...progress import pollable
from ..builtin import TEXTS
from ..cache import LARGEST_RECORD_BYTES, cache_folder, cached, making, record_of, seal, usable
from ..settings import DataConfig
from ..tokenizers.tokenizer import Tokenizer, digest, learn, train_bpe
from ..tokenizers.tokenizer import read_json as read_tokenizer
from .chunks import UNIT_BYTES, Unit, check_same, closing, encode_unit, encoded, units_of
from .corpus import CHUNK, Corpus, find, find_like, input_path

__all__ = [
    "CHUNK",
    "FORMAT",
    "TEXTS",
    "Corpus",
    "TextData",
    "cache_folder",
    "find",
    "find_like",
    "input_path",
    "labelled",
    "load",
    "make_tokenizer",
    "tokenize",
    "tokenizer_path",
    "tokens_path",
]

LONG_LINE_CHARACTERS = 10_000  # a label is far shorter
FORMAT = 1  # of the cache: raised by any change of tokenization
LARGE_BYTES = 1 << 26  # of a corpus that is tokenized in parts
WORKERS_VARIABLE = "PENCIL_WORKERS"  # of the environment: processes that tokenize; by default one a core
WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from pencil.data.text import text_data; text_data.work()"
)


def labelled(corpus: Corpus) -> str | None:
    """A note for a text that looks like texts with labels: one tab in every line, and few values after it."""
    if len(corpus.files) != 1 or corpus.several:
        return None
    with corpus.files[0].open(encoding="utf-8-sig") as file:
        lines = [line.rstrip("\n") for line in islice(iter(lambda: file.readline(LONG_LINE_CHARACTERS), ""), 500)]
    if len(lines) < 2 or any(line.count("\t") != 1 for line in lines):
        return None
    if len({line.partition("\t")[2] for line in lines}) * 2 > len(lines):
        return None
    return (
        f"{corpus.files[0].name} has one tab in every line, as texts with labels have, and is read as plain text; "
        "named .tsv, it is read as texts with labels"
    )


@dataclass
class TextData:
    """A corpus as token ids: the first nine tenths to train on, the last tenth held out."""

    corpus: Corpus
    tokenizer: Tokenizer
    ids: np.ndarray
    whole: bool = False  # all of it is held out: a run is evaluated on it

    @property
    def reading(self) -> DataConfig | None:
        """How its files are read, to be recorded; None where all are plain texts."""
        return None if self.corpus.column is None else DataConfig(text_column=self.corpus.column)

    @property
    def pinned(self) -> str:
        return self.corpus.pinned

    @property
    def split(self) -> int:
        return 0 if self.whole else int(len(self.ids) * 0.9)

    @property
    def train(self) -> np.ndarray:
        return self.ids[: self.split]

    @property
    def val(self) -> np.ndarray:
        return self.ids[self.split :]

    @cached_property
    def val_bytes(self) -> int | None:
        """The bytes of the held-out text; None where the tokenizer does not keep every byte."""
        lengths, val = self.tokenizer.byte_lengths, self.val
        if lengths is None:
            return None
        return sum(int(lengths[val[i : i + CHUNK]].sum()) for i in range(0, len(val), CHUNK))


def make_tokenizer(corpus: Corpus, name: str, vocab: int) -> Tokenizer:
    """The tokenizer of that name for this corpus; a trained one is cached by the hash of the corpus."""
    if name != "bpe":
        return learn(name, chain(corpus.pieces(), "\n" if corpus.several else ""), vocab)
    path = tokenizer_path(corpus.hash, vocab)
    content = cached(path, lambda: train_bpe(corpus.pieces(), vocab).to_json().encode())
    return read_tokenizer(content.decode(), str(path))


def tokenizer_path(corpus_hash: str, vocab: int) -> Path:
    """Where a BPE tokenizer trained on a corpus is cached."""
    return cache_folder() / f"bpe-{FORMAT}-{corpus_hash[:32]}-{vocab}.json"


def load(data: str, tokenizer: str | Tokenizer = "char", vocab: int = 4096, column: str | None = None) -> TextData:
    """The data, its tokenizer and its ids; `column` has the text of records."""
    corpus = find(data, column)
    if isinstance(tokenizer, str):
        tokenizer = make_tokenizer(corpus, tokenizer, vocab)
    return TextData(corpus, tokenizer, tokenize(corpus, tokenizer))


def tokens_path(corpus_hash: str, tokenizer: Tokenizer) -> tuple[Path, np.dtype]:
    """Where the ids of a corpus are cached, and their dtype."""
    dtype = np.dtype(np.uint16 if tokenizer.vocab <= 1 << 16 else np.uint32)
    key = hashlib.sha256(f"{FORMAT} {corpus_hash} {digest(tokenizer)}".encode()).hexdigest()[:32]
    return cache_folder() / f"tokens-{key}.{dtype.name}", dtype


def tokenize(corpus: Corpus, tokenizer: Tokenizer) -> np.ndarray:
    """The ids of the corpus, memory-mapped, cached by content and tokenizer; uint16 if every id fits, else uint32."""
    path, dtype = tokens_path(corpus.hash, tokenizer)
    with making(path):
        if not usable(path):
            if corpus.files and corpus.size >= LARGE_BYTES:
                _tokenize_parts(corpus, tokenizer, path, dtype)
            else:
                _write_ids(path, _ids(corpus, tokenizer), dtype)
        for part in path.parent.glob(f"{path.name}-part-*"):  # joined, or of other bytes that a killed run has read
            part.unlink(missing_ok=True)
        if not path.stat().st_size:
            return np.zeros(0, dtype)
        return np.memmap(path, dtype=dtype, mode="r")


def _ids(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The ids of a corpus, of which no file has changed since it was hashed."""
    yield from encoded(corpus, tokenizer)
    for path, sha in zip(corpus.files, corpus.hashes, strict=True):
        check_same(path, sha)


def _tokenize_parts(corpus: Corpus, tokenizer: Tokenizer, whole: Path, dtype: np.dtype) -> None:
    """The ids of each unit in a file of its own, then all of them in one; parts that are there and whole are kept."""
    for left in (*whole.parent.glob(f".{whole.name}-part-*"), *whole.parent.glob(f".{whole.name}.{'[0-9a-f]' * 8}")):
        left.unlink(missing_ok=True)  # what a killed process had not finished
    parts, done, running = list[Path](), 0, dict[Future[None], int]()
    with (
        Workers(tokenizer, dtype, closing(corpus, tokenizer), corpus.size) as workers,
        _progress(corpus, workers.count) as advance,
    ):
        for unit in pollable(units_of(corpus, tokenizer.cuttable)):
            # by its content, since a killed run may have read other bytes than the next one
            path = whole.with_name(f"{whole.name}-part-{len(parts):07}-{unit.content}")
            parts.append(path)
            if usable(path):
                done += 1
                advance(unit.size)
                continue
            while len(running) > workers.count:  # one more than is worked on, and no more are held in memory
                _collect(running, advance)
            running[workers.submit(unit, path)] = unit.size
        while running:
            _collect(running, advance)
    if done:
        note(f"{done:,} of the {len(parts):,} parts were there from an earlier run")
    _join(parts, whole)


def _collect(running: dict[Future[None], int], advance: Callable[[int], None]) -> None:
    done, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in done:
        size = running.pop(future)
        future.result()
        advance(size)


def _join(parts: list[Path], whole: Path) -> None:
    """One file of all parts, each compared with its record while it is copied; they stay until it is sealed."""
    with open_aside(whole) as out:
        for part in parts:
            sha = hashlib.sha256()
            with part.open("rb") as file:
                while block := file.read(1 << 20):
                    sha.update(block)
                    out.write(block)
            if sha.hexdigest() != read_json(record_of(part), LARGEST_RECORD_BYTES)["sha256"]:
                part.unlink()
                raise UserError(f"{part} was damaged on the disk: run the command again, which makes it again")
    seal(whole)


@contextmanager
def _progress(corpus: Corpus, workers: int) -> Iterator[Callable[[int], None]]:
    """What is called with the bytes that were tokenized: a progress bar in a terminal, elsewhere a line per tenth."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    how = f"{workers} processes" if workers > 1 else "one process"
    if console.is_terminal:
        columns = BarColumn(), TaskProgressColumn(), DownloadColumn(), TimeRemainingColumn()
        with Progress(TextColumn(f"tokenizing in {how}"), *columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=corpus.size)
            yield lambda size: bar.advance(task, size)
        return
    note(f"tokenizing {corpus.size / 1e9:.2f} GB of {corpus.name} in {how}")
    total, done = corpus.size, 0

    def advance(size: int) -> None:
        nonlocal done
        before, done = done, done + size
        if 10 * before // total < (tenths := 10 * done // total) < 10:
            note(f"tokenized {10 * tenths} % of {corpus.name}")

    yield advance


def _write_ids(path: Path, ids: Iterator[np.ndarray], dtype: np.dtype) -> None:
    """A sealed file of these ids: whole, or not at all."""
    with open_aside(path) as file:
        for some in ids:
            file.write(some.astype(dtype).tobytes())
    seal(path)


def _count(size: int) -> int:
    """How many processes tokenize a corpus of this size."""
    count = os.environ.get(WORKERS_VARIABLE)
    if count is not None and not (count.isdigit() and int(count)):
        raise UserError(f"{WORKERS_VARIABLE} in the environment is {count!r}, and should be the number of processes")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(int(count) if count else cores, -(-size // UNIT_BYTES))


class Workers:
    """Processes that tokenize, each with a thread here that hands it one unit after another.

    They are started as commands: a fork would copy torch's threads, and a spawned process would run the user's script
    again. A tokenizer that cannot be written down is used in this process.
    """

    def __init__(self, tokenizer: Tokenizer, dtype: np.dtype, close: np.ndarray, size: int):
        self.tokenizer, self.dtype, self.close = tokenizer, dtype, close
        self.count = _count(size) if _portable(tokenizer) else 1
        self.here = self.count == 1
        self.own, self.lock = threading.local(), threading.Lock()
        self.started: list[subprocess.Popen[bytes]] = []
        self.threads = ThreadPoolExecutor(self.count, thread_name_prefix="tokenize")

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        for process in list(self.started) if error[0] else ():
            process.kill()
        self.threads.shutdown(cancel_futures=True)
        for process in self.started:  # one that a thread started meanwhile, too
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # it ended before it had read everything
                        pipe.close()
            process.wait()

    def submit(self, unit: Unit, path: Path) -> Future[None]:
        return self.threads.submit(self._run, unit, path)

    def _run(self, unit: Unit, path: Path) -> None:
        if self.here:
            _write_ids(path, encode_unit(unit, self.tokenizer, self.close), self.dtype)
            return
        first, process = b"", getattr(self.own, "process", None)
        if process is None:
            first, process = self._about(), self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        try:
            process.stdin.write(first)
            process.stdin.write(json.dumps([unit._asdict(), str(path)]).encode() + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:  # it has ended
            pass
        if not answer:
            raise UserError(
                f"a process that tokenizes ended (exit status {process.wait()}), perhaps for lack of memory: run the "
                f"command again, which keeps what is done; {WORKERS_VARIABLE}=1 needs the least memory"
            )
        if fault := json.loads(answer):
            raise UserError(fault)

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"},
        )
        with self.lock:
            self.started.append(process)
        self.own.process = process
        return process

    def _about(self) -> bytes:
        """What a process needs before its first unit."""
        special = None if self.tokenizer.special is None else self.tokenizer.special.table
        about = self.tokenizer.to_json(), special, self.dtype.name, self.close.tolist()
        return json.dumps(about).encode() + b"\n"


def _portable(tokenizer: Tokenizer) -> bool:
    """Whether another process makes the same tokenizer of what is written of it."""
    special = None if tokenizer.special is None else tokenizer.special.table
    try:
        return digest(read_tokenizer(tokenizer.to_json(), "the tokenizer", special)) == digest(tokenizer)
    except UserError:
        return False


def work() -> None:
    """What another process does: write a file of ids for each unit that it is handed, and answer with what failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out the units
    out, orders = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)  # nothing else may answer
    text, special, dtype, close = json.loads(orders.readline())
    tokenizer = read_tokenizer(text, "the tokenizer", special)
    for line in orders:
        fields, path = json.loads(line)
        unit = Unit(**fields | {"pieces": tuple(fields["pieces"])})
        try:
            _write_ids(Path(path), encode_unit(unit, tokenizer, np.array(close, dtype=np.int64)), np.dtype(dtype))
            fault = ""
        except (UserError, OSError) as error:
            fault = str(error)
        except Exception as error:
            fault = f"{unit.path} cannot be tokenized: {type(error).__name__}: {error}"
        try:
            out.write(json.dumps(fault).encode() + b"\n")
            out.flush()
        except BrokenPipeError:  # the other process was killed
            os._exit(1)
