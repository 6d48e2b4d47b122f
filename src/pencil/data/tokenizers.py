"""Tokenizers: characters, bytes, trained BPE, and GPT-2's; each saved as tokenizer.json."""

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..config import UserError, nearest

END = "<|endoftext|>"


@runtime_checkable
class Tokenizer(Protocol):
    """The interface of all tokenizers; `end` is the id of the end token, if there is one."""

    @property
    def kind(self) -> str: ...

    @property
    def end(self) -> int | None: ...

    @property
    def vocab(self) -> int: ...

    @property
    def byte_lengths(self) -> np.ndarray:
        """The UTF-8 length of each id, to convert a loss per token to bits per byte."""
        ...

    def encode(self, text: str) -> np.ndarray: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def to_json(self) -> str: ...


class CharTokenizer:
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
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        ids = self._table[np.minimum(codes, len(self._table) - 1)]
        if (ids < 0).any():
            unknown = chr(int(codes[ids < 0][0]))
            raise UserError(f"{unknown!r} is not among the {len(self.characters)} characters this model was trained on")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(END if i == self.end else self.characters[i] for i in ids)

    def to_json(self) -> str:
        content: dict[str, Any] = {"kind": "char", "characters": "".join(self.characters)}
        return json.dumps(content | ({} if self.end is None else {"ended": True}), ensure_ascii=False)


class ByteTokenizer:
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
        return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(END.encode() if i == self.end else bytes([int(i)]) for i in ids).decode(errors="replace")

    def to_json(self) -> str:
        return json.dumps({"kind": "byte"} | ({} if self.end is None else {"ended": True}))


class BPETokenizer:
    """Byte-level BPE of the `tokenizers` library; GPT-2's tokenizer is one."""

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
            # a byte-level token has one character for each byte; the end token has no bytes
            lengths[i] = 0 if i == self.end else len(token)
        return lengths

    def encode(self, text: str) -> np.ndarray:
        # in pieces, which the library encodes in parallel
        encoded = self.inner.encode_batch_fast(list(pieces([text], 1 << 15)), add_special_tokens=False)
        return np.concatenate([np.asarray(e.ids, dtype=np.int32) for e in encoded] or [np.zeros(0, np.int32)])

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode([int(i) for i in ids], skip_special_tokens=False)

    def to_json(self) -> str:
        return self.inner.to_str(pretty=True)


_LINE, _WORD = re.compile(r"(?<=\S)\n(?=\S)"), re.compile(r"(?<=\S)(?= \S)")


def pieces(blocks: Iterable[str], size: int) -> Iterator[str]:
    """The text of the blocks in pieces of `size` to twice `size` characters, cut where no byte-level merge crosses:
    after a newline between two visible characters, else before a single space; anywhere if there is neither."""
    kept = ""
    for block in blocks:
        kept += block
        begin = 0
        while len(kept) - begin > 2 * size:
            low, high = begin + size, begin + 2 * size
            cut = _LINE.search(kept, low, high) or _WORD.search(kept, low, high)
            end = cut.end() if cut else high
            yield kept[begin:end]
            begin = end
        kept = kept[begin:]
    if kept:
        yield kept


def _budget(texts: Iterable[str], characters: int) -> Iterator[str]:
    for text in texts:
        yield text[:characters]
        characters -= len(text)
        if characters <= 0:
            return


def train_bpe(texts: Iterable[str], vocab: int) -> BPETokenizer:
    """A byte-level BPE of at most `vocab` ids, trained on the first 256 million characters of the texts."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if vocab < 257:
        raise UserError(
            f"a byte-level BPE has 256 bytes and an end token, so --vocab must be at least 257, not {vocab}"
        )
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    inner.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(_budget(texts, 256_000_000), trainer)
    return BPETokenizer(inner)


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


def read_json(text: str, where: str) -> Tokenizer:
    """The tokenizer of a tokenizer.json, Pencil's own or of the `tokenizers` library."""
    try:
        content = json.loads(text)
        if content.get("kind") == "char":
            return CharTokenizer(content["characters"], bool(content.get("ended")))
        if content.get("kind") == "byte":
            return ByteTokenizer(bool(content.get("ended")))
        from tokenizers import Tokenizer as Inner

        inner = Inner.from_str(text)
        byte_level = '"ByteLevel"' in json.dumps(content.get("decoder"))
    except Exception as error:  # the library raises bare Exceptions
        raise UserError(f"{where} is not a tokenizer: {error}") from None
    if not byte_level:
        raise UserError(f"{where} does not decode to bytes; only byte-level BPE, as GPT-2's, can be used")
    return BPETokenizer(inner)


def from_name(name: str) -> Tokenizer:
    """GPT-2's tokenizer by the name gpt2, or any tokenizer.json by its path."""
    if name.endswith(".json"):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"there is no tokenizer file {name}")
        return read_json(path.read_text(encoding="utf-8"), name)
    if name != "gpt2":
        known = ("char", "byte", "bpe", "gpt2")
        raise UserError(f"{name} is not a tokenizer, nor the path of a tokenizer.json; {nearest(name, known)}")
    try:
        from huggingface_hub import hf_hub_download

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
        path = hf_hub_download("openai-community/gpt2", "tokenizer.json")
    except Exception as error:
        raise UserError(
            f"GPT-2's tokenizer could not be downloaded from the hub ({type(error).__name__}); "
            "give its file instead: --tokenizer path/to/tokenizer.json"
        ) from None
    return read_json(Path(path).read_text(encoding="utf-8"), path)


def digest(tokenizer: Tokenizer) -> str:
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()
