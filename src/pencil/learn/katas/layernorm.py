"""Exercises on LayerNorm (taming one strip): its middle, its spread, and the two dials after it."""

import numpy as np
from torch import Tensor, nn

from ...core.layers import LayerNorm, RMSNorm
from ...core.probe import OFF, Probe
from .builder import Draws, Maker, Numbers, Work, blanks, bracketed, mistake, tensor, work
from .exercise import Question, Table

UNBIASED = "n−1 variance"
UNBIASED_HINT = "The average of the squares is over all n numbers, not over n−1."


def tamed(strip: list[float], norm: nn.Module) -> Work:
    """The output of a norm of the models."""

    def normed(strip: Tensor, probe: Probe = OFF) -> Tensor:
        return probe("out", norm(strip))

    return work(normed, tensor([strip]), modules=[norm])


def by_hand(strip: list[float], *dials: Tensor, short: int = 0, root: bool = True) -> Work:
    """LayerNorm step by step; `short` is subtracted from the count of the squares, `root` takes the root."""

    def normed(strip: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, probe: Probe = OFF) -> Tensor:
        middle = probe("middle", strip.sum(-1, keepdim=True) / strip.shape[-1])
        diffs = probe("diffs", strip - middle)
        squares = probe("squares", diffs * diffs)
        average = probe("average square", squares.sum(-1, keepdim=True) / (strip.shape[-1] - short))
        spread = probe("spread", average.sqrt() if root else average)
        tamed = probe("tamed", diffs / spread)
        tamed = tamed if gamma is None else tamed * gamma
        return probe("out", tamed if beta is None else tamed + beta)

    return work(normed, tensor([strip]), *dials)


def number_labels(count: int) -> list[str]:
    return [f"number {i + 1}" for i in range(count)]


def steps(count: int, last: str = "out") -> list[tuple[str, str]]:
    """The receipts of LayerNorm, from the middle to the result."""
    every = range(count)
    cells = [("middle", "middle[0,0]"), *((f"diff {i + 1}", f"diffs[0,{i}]") for i in every)]
    cells += [("average square", "average square[0,0]"), ("spread", "spread[0,0]")]
    return cells + [(f"number {i + 1}", f"{last}[0,{i}]") for i in every]


def _middle(strip: list[float]) -> Question:
    hand, count = by_hand(strip), len(strip)
    middle, diffs = hand["middle"], hand["diffs"]
    ordered, values = np.sort(strip), np.asarray(strip)
    short = values.sum() / (count - 1)
    roundings = list(zip(hand.roundings("middle", 2), hand.roundings("diffs", 2), strict=True))
    return Question(
        (Table("strip", [strip], number_labels(count)),),
        "The middle of this strip (its average)? Then the diffs from the middle, one for each number.",
        blanks(
            ["middle", *(f"diff {i + 1}" for i in range(count))],
            np.append(middle, diffs),
            2,
            [np.append(*one) for one in roundings],
        ),
        (
            mistake("diffs the wrong way round", "A diff is the number minus the middle.", middle, -diffs),
            mistake("divided by n−1", "The middle is the sum over all n numbers, divided by n.", short, values - short),
            mistake(
                "the median",
                "The middle here is the average, not the median.",
                ordered[count // 2],
                values - ordered[count // 2],
            ),
        ),
        lambda: hand.lines(*steps(count)[: count + 1]),
        f"Strip {bracketed(strip)}. Middle? Then the diffs from the middle?",
    )


def _layernorm(strip: list[float]) -> Question:
    count = len(strip)
    done, hand = tamed(strip, LayerNorm(count, 1e-6)), by_hand(strip)
    return Question(
        (Table("strip", [strip], number_labels(count)),),
        "Tame this strip: middle to 0, spread to 1, reading only this strip.",
        blanks(number_labels(count), done["out"], 2, hand.roundings("out", 2)),
        (
            mistake(UNBIASED, UNBIASED_HINT, by_hand(strip, short=1)["out"]),
            mistake(
                "middle not subtracted",
                "First subtract the middle from every number, then take the spread.",
                tamed(strip, RMSNorm(count, 1e-6))["out"],
            ),
            mistake("no root", "The spread is the root of the average square.", by_hand(strip, root=False)["out"]),
            mistake("not divided", "The diffs still have to be divided by the spread.", hand["diffs"]),
        ),
        lambda: hand.lines(*steps(count)),
        "Take ONE strip's numbers and humble them: middle to 0, spread to 1, reading only this strip.",
    )


def _dials(strip: list[float], gamma: list[float], beta: list[float]) -> Question:
    count, norm = len(strip), LayerNorm(len(strip), 1e-6)
    stretch, shift = tensor(gamma), tensor(beta)
    norm.weight, norm.bias = nn.Parameter(stretch), nn.Parameter(shift)
    done, hand = tamed(strip, norm), by_hand(strip, stretch, shift)
    plain = tensor(hand["tamed"])
    return Question(
        (
            Table("strip", [strip], number_labels(count)),
            Table("dials", [gamma, beta], number_labels(count), ["γ (stretch)", "β (shift)"]),
        ),
        "Tame this strip (middle 0, spread 1), then stretch each number by its γ and shift it by its β.",
        blanks(number_labels(count), done["out"], 2, hand.roundings("out", 2)),
        (
            mistake(UNBIASED, UNBIASED_HINT, by_hand(strip, stretch, shift, short=1)["out"]),
            mistake("shifted before stretched", "Stretch by γ first; β is added last.", (plain + shift) * stretch),
            mistake("β forgotten", "After the stretch, β is added.", plain * stretch),
            mistake("γ forgotten", "Before the shift, each number is multiplied by its γ.", plain + shift),
        ),
        lambda: [
            *hand.lines(*steps(count, "tamed")),
            *hand.lines(*((f"new {i + 1}", f"out[0,{i}]") for i in range(count))),
        ],
    )


def _draw_middle(d: Draws) -> Numbers:
    return {"strip": d.distinct(d.pick([3, 4, 5]), 1, 20)}


def draw_strip(d: Draws, count: int = 4) -> list[float]:
    """Multiples of ten, so that the squares are easy by hand."""
    return [10 * one for one in d.distinct(count, 1, 9)]


def _draw_layernorm(d: Draws) -> Numbers:
    return {"strip": d.pick([draw_strip(d), d.distinct(4, 1, 12), d.distinct(3, 1, 12)])}


def _draw_dials(d: Draws) -> Numbers:
    strip = d.distinct(3, 1, 12)
    gamma, beta = d.distinct_tenths(3, 5, 30, but=[10]), d.distinct_tenths(3, -20, 20, but=[0])
    return {"strip": strip, "gamma": gamma, "beta": beta}


MAKES = {
    "middle": Maker("middle", {"strip": [2.0, 4.0, 6.0]}, _draw_middle, _middle),
    "layernorm": Maker("layernorm", {"strip": [50.0, 60.0, 40.0, 30.0]}, _draw_layernorm, _layernorm),
    "dials": Maker(
        "dials", {"strip": [2.0, 4.0, 6.0], "gamma": [2.0, 1.0, 0.5], "beta": [0.0, 1.0, -1.0]}, _draw_dials, _dials
    ),
}
