"""Tokenizers: text to ids and back. Characters, bytes, trained BPE, GPT-2's own; each saved as tokenizer.json."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..config import UserError, nearest

END = "<|endoftext|>"


@runtime_checkable
class Tokenizer(Protocol):
    """What every tokenizer does; `end` is the id that ends a text, where there is one."""

    @property
    def kind(self) -> str: ...

    @property
    def end(self) -> int | None: ...

    @property
    def vocab(self) -> int: ...

    @property
    def byte_lengths(self) -> np.ndarray:
        """UTF-8 bytes each id stands for, to turn a loss per token into bits per byte."""
        ...

    def encode(self, text: str) -> np.ndarray: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def to_json(self) -> str: ...


class CharTokenizer:
    """One id a character, of those the corpus holds."""

    kind, end = "char", None

    def __init__(self, characters: Iterable[str]):
        self.characters = sorted(set(characters))
        codes = np.array([ord(c) for c in self.characters])
        self._codes = codes
        self._table = np.full(int(codes.max(initial=0)) + 2, -1, dtype=np.int32)
        self._table[codes] = np.arange(len(codes))

    @property
    def vocab(self) -> int:
        return len(self.characters)

    @property
    def byte_lengths(self) -> np.ndarray:
        return np.array([len(c.encode()) for c in self.characters])

    def encode(self, text: str) -> np.ndarray:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        ids = self._table[np.minimum(codes, len(self._table) - 1)]
        if (ids < 0).any():
            stranger = chr(int(codes[ids < 0][0]))
            raise UserError(f"{stranger!r} is not among the {self.vocab} characters this model was trained on")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.characters[i] for i in ids)

    def to_json(self) -> str:
        return json.dumps({"kind": "char", "characters": "".join(self.characters)}, ensure_ascii=False)


class ByteTokenizer:
    """One id a byte: any text, no training, 256 ids."""

    kind, end, vocab = "byte", None, 256

    @property
    def byte_lengths(self) -> np.ndarray:
        return np.ones(256, dtype=np.int64)

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(int(i) for i in ids).decode(errors="replace")

    def to_json(self) -> str:
        return json.dumps({"kind": "byte"})


class BPETokenizer:
    """Byte pairs merged by frequency, by the `tokenizers` library; GPT-2's is one of these."""

    kind = "bpe"

    def __init__(self, inner: Any):
        self.inner = inner
        self.end: int | None = inner.token_to_id(END)

    @property
    def vocab(self) -> int:
        return self.inner.get_vocab_size()

    @property
    def byte_lengths(self) -> np.ndarray:
        lengths = np.zeros(self.vocab, dtype=np.int64)
        for token, i in self.inner.get_vocab().items():
            # a byte-level token is spelled with one letter a byte; the end of a text stands for no byte
            lengths[i] = 0 if i == self.end else len(token)
        return lengths

    def encode(self, text: str) -> np.ndarray:
        # pieces that begin a line after a line's end meet no merge across the cut, and are encoded side by side
        pieces = [text[a:b] for a, b in _cuts(text, 1 << 16)]
        encoded = self.inner.encode_batch_fast(pieces, add_special_tokens=False)
        return np.concatenate([np.asarray(e.ids, dtype=np.int32) for e in encoded] or [np.zeros(0, np.int32)])

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode([int(i) for i in ids], skip_special_tokens=False)

    def to_json(self) -> str:
        return self.inner.to_str(pretty=True)


def _cuts(text: str, size: int) -> Iterable[tuple[int, int]]:
    begin = 0
    while begin < len(text):
        end = min(begin + size, len(text))
        while end < len(text) and not (text[end - 1] == "\n" and not text[end].isspace()):
            end += 1
        yield begin, end
        begin = end


def train_bpe(pieces: Iterable[str], vocab: int) -> BPETokenizer:
    """A byte-level BPE of at most `vocab` ids, learned from up to 256 million characters of the pieces."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if vocab < 257:
        raise UserError(f"a byte-level BPE holds 256 bytes and an end, so --vocab must be at least 257, not {vocab}")
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    inner.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(islice(pieces, 256), trainer)
    return BPETokenizer(inner)


def read_json(text: str, where: str) -> Tokenizer:
    """A tokenizer.json of ours or of the `tokenizers` library."""
    try:
        content = json.loads(text)
        if content.get("kind") == "char":
            return CharTokenizer(content["characters"])
        if content.get("kind") == "byte":
            return ByteTokenizer()
        from tokenizers import Tokenizer as Inner

        return BPETokenizer(Inner.from_str(text))
    except Exception as error:  # the library raises bare Exceptions
        raise UserError(f"{where} is not a tokenizer: {error}") from None


def from_name(name: str) -> Tokenizer:
    """GPT-2's tokenizer by the name gpt2, or any tokenizer.json by its path."""
    if name.endswith(".json"):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"there is no tokenizer file {name}")
        return read_json(path.read_text(encoding="utf-8"), name)
    if name != "gpt2":
        known = ("char", "byte", "bpe", "gpt2")
        raise UserError(f"{name} is not a tokenizer; {nearest(name, known)}, or the path of a tokenizer.json")
    try:
        from huggingface_hub import hf_hub_download

        path = hf_hub_download("openai-community/gpt2", "tokenizer.json")
    except Exception as error:
        raise UserError(
            f"GPT-2's tokenizer could not be had from the hub ({type(error).__name__}); "
            "give its file instead: --tokenizer path/to/tokenizer.json"
        ) from None
    return read_json(Path(path).read_text(encoding="utf-8"), path)


def digest(tokenizer: Tokenizer) -> str:
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()
