"""The words of document 000 in place of the field's: WANT, HAVE and GIVE for Q, K and V.

The numbers, the answers and the code of a sheet stay what they are.
"""

import re
from dataclasses import replace

from . import KATAS
from .exercise import Question

ATTENTION = (
    (r"\bqueries \(Q\)", "WANT"), (r"\bkeys \(K\)", "HAVE"), (r"\bvalues \(V\)", "GIVE"),
    (r"\bqueries\b", "WANTs"), (r"\bquery\b", "WANT"), (r"\bkeys\b", "HAVEs"), (r"\bkey\b", "HAVE"),
    (r"\bvalues\b", "GIVEs"), (r"\bvalue\b", "GIVE"), (r"\bq(?=\d|·)", "WANT"), (r"\bk(?=\d|$)", "HAVE"),
    (r"\battention weights\b", "portions"), (r"\bweights\b", "portions"), (r"\bweight\b", "portion"),
    (r"\bscores\b", "matches"), (r"\bscore\b", "match"), (r"\bpatches\b", "strips"), (r"\bpatch\b", "strip"),
)  # fmt: skip
PATCHES = ((r"\bpatches\b", "strips"), (r"\bpatch\b", "strip"), (r"\bpixels\b", "dots"), (r"\bpixel\b", "dot"))
POSITIONS = (
    (r"\bencodings\b", "stamps"), (r"\bencoding\b", "stamp"), (r"\bpositions\b", "seats"), (r"\bposition\b", "seat"),
)  # fmt: skip
NORMS = (
    (r"\bLayerNorm\b", "taming"),
    (r"\bdeviations\b", "spreads"),
    (r"\bdeviation\b", "spread"),
    (r"\bmean\b", "middle"),
)
WORDS = {
    "attention": ATTENTION, "masks": ATTENTION, "more attention": ATTENTION, "the cache": ATTENTION, "patches": PATCHES,
    "positions": POSITIONS, "LayerNorm": NORMS,
}  # fmt: skip
CHOICES = ("field", "document")


def _begun_like(word: str, other: str) -> str:
    """The other word, with a capital where the word has one."""
    return other[0].upper() + other[1:] if word[0].isupper() else other


def worded(question: Question, words: str = "field") -> Question:
    """The same question in the words of the field, as it is, or in those of the document."""
    pairs = WORDS.get(KATAS[question.kata].topic, ()) if words == "document" and question.kata in KATAS else ()
    if not pairs:
        return question

    def reworded(text: str) -> str:
        for word, other in pairs:
            text = re.sub(word, lambda match, other=other: _begun_like(match[0], other), text, flags=re.IGNORECASE)
        return text

    def all_reworded(texts):
        return None if texts is None else [reworded(text) for text in texts]

    return replace(
        question,
        title=reworded(question.title),
        ask=reworded(question.ask),
        tables=tuple(
            replace(table, name=reworded(table.name), across=all_reworded(table.across), down=all_reworded(table.down))
            for table in question.tables
        ),
        blanks=tuple(replace(blank, label=reworded(blank.label)) for blank in question.blanks),
        rows=tuple((reworded(label), count) for label, count in question.rows),
        across=tuple(map(reworded, question.across)),
        mistakes=tuple(replace(one, name=reworded(one.name), hint=reworded(one.hint)) for one in question.mistakes),
    )
