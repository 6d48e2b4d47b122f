"""Exercises on positions: stamps (sinusoidal embeddings), rotations (RoPE) and a bias by distance (ALiBi)."""

import math

import numpy as np
import torch
from torch import Tensor

from ...core.positions import Alibi, Rope, Sinusoidal, rotate
from ...core.probe import OFF, Probe
from ...core.span import Span
from ...tracing.writing import format_number
from .attention_by_hand import strips
from .builder import Draws, Maker, Numbers, Work, blanks, bracketed, heads, mistake, rows, tensor, work
from .exercise import Question, Table

SLOTS = [f"slot {i + 1}" for i in range(4)]
DEGREE = math.pi / 180


def stamping(seat: float, strip: list[float], base: float = 10000.0, halves: bool = False) -> Work:
    """A strip plus the stamp of its seat."""
    positions = Sinusoidal(len(strip), base=base, halves=halves)

    def stamped(strip: Tensor, seat: Tensor, probe: Probe = OFF) -> Tensor:
        out, _ = positions(strip, Span.whole(seat.shape[1], coords=seat[..., None]), probe / "positions")
        return probe("out", out)

    return work(stamped, tensor(strip)[None, None], tensor([[seat]]))


def stamp_by_hand(seat: Tensor, divisors: Tensor, probe: Probe = OFF) -> Tensor:
    """The stamp step by step: the angle of each pair, then its sine and its cosine."""
    angle = probe("angle", seat / divisors)
    return probe("stamp", torch.stack((angle.sin(), angle.cos()), -1).flatten())


def _stamp(seat: int, base: int) -> Question:
    nothing = [0.0] * 4
    stamp, slow = "positions.embedding", math.sqrt(base)
    done, hand = stamping(seat, nothing, base), work(stamp_by_hand, tensor(seat), tensor([1, slow]))
    cells = [("angle 1", "angle[0]"), ("angle 2", "angle[1]"), *((one, f"stamp[{i}]") for i, one in enumerate(SLOTS))]
    degrees, one_frequency = stamping(seat * DEGREE, nothing, base), stamping(seat, nothing, 1.0)
    grouped = stamping(seat, nothing, base, halves=True)
    return Question(
        (Table("divisors", [[1.0, slow]], ["slots 1, 2", "slots 3, 4"]),),
        f"Stamp of seat {seat} at width 4: sin and cos of seat ÷ 1, then sin and cos of seat ÷ {slow:g} (that is "
        f"{base}^(2/4)). The angles are in radians.",
        blanks(SLOTS, done[stamp], 3, hand.roundings("stamp", 3)),
        (
            mistake("degrees", "The angles are in radians: sin(1) is 0.841.", degrees[stamp]),
            mistake(
                "cosine before sine", "Each pair is the sine first, then the cosine.", done[stamp][0, [1, 0, 3, 2]]
            ),
            mistake(
                "one frequency for all",
                "The second pair has a lower frequency: its seat is divided first.",
                one_frequency[stamp],
            ),
            mistake("sines first, then cosines", "Sine and cosine of one frequency are neighbours.", grouped[stamp]),
        ),
        lambda: hand.lines(*cells),
        f"stamp[pos][2i] = sin(pos / {base}^(2i/width)), stamp[pos][2i+1] the cosine. Width 4, seat {seat}.",
    )


def _add_stamp(seat: int, strip: list[float]) -> Question:
    done, stamp = stamping(seat, strip), "positions.embedding"
    stamps = [stamping(one, strip)[stamp][0].round(3).tolist() for one in range(seat + 2)]
    return Question(
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
                tensor(strip) * tensor(done[stamp][0]),
            ),
            mistake("the next seat's stamp", "Seats are counted from 0.", stamping(seat + 1, strip)["out"]),
            mistake("subtracted", "Add the stamp, do not subtract it.", 2 * tensor(strip) - tensor(done["out"][0])),
        ),
        lambda: done.lines(*((slot, f"out[0,0,{i}]") for i, slot in enumerate(SLOTS))),
        f"Seat {seat}'s stamp is {bracketed(stamps[seat])}. A strip reads {bracketed(strip)}. After adding the stamp?",
    )


