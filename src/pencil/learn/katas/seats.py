"""Exercises on where a strip sat: stamps of sines and cosines, turns, and a bias for every step apart."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from ...core.biases import Alibi
from ...core.positions import Positions, Rope, SinCos, rotate
from ...core.probe import OFF, Off
from ...core.span import Span
from ...tracing.writing import say
from .exercise import Question, Table
from .making import Draws, Later, Numbers, Work, blanks, bracketed, heads, maker, mistake, rows, tensor, work
from .parts import strips

SLOTS = [f"slot {i + 1}" for i in range(4)]
DEGREE = math.pi / 180


class Stamped(nn.Module):
    """A strip with the stamp of its seat on it."""

    def __init__(self, positions: Positions):
        super().__init__()
        self.positions = positions

    def forward(self, strip: Tensor, seat: Tensor, probe: Off = OFF) -> Tensor:
        out, _ = self.positions(strip, Span.whole(seat.shape[1], coords=seat[..., None]), probe / "positions")
        return probe("out", out)


class Waves(nn.Module):
    """The stamp as a pencil works it out: each pair's angle, then its sine and its cosine."""

    def forward(self, seat: Tensor, divisors: Tensor, probe: Off = OFF) -> Tensor:
        angle = probe("angle", seat / divisors)
        return probe("stamp", torch.stack((angle.sin(), angle.cos()), -1).flatten())


def stamping(seat: float, strip: list[float], base: float = 10000.0, halves: bool = False) -> Work:
    return work(Stamped(SinCos(len(strip), base=base, halves=halves)), tensor(strip)[None, None], tensor([[seat]]))


def _stamp(seat: int, base: int) -> Question:
    nothing = [0.0] * 4
    stamp, slow = "positions.stamp", math.sqrt(base)
    done, hand = stamping(seat, nothing, base), work(Waves(), tensor(seat), tensor([1, slow]))
    cells = [("angle 1", "angle[0]"), ("angle 2", "angle[1]"), *((one, f"stamp[{i}]") for i, one in enumerate(SLOTS))]
    degrees, alike = stamping(seat * DEGREE, nothing, base), stamping(seat, nothing, 1.0)
    grouped = stamping(seat, nothing, base, halves=True)
    return Question(
        "", None, "", (Table("divisors", [[1.0, slow]], ["slots 1, 2", "slots 3, 4"]),),
        f"Stamp of seat {seat} at width 4: sin and cos of seat ÷ 1, then sin and cos of seat ÷ {slow:g} (that is "
        f"{base}^(2/4)). The angles are in radians.",
        blanks(SLOTS, done[stamp], 3, hand.ways("stamp", 3)),
        (
            mistake("degrees", "The angles are in radians: sin(1) is 0.841.", degrees.run(stamp)),
            mistake("cosine before sine", "Each pair is the sine first, then the cosine.",
                    done.run(stamp)[0, [1, 0, 3, 2]]),
            mistake("one speed for all", "The second pair turns slower: its seat is divided first.", alike.run(stamp)),
            mistake("sines first, then cosines", "Sine and cosine of one speed stand side by side.",
                    grouped.run(stamp)),
        ),
        Later(lambda: hand.lines(*cells)),
        f"stamp[pos][2i] = sin(pos / {base}^(2i/width)), stamp[pos][2i+1] the cosine. Width 4, seat {seat}.",
    )  # fmt: skip


def _add_stamp(seat: int, strip: list[float]) -> Question:
    done, stamp = stamping(seat, strip), "positions.stamp"
    stamps = [stamping(one, strip).run(stamp)[0].round(3).tolist() for one in range(seat + 2)]
    return Question(
        "", None, "", (
            Table("strip", [strip], SLOTS),
            Table("stamps", stamps, SLOTS, [f"seat {one}" for one in range(seat + 2)]),
        ),
        f"The strip sits on seat {seat}. Add the stamp onto the strip, slot by slot.",
        blanks(SLOTS, done["out"], 3, done.ways("out", 3)),
        (
            mistake("multiplied", "The stamp is added to the strip, not multiplied with it.",
                    tensor(strip) * tensor(done.run(stamp)[0])),
            mistake("the next seat's stamp", "Seats are counted from 0.", stamping(seat + 1, strip).run("out")),
            mistake("taken away", "The stamp is added.", 2 * tensor(strip) - tensor(done.run("out")[0])),
        ),
        Later(lambda: done.lines(*((slot, f"out[0,0,{i}]") for i, slot in enumerate(SLOTS)))),
        f"Seat {seat}'s stamp is {bracketed(stamps[seat])}. A strip reads {bracketed(strip)}. After adding the stamp?",
    )  # fmt: skip


class Turned(nn.Module):
    """A tag turned by its seat."""

    def __init__(self, base: float):
        super().__init__()
        self.rope = Rope(4, base=base)

    def forward(self, tag: Tensor, seat: Tensor, probe: Off = OFF) -> Tensor:
        turn = self.rope.turned(Span.whole(seat.shape[1], coords=seat[..., None]), tag.dtype, probe / "rope").turn
        if turn is None:
            raise ValueError("a rope always turns")
        cos, sin = turn
        return probe("out", rotate(tag, (probe("cos", cos), probe("sin", sin))))


