"""Exercises on positions: sinusoidal encodings, a learned table, rotations (RoPE) and a bias by distance (ALiBi)."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from ...core.positions import Alibi, Learned, Positions, Rope, Sinusoidal, rotate
from ...core.probe import OFF, Probe
from ...core.span import Span
from ...tracing.receipt_text import format_number
from .builder import Draws, Maker, Numbers, Work, blanks, heads, mistake, rows, tensor, work
from .exercise import Question, Table, numbered

DIMS = numbered("dim", 4, first=0)  # as a tensor counts them: the even ones have the sines
DEGREE = math.pi / 180


def encoding(position: float, x: list[float], base: float = 10000.0, halves: bool = False) -> Work:
    """A token plus the encoding of its position."""
    return _placed(Sinusoidal(len(x), base=base, halves=halves), tensor([[position]]), x)


def of_table(position: int, x: list[float], table: list[list[float]]) -> Work:
    """A token plus the row of a learned table."""
    learned = Learned(len(table), len(x))
    learned.table.data = tensor(table)
    return _placed(learned, torch.tensor([[position]]), x)


def _placed(positions: Positions, position: Tensor, x: list[float]) -> Work:
    def placed(x: Tensor, position: Tensor, probe: Probe = OFF) -> Tensor:
        out, _ = positions(x, Span.whole(position.shape[1], coords=position[..., None]), probe / "positions")
        return probe("out", out)

    return work(placed, tensor(x)[None, None], position, modules=[positions])


def encode_by_hand(position: Tensor, divisors: Tensor, probe: Probe = OFF) -> Tensor:
    """The encoding step by step: the angle of each pair, then its sine and its cosine."""
    angle = probe("angle", position / divisors)
    return probe("encoding", torch.stack((angle.sin(), angle.cos()), -1).flatten())


def _encoding(position: int, base: int) -> Question:
    def encoded(position: float, base: float = base, halves: bool = False) -> np.ndarray:
        return encoding(position, [0.0] * 4, base, halves)["positions.embedding"]

    right, slow = encoded(position), math.sqrt(base)
    hand = work(encode_by_hand, tensor(position), tensor([1, slow]))
    cells = [("angle 1", "angle[0]"), ("angle 2", "angle[1]"), *((dim, f"encoding[{i}]") for i, dim in enumerate(DIMS))]
    return Question(
        (Table("divisors", [[1.0, slow]], ["dims 0, 1", "dims 2, 3"]),),
        f"The sinusoidal encoding of position {position} in 4 dimensions: sin and cos of {position} ÷ 1, then sin and "
        f"cos of {position} ÷ {slow:g} (that is {base}^(2/4)). The angles are in radians.",
        blanks(DIMS, right, 3, hand.roundings("encoding", 3)),
        (
            mistake("degrees", "The angles are in radians: sin(1) is 0.841.", encoded(position * DEGREE)),
            mistake("cosine before sine", "Each pair is the sine first, then the cosine.", right[0, [1, 0, 3, 2]]),
            mistake(
                "one frequency for all",
                "The second pair has a lower frequency: its position is divided first.",
                encoded(position, 1.0),
            ),
            mistake(
                "sines first, then cosines",
                "Sine and cosine of one frequency are neighbours.",
                encoded(position, halves=True),
            ),
        ),
        lambda: hand.lines(*cells),
    )


def _add_encoding(position: int, x: list[float]) -> Question:
    done, positions = encoding(position, x), range(position + 2)
    encodings = [encoding(p, x)["positions.embedding"][0].round(3).tolist() for p in positions]
    token, out = tensor(x), tensor(done["out"][0])
    return Question(
        (
            Table("token", [x], DIMS),
            Table("encodings", encodings, DIMS, [f"position {p}" for p in positions]),
        ),
        f"The token is at position {position}, counted from 0. Add the encoding of its position to it, dimension by "
        f"dimension.",
        blanks(DIMS, done["out"], 3, done.roundings("out", 3)),
        (
            mistake(
                "multiplied",
                "The encoding is added to the token, not multiplied with it.",
                token * tensor(done["positions.embedding"][0]),
            ),
            mistake("the next position's encoding", "Positions are counted from 0.", encoding(position + 1, x)["out"]),
            mistake("subtracted", "Add the encoding, do not subtract it.", 2 * token - out),
        ),
        lambda: done.lines(*((dim, f"out[0,0,{i}]") for i, dim in enumerate(DIMS))),
    )


def _seat_table(position: int, x: list[float], table: list[list[float]]) -> Question:
    done, others = of_table(position, x, table), [i for i in range(len(table)) if i != position]
    token, out = tensor(x), tensor(done["out"][0])
    embedding = nn.Embedding(len(table), len(x), _weight=tensor(table))
    with torch.no_grad():
        row = "  ".join(format_number(value) for value in embedding(torch.tensor(position)).tolist())
    return Question(
        (
            Table("token", [x], DIMS),
            Table("learned table", table, DIMS, [f"position {p}" for p in range(len(table))]),
        ),
        f"A learned table has one row for each position, counted from 0, as torch.nn.Embedding({len(table)}, {len(x)}) "
        f"has. The token is at position {position}. Add the row of its position to it, dimension by dimension.",
        blanks(DIMS, done["out"], 1),
        (
            *(
                mistake(
                    f"the row of position {other}",
                    f"The table's row {position + 1} is that of position {position}: positions are counted from 0.",
                    of_table(other, x, table)["out"],
                )
                for other in others
            ),
            mistake("multiplied", "The row is added to the token, not multiplied with it.", token * (out - token)),
            mistake("the row alone", "The row is added to the token.", out - token),
        ),
        lambda: [
            f"torch.nn.Embedding with this table gives, for position {position}: {row}",
            *done.lines(*((dim, f"out[0,0,{i}]") for i, dim in enumerate(DIMS))),
        ],
    )


def _draw_seat_table(d: Draws) -> Numbers:
    rows = d.whole(3, 5)
    return {
        "position": d.whole(0, rows - 1),
        "x": d.distinct(4, 1, 9),
        "table": [d.distinct_tenths(4, -9, 9, but=[0]) for _ in range(rows)],
    }


PAIRED = "the paper pairs neighbours, dim 0 with dim 1; LLaMA checkpoints pair halves, dim 0 with dim 2"


def rotating(query: list[float], position: float, base: float, adjacent: bool = True) -> Work:
    """A query rotated by its position, in adjacent pairs as the paper writes them, or in halves."""
    rope = Rope(4, base=base, adjacent=adjacent)

    def rotated(query: Tensor, position: Tensor, probe: Probe = OFF) -> Tensor:
        span = rope.rotated(Span.whole(position.shape[1], coords=position[..., None]), query.dtype, probe / "rope")
        if span.rotation is None:
            raise ValueError("Rope gave no rotation")
        cos, sin = span.rotation
        return probe("out", rotate(query, (probe("cos", cos), probe("sin", sin)), rope.adjacent))

    return work(rotated, heads([query]), tensor([[position]]))


def _rope(query: list[float], position: int, base: int) -> Question:
    done = rotating(query, position, base)
    angles, halves = done["rope.angles"][0], rotating(query, position, base, adjacent=False)["out"]
    back, degrees = (rotating(query, other, base)["out"] for other in (-position, position * DEGREE))
    cells = [(f"{part} of pair {i + 1}", f"{part}[0,0,0,{i}]") for part in ("cos", "sin") for i in range(2)]
    return Question(
        (
            Table("query", [query], DIMS),
            Table("angle", [angles.round(4).tolist()], ["dims 0, 1", "dims 2, 3"]),
        ),
        f"RoPE rotates this query by its position, {position}: dims 0 and 1 are a pair (a, b), dims 2 and 3 another. "
        f"Each becomes (a·cos θ − b·sin θ, a·sin θ + b·cos θ), θ in radians: the position times 1, and times "
        f"{base}^(−2/4).",
        blanks(DIMS, done["out"], 2, done.roundings("out", 2)),
        (
            mistake("rotated backwards", "The first of a pair loses b·sin θ, the second gains a·sin θ.", back),
            mistake(
                "halves paired",
                "Neighbours are a pair here, dim 0 with dim 1; dim 0 with dim 2 is the convention of LLaMA "
                "checkpoints.",
                halves,
            ),
            mistake("degrees", "The angles are in radians.", degrees),
        ),
        lambda: [PAIRED, *done.lines(*cells, *((dim, f"out[0,0,0,{i}]") for i, dim in enumerate(DIMS)))],
    )


def biased(scores: list[list[float]], count: int, head: int, shift: int = 0) -> Work:
    """Scores of one of `count` heads with ALiBi's bias; `shift` moves the queries that far from the keys."""
    alibi = Alibi(count)

    def add_bias(raw_scores: Tensor, probe: Probe = OFF) -> Tensor:
        span = Span.whole(raw_scores.shape[2])
        span = Span(span.index, span.coords + shift, span.key_index, span.key_coords)
        return probe("scores", raw_scores + alibi.bias(span, probe)(raw_scores)[:, head : head + 1])

    return work(add_bias, heads(scores))


