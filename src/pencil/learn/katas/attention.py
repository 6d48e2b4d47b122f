"""Exercises on attention: match, scale, softmax, weighted sum, and all of them together."""

import math

import numpy as np

from .attention_by_hand import (
    COLUMNS,
    COLUMNS_HINT,
    FORGOT_SCALE,
    SCALE_HINT,
    attention,
    by_hand,
    columns,
    informative_row,
    softmax_cells,
    strips,
    tags,
    to_3,
)
from .builder import Draws, Maker, Numbers, blanks, bracketed, mistake, rows
from .exercise import Question, Table

WANT = [[2, 0, 1, 0], [0, 0, 2, 0]]
HAVE = [[1, 0, 0, 0], [3, 0, 2, 0]]
GIVE = [[2, 0, 0, 1], [0, 3, 1, 0]]
Rows = list[list[float]]


def _match(want: Rows, have: Rows) -> Question:
    done, hand = attention(want, have, have, 1.0), by_hand(want, have, have, 1.0)
    pairs = [(i, j) for i in range(len(want)) for j in range(len(have))]
    labels = [f"s{i + 1} → s{j + 1}" for i, j in pairs]
    cells = [(f"s{i + 1} → s{j + 1}", f"match[0,0,{i},{j}]") for i, j in pairs]
    wrong = (attention(have, want, want, 1.0), attention(want, want, want, 1.0))
    return Question(
        (tags("WANT", want), tags("HAVE", have)),
        "MATCH grid: every WANT dotted with every HAVE, not scaled yet. Row by row: s1 → s2 is s1's WANT with "
        "s2's HAVE.",
        blanks(labels, done["scores"], 0),
        (
            mistake(
                "WANT and HAVE swapped",
                "Each row is one strip's WANT and each column one strip's HAVE.",
                wrong[0]["scores"],
            ),
            mistake("WANT with WANT", "A WANT is dotted with a HAVE, never with a WANT.", wrong[1]["scores"]),
        ),
        lambda: hand.lines(*cells),
        "MATCH grid: every WANT dotted with every HAVE.",
    )


def _scale(want: Rows, have: Rows, row: int) -> Question:
    done, hand, width = attention(want, have, have), by_hand(want, have, have), len(want[0])
    match, names = hand["match"], strips(len(have))
    cells = [(f"→ {name}", f"scores[0,0,{row},{j}]") for j, name in enumerate(names)]
    forgot, whole, times = (attention(want, have, have, s)["scores"][row] for s in (1.0, 1 / width, math.sqrt(width)))
    return Question(
        (Table("MATCH", [match[row].tolist()], names, [f"s{row + 1}"]),),
        f"The tags are {width} wide. SCALE this match row by ÷√(tag width).",
        blanks([f"→ {name}" for name in names], done["scores"][row], 2, rows(hand.roundings("scores", 2), row)),
        (
            mistake(FORGOT_SCALE, SCALE_HINT, forgot),
            mistake("divided by d", "It is divided by the root of the tag width, not by the width.", whole),
            mistake("multiplied", "Scaling makes the match smaller: divide, do not multiply.", times),
        ),
        lambda: hand.lines(*cells),
        "SCALE each by ÷√(tag width).",
    )


def _softmax(want: Rows, have: Rows, row: int) -> Question:
    done, hand, width = attention(want, have, have), by_hand(want, have, have), len(want[0])
    match, names = hand["match"], strips(len(have))
    cells = [(f"score {j + 1}", f"scores[0,0,{row},{j}]") for j in range(len(have))]
    scores = done["scores"][row]
    return Question(
        (Table("MATCH", match.tolist(), [f"{name}.HAVE" for name in names], strips(len(want))),),
        f"The tags are {width} wide. SCALE s{row + 1}'s match row by ÷√{width}, then SOFTMAX it into portions that add "
        f"to 1.",
        blanks(
            [f"s{row + 1} → {name}" for name in names], done["pattern"][row], 3, rows(hand.roundings("pattern", 3), row)
        ),
        (
            mistake(FORGOT_SCALE, SCALE_HINT, attention(want, have, have, 1.0)["pattern"][row]),
            mistake(COLUMNS, COLUMNS_HINT, columns(want, have)[row]),
            mistake(
                "did not raise e",
                "Each score is first an exponent of e; only then divide by the total.",
                scores / scores.sum() if scores.sum() else scores,
            ),
        ),
        lambda: hand.lines(*cells, *softmax_cells(row, len(have))),
        f"s{row + 1}'s match row is {bracketed(match[row])}. Scale by ÷{math.sqrt(width):g}, then softmax.",
    )


