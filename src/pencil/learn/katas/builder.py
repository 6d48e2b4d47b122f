"""Builds exercises: draws their numbers, traces the models' own modules, and runs them again with rounding."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...core.probe import Probe
from ...tracing.live_trace import LiveTrace, trace
from ...tracing.receipt_text import format_number
from .exercise import Blank, Mistake, Question, Value, written
from .grader import accepts, apart, grade

Numbers = dict[str, Any]
MAX_DRAWS = 1000


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
        left = [number for number in range(low, high + 1) if number not in but]
        return [float(left.pop(self.whole(0, len(left) - 1))) for _ in range(count)]

    def distinct_tenths(self, count: int, low: int, high: int, but: Sequence[int] = ()) -> list[float]:
        return [number / 10 for number in self.distinct(count, low, high, but)]

    def vectors(self, rows: int, columns: int, low: int, high: int) -> list[list[float]]:
        """Rows that are not all zeros, and different from one another."""
        table: list[list[float]] = []
        while len(table) < rows:
            row = self.row(columns, low, high)
            if any(row) and row not in table:
                table.append(row)
        return table


@dataclass(frozen=True, eq=False)
class Maker:
    """A question for any seed: the document's numbers for None, else the first draw that is not degenerate.

    Its numbers are `informative`, its answers are not all the same, and each of its mistakes leads to another answer.
    """

    name: str
    document: Numbers  # the numbers of the document
    draw: Callable[[Draws], Numbers]
    pose: Callable[..., Question]
    informative: Callable[[Numbers], bool] = lambda numbers: True

    def __call__(self, seed: int | None, **changes: Any) -> Question:
        """The question of a seed; with some of its numbers changed, mistakes that lead to the right answer are left
        out."""
        numbers, question = _made_once(self, seed)
        if not changes:
            return question
        changed = self.pose(**numbers | changes)
        return replace(changed, seed=seed, mistakes=distinguishable(changed))

    def numbers(self, seed: int | None) -> Numbers:
        """The numbers of a seed's question."""
        return _made_once(self, seed)[0]

    def made(self, seed: int | None) -> tuple[Numbers, Question]:
        if seed is None:
            question = self.pose(**self.document)
            return self.document, replace(question, mistakes=distinguishable(question))
        for attempt in range(MAX_DRAWS):
            numbers = self.draw(Draws(f"{self.name} {seed} {attempt}"))
            if not self.informative(numbers):
                continue
            question = self.pose(**numbers)
            varied = len({blank.written for blank in question.blanks}) > 1 or len(question.blanks) == 1
            if varied and len(distinguishable(question)) == len(question.mistakes):
                return numbers, replace(question, seed=seed)
        raise RuntimeError(f"no numbers found for {self.name} with seed {seed}")


_made_once = lru_cache(maxsize=1024)(Maker.made)


def distinguishable(question: Question) -> tuple[Mistake, ...]:
    """The mistakes whose answers are clearly not the right ones, and not those of an earlier mistake."""
    answers: list[Sequence[Value]] = [[blank.value for blank in question.blanks]]
    separate: list[Mistake] = []
    for mistake in question.mistakes:
        if all(apart(question, mistake.values, other) for other in answers):
            separate.append(mistake)
            answers.append(mistake.values)
    graded = replace(question, mistakes=tuple(separate))
    return tuple(mistake for mistake in separate if grade(graded, answers_of(graded, mistake)).hint == mistake)


def answers_of(question: Question, mistake: Mistake) -> list[str]:
    """What somebody who makes this mistake writes."""
    return [written(value, blank.decimals) for blank, value in zip(question.blanks, mistake.values, strict=True)]


class Computation(nn.Module):
    """A function of tensors and a probe, and the modules whose weights it uses, in double precision."""

    def __init__(self, function: Callable[..., Any], modules: Iterable[nn.Module]):
        super().__init__()
        self.parts = nn.ModuleList(modules).double()
        self.forward = function  # with its own signature, whose names are those of the inputs in a trace


@dataclass(frozen=True)
class Work:
    """A computation with its inputs: run for the answers, again with values rounded, and traced for the working."""

    module: nn.Module
    inputs: tuple[Any, ...]

    @cached_property
    def trace(self) -> LiveTrace:
        return trace(self.module, *self.inputs)

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        """Every named value, without the axes of batch and head if their size is 1."""
        return self._run({})

    def __getitem__(self, name: str) -> np.ndarray:
        return self.values[name]

    def _run(self, edit: dict[str, Callable[[Tensor], Tensor]]) -> dict[str, np.ndarray]:
        probe = Probe("*", edit=edit)
        with torch.no_grad():
            self.module(*self.inputs, probe=probe)
        return {name: squeezed(value.detach().numpy()) for name, value in probe.values.items()}

    def roundings(self, name: str, decimals: int) -> list[np.ndarray]:
        """A value as it is when steps before it are rounded: all of them, to as many decimals or one more; or only the
        powers of e and their total, to two; or the portions too, or these alone."""
        every, finer = (dict.fromkeys(self.values, digits) for digits in (decimals, decimals + 1))
        powers = dict.fromkeys(("raised", "total"), 2)
        portions = [{"pattern": decimals}, {"pattern": decimals + 1}, powers | {"pattern": decimals}]
        results = []
        for digits in (every, finer, powers, *(portions if "pattern" in self.values else [])):
            edit = {
                step: partial(rounded, digits=count)
                for step, count in digits.items()
                if step != name and step in self.values
            }
            results.append(self._run(edit)[name] if edit else self[name])
        return results

    def lines(self, *cells: tuple[str, str]) -> Iterator[str]:
        """Receipts as lines, for pairs (label, cell)."""
        written_steps: set[str] = set()  # steps that several cells share are written once
        for label, where in cells:
            receipt = self.trace[where].why()
            is_input = receipt.reworked is None or receipt.formula == format_number(receipt.recorded)
            formula = "" if is_input else f"{receipt.formula} = "
            yield f"{label} = {formula}{format_number(receipt.recorded)}"
            steps = [f"  {step.word} = {step.formula} = {format_number(step.value)}" for step in receipt.steps]
            yield from (line for line in steps if line not in written_steps)
            written_steps.update(steps)


def work(function: Callable[..., Any], *inputs: Any, modules: Iterable[nn.Module] = ()) -> Work:
    return Work(Computation(function, modules), inputs)


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
    others = [np.ravel(np.asarray(values_again, dtype=float)) for values_again in roundings]
    answers = []
    for i, (label, value) in enumerate(zip(labels, exact.tolist(), strict=True)):
        blank = Blank(label, value, decimals)
        also: dict[str, float] = {}
        for other in others:
            if np.isfinite(other[i]) and not accepts(blank, float(other[i])):
                also.setdefault(written(float(other[i]), decimals), float(other[i]))
        answers.append(replace(blank, also=tuple(also.values())))
    return tuple(answers)


def rows(arrays: Sequence[np.ndarray], *which: Any) -> list[np.ndarray]:
    """The same part of each array."""
    return [array[which] for array in arrays]


def mistake(name: str, hint: str, *values: Any) -> Mistake:
    """A mistake and the answers it leads to, numbers and words in order."""
    flat: list[Value] = []
    for value in values:
        flat += [value] if isinstance(value, str) else np.ravel(np.asarray(value, dtype=float)).tolist()
    return Mistake(name, hint, tuple(flat))
