"""Tokenizers: characters, bytes, trained BPE, and GPT-2's; each saved as tokenizer.json."""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...config import UserError, nearest
from ...files import parse_json, read_text
from .check_tokenizer_json import check_characters, check_tokenizer
from .hf_tokenizers import END, LONGEST_WORD, LibraryTokenizer, load_inner, pieces, train_bpe, utf8
from .sentencepiece import SentencePieceTokenizer
from .special_tokens import Tokenizer

__all__ = [
    "END",
    "LONGEST_WORD",
    "VOCAB",
    "BPETokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "LibraryTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "digest",
    "from_name",
    "learn",
    "pieces",
    "read_json",
    "train_bpe",
]
BPETokenizer = LibraryTokenizer


class CharTokenizer(Tokenizer):
    """One id for each character of the corpus; `ended` adds an end token."""

    kind = "char"

    def __init__(self, characters: Iterable[str], ended: bool = False):
        self.characters = sorted(set(characters))
        self.end = len(self.characters) if ended else None
        codes = np.array([ord(c) for c in self.characters])
        self._codes = codes
        self._table = np.full(int(codes.max(initial=0)) + 2, -1, dtype=np.int32)
        self._table[codes] = np.arange(len(codes))

    @property
    def vocab(self) -> int:
        return len(self.characters) + (self.end is not None)

    @property
    def byte_lengths(self) -> np.ndarray:
        return np.array([len(c.encode()) for c in self.characters] + [0] * (self.end is not None))

    def encode(self, text: str) -> np.ndarray:
        codes = np.frombuffer(utf8(text).encode("utf-32-le"), dtype="<u4")
        ids = self._table[np.minimum(codes, len(self._table) - 1)]
        if (ids < 0).any():
            unknown = chr(int(codes[ids < 0][0]))
            raise UserError(
                f"{unknown!r} is not among the {len(self.characters)} characters this model was trained on; leave it "
                "out, or train with --tokenizer byte, which knows every character"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(END if i == self.end else self.characters[i] for i in ids)

    def to_json(self) -> str:
        content: dict[str, Any] = {"kind": "char", "characters": "".join(self.characters)}
        return json.dumps(content | ({} if self.end is None else {"ended": True}), ensure_ascii=False)


class ByteTokenizer(Tokenizer):
    """One id for each byte: 256 ids, any text, no training; `ended` adds an end token."""

    kind = "byte"

    def __init__(self, ended: bool = False):
        self.end = 256 if ended else None

    @property
    def vocab(self) -> int:
        return 256 + (self.end is not None)

    @property
    def byte_lengths(self) -> np.ndarray:
        return np.array([1] * 256 + [0] * (self.end is not None), dtype=np.int64)

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(utf8(text).encode(), dtype=np.uint8).astype(np.int32)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(END.encode() if i == self.end else bytes([int(i)]) for i in ids).decode(errors="replace")

    def to_json(self) -> str:
        return json.dumps({"kind": "byte"} | ({} if self.end is None else {"ended": True}))


VOCAB = 4096  # tokens to train a tokenizer to, unless set
GPT2 = "openai-community/gpt2"  # on the hub


def learn(name: str, texts: Iterable[str], vocab: int, ended: bool = False) -> Tokenizer:
    """The tokenizer of that name for these texts; `ended` adds an end token, which BPE always has."""
    if name == "byte":
        return ByteTokenizer(ended)
    if name == "char":
        characters: set[str] = set()
        for text in texts:
            characters.update(text)
        return CharTokenizer(characters, ended)
    return train_bpe(texts, vocab) if name == "bpe" else from_name(name)


def read_json(text: str, where: str, tokens: Mapping[str, Any] | None = None) -> Tokenizer:
    """The tokenizer of a tokenizer.json, Pencil's own or of the `tokenizers` library, with the `[tokens]` of a run."""
    content = parse_json(text, where, "a tokenizer")
    kind = content.get("kind")
    if kind in ("char", "byte"):
        if tokens is not None:
            raise UserError(f"{where} is a tokenizer of {kind}s, which has no special tokens: leave [tokens] out")
        if kind == "byte":
            return ByteTokenizer(bool(content.get("ended")))
        return CharTokenizer(check_characters(content, where), bool(content.get("ended")))
    if kind == SentencePieceTokenizer.kind:
        return SentencePieceTokenizer.read(content, where, tokens)
    check_tokenizer(content, where)
    return LibraryTokenizer(load_inner(text, where), tokens, where, content)


def from_name(name: str) -> Tokenizer:
    """GPT-2's tokenizer by the name gpt2, or any tokenizer.json by its path."""
    if name.endswith(".json"):
        path = Path(name)
        if not path.exists():
            raise UserError(f"there is no tokenizer file {name}")
        return read_json(read_text(path), name)
    if name != "gpt2":
        names = ("char", "byte", "bpe", "gpt2")
        raise UserError(f"{name} is not a tokenizer, nor the path of a tokenizer.json; {nearest(name, names)}")
    try:
        from huggingface_hub import hf_hub_download

        from ..hub import offline_if_unreachable

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        with offline_if_unreachable(GPT2, model=True):
            path = hf_hub_download(GPT2, "tokenizer.json")
    except Exception as error:
        raise UserError(
            f"GPT-2's tokenizer could not be downloaded from the hub ({type(error).__name__}); "
            "give its file instead: --tokenizer path/to/tokenizer.json"
        ) from None
    return read_json(read_text(Path(path)), path)


def digest(tokenizer: Tokenizer) -> str:
    """A hash of what decides the ids of a text."""
    special = "" if tokenizer.special is None else json.dumps(tokenizer.special.table)
    return hashlib.sha256((tokenizer.to_json() + special).encode()).hexdigest()
