"""Exercises on positions: stamps (sinusoidal embeddings), rotations (RoPE) and a bias by distance (ALiBi)."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from ...core.positions import Alibi, Positions, Rope, Sinusoidal, rotate
from ...core.probe import OFF, Probe
from ...core.span import Span
from ...tracing.writing import format_number
from .attention_by_hand import strips
from .builder import Draws, LazyLines, Numbers, Work, blanks, bracketed, heads, maker, mistake, rows, tensor, work
from .exercise import Question, Table

SLOTS = [f"slot {i + 1}" for i in range(4)]
DEGREE = math.pi / 180


class Stamped(nn.Module):
    """A strip plus the stamp of its seat."""

    def __init__(self, positions: Positions):
        super().__init__()
        self.positions = positions

    def forward(self, strip: Tensor, seat: Tensor, probe: Probe = OFF) -> Tensor:
        out, _ = self.positions(strip, Span.whole(seat.shape[1], coords=seat[..., None]), probe / "positions")
        return probe("out", out)


class StampByHand(nn.Module):
    """The stamp step by step: the angle of each pair, then its sine and its cosine."""

    def forward(self, seat: Tensor, divisors: Tensor, probe: Probe = OFF) -> Tensor:
        angle = probe("angle", seat / divisors)
        return probe("stamp", torch.stack((angle.sin(), angle.cos()), -1).flatten())


def stamping(seat: float, strip: list[float], base: float = 10000.0, halves: bool = False) -> Work:
    return work(Stamped(Sinusoidal(len(strip), base=base, halves=halves)), tensor(strip)[None, None], tensor([[seat]]))


def _stamp(seat: int, base: int) -> Question:
    nothing = [0.0] * 4
    stamp, slow = "positions.embedding", math.sqrt(base)
    done, hand = stamping(seat, nothing, base), work(StampByHand(), tensor(seat), tensor([1, slow]))
    cells = [("angle 1", "angle[0]"), ("angle 2", "angle[1]"), *((one, f"stamp[{i}]") for i, one in enumerate(SLOTS))]
    degrees, one_frequency = stamping(seat * DEGREE, nothing, base), stamping(seat, nothing, 1.0)
    grouped = stamping(seat, nothing, base, halves=True)
    return Question(
        "",
        None,
        "",
        (Table("divisors", [[1.0, slow]], ["slots 1, 2", "slots 3, 4"]),),
        f"Stamp of seat {seat} at width 4: sin and cos of seat ÷ 1, then sin and cos of seat ÷ {slow:g} (that is "
        f"{base}^(2/4)). The angles are in radians.",
        blanks(SLOTS, done[stamp], 3, hand.roundings("stamp", 3)),
        (
            mistake("degrees", "The angles are in radians: sin(1) is 0.841.", degrees.run(stamp)),
            mistake(
                "cosine before sine", "Each pair is the sine first, then the cosine.", done.run(stamp)[0, [1, 0, 3, 2]]
            ),
            mistake(
                "one frequency for all",
                "The second pair has a lower frequency: its seat is divided first.",
                one_frequency.run(stamp),
            ),
            mistake(
                "sines first, then cosines", "Sine and cosine of one frequency are neighbours.", grouped.run(stamp)
            ),
        ),
        LazyLines(lambda: hand.lines(*cells)),
        f"stamp[pos][2i] = sin(pos / {base}^(2i/width)), stamp[pos][2i+1] the cosine. Width 4, seat {seat}.",
    )


def _add_stamp(seat: int, strip: list[float]) -> Question:
    done, stamp = stamping(seat, strip), "positions.embedding"
    stamps = [stamping(one, strip).run(stamp)[0].round(3).tolist() for one in range(seat + 2)]
    return Question(
        "",
        None,
        "",
        (
            Table("strip", [strip], SLOTS),
            Table("stamps", stamps, SLOTS, [f"seat {one}" for one in range(seat + 2)]),
        ),
        f"The seat of the strip is {seat}. Add the stamp onto the strip, slot by slot.",
        blanks(SLOTS, done["out"], 3, done.roundings("out", 3)),
        (
            mistake(
                "multiplied",
                "The stamp is added to the strip, not multiplied with it.",
                tensor(strip) * tensor(done.run(stamp)[0]),
            ),
            mistake("the next seat's stamp", "Seats are counted from 0.", stamping(seat + 1, strip).run("out")),
            mistake("subtracted", "Add the stamp, do not subtract it.", 2 * tensor(strip) - tensor(done.run("out")[0])),
        ),
        LazyLines(lambda: done.lines(*((slot, f"out[0,0,{i}]") for i, slot in enumerate(SLOTS)))),
        f"Seat {seat}'s stamp is {bracketed(stamps[seat])}. A strip reads {bracketed(strip)}. After adding the stamp?",
    )


PAIRED = "the paper pairs neighbours, slot 1 with slot 2; LLaMA checkpoints pair halves, slot 1 with slot 3"


class Rotated(nn.Module):
    """A tag rotated by its seat, in adjacent pairs as the paper writes them, or in halves."""

    def __init__(self, base: float, adjacent: bool):
        super().__init__()
        self.rope = Rope(4, base=base, adjacent=adjacent)

    def forward(self, tag: Tensor, seat: Tensor, probe: Probe = OFF) -> Tensor:
        rotation = self.rope.rotated(
            Span.whole(seat.shape[1], coords=seat[..., None]), tag.dtype, probe / "rope"
        ).rotation
        if rotation is None:
            raise ValueError("Rope gave no rotation")
        cos, sin = rotation
        return probe("out", rotate(tag, (probe("cos", cos), probe("sin", sin)), self.rope.adjacent))


def rotating(tag: list[float], seat: float, base: float, adjacent: bool = True) -> Work:
    return work(Rotated(base, adjacent), heads([tag]), tensor([[seat]]))


def _rope(tag: list[float], seat: int, base: int) -> Question:
    done = rotating(tag, seat, base)
    angles, halves = done.run("rope.angles")[0], rotating(tag, seat, base, adjacent=False).run("out")
    back, degrees = (rotating(tag, other, base).run("out") for other in (-seat, seat * DEGREE))
    cells = [("cos of pair " + str(i + 1), f"cos[0,0,0,{i}]") for i in range(2)]
    cells += [("sin of pair " + str(i + 1), f"sin[0,0,0,{i}]") for i in range(2)]
    return Question(
        "",
        None,
        "",
        (
            Table("WANT", [tag], SLOTS),
            Table("angle", [angles.round(4).tolist()], ["slots 1, 2", "slots 3, 4"]),
        ),
        f"Rotate this WANT by its seat, {seat}: slots 1 and 2 are a pair (a, b), slots 3 and 4 another. Each becomes "
        f"(a·cos θ − b·sin θ, a·sin θ + b·cos θ), θ in radians: the seat times 1, and times {base}^(−2/4).",
        blanks(SLOTS, done["out"], 2, done.roundings("out", 2)),
        (
            mistake("rotated backwards", "The first of a pair loses b·sin θ, the second gains a·sin θ.", back),
            mistake(
                "halves paired",
                "Neighbours are a pair here, slot 1 with slot 2; slot 1 with slot 3 is the "
                "convention of LLaMA checkpoints.",
                halves,
            ),
            mistake("degrees", "The angles are in radians.", degrees),
        ),
        LazyLines(lambda: [PAIRED, *done.lines(*cells, *((s, f"out[0,0,0,{i}]") for i, s in enumerate(SLOTS)))]),
    )


class Biased(nn.Module):
    """Scores of one head with ALiBi's bias; `shift` moves the queries that far from the keys."""

    def __init__(self, count: int, head: int, shift: int = 0):
        super().__init__()
        self.alibi, self.head, self.shift = Alibi(count), head, shift

    def forward(self, given: Tensor, probe: Probe = OFF) -> Tensor:
        span = Span.whole(given.shape[2])
        span = Span(span.index, span.coords + self.shift, span.key_index, span.key_coords)
        bias = self.alibi.bias(span, probe)(given)[:, self.head : self.head + 1]
        return probe("scores", given + bias)


