"""Text corpora: find, check and hash them, tokenize once, memory-map the ids; no corpus is held whole in memory."""

import codecs
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

import numpy as np

from ..config import UserError, expand_path, nearest
from ..files import write_aside
from .builtin import TEXTS
from .cache import cache_folder, seal, usable
from .file_kinds import WRITTEN_AS, not_text, to_utf8
from .tokenizers import (
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    digest,
    learn,
    pieces,
    read_json,
    train_bpe,
)

CHUNK = 1 << 20
FORMAT = 1  # of the cache: raised by any change of tokenization


@dataclass
class Corpus:
    """Texts in a fixed order, read in pieces; `hash` covers their contents."""

    name: str
    files: list[Path] = field(default_factory=list)
    text: str | None = None
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    hash: str = ""

    @property
    def notes(self) -> list[str]:
        """Files whose names promise something else than plain text, which is how they are read."""
        kinds: dict[tuple[str, str], list[str]] = {}
        for path in self.files:
            if kind := WRITTEN_AS.get(path.suffix.lower()):
                kinds.setdefault(kind, []).append(path.name)
        return [
            f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {kind} by the name, read as plain "
            f"text, with {parts}"
            for (kind, parts), names in kinds.items()
        ]

    def documents(self) -> Iterator[Iterator[str]]:
        """Each document as an iterator of its pieces."""
        if self.text is not None:
            yield iter([self.text])
        for path in self.files:
            yield pieces(_blocks(path), CHUNK)

    def pieces(self) -> Iterator[str]:
        for document in self.documents():
            yield from document


