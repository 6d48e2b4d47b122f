"""Exercises on attention masks: the causal mask and the prefix mask."""

from collections.abc import Callable

import numpy as np

from ...core.masks import Mask, causal, prefix
from .attention_by_hand import FUTURE, FUTURE_HINT, attention, by_hand, softmax_cells
from .builder import Draws, Maker, Numbers, Work, blanks, mistake, rows
from .exercise import Question, Table

strictly = Mask("strictly before", lambda q, k: k < q)
behind = Mask("only ahead", lambda q, k: k >= q)
Rows = list[list[float]]


def _masked(run: Callable[..., Work], scores: Rows, mask: Mask | None) -> Work:
    """Given scores under a mask: they are the queries, and the keys are the identity."""
    have = np.eye(len(scores)).tolist()
    return run(scores, have, have, 1.0, mask)


def _tokens(count: int) -> list[str]:
    return [f"j{i + 1}" for i in range(count)]


def _given(scores: Rows) -> Table:
    return Table("scores", scores, _tokens(len(scores)), [f"i{i + 1}" for i in range(len(scores))])


def _causal(scores: Rows, row: int) -> Question:
    done, hand, count = _masked(attention, scores, causal), _masked(by_hand, scores, causal), len(scores)
    everything, before, after = (_masked(attention, scores, m)["pattern"][row] for m in (None, strictly, behind))
    late = everything * (done["pattern"][row] > 0)
    equal = " equal raw scores." if len({one for line in scores for one in line}) == 1 else ""
    return Question(
        (_given(scores),),
        f"Causal mask: token i sees no later token j. The scores are scaled already. Token {row + 1} of {count}: its "
        f"portions after softmax?",
        blanks(
            [f"i{row + 1} → {name}" for name in _tokens(count)],
            done["pattern"][row],
            2,
            rows(hand.roundings("pattern", 2), row),
        ),
        (
            mistake(FUTURE, FUTURE_HINT, everything),
            mistake("blocked after the softmax", "Block before the softmax, or the portions no longer add to 1.", late),
            mistake("blocked itself too", "A token sees itself: only cells with j > i are blocked.", before),
            mistake("blocked the past", "Later tokens are blocked, j > i, not earlier ones.", after),
        ),
        lambda: hand.lines(*softmax_cells(row, count)),
        f"Causal mask, token {row + 1} of {count},{equal} Its {count} portions?",
    )


def _prefix(scores: Rows, first: int, row: int) -> Question:
    mask, count = prefix(first), len(scores)
    done, hand = _masked(attention, scores, mask), _masked(by_hand, scores, mask)
    everything, only_past = (_masked(attention, scores, m)["pattern"][row] for m in (None, causal))
    return Question(
        (_given(scores),),
        f"Prefix mask: the first {first} tokens all see each other, every later one sees all up to itself. The "
        f"scores are scaled already. Token {row + 1} of {count}: its portions after softmax?",
        blanks(
            [f"i{row + 1} → {name}" for name in _tokens(count)],
            done["pattern"][row],
            2,
            rows(hand.roundings("pattern", 2), row),
        ),
        (
            mistake(
                "causal throughout", "A token of the prefix sees the whole prefix, later tokens of it too.", only_past
            ),
            mistake(FUTURE, "For the prefix, all tokens after it are the future: −inf before the softmax.", everything),
        ),
        lambda: hand.lines(*softmax_cells(row, count)),
    )


def _scores(d: Draws) -> Rows:
    """Rows without equal scores, so that each portion is a different number."""
    return [d.distinct(4, -1, 3) for _ in range(4)]


def _draw_causal(d: Draws) -> Numbers:
    return {"scores": _scores(d), "row": d.whole(1, 2)}


def _draw_prefix(d: Draws) -> Numbers:
    first = d.pick([2, 3])
    return {"scores": _scores(d), "first": first, "row": d.whole(0, first - 2)}


MAKES = {
    "causal": Maker("causal", {"scores": [[0.0] * 3] * 3, "row": 1}, _draw_causal, _causal),
    "prefix": Maker("prefix", {"scores": [[0.0] * 4] * 4, "first": 3, "row": 1}, _draw_prefix, _prefix),
}