def _alibi(scores: list[list[float]], count: int, head: int, row: int) -> Question:
    done, far, next_head = biased(scores, count, head), biased(scores, count, head, 1), biased(scores, count, head + 1)
    names, power, visible = numbered("token", row + 1), 8 // count, slice(0, row + 1)
    plain, right = np.asarray(scores[row])[visible], done["scores"][row, visible]
    bias = done["bias"][head, row]
    distances = [f"{name}: distance {row - i}, bias {format_number(float(bias[i]))}" for i, name in enumerate(names)]
    cells = [(f"→ {name}", f"scores[0,0,{row},{i}]") for i, name in enumerate(names)]
    return Question(
        (Table("scores", [scores[row][: row + 1]], names, [names[row]]),),
        f"Head {head + 1} of {count} has the slope 2^(−{power * (head + 1)}). ALiBi subtracts the slope from a "
        f"score once for every step from the query, of token {row + 1}, to the key. The scores with their bias?",
        blanks([f"→ {name}" for name in names], right, 3, rows(done.roundings("scores", 3), row, visible)),
        (
            mistake(
                "added the slope",
                "A larger distance makes the score smaller: the slope is subtracted.",
                2 * plain - right,
            ),
            mistake(
                "another head's slope",
                f"Head 1 has the slope 2^(−{power}); each next head's is smaller.",
                next_head["scores"][row, visible],
            ),
            mistake("one step too many", "The distance of a token to itself is 0.", far["scores"][row, visible]),
        ),
        lambda: [*distances, *done.lines(*cells)],
    )


