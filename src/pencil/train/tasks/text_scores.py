"""chrF and BLEU of texts against references, with the same numbers as sacrebleu's defaults."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence

CHARACTERS, RECALL_WEIGHT = 6, 4  # chrF2: n-grams up to six characters, recall counted β² = 4 times
WORDS = 4  # BLEU: n-grams up to four words
ESCAPES = {"<skipped>": "", "-\n": "", "\n": " ", "&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}
# mteval-v13a, whose words are those of published BLEU scores
RULES = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)


def corpus_scores(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """chrF and BLEU of all texts together, from 0 to 100; nothing where there are no texts."""
    return {"chrf": chrf(predictions, references), "bleu": bleu(predictions, references)} if predictions else {}


def chrf(predictions: Sequence[str], references: Sequence[str]) -> float:
    """chrF2 (Popović, 2015): the F-score of character n-grams, averaged over n = 1 … 6; spaces do not count."""
    found = [[0, 0, 0] for _ in range(CHARACTERS)]  # in the predictions, in the references, in both
    for prediction, reference in zip(predictions, references, strict=True):
        one, other = ("".join(text.split()) for text in (prediction, reference))
        for n, counts in enumerate(found, 1):
            mine, theirs = _grams(one, n), _grams(other, n)
            # of a reference that is too short for n-grams, none can be right
            counts[0] += mine.total() if theirs else 0
            counts[1] += theirs.total()
            counts[2] += (mine & theirs).total()
    used = [counts for counts in found if counts[0] and counts[1]]
    precision = sum(both / mine for mine, _, both in used) / max(1, len(used))
    recall = sum(both / theirs for _, theirs, both in used) / max(1, len(used))
    if not precision + recall:
        return 0.0
    return 100 * (1 + RECALL_WEIGHT) * precision * recall / (RECALL_WEIGHT * precision + recall)


def bleu(predictions: Sequence[str], references: Sequence[str]) -> float:
    """BLEU-4 (Papineni et al., 2002) with 13a words; an n-gram that never matches counts ½, ¼, … as in NIST's."""
    right, total, lengths = [0] * WORDS, [0] * WORDS, [0, 0]
    for prediction, reference in zip(predictions, references, strict=True):
        one, other = _words(prediction), _words(reference)
        lengths[0], lengths[1] = lengths[0] + len(one), lengths[1] + len(other)
        for n in range(1, WORDS + 1):
            mine = _grams(one, n)
            total[n - 1] += mine.total()
            right[n - 1] += (mine & _grams(other, n)).total()
    if not any(right) or not all(total):
        return 0.0
    smooth, logs = 1.0, 0.0
    for good, of in zip(right, total, strict=True):
        if not good:
            smooth *= 2
        logs += math.log(100 * good / of if good else 100 / (smooth * of))
    brevity = math.exp(min(0.0, 1 - lengths[1] / lengths[0]))
    return brevity * math.exp(logs / WORDS)


def _grams(items: Sequence[Hashable], n: int) -> Counter[Hashable]:
    return Counter(
        items[i : i + n] if isinstance(items, str) else tuple(items[i : i + n]) for i in range(len(items) - n + 1)
    )


def _words(text: str) -> list[str]:
    text = text.rstrip()
    for old, new in ESCAPES.items():
        text = text.replace(old, new)
    text = f" {text} "
    for rule, new in RULES:
        text = rule.sub(new, text)
    return text.split()
