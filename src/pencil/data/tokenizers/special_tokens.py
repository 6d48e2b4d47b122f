"""The interface of tokenizers, and their special tokens: what begins, ends, pads and masks a text, begins a target.

Special tokens belong to the run, not to the tokenizer's file. `tokenizer.json` is kept as the original has it;
`[tokens]` of an imported run's config says which ids begin, end, pad and mask a text, and begin a target. With that
table texts are read with the original's special tokens and shown without them; a run without it is read as before. A
sentencepiece file becomes the library's own form where that is exact (LLaMA 2); with a normalisation (T5, Marian) its
texts are encoded by the package of sentencepiece, an extra, since the library's normalisation differs on combining
marks.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...config import UserError, nearest

# what older libraries do to decoded text; a rule and its neighbours reach over so many characters
CLEAN = {
    " .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't", " 'm": "'m", " 's": "'s", " 've": "'ve",
    " 're": "'re",
}  # fmt: skip
CLEAN_REACH = 6


@dataclass(frozen=True)
class SpecialTokens:
    """The `[tokens]` of a run that was imported; a run that was not has none, and its end token is the tokenizer's."""

    begin: int | None = None  # put before a prompt
    end: tuple[int, ...] = ()  # each ends a text; the first is written after one
    pad: int | None = None
    mask: int | None = None
    start: int | None = None  # the first token of a target
    never: tuple[int, ...] = ()  # not generated
    clean: bool = False  # decoded text is cleaned up: no space before a full stop, …

    @staticmethod
    def read(table: Mapping[str, Any], vocab: int, where: str) -> "SpecialTokens":
        """The tokens of a table; one that the tokenizer does not have is refused."""
        tokens: dict[str, Any] = {}
        for name, value in table.items():
            if name not in SpecialTokens.__dataclass_fields__:
                names = tuple(SpecialTokens.__dataclass_fields__)
                raise UserError(f"{where}: [tokens] has no {name}; {nearest(name, names)}")
            if name == "clean":
                if not isinstance(value, bool):
                    raise UserError(f"{where}: tokens.clean must be true or false, not {value!r}")
                tokens[name] = value
                continue
            several = name in ("end", "never")
            ids = value if several and isinstance(value, list | tuple) else [value]
            for i in ids:
                if type(i) is not int or not 0 <= i < vocab:
                    raise UserError(f"{where}: tokens.{name} {i!r} is not an id of the tokenizer's {vocab:,}")
            tokens[name] = tuple(ids) if several else ids[0]
        return SpecialTokens(**tokens)

    @property
    def table(self) -> dict[str, Any]:
        """The `[tokens]` table: only what is set, and a single id not as a list."""
        table: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, tuple):
                value = value[0] if len(value) == 1 else list(value)
            if value is not None and value != [] and value is not False:
                table[name] = value
        return table


class Tokenizer(ABC):
    """The interface of all tokenizers, with what one of characters or bytes says: it has no special tokens.

    `begin` is put before a prompt, `start` before a target, `end` is the id of the end token, if there is one.
    """

    kind: str
    special: SpecialTokens | None = None  # of an imported run
    end: int | None = None
    begin: int | None = None
    mask: int | None = None
    pad: int | None = None
    start: int | None = None
    never: tuple[int, ...] = ()
    clean = False  # decoded text is cleaned up
    cuttable = True  # a long text may be encoded in pieces, cut as `pieces` does
    joined = False  # the text of a token does not depend on the token before it
    around: tuple[tuple[int, ...], tuple[int, ...]] = (), ()  # what stands before and after a text, as a model reads it

    def use_special(self, special: SpecialTokens) -> None:
        """Take over the special tokens of an imported run."""
        self.special, self.never, self.clean = special, special.never, special.clean
        self.begin, self.mask, self.pad, self.start = special.begin, special.mask, special.pad, special.start
        self.end = special.end[0] if special.end else None

    @property
    @abstractmethod
    def vocab(self) -> int: ...

    @property
    def ends(self) -> tuple[int, ...]:
        """The ids that end a text."""
        if self.special is not None:
            return self.special.end
        return () if self.end is None else (self.end,)

    @property
    def byte_lengths(self) -> np.ndarray | None:
        """The UTF-8 length of each id, to convert a loss per token to bits per byte; None if bytes are lost."""
        return None

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The ids of a text."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""

    @abstractmethod
    def to_json(self) -> str:
        """The content of its tokenizer.json."""

    def encode_with_special(self, text: str, pair: str | None = None) -> list[int]:
        """The ids of a text, or of two, as the model reads it: with special tokens, where there are any."""
        if pair is not None:
            raise UserError("this tokenizer has no form for two texts")
        return self.encode(text).tolist()

    def encode_target(self, text: str) -> np.ndarray:
        """The ids of a target: some tokenizers of translation have two vocabularies of pieces."""
        return self.encode(text)

    def token(self, i: int) -> str:
        """One token as text, special tokens too."""
        return self.decode([i])

    def plain(self, ids: Sequence[int]) -> str:
        """The text before it is cleaned up."""
        return self.decode(ids)

    def pending(self, i: int) -> bool:
        """Whether what follows may change how this token reads, though it looks whole."""
        return False

    def hidden(self, i: int) -> bool:
        """Whether a token is left out of the text."""
        return False

    def tidy(self, text: str) -> str:
        """Decoded text, cleaned up where the tokenizer asks for it."""
        for written, cleaned in CLEAN.items() if self.clean else ():
            text = text.replace(written, cleaned)
        return text

    def certain(self, text: str) -> int:
        """How much of a text is the same whatever follows, once tidied."""
        end = len(text)
        while self.clean and end and (space := text.rfind(" ", max(0, end - CLEAN_REACH), end)) >= 0:
            end = space
        return end
