"""A tokenizer of the `tokenizers` library: BPE, WordPiece or Unigram, as its tokenizer.json describes it."""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ...config import UserError
from .check_tokenizer_json import INSIDE, stage_parts
from .special_tokens import SpecialTokens, Tokenizer

END = "<|endoftext|>"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
KEEPS_TEXT = {"Prepend", "Replace", "Sequence"}  # normalizers that lose nothing, as `check_tokenizer` allows them
KEEPS_SPACES = {"Metaspace", "Sequence"}  # pre-tokenizers
T = TypeVar("T")
LOG = logging.getLogger("pencil")


def utf8(text: str) -> str:
    """The text; one whose bytes were not UTF-8 (Python keeps them as surrogates) is refused."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError("the text is not UTF-8") from None
    return text


def guarded(action: Callable[[], T], refused: str) -> T:
    """What the library gives; it raises bare Exceptions, and its panics are not even those."""
    try:
        return action()
    except (KeyboardInterrupt, SystemExit, UserError):
        raise
    except BaseException as error:
        raise UserError(f"{refused}: {' '.join(str(error).split())[:200]}") from None


def load_inner(text: str, where: str) -> Any:
    """The library's tokenizer, without the padding and truncation that a file may ask for: every text is whole."""
    from tokenizers import Tokenizer as Inner

    def load() -> Any:
        inner = Inner.from_str(text)
        inner.no_padding()
        inner.no_truncation()
        return inner

    return guarded(load, f"{where} is not a tokenizer")


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the library. With the `[tokens]` of an imported run it puts and hides special tokens as the
    original does; without them it has an end token, where there is one, and shows every token."""

    def __init__(
        self,
        inner: Any,
        tokens: Mapping[str, Any] | None = None,
        where: str = "the tokenizer",
        content: Mapping[str, Any] | None = None,
    ):
        stages: Mapping[str, Any] = content or json.loads(inner.to_str())
        self.inner, self.kind = inner, type(inner.model).__name__.lower()
        self._vocab: int = max(inner.get_vocab().values(), default=-1) + 1  # some files leave ids out
        self.fallback = bool(stages["model"].get("byte_fallback"))
        self._stages = {name: list(stage_parts(stages.get(name), inside)) for name, inside in INSIDE.items()}
        self.byte_level = "ByteLevel" in self._kinds("decoder")
        self.joined = not self.byte_level
        prefix = any(part.get("add_prefix_space") for part in self._stages["pre_tokenizer"])
        self.cuttable = self.byte_level and not prefix
        if tokens is None:
            self.end = inner.token_to_id(END)
        else:
            self.use_special(SpecialTokens.read(tokens, self.vocab, where))
            self.around = self._around()

    @property
    def vocab(self) -> int:
        return self._vocab

    def _kinds(self, stage: str) -> set[str]:
        return {part["type"] for part in self._stages[stage]}

    @property
    def byte_lengths(self) -> np.ndarray | None:
        """The UTF-8 length of each id; None where the tokenizer does not keep every byte of a text."""
        return self._byte_lengths

    @cached_property
    def _byte_lengths(self) -> np.ndarray | None:
        vocabulary = self.inner.get_vocab()
        if not self.byte_level and not self._keeps_every_byte(vocabulary):
            return None
        lengths = np.zeros(self.vocab, dtype=np.int64)
        for token, i in vocabulary.items():
            if self.byte_level:
                lengths[i] = len(token)  # one character for each byte
            else:
                byte = i not in self._added and BYTE.fullmatch(token)
                lengths[i] = 1 if byte else len(token.replace("▁", " ").encode())
        for i in (*self.ends, *(() if self.begin is None else (self.begin,))):
            lengths[i] = 0
        return lengths

    def _keeps_every_byte(self, vocabulary: Mapping[str, int]) -> bool:
        complete = self.fallback and all(f"<0x{i:02X}>" in vocabulary for i in range(256))
        lossless = self._kinds("normalizer") <= KEEPS_TEXT and self._kinds("pre_tokenizer") <= KEEPS_SPACES
        replaced = [part["pattern"] for part in self._stages["normalizer"] if part["type"] == "Replace"]
        plain = all(pattern == {"String": " "} for pattern in replaced)
        return complete and lossless and plain

    def encode(self, text: str) -> np.ndarray:
        # in pieces, which the library encodes in parallel
        texts = list(pieces([utf8(text)], 1 << 15)) if self.cuttable else [utf8(text)]
        encoded = guarded(
            lambda: self.inner.encode_batch_fast(texts, add_special_tokens=False), "the text cannot be encoded"
        )
        return np.concatenate([np.asarray(e.ids, dtype=np.int32) for e in encoded] or [np.zeros(0, np.int32)])

    def _around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens that the original puts before and after a text."""
        before: tuple[int, ...] = ()
        after: tuple[int, ...] = ()
        for part in self._stages["post_processor"]:
            if part["type"] in ("BertProcessing", "RobertaProcessing"):
                before, after = (part["cls"][1], *before), (*after, part["sep"][1])
            if part["type"] == "TemplateProcessing":
                form, special = part["single"], part["special_tokens"]
                at = next(i for i, part in enumerate(form) if "Sequence" in part)
                sides = form[:at], form[at + 1 :]
                left, right = (
                    [i for token in side for i in special[token["SpecialToken"]["id"]]["ids"]] for side in sides
                )
                before, after = (*left, *before), (*after, *right)
        return before, after

    def encode_with_special(self, text: str, pair: str | None = None) -> list[int]:
        """The ids of a text, or of two, with the special tokens that the original puts around them."""
        return self._with_special(text, pair).ids

    def token_types(self, text: str, pair: str | None = None) -> list[int]:
        """Which of two texts each token is of: 0 or 1."""
        return self._with_special(text, pair).type_ids

    def _with_special(self, text: str, pair: str | None) -> Any:
        wanted, texts = self.special is not None, [utf8(part) for part in (text, pair) if part is not None]
        return guarded(lambda: self.inner.encode(*texts, add_special_tokens=wanted), "the text cannot be encoded")

    def decode(self, ids: Sequence[int]) -> str:
        return self.tidy(self.plain(ids))

    def plain(self, ids: Sequence[int]) -> str:
        """The text before it is cleaned up."""
        wanted = [int(i) for i in ids]
        hide = self.special is not None
        return guarded(lambda: self.inner.decode(wanted, skip_special_tokens=hide), "the tokens cannot be decoded")

    def hidden(self, i: int) -> bool:
        return self.special is not None and int(i) in self._hidden

    @cached_property
    def _added(self) -> dict[int, Any]:
        return self.inner.get_added_tokens_decoder()

    @cached_property
    def _hidden(self) -> set[int]:
        return {i for i, token in self._added.items() if token.special}

    def pending(self, i: int) -> bool:
        """A byte: bytes that follow one another are decoded together, and are no text if one of them is none."""
        return not self.byte_level and int(i) in self._bytes

    @cached_property
    def _bytes(self) -> set[int]:
        if "ByteFallback" not in self._kinds("decoder"):
            return set()
        return {i for token, i in self.inner.get_vocab().items() if BYTE.fullmatch(token)}

    def token(self, i: int) -> str:
        """One token as text: special tokens too, and the space before a word, where a token has it."""
        name = self.inner.id_to_token(int(i))
        if name is None:
            return ""
        if int(i) in self._added:
            return name
        if self.byte_level:
            return self.inner.decode([int(i)], skip_special_tokens=False)
        if int(i) in self._bytes and int(name[3:5], 16) < 128:
            return chr(int(name[3:5], 16))
        return name.replace("▁", " ")

    def id_of(self, token: str) -> int | None:
        return self.inner.token_to_id(token)

    def with_tokens(self, tokens: Mapping[str, Any], where: str) -> "LibraryTokenizer":
        """The same with other special tokens."""
        return LibraryTokenizer(self.inner, tokens, where)

    def to_json(self) -> str:
        return self.inner.to_str(pretty=True)


_LINE, _WORD = re.compile(r"(?<=\S)\n(?=\S)"), re.compile(r"(?<=\S)(?= \S)")


def pieces(blocks: Iterable[str], size: int) -> Iterator[str]:
    """The text of the blocks in pieces of `size` to twice `size` characters, cut where no byte-level merge crosses:
    after a newline between two visible characters, else before a single space; anywhere if there is neither."""
    text = ""
    for block in blocks:
        text += block
        begin = 0
        while len(text) - begin > 2 * size:
            low, high = begin + size, begin + 2 * size
            cut = _LINE.search(text, low, high) or _WORD.search(text, low, high)
            end = cut.end() if cut else high
            yield text[begin:end]
            begin = end
        text = text[begin:]
    if text:
        yield text


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
        spans = words(text) if any(_RUN.match(text, i) for i in range(0, len(text), LONGEST_WORD // 2)) else []
        if all(end - begin <= LONGEST_WORD for _, (begin, end) in spans):
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
        for _, (begin, end) in spans:
            for at in range(begin, end, LONGEST_WORD):
                yield text[at : min(end, at + LONGEST_WORD)]


def train_bpe(texts: Iterable[str], vocab: int) -> LibraryTokenizer:
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
    return LibraryTokenizer(inner)
