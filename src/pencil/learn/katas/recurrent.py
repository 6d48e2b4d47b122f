"""An exercise on the networks before attention: one state of an RNN."""

import torch.nn.functional as F
from torch import Tensor

from ...core.probe import OFF, Probe
from .builder import Draws, Maker, Numbers, Work, blanks, mistake, tensor, work
from .exercise import Question, Table, numbered

Row = list[float]
Rows = list[list[float]]


def next_state(before: Row, x: Row, w_h: Rows, w_x: Rows, b: Row) -> Work:
    """The state after one word, h_t = tanh(W_h h_{t−1} + W_x x_t + b)."""

    def step(before: Tensor, x: Tensor, w_h: Tensor, w_x: Tensor, b: Tensor, probe: Probe = OFF) -> Tensor:
        into = probe("a", F.linear(before, w_h) + F.linear(x, w_x) + b)
        return probe("h", into.tanh())

    return work(step, *map(tensor, (before, x, w_h, w_x, b)))


def _rnn(before: Row, x: Row, w_h: Rows, w_x: Rows, b: Row) -> Question:
    done, names = next_state(before, x, w_h, w_x, b), numbered("number", len(b))
    zeros, turned = [0.0] * len(b), [list(column) for column in zip(*w_h, strict=True)]
    apart = next_state(before, zeros, w_h, w_x, zeros)["h"] + next_state(zeros, x, w_h, w_x, b)["h"]
    cells = [(f"{name} {i + 1}", f"{name}[{i}]") for name in ("a", "h") for i in range(len(b))]
    return Question(
        (
            Table("h_t−1", [before], names),
            Table("x_t", [x], numbered("number", len(x))),
            Table("W_h", w_h, None, names),
            Table("W_x", w_x, None, names),
            Table("b", [b], names),
        ),
        "An RNN reads the next word: h_t = tanh(a), a = W_h·h_t−1 + W_x·x_t + b. Each matrix has one row for each "
        "number of the new state. (tanh(0.5) is 0.462, tanh(1) 0.762.) The new state h_t?",
        blanks(names, done["h"], 2, done.roundings("h", 2)),
        (
            mistake("tanh forgotten", "The sum a goes through tanh, which brings it between −1 and 1.", done["a"]),
            mistake(
                "state forgotten",
                "The state before, h_t−1, is multiplied by W_h and added too: it is all that is left of earlier words.",
                next_state(zeros, x, w_h, w_x, b)["h"],
            ),
            mistake(
                "word forgotten",
                "The new word x_t is multiplied by W_x and added too.",
                next_state(before, zeros, w_h, w_x, b)["h"],
            ),
            mistake("b forgotten", "b is added before tanh.", next_state(before, x, w_h, w_x, zeros)["h"]),
            mistake(
                "matrices mixed up", "W_h is for the state, W_x for the word.", next_state(before, x, w_x, w_h, b)["h"]
            ),
            mistake(
                "columns of W_h",
                "Each new number takes one row of W_h, not a column.",
                next_state(before, x, turned, w_x, b)["h"],
            ),
            mistake("tanh of each part", "First add everything up; tanh comes last, once.", apart),
        ),
        lambda: done.lines(*cells),
    )


def _draw(d: Draws) -> Numbers:
    return {
        "before": d.distinct_tenths(2, -9, 9, but=[0]),
        "x": d.distinct(2, -1, 2, but=[0]),
        "w_h": [d.distinct_tenths(2, -9, 9, but=[0]) for _ in range(2)],
        "w_x": [d.distinct_tenths(2, -9, 9, but=[0]) for _ in range(2)],
        "b": d.distinct_tenths(2, -5, 5, but=[0]),
    }


def _unsaturated(numbers: Numbers) -> bool:
    """Where tanh is nearly flat, mistakes no longer change the state."""
    return bool((abs(next_state(**numbers)["a"]) < 1.5).all())


MAKES = {
    "rnn": Maker(
        "rnn",
        {
            "before": [0.8, -0.5],
            "x": [1.0, 2.0],
            "w_h": [[0.5, -0.3], [0.2, 0.6]],
            "w_x": [[0.4, -0.5], [0.7, 0.3]],
            "b": [0.4, -0.2],
        },
        _draw,
        _rnn,
        _unsaturated,
    )
}