def _weighted(want: Rows, have: Rows, give: Rows, row: int) -> Question:
    done, hand = attention(want, have, give), by_hand(want, have, give)
    slots = [f"slot {i + 1}" for i in range(len(give[0]))]
    portions = Table("portions", to_3(done["pattern"]), strips(len(have)), strips(len(want)))
    cells = [(slot, f"z[0,0,{row},{i}]") for i, slot in enumerate(slots)]
    other = (row + 1) % len(want)
    return Question(
        (portions, tags("GIVE", give)),
        f"WEIGHTED SUM of the GIVE tags for s{row + 1}: s{row + 1}_new, slot by slot.",
        blanks(slots, done["z"][row], 3, rows(hand.roundings("z", 3), row)),
        (
            mistake(
                "another strip's portions", f"s{row + 1}_new uses the portions in row s{row + 1}.", done["z"][other]
            ),
            mistake(
                "plain average",
                "Each GIVE is weighted by its portion, not equally.",
                attention(want, have, give, 0.0)["z"][row],
            ),
            mistake(
                "only the largest",
                "Every strip adds its portion, the small ones too.",
                attention(want, have, give, 1e6)["z"][row],
            ),
            mistake(
                "column of portions",
                "The portions of a strip are its row, not its column.",
                _down(done["pattern"], give, row),
            ),
        ),
        lambda: hand.lines(*cells),
        "WEIGHTED SUM of the GIVE tags, per row.",
    )


def _down(pattern: np.ndarray, give: Rows, row: int) -> np.ndarray:
    """The sum with the portions read down a column."""
    return pattern.T[row] @ np.asarray(give, dtype=float)


def _attention(want: Rows, have: Rows, give: Rows, row: int) -> Question:
    done, hand, width = attention(want, have, give), by_hand(want, have, give), len(want[0])
    slots = [f"slot {i + 1}" for i in range(len(give[0]))]
    cells = [(f"score {j + 1}", f"scores[0,0,{row},{j}]") for j in range(len(have))]
    sums = [(slot, f"z[0,0,{row},{i}]") for i, slot in enumerate(slots)]
    return Question(
        (tags("WANT", want), tags("HAVE", have), tags("GIVE", give)),
        f"Attention for s{row + 1} over every strip: match, ÷√{width}, softmax, weighted sum. Its new numbers?",
        blanks(slots, done["z"][row], 2, rows(hand.roundings("z", 2), row)),
        (
            mistake(FORGOT_SCALE, SCALE_HINT, attention(want, have, give, 1.0)["z"][row]),
            mistake(COLUMNS, COLUMNS_HINT, columns(want, have)[row] @ np.asarray(give, dtype=float)),
            mistake(
                "WANT and HAVE swapped",
                "The match is this strip's WANT with every strip's HAVE.",
                attention(have, want, give)["z"][row],
            ),
        ),
        lambda: hand.lines(*cells, *softmax_cells(row, len(have)), *sums),
    )


def _draw_match(d: Draws) -> Numbers:
    width = d.pick([3, 4])
    return {"want": d.tags(2, width, 0, 3), "have": d.tags(2, width, 0, 3)}


def _draw_scale(d: Draws) -> Numbers:
    width, count = d.pick([2, 3, 4, 5]), d.pick([2, 3])
    return {"want": d.tags(2, width, 0, 3), "have": d.tags(count, width, 0, 3), "row": d.whole(0, 1)}


def _draw_tags(d: Draws, count: int = 2) -> Numbers:
    """Tags of a width whose root is whole, with small scores."""
    return {"want": d.tags(2, 4, 0, 2), "have": d.tags(count, 4, 0, 2), "row": d.whole(0, 1)}


def _draw_softmax(d: Draws) -> Numbers:
    return _draw_tags(d, 3)


def _draw_give(d: Draws) -> Numbers:
    return _draw_tags(d) | {"give": _pairs(d, 3)}


def _draw_attention(d: Draws) -> Numbers:
    return _draw_tags(d) | {"give": _pairs(d, 2)}


def _pairs(d: Draws, width: int) -> Rows:
    """Two rows that differ in every slot."""
    return [list(row) for row in zip(*(d.distinct(2, 0, 5) for _ in range(width)), strict=True)]


def _informative(numbers: Numbers) -> bool:
    """The asked row's scores differ, and so do the two rows."""
    match = np.asarray(numbers["want"]) @ np.asarray(numbers["have"]).T
    return informative_row(numbers["want"][numbers["row"]], numbers["have"]) and bool((match[0] != match[1]).any())


def _informative_match(numbers: Numbers) -> bool:
    return informative_row(numbers["want"][numbers["row"]], numbers["have"], 0.0, zero=False)


_TAGS = {"want": WANT, "have": HAVE}

MAKES = {
    "match": Maker("match", _TAGS, _draw_match, _match),
    "scale": Maker("scale", _TAGS | {"row": 0}, _draw_scale, _scale, _informative_match),
    "softmax": Maker("softmax", _TAGS | {"row": 1}, _draw_softmax, _softmax, _informative),
    "weighted-sum": Maker("weighted-sum", _TAGS | {"give": GIVE, "row": 0}, _draw_give, _weighted, _informative),
    "attention": Maker("attention", _TAGS | {"give": GIVE, "row": 1}, _draw_attention, _attention, _informative),
}
