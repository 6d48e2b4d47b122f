"""Tokenizers: characters, bytes, trained BPE, and GPT-2's; each saved as tokenizer.json."""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..config import UserError, nearest
from ..files import parse_json, read_text
from .tokenizer_files import check_characters, check_tokenizer

END = "<|endoftext|>"
LOG = logging.getLogger("pencil")


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


def _utf8(text: str) -> str:
    """The text; one whose bytes were not UTF-8 (Python keeps them as surrogates) is refused."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError("the text is not UTF-8") from None
    return text


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
        codes = np.frombuffer(_utf8(text).encode("utf-32-le"), dtype="<u4")
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
        return np.frombuffer(_utf8(text).encode(), dtype=np.uint8).astype(np.int32)

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
        encoded = self.inner.encode_batch_fast(list(pieces([_utf8(text)], 1 << 15)), add_special_tokens=False)
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


LONGEST_WORD = 1000  # characters: the trainer's time grows with the square of a word's length
PROGRESS = 32_000_000  # characters between two lines of progress
# letters and digits, signs, or spaces, half a longest word of them: a longer word covers one that begins at a multiple
_RUN = re.compile(rf"[^\W_]{{{LONGEST_WORD // 2}}}|(?:_|[^\w\s]){{{LONGEST_WORD // 2}}}|\s{{{LONGEST_WORD // 2}}}")


def _budget(texts: Iterable[str], characters: int) -> Iterator[str]:
    left = characters
    for text in texts:
        if (characters - left) // PROGRESS < (characters - left + len(text)) // PROGRESS:
            LOG.warning("training a BPE: %d million characters read", (characters - left + len(text)) // 1_000_000)
        yield text[:left]
        left -= len(text)
        if left <= 0:
            return


def _cut_words(texts: Iterable[str], words: Callable[[str], list[tuple[str, tuple[int, int]]]]) -> Iterator[str]:
    """The texts; one with a word of more than LONGEST_WORD characters as single words, long ones in parts."""
    announced = False
    for text in texts:
        found = words(text) if any(_RUN.match(text, i) for i in range(0, len(text), LONGEST_WORD // 2)) else []
        if all(end - begin <= LONGEST_WORD for _, (begin, end) in found):
            yield text
            continue
        if not announced:
            LOG.warning(
                "the text has words of more than %d characters, without a space: the BPE is trained on parts of them, "
                "each of %d characters",
                LONGEST_WORD,
                LONGEST_WORD,
            )
            announced = True
        for _, (begin, end) in found:
            for at in range(begin, end, LONGEST_WORD):
                yield text[at : min(end, at + LONGEST_WORD)]


def train_bpe(texts: Iterable[str], vocab: int) -> BPETokenizer:
    """A byte-level BPE of at most `vocab` ids, trained on the first 256 million characters of the texts.

    A word of more than LONGEST_WORD characters is trained on in parts of that length; it is encoded whole.
    """
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if vocab < 257:
        raise UserError(
            f"a byte-level BPE has 256 bytes and an end token, so --vocab must be at least 257, not {vocab}"
        )
    inner = Inner(models.BPE())
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.pre_tokenizer = splitter  # pyright: ignore[reportAttributeAccessIssue]
    inner.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(_cut_words(_budget(texts, 256_000_000), splitter.pre_tokenize_str), trainer)
    return BPETokenizer(inner)


VOCAB = 4096  # tokens to train a tokenizer to, unless set


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
    content = parse_json(text, where, "a tokenizer")
    if content.get("kind") == "char":
        return CharTokenizer(check_characters(content, where), bool(content.get("ended")))
    if content.get("kind") == "byte":
        return ByteTokenizer(bool(content.get("ended")))
    check_tokenizer(content, where)
    return BPETokenizer(_inner(text, where))


def _inner(text: str, where: str) -> Any:
    """The library's tokenizer, without the padding and truncation that a file may ask for: every text is whole."""
    from tokenizers import Tokenizer as Inner

    try:
        inner = Inner.from_str(text)
        inner.no_padding()
        inner.no_truncation()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and its panics are not even those
        raise UserError(f"{where} is not a tokenizer: {' '.join(str(error).split())[:200]}") from None
    return inner


def from_name(name: str) -> Tokenizer:
    """GPT-2's tokenizer by the name gpt2, or any tokenizer.json by its path."""
    if name.endswith(".json"):
        path = Path(name)
        if not path.exists():
            raise UserError(f"there is no tokenizer file {name}")
        return read_json(read_text(path), name)
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
    return read_json(read_text(Path(path)), path)


def digest(tokenizer: Tokenizer) -> str:
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()