def turning(tag: list[float], seat: float, base: float) -> Work:
    return work(Turned(base), heads([tag]), tensor([[seat]]))


def _rope(tag: list[float], seat: int, base: int) -> Question:
    done = turning(tag, seat, base)
    angles, neighbours = done.run("rope.angles")[0], [0, 2, 1, 3]
    paired = turning([tag[i] for i in neighbours], seat, base).run("out")[0, neighbours]
    back, degrees = (turning(tag, other, base).run("out") for other in (-seat, seat * DEGREE))
    cells = [("cos of pair " + str(i + 1), f"cos[0,0,0,{i}]") for i in range(2)]
    cells += [("sin of pair " + str(i + 1), f"sin[0,0,0,{i}]") for i in range(2)]
    return Question(
        "", None, "", (
            Table("WANT", [tag], SLOTS),
            Table("angle", [angles.round(4).tolist()], ["slots 1, 3", "slots 2, 4"]),
        ),
        f"Turn this WANT by its seat, {seat}: slots 1 and 3 are a pair (a, b), slots 2 and 4 another. Each becomes "
        f"(a·cos θ − b·sin θ, a·sin θ + b·cos θ), θ in radians: the seat times 1, and times {base}^(−1/2).",
        blanks(SLOTS, done["out"], 2, done.ways("out", 2)),
        (
            mistake("turned the other way", "The first of a pair loses b·sin θ, the second gains a·sin θ.", back),
            mistake("neighbours paired", "Slot 1 goes with slot 3 and slot 2 with slot 4.", paired),
            mistake("degrees", "The angles are in radians.", degrees),
        ),
        Later(lambda: done.lines(*cells, *((slot, f"out[0,0,0,{i}]") for i, slot in enumerate(SLOTS)))),
    )  # fmt: skip


class Biased(nn.Module):
    """Scores of one head with ALiBi's bias."""

    def __init__(self, count: int, head: int, apart: int = 0):
        super().__init__()
        self.alibi, self.head, self.apart = Alibi(count), head, apart

    def forward(self, given: Tensor, probe: Off = OFF) -> Tensor:
        span = Span.whole(given.shape[2])
        span = Span(span.index, span.coords + self.apart, span.key_index, span.key_coords)
        bias = self.alibi.bias(span, probe)(given)[:, self.head : self.head + 1]
        return probe("scores", given + bias)


def _alibi(scores: list[list[float]], count: int, head: int, row: int) -> Question:
    done, far, next_head = (
        work(Biased(count, one, apart), heads(scores)) for one, apart in ((head, 0), (head, 1), (head + 1, 0))
    )
    names, power, seen = strips(row + 1), 8 // count, slice(0, row + 1)
    given, right = np.asarray(scores[row])[seen], done["scores"][row, seen]
    bias = done["bias"][head, row]
    apart = [
        f"{name}: {row - i} step{'s' * (row - i != 1)} apart, bias {say(float(bias[i]))}"
        for i, name in enumerate(names)
    ]
    cells = [(f"→ {name}", f"scores[0,0,{row},{i}]") for i, name in enumerate(names)]
    return Question(
        "", None, "", (Table("scores", [scores[row][: row + 1]], names, [f"s{row + 1}"]),),
        f"Head {head + 1} of {count} has the slope 2^(−{power * (head + 1)}). ALiBi takes the slope away from a score "
        f"once for every step between the token that looks, s{row + 1}, and the one looked at. The scores with their "
        f"bias?",
        blanks([f"→ {name}" for name in names], right, 3, rows(done.ways("scores", 3), row, seen)),
        (
            mistake("added the slope", "The further away, the smaller the score: the bias is taken away.",
                    2 * given - right),
            mistake("another head's slope", f"Head 1 has the slope 2^(−{power}); each next head's is smaller.",
                    next_head.run("scores")[row, seen]),
            mistake("a step too many", "A token is 0 steps from itself.", far.run("scores")[row, seen]),
        ),
        Later(lambda: [*apart, *done.lines(*cells)]),
    )  # fmt: skip


def _draw_stamp(d: Draws) -> Numbers:
    return {"seat": d.whole(1, 9), "base": d.pick([10000, 100, 400])}


def _draw_add(d: Draws) -> Numbers:
    return {"seat": d.whole(0, 4), "strip": d.row(4, 1, 9)}


def _draw_rope(d: Draws) -> Numbers:
    return {"tag": d.row(4, -3, 3), "seat": d.whole(1, 6), "base": d.pick([100, 25, 4])}


def _draw_alibi(d: Draws) -> Numbers:
    count = d.pick([2, 4, 8])
    return {"scores": d.table(4, 4, 0, 5), "count": count, "head": d.whole(0, min(1, count - 2)), "row": d.whole(2, 3)}


MAKES = {
    "stamp": maker("stamp", {"seat": 1, "base": 10000}, _draw_stamp, _stamp),
    "add-stamp": maker("add-stamp", {"seat": 0, "strip": [2.0] * 4}, _draw_add, _add_stamp),
    "rope": maker("rope", {"tag": [1.0, 2.0, 0.0, 1.0], "seat": 1, "base": 100}, _draw_rope, _rope),
    "alibi": maker("alibi", {"scores": [[1.0, 2, 0, 3]] * 4, "count": 8, "head": 0, "row": 3}, _draw_alibi, _alibi),
}
