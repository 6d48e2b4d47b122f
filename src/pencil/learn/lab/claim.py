"""A claim as an experiment: the hypothesis, what is removed, what is measured, and the predictions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Size = Mapping[str, Any]
# numbers by name, and curves by name: points (x, y), which are drawn but not tested
Measured = dict[str, float | list[tuple[float, float]]]


@dataclass(frozen=True)
class Prediction:
    """One measured number must be larger in one arm than in another, seed by seed.

    With `times` their ratio is tested, and must be above it (both must then be positive); else their difference, which
    must be above `by`. With `near` one arm alone is tested (`more`; `less` is empty): its number must be within `by` of
    that value, such as the accuracy of guessing or the value of a formula.
    """

    symptom: str  # what happens without the part: "the gradient at the first block shrinks"
    metric: str  # the name of the measured number
    label: str  # its description with its unit: "entropy of the pattern (nats)"
    more: str  # the arm where it must be larger
    less: str
    times: float | None = None
    by: float = 0.0
    near: float | None = None


@dataclass(frozen=True)
class Curve:
    """How a measured curve is drawn."""

    name: str  # of the measured curve
    x: str  # labels, with units
    y: str
    log_x: bool = False
    log_y: bool = False


LOSS = Curve("loss by step", "step", "training loss (nats)")


@dataclass(frozen=True)
class Claim:
    """One sentence of the documents, tested by removing a part.

    `measure(arm, seed, size)` builds and trains the models and returns finite numbers. The same seed means the same
    data in the same order in every arm. It runs in a separate process with one thread, so it must be a function at the
    top of a module; it seeds all its random numbers. `quick`, `full` and `tiny` are the sizes it is called with; tiny
    is for tests, a step or two.
    """

    name: str  # what is typed: "residual"
    title: str
    hypothesis: str  # one sentence, from the documents
    removed: str  # one line: what is replaced, from outside the model
    arms: tuple[str, ...]  # ("with", "without"), or names of variants
    measure: Callable[[str, int, Size], Measured]
    predictions: tuple[Prediction, ...]
    quick: Size
    full: Size  # what differs from quick
    tiny: Size
    curves: tuple[Curve, ...] = ()
    alone: bool = False  # it measures time, so nothing may run at the same time
    caveat: str = ""  # what the result does not show
    source: str = field(default="", kw_only=True)  # document and heading: "002, The Scaling Factor"
    by_hand: str = field(default="", kw_only=True)  # a command that shows the gradient it is about, number by number

    def size(self, quick: bool) -> Size:
        return self.quick if quick else {**self.quick, **self.full}