def _alibi(scores: list[list[float]], count: int, head: int, row: int) -> Question:
    done, far, next_head = (
        work(Biased(count, one, shift), heads(scores)) for one, shift in ((head, 0), (head, 1), (head + 1, 0))
    )
    names, power, visible = strips(row + 1), 8 // count, slice(0, row + 1)
    given, right = np.asarray(scores[row])[visible], done["scores"][row, visible]
    bias = done["bias"][head, row]
    distances = [f"{name}: distance {row - i}, bias {format_number(float(bias[i]))}" for i, name in enumerate(names)]
    cells = [(f"→ {name}", f"scores[0,0,{row},{i}]") for i, name in enumerate(names)]
    return Question(
        "",
        None,
        "",
        (Table("scores", [scores[row][: row + 1]], names, [f"s{row + 1}"]),),
        f"Head {head + 1} of {count} has the slope 2^(−{power * (head + 1)}). ALiBi subtracts the slope from a "
        f"score once for every step from the query, s{row + 1}, to the key. The scores with their bias?",
        blanks([f"→ {name}" for name in names], right, 3, rows(done.roundings("scores", 3), row, visible)),
        (
            mistake(
                "added the slope",
                "A larger distance makes the score smaller: the slope is subtracted.",
                2 * given - right,
            ),
            mistake(
                "another head's slope",
                f"Head 1 has the slope 2^(−{power}); each next head's is smaller.",
                next_head.run("scores")[row, visible],
            ),
            mistake("one step too many", "The distance of a token to itself is 0.", far.run("scores")[row, visible]),
        ),
        LazyLines(lambda: [*distances, *done.lines(*cells)]),
    )


def _draw_stamp(d: Draws) -> Numbers:
    return {"seat": d.whole(1, 29), "base": 10000}


def _draw_add(d: Draws) -> Numbers:
    return {"seat": d.whole(0, 4), "strip": d.distinct(4, 1, 9)}


def _draw_rope(d: Draws) -> Numbers:
    return {"tag": d.distinct(4, -3, 3, but=[0]), "seat": d.whole(1, 9), "base": 10000}


def _draw_alibi(d: Draws) -> Numbers:
    count = d.pick([2, 4, 8])
    scores = [d.distinct(4, 0, 5) for _ in range(4)]
    return {"scores": scores, "count": count, "head": d.whole(0, min(1, count - 2)), "row": d.whole(2, 3)}


MAKES = {
    "stamp": maker("stamp", {"seat": 1, "base": 10000}, _draw_stamp, _stamp),
    "add-stamp": maker("add-stamp", {"seat": 0, "strip": [2.0] * 4}, _draw_add, _add_stamp),
    "rope": maker("rope", {"tag": [1.0, 2.0, 0.0, 1.0], "seat": 1, "base": 10000}, _draw_rope, _rope),
    "alibi": maker("alibi", {"scores": [[1.0, 2, 0, 3]] * 4, "count": 8, "head": 0, "row": 3}, _draw_alibi, _alibi),
}
