"""Measures of written text against what was meant."""

from collections.abc import Sequence


def exact_match(said: Sequence[str], meant: Sequence[str]) -> float:
    """The share of texts that are right to the letter."""
    return sum(a == b for a, b in zip(said, meant, strict=True)) / max(1, len(meant))


def character_error_rate(said: Sequence[str], meant: Sequence[str]) -> float:
    """Edits from what was said to what was meant, for each character meant; more than 1 where too much was said."""
    edits = sum(edit_distance(a, b) for a, b in zip(said, meant, strict=True))
    return edits / max(1, sum(map(len, meant)))


def edit_distance(one: str, other: str) -> int:
    """How many characters have to be put in, taken out or replaced to make one text the other (Levenshtein).

    By Myers: a column of the table of distances is kept as the bits of two whole numbers, one for the steps down it
    that add an edit and one for those that save one, so that a character of `other` costs a few operations on them.
    """
    if not one or not other:
        return len(one) + len(other)
    places: dict[str, int] = {}
    for i, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << i
    every, last = (1 << len(one)) - 1, 1 << (len(one) - 1)
    more, less, distance = every, 0, len(one)
    for character in other:
        same = places.get(character, 0)
        diagonal = (((same & more) + more) ^ more) | same
        right_more = less | (every & ~(diagonal | more))
        right_less = more & diagonal
        distance += bool(right_more & last) - bool(right_less & last)
        right_more = right_more << 1 | 1
        right_less = right_less << 1
        kept = same | less
        more = every & (right_less | ~(kept | right_more))
        less = every & right_more & kept
    return distance


def corpus_scores(said: Sequence[str], meant: Sequence[str]) -> dict[str, float]:
    """chrF and BLEU of the whole, from 0 to 100, by sacrebleu; nothing where it is not installed or nothing is said."""
    try:
        import sacrebleu
    except ImportError:
        return {}
    if not said:
        return {}
    # told to, it does not warn of texts that look as if they were in tokens already
    return {
        "chrf": sacrebleu.corpus_chrf(said, [meant]).score,
        "bleu": sacrebleu.corpus_bleu(said, [meant], force=True).score,
    }