def _blocks(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            yield decoder.decode(block)
    yield decoder.decode(b"", final=True)


def _check(path: Path, sha: "hashlib._Hash") -> str | None:
    """Read the file once and update the hash; return what is wrong with it as text, or None."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    size = 0
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            if not size and (kind := not_text(block[:1000], path.name)):
                return kind
            if 0 in block:
                return f"binary data (a zero byte at {size + block.index(0)}); give a text in UTF-8"
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                # the decoder puts what was left of the block before in front of this one
                at = size + error.start - (len(error.object) - len(block))
                return f"not UTF-8 text (byte {error.object[error.start]:#04x} at offset {at}); {to_utf8(path.name)}"
            sha.update(block)
            size += len(block)
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "not UTF-8 text (it ends within a character); save it as UTF-8"
    return None if size else "empty"


def find(data: str) -> Corpus:
    """The corpus that --data names: embedded, standard input ("-"), a file, or a folder."""
    if not data:
        raise UserError("--data is empty; give a file, a folder, - or an embedded text")
    if data in TEXTS:
        text = TEXTS[data]()
        return Corpus(data, text=text, hash=hashlib.sha256(text.encode()).hexdigest())
    if data == "-":
        return _from_stdin()
    path = expand_path(data)
    if path.is_file():
        sha = hashlib.sha256()
        try:
            fault = _check(path, sha)
        except OSError as error:
            raise UserError(f"{data} cannot be read: {error.strerror}") from None
        if fault:
            raise UserError(f"{data} cannot be trained on: {fault}")
        return Corpus(path.stem, [path], hash=sha.hexdigest())
    if path.is_dir():
        return _from_folder(path)
    raise UserError(f"there is no file or folder {data}, and no embedded text of that name; {nearest(data, TEXTS)}")


def labelled(corpus: Corpus) -> str | None:
    """A note for a text that looks like texts with labels: one tab in every line, and few values after it."""
    if len(corpus.files) != 1:
        return None
    with corpus.files[0].open(encoding="utf-8-sig") as file:
        lines = [line.rstrip("\n") for line in islice(file, 500)]
    if len(lines) < 2 or any(line.count("\t") != 1 for line in lines):
        return None
    if len({line.partition("\t")[2] for line in lines}) * 2 > len(lines):
        return None
    return (
        f"{corpus.files[0].name} has one tab in every line, as texts with labels have, and is read as plain text; "
        "named .tsv, it is read as texts with labels"
    )


def _from_folder(folder: Path) -> Corpus:
    corpus = Corpus(folder.resolve().name or "root")
    sha = hashlib.sha256()
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in [
            f
            for f in folders
            if (Path(root) / f / "config.toml").is_file() and (Path(root) / f / "manifest.json").is_file()
        ]:
            folders.remove(name)
            corpus.skipped.append((Path(root) / name, "a run, not a text"))
        for name in sorted(n for n in names if not n.startswith(".")):
            path = Path(root) / name
            if not path.is_file():
                continue
            mine = hashlib.sha256()
            try:
                fault = _check(path, mine)
            except OSError as error:
                fault = f"unreadable ({error.strerror})"
            if fault:
                corpus.skipped.append((path, fault))
            else:
                corpus.files.append(path)
                sha.update(mine.digest())
    if not corpus.files:
        named = f"; skipped {corpus.skipped[0][0].name}: {corpus.skipped[0][1]}" if corpus.skipped else ""
        raise UserError(f"{folder} holds no text file{named}")
    corpus.hash = sha.hexdigest()
    return corpus


def _from_stdin() -> Corpus:
    """Standard input can be read only once, so it is stored in the cache under its hash."""
    folder = cache_folder()
    with tempfile.NamedTemporaryFile(dir=folder, prefix="stdin-", delete=False) as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    spool, sha = Path(file.name), hashlib.sha256()
    fault = _check(spool, sha)
    if fault:
        spool.unlink()
        raise UserError(f"standard input cannot be trained on: {fault}")
    kept = input_path(sha.hexdigest())
    spool.replace(kept)
    return Corpus("stdin", [kept], hash=sha.hexdigest())


@dataclass
class TextData:
    """A corpus as token ids: the first nine tenths to train on, the last tenth held out."""

    corpus: Corpus
    tokenizer: Tokenizer
    ids: np.ndarray
    whole: bool = False  # all of it is held out: a run is evaluated on it

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
        return learn(name, chain(corpus.pieces(), "\n" if len(corpus.files) > 1 else ""), vocab)
    kept = tokenizer_path(corpus.hash, vocab)
    if usable(kept):
        return read_json(kept.read_text(encoding="utf-8"), str(kept))
    tokenizer = train_bpe(corpus.pieces(), vocab)
    write_aside(kept, tokenizer.to_json().encode())
    seal(kept)
    return tokenizer


def tokenizer_path(corpus_hash: str, vocab: int) -> Path:
    """Where a BPE tokenizer trained on a corpus is cached."""
    return cache_folder() / f"bpe-{FORMAT}-{corpus_hash[:32]}-{vocab}.json"


def input_path(corpus_hash: str) -> Path:
    """Where a standard input is kept, which can be read only once."""
    return cache_folder() / f"text-{corpus_hash[:32]}.txt"


def tokens_path(corpus_hash: str, tokenizer: Tokenizer) -> tuple[Path, np.dtype]:
    """Where the ids of a corpus are cached, and their dtype."""
    dtype = np.dtype(np.uint16 if tokenizer.vocab <= 1 << 16 else np.uint32)
    key = hashlib.sha256(f"{FORMAT} {corpus_hash} {digest(tokenizer)}".encode()).hexdigest()[:32]
    return cache_folder() / f"tokens-{key}.{dtype.name}", dtype


def tokenize(corpus: Corpus, tokenizer: Tokenizer) -> np.ndarray:
    """The ids of the corpus, memory-mapped, cached by content and tokenizer; uint16 if every id fits, else uint32."""
    kept, dtype = tokens_path(corpus.hash, tokenizer)
    if not usable(kept):
        with tempfile.NamedTemporaryFile(dir=kept.parent, prefix=kept.name, delete=False) as file:
            try:
                for ids in _encoded(corpus, tokenizer):
                    file.write(ids.astype(dtype).tobytes())
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
        Path(file.name).replace(kept)
        seal(kept)
    if not kept.stat().st_size:
        return np.zeros(0, dtype)
    return np.memmap(kept, dtype=dtype, mode="r")


def _encoded(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The ids of every document, then the end token; without one, a newline if there are several documents."""
    if not isinstance(tokenizer, CharTokenizer | ByteTokenizer) and tokenizer.end is not None:
        close = np.array([tokenizer.end])
    else:
        close = tokenizer.encode("\n" if len(corpus.files) > 1 else "")
    for document in corpus.documents():
        # a tokenizer that puts a space before a text must read a document whole
        for piece in document if tokenizer.cuttable else ["".join(document)]:
            yield tokenizer.encode(piece)
        yield close


def load(data: str, tokenizer: str | Tokenizer = "char", vocab: int = 4096) -> TextData:
    """The data, its tokenizer and its ids."""
    corpus = find(data)
    if isinstance(tokenizer, str):
        tokenizer = make_tokenizer(corpus, tokenizer, vocab)
    return TextData(corpus, tokenizer, tokenize(corpus, tokenizer))
