"""Builds exercises: draws their numbers, traces the models' own modules, and runs them again with rounding."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...core.probe import Probe
from ...tracing.live_trace import LiveTrace, trace
from ...tracing.writing import format_number
from .exercise import Blank, Mistake, Question, Value, written
from .grader import accepts, apart, grade

Numbers = dict[str, Any]
ATTEMPTS = 1000


class Draws:
    """Random numbers that are the same in every version of Python: only `random()` is guaranteed to be."""

    def __init__(self, name: str):
        self.random = random.Random(name).random

    def whole(self, low: int, high: int) -> int:
        return low + int(self.random() * (high - low + 1))

    def tenths(self, low: int, high: int) -> float:
        return self.whole(low, high) / 10

    def pick(self, things: Sequence[Any]) -> Any:
        return things[self.whole(0, len(things) - 1)]

    def row(self, count: int, low: int, high: int) -> list[float]:
        return [float(self.whole(low, high)) for _ in range(count)]

    def table(self, rows: int, columns: int, low: int, high: int) -> list[list[float]]:
        return [self.row(columns, low, high) for _ in range(rows)]

    def distinct(self, count: int, low: int, high: int, but: Sequence[int] = ()) -> list[float]:
        """Different numbers, none of which is one of `but`."""
        left = [one for one in range(low, high + 1) if one not in but]
        return [float(left.pop(self.whole(0, len(left) - 1))) for _ in range(count)]

    def distinct_tenths(self, count: int, low: int, high: int, but: Sequence[int] = ()) -> list[float]:
        return [one / 10 for one in self.distinct(count, low, high, but)]

    def tags(self, rows: int, columns: int, low: int, high: int) -> list[list[float]]:
        """Rows that are not all zeros, and different from one another."""
        found: list[list[float]] = []
        while len(found) < rows:
            row = self.row(columns, low, high)
            if any(row) and row not in found:
                found.append(row)
        return found


class Maker:
    """A question for any seed: the page's own numbers for None, else the first draw that is not degenerate.

    Its numbers are `informative`, its answers are not all the same, and each of its mistakes leads to another answer.
    """

    def __init__(
        self,
        name: str,
        page: Numbers,
        draw: Callable[[Draws], Numbers],
        pose: Callable[..., Question],
        informative: Callable[[Numbers], bool],
    ):
        self.name, self.page, self.draw, self.pose, self.informative = name, page, draw, pose, informative
        self._made = lru_cache(maxsize=64)(self.made)

    def __call__(self, seed: int | None) -> Question:
        return self._made(seed)[1]

    def numbers(self, seed: int | None) -> Numbers:
        """The numbers of a seed's question."""
        return self._made(seed)[0]

    def made(self, seed: int | None) -> tuple[Numbers, Question]:
        if seed is None:
            question = self.pose(**self.page)
            return self.page, replace(question, seed=None, mistakes=tuple(distinguishable(question)))
        tried = False
        for attempt in range(ATTEMPTS):
            numbers = self.draw(Draws(f"{self.name} {seed} {attempt}"))
            if not self.informative(numbers):
                continue
            question = _draft(self.pose, numbers) if tried else self.pose(**numbers)
            varied = len({blank.written for blank in question.blanks}) > 1 or len(question.blanks) == 1
            if varied and len(distinguishable(question)) == len(question.mistakes):
                return numbers, replace(self.pose(**numbers) if tried else question, seed=seed, page_words=None)
            tried = True
        raise RuntimeError(f"no numbers found for {self.name} with seed {seed}")

    def changed(self, seed: int | None, **changes: Any) -> Question:
        """The question with some of its numbers changed, such as the row that is asked for; mistakes that lead to the
        right answer are left out."""
        question = self.pose(**self.numbers(seed) | changes)
        words = question.page_words if seed is None else None
        return replace(question, seed=seed, mistakes=tuple(distinguishable(question)), page_words=words)


def maker(
    name: str,
    page: Numbers,
    draw: Callable[[Draws], Numbers],
    pose: Callable[..., Question],
    informative: Callable[[Numbers], bool] = lambda numbers: True,
) -> Maker:
    return Maker(name, page, draw, pose, informative)


def _draft(pose: Callable[..., Question], numbers: Numbers) -> Question:
    before = _TAPED.set(False)
    try:
        return pose(**numbers)
    finally:
        _TAPED.reset(before)


def distinguishable(question: Question) -> list[Mistake]:
    """The mistakes whose answers are clearly not the right ones, and not those of an earlier mistake."""
    right = [blank.value for blank in question.blanks]
    kept: list[Mistake] = []
    for one in question.mistakes:
        if all(apart(question, one.values, other) for other in (right, *(m.values for m in kept))):
            kept.append(one)
    known = replace(question, mistakes=tuple(kept))
    return [one for one in kept if grade(known, answers_of(known, one)).hint == one]


def answers_of(question: Question, mistake: Mistake) -> list[str]:
    """What somebody who makes this mistake writes."""
    return [written(value, blank.decimals) for blank, value in zip(question.blanks, mistake.values, strict=True)]