PAIRED = "the paper pairs neighbours, slot 1 with slot 2; LLaMA checkpoints pair halves, slot 1 with slot 3"


def rotating(tag: list[float], seat: float, base: float, adjacent: bool = True) -> Work:
    """A tag rotated by its seat, in adjacent pairs as the paper writes them, or in halves."""
    rope = Rope(4, base=base, adjacent=adjacent)

    def rotated(tag: Tensor, seat: Tensor, probe: Probe = OFF) -> Tensor:
        span = rope.rotated(Span.whole(seat.shape[1], coords=seat[..., None]), tag.dtype, probe / "rope")
        if span.rotation is None:
            raise ValueError("Rope gave no rotation")
        cos, sin = span.rotation
        return probe("out", rotate(tag, (probe("cos", cos), probe("sin", sin)), rope.adjacent))

    return work(rotated, heads([tag]), tensor([[seat]]))


def _rope(tag: list[float], seat: int, base: int) -> Question:
    done = rotating(tag, seat, base)
    angles, halves = done["rope.angles"][0], rotating(tag, seat, base, adjacent=False)["out"]
    back, degrees = (rotating(tag, other, base)["out"] for other in (-seat, seat * DEGREE))
    cells = [("cos of pair " + str(i + 1), f"cos[0,0,0,{i}]") for i in range(2)]
    cells += [("sin of pair " + str(i + 1), f"sin[0,0,0,{i}]") for i in range(2)]
    return Question(
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
        lambda: [PAIRED, *done.lines(*cells, *((s, f"out[0,0,0,{i}]") for i, s in enumerate(SLOTS)))],
    )


def biased(scores: list[list[float]], count: int, head: int, shift: int = 0) -> Work:
    """Scores of one of `count` heads with ALiBi's bias; `shift` moves the queries that far from the keys."""
    alibi = Alibi(count)

    def add_bias(given: Tensor, probe: Probe = OFF) -> Tensor:
        span = Span.whole(given.shape[2])
        span = Span(span.index, span.coords + shift, span.key_index, span.key_coords)
        return probe("scores", given + alibi.bias(span, probe)(given)[:, head : head + 1])

    return work(add_bias, heads(scores))


def _alibi(scores: list[list[float]], count: int, head: int, row: int) -> Question:
    done, far, next_head = biased(scores, count, head), biased(scores, count, head, 1), biased(scores, count, head + 1)
    names, power, visible = strips(row + 1), 8 // count, slice(0, row + 1)
    given, right = np.asarray(scores[row])[visible], done["scores"][row, visible]
    bias = done["bias"][head, row]
    distances = [f"{name}: distance {row - i}, bias {format_number(float(bias[i]))}" for i, name in enumerate(names)]
    cells = [(f"→ {name}", f"scores[0,0,{row},{i}]") for i, name in enumerate(names)]
    return Question(
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
                next_head["scores"][row, visible],
            ),
            mistake("one step too many", "The distance of a token to itself is 0.", far["scores"][row, visible]),
        ),
        lambda: [*distances, *done.lines(*cells)],
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
    "stamp": Maker("stamp", {"seat": 1, "base": 10000}, _draw_stamp, _stamp),
    "add-stamp": Maker("add-stamp", {"seat": 0, "strip": [2.0] * 4}, _draw_add, _add_stamp),
    "rope": Maker("rope", {"tag": [1.0, 2.0, 0.0, 1.0], "seat": 1, "base": 10000}, _draw_rope, _rope),
    "alibi": Maker("alibi", {"scores": [[1.0, 2, 0, 3]] * 4, "count": 8, "head": 0, "row": 3}, _draw_alibi, _alibi),
}
