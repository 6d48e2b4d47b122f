"""A byte-level BPE trained on texts."""

import logging
import re
from collections.abc import Callable, Iterable, Iterator

from ...config import UserError
from .library import END, LibraryTokenizer

LOG = logging.getLogger("pencil")

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