# off while numbers are tried: tracing takes twenty times as long as running
_TAPED = ContextVar("taped", default=True)


@dataclass(frozen=True)
class Work:
    """A small module with its inputs: traced for the answers, and run again with named values rounded."""

    module: nn.Module
    inputs: tuple[Any, ...]

    @cached_property
    def trace(self) -> LiveTrace:
        return trace(self.module, *self.inputs)

    def __getitem__(self, name: str) -> np.ndarray:
        """A named value of the trace, without the batch and head axes if their size is 1."""
        return squeezed(self.trace[name].value) if _TAPED.get() else self.run(name)

    @cached_property
    def _values(self) -> dict[str, Tensor]:
        return self._run({})

    def _run(self, edit: dict[str, Callable[[Tensor], Tensor]]) -> dict[str, Tensor]:
        probe = Probe("*", edit=edit)
        with torch.no_grad():
            self.module(*self.inputs, probe=probe)
        return probe.values

    def run(self, name: str) -> np.ndarray:
        """The same value without a trace."""
        return squeezed(self._values[name].numpy())

    def roundings(self, name: str, decimals: int) -> list[np.ndarray]:
        """A value as it is when steps before it are rounded: all of them, to as many decimals or one more; or only the
        powers of e and their total, to two; or the portions too, or these alone."""
        every, finer = (dict.fromkeys(self._values, digits) for digits in (decimals, decimals + 1))
        powers = dict.fromkeys(("raised", "total"), 2)
        portions = [{"pattern": decimals}, {"pattern": decimals + 1}, powers | {"pattern": decimals}]
        found = []
        for digits in (every, finer, powers, *(portions if "pattern" in self._values else [])):
            edit = {
                one: partial(rounded, digits=count)
                for one, count in digits.items()
                if one != name and one in self._values
            }
            found.append(squeezed(self._run(edit)[name].numpy()) if edit else self.run(name))
        return found

    def lines(self, *cells: tuple[str, str]) -> Iterator[str]:
        """Receipts as lines, for pairs (label, cell)."""
        shown: set[str] = set()  # steps that several cells share are shown once
        for label, where in cells:
            receipt = self.trace[where].why()
            given = receipt.reworked is None or receipt.formula == format_number(receipt.recorded)
            middle = "" if given else f"{receipt.formula} = "
            yield f"{label} = {middle}{format_number(receipt.recorded)}"
            steps = [f"  {step.word} = {step.formula} = {format_number(step.value)}" for step in receipt.steps]
            yield from (line for line in steps if line not in shown)
            shown.update(steps)


def work(module: nn.Module, *inputs: Any) -> Work:
    return Work(module.double(), inputs)


def squeezed(value: Any) -> np.ndarray:
    value = np.asarray(value)
    while value.ndim > 2 and value.shape[0] == 1:
        value = value[0]
    return value


def rounded(value: Tensor, digits: int) -> Tensor:
    """Rounded, halves away from zero; integers and infinities stay as they are."""
    if not value.is_floating_point():
        return value
    units = value.abs() * 10**digits
    return torch.where(value.isfinite(), value.sign() * torch.floor(units + 0.5 + 1e-9) / 10**digits, value)


def tensor(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def heads(rows: Any) -> Tensor:
    """A table as one batch of one head."""
    return tensor(rows)[None, None]


def blanks(labels: Sequence[str], values: Any, decimals: int, roundings: Sequence[Any] = ()) -> tuple[Blank, ...]:
    """A blank for each value; `roundings` are the values again, with earlier steps rounded."""
    exact = np.ravel(np.asarray(values, dtype=float))
    others = [np.ravel(np.asarray(one, dtype=float)) for one in roundings]
    found = []
    for i, (label, value) in enumerate(zip(labels, exact.tolist(), strict=True)):
        blank = Blank(label, value, decimals)
        also: dict[str, float] = {}
        for other in others:
            if np.isfinite(other[i]) and not accepts(blank, float(other[i])):
                also.setdefault(written(float(other[i]), decimals), float(other[i]))
        found.append(replace(blank, also=tuple(also.values())))
    return tuple(found)


def rows(arrays: Sequence[np.ndarray], *which: Any) -> list[np.ndarray]:
    """The same part of each array."""
    return [array[which] for array in arrays]


def mistake(name: str, hint: str, *values: Any) -> Mistake:
    """A mistake and the answers it leads to, numbers and words in order."""
    flat: list[Value] = []
    for value in values:
        flat += [value] if isinstance(value, str) else np.ravel(np.asarray(value, dtype=float)).tolist()
    return Mistake(name, hint, tuple(flat))


def bracketed(values: Iterable[float]) -> str:
    """A row as text: [0, 4]."""
    return "[" + ", ".join(f"{one:g}" for one in values) + "]"


class LazyLines(Sequence[str]):
    """Lines that are computed when first read."""

    def __init__(self, work: Callable[[], Iterable[str]]):
        self._work = work

    @cached_property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._work())

    def __getitem__(self, index: Any) -> Any:
        return self.lines[index]

    def __len__(self) -> int:
        return len(self.lines)