def _draw_alibi(d: Draws) -> Numbers:
    count = d.pick([2, 4, 8])
    scores = [d.distinct(4, 0, 5) for _ in range(4)]
    return {"scores": scores, "count": count, "head": d.whole(0, min(1, count - 2)), "row": d.whole(2, 3)}


MAKES = {
    "stamp": Maker(
        "stamp", {"position": 1, "base": 10000}, lambda d: {"position": d.whole(1, 29), "base": 10000}, _encoding
    ),
    "add-stamp": Maker(
        "add-stamp",
        {"position": 0, "x": [2.0] * 4},
        lambda d: {"position": d.whole(0, 4), "x": d.distinct(4, 1, 9)},
        _add_encoding,
    ),
    "seat-table": Maker(
        "seat-table",
        {
            "position": 1,
            "x": [2.0] * 4,
            "table": [[0.1, -0.3, 0.2, 0.5], [0.4, 0.2, -0.1, -0.6], [-0.2, 0.7, 0.3, 0.1]],
        },
        _draw_seat_table,
        _seat_table,
    ),
    "rope": Maker(
        "rope",
        {"query": [1.0, 2.0, 0.0, 1.0], "position": 1, "base": 10000},
        lambda d: {"query": d.distinct(4, -3, 3, but=[0]), "position": d.whole(1, 9), "base": 10000},
        _rope,
    ),
    "alibi": Maker("alibi", {"scores": [[1.0, 2, 0, 3]] * 4, "count": 8, "head": 0, "row": 3}, _draw_alibi, _alibi),
}
