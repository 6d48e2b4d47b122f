"""Texts to train on: a corpus, its tokenizer, and its ids, memory-mapped; no corpus is held whole in memory."""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

import numpy as np

from ...files import write_aside
from ..builtin import TEXTS
from ..cache import cache_folder, making, seal, usable
from ..settings import DataConfig
from ..tokenizers.tokenizer import Tokenizer, learn, read_json, train_bpe
from .corpus import CHUNK, Corpus, find, find_like, input_path
from .tokenizing import FORMAT, tokenize, tokens_path

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

LONG_LINE = 10_000  # characters; a label is far shorter


def labelled(corpus: Corpus) -> str | None:
    """A note for a text that looks like texts with labels: one tab in every line, and few values after it."""
    if len(corpus.files) != 1 or corpus.several:
        return None
    with corpus.files[0].open(encoding="utf-8-sig") as file:
        lines = [line.rstrip("\n") for line in islice(iter(lambda: file.readline(LONG_LINE), ""), 500)]
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
    kept = tokenizer_path(corpus.hash, vocab)
    with making(kept):
        if usable(kept):
            return read_json(kept.read_text(encoding="utf-8"), str(kept))
        tokenizer = train_bpe(corpus.pieces(), vocab)
        write_aside(kept, tokenizer.to_json().encode())
        seal(kept)
    return tokenizer


def tokenizer_path(corpus_hash: str, vocab: int) -> Path:
    """Where a BPE tokenizer trained on a corpus is cached."""
    return cache_folder() / f"bpe-{FORMAT}-{corpus_hash[:32]}-{vocab}.json"


def load(data: str, tokenizer: str | Tokenizer = "char", vocab: int = 4096, column: str | None = None) -> TextData:
    """The data, its tokenizer and its ids; `column` has the text of records."""
    corpus = find(data, column)
    if isinstance(tokenizer, str):
        tokenizer = make_tokenizer(corpus, tokenizer, vocab)
    return TextData(corpus, tokenizer, tokenize(corpus, tokenizer))
