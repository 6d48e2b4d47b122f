"""A claim as an experiment: what is said, what is removed, what is measured, and which way it must move."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Size = Mapping[str, Any]
# numbers by name, and curves by name: points (x, y), drawn and never judged
Measured = dict[str, float | list[tuple[float, float]]]


@dataclass(frozen=True)
class Prediction:
    """One measured number must be larger in one arm than in another, seed by seed.

    With `times` their ratio is judged, and must be above it (both must then be positive); else their difference, which
    must be above `by`. With `near` one arm alone is judged (`more`; `less` is empty): its number must lie within `by`
    of that value, as at chance or as a formula says.
    """

    says: str  # the symptom in words, as the claim has it: "the gradient at the first block shrinks"
    metric: str  # which of the measured numbers
    label: str  # what it is, with its unit: "entropy of the pattern (nats)"
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


@dataclass(frozen=True)
class Claim:
    """One sentence of the documents, held against a removal.

    `measure(arm, seed, size)` builds, trains if it must, and gives plain finite numbers. The same seed means the same
    data in the same order in every arm. It is called in a process of its own with one thread, so it must be a function
    at the top of a module; it seeds what it uses. `quick`, `full` and `tiny` are its sizes, handed over as they are;
    tiny is for tests, a step or two.
    """

    name: str  # what is typed: "residual"
    title: str
    hypothesis: str  # one sentence, from the documents
    removed: str  # one line: what is swapped, from outside
    arms: tuple[str, ...]  # ("with", "without"), or the names of the variants
    measure: Callable[[str, int, Size], Measured]
    predictions: tuple[Prediction, ...]
    quick: Size
    full: Size
    tiny: Size
    curves: tuple[Curve, ...] = ()
    alone: bool = False  # it measures time: nothing may run beside it
    caveat: str = ""  # what the result does not say
    source: str = field(default="", kw_only=True)  # where the claim is made: "002, The Scaling Factor"

    def size(self, quick: bool) -> Size:
        return self.quick if quick else self.full
