"""Checks a published worked example number by number: right to the printed digits, rounded along the way, or wrong.

The file is TOML: the given values under [inputs], then one [[step]] for each computed value, with its formula and its
printed numbers, and one [[claim]] for each sentence that a computation decides. docs/teach/check-an-example.md
describes it for authors.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...config import UserError, nearest
from ...files import check_regular
from .claims import Claim, judge
from .example_file import Known, Printed, Tables, as_input, as_printed, new_name, one_line
from .formula import names, read, work_out
from .resource_limits import TooMuch, limited

RIGHT, ROUNDED, WRONG = VERDICTS = "right", "rounded along the way", "wrong"
FOLLOWS = "follows from the wrong numbers above"
DESPITE = "though not what the wrong numbers above give"
SHIPPED = Path(__file__).parents[2] / "examples"
BYTES = 1_000_000


@dataclass(frozen=True)
class Number:
    """One printed number, the exact value, and the verdict."""

    index: tuple[int, ...]
    printed: str
    exact: float
    true: str
    verdict: str
    note: str


@dataclass(frozen=True)
class Step:
    """One step of an example with its printed numbers."""

    name: str
    formula: str
    label: str
    line: int | None
    numbers: tuple[Number, ...]


@dataclass(frozen=True)
class Report:
    """The steps of a file that have printed numbers, and its claims."""

    file: str
    title: str
    steps: tuple[Step, ...]
    claims: tuple[Claim, ...] = ()
    values: Known = field(default_factory=dict, repr=False)  # the exact values of inputs and named steps


def count(steps: Iterable[Step]) -> dict[str, int]:
    """The number of verdicts of each kind."""
    found = [number.verdict for step in steps for number in step.numbers]
    return {verdict: found.count(verdict) for verdict in VERDICTS}


def shipped() -> dict[str, Path]:
    """The example files that come with the package."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.toml"))}


def check(path: Path) -> Report:
    """The verdict on every printed number and every claim of a file."""
    if path.is_dir():
        raise UserError(f"{path} is a folder, not an example file")
    if not path.exists():
        raise UserError(f"there is no file {path}, nor an example of that name; {nearest(path.stem, shipped())}")
    check_regular(path)
    with path.open("rb") as file:
        content = file.read(BYTES + 1)
    if len(content) > BYTES:
        raise UserError(f"{path} is larger than the {BYTES:,} bytes an example may have")
    try:
        return check_text(content.decode("utf-8-sig"), path.stem if path.parent == SHIPPED else str(path))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text") from None


def check_text(text: str, file: str = "example") -> Report:
    """The same for the text of a file."""
    with limited():
        return _report(Tables(text, file), file)


def _report(tables: Tables, file: str) -> Report:
    inputs = {name: tables.on(name, "inputs", 0, as_input, name, value) for name, value in tables.inputs.items()}
    chain = _Chain(inputs)
    steps = []
    for i, step in enumerate(tables.steps):
        tree = tables.on("formula", "step", i, read, step["formula"])
        if "name" in step:
            tables.on("name", "step", i, new_name, step["name"], chain.exact)
        exact = tables.on("formula", "step", i, work_out, tree, chain.exact)
        printed: dict[tuple[int, ...], Printed] = {}
        if "printed" in step:
            printed = tables.on("printed", "step", i, as_printed, step["printed"], exact, chain.exact)
        numbers = tables.on("formula", "step", i, chain.check, step.get("name"), tree, exact, printed)
        if numbers:
            formula, label = one_line(step["formula"]), one_line(step.get("label", ""))
            steps.append(Step(step.get("name") or formula, formula, label, step.get("line"), tuple(numbers)))
    claims = judge(tables, chain.exact, chain.printed)
    return Report(file, tables.title, tuple(steps), claims, chain.exact)


class _Chain:
    """Every named value three times: exact; with the right numbers as printed; and with all numbers as printed."""

    def __init__(self, inputs: Known):
        self.exact, self.careful, self.printed = dict(inputs), dict(inputs), dict(inputs)

    def check(self, name: str | None, tree: Any, exact: np.ndarray, printed: dict) -> list[Number]:
        careful = self._candidates(tree, self.careful, exact)
        believed = self._candidates(tree, self.printed, exact)
        numbers = []
        for index, number in printed.items():
            true = float(exact[index])
            if number.fits(true):
                contradicted = _fits_any(number, index, careful[:1]) and not _fits_any(number, index, believed[:1])
                verdict, note = RIGHT, DESPITE if contradicted else ""
            elif _fits_any(number, index, careful):
                verdict, note = ROUNDED, ""
            else:
                verdict, note = WRONG, FOLLOWS if _fits_any(number, index, believed) else ""
            numbers.append(Number(index, number.text, true, number.alike(true), verdict, note))
        if name:
            self.exact[name] = exact
            kept = {number.index for number in numbers if number.verdict != WRONG}
            for known, candidates, which in ((self.careful, careful, kept), (self.printed, believed, set(printed))):
                value = candidates[0].copy() if which else candidates[0]
                for index in which:
                    value[index] = printed[index].value
                known[name] = value
        return numbers

    def _candidates(self, tree: Any, known: Known, exact: np.ndarray) -> list[np.ndarray]:
        """The value computed from `known`, then with some names exact: an author may have kept their digits."""
        used = sorted(names(tree) & known.keys())
        differ = [name for name in used if not np.array_equal(known[name], self.exact[name])]
        if not differ:
            return [exact]
        subsets = (kept for n in range(len(differ) + 1) for kept in itertools.combinations(differ, n))
        found = []
        for kept in itertools.islice(subsets, 16):
            try:
                value = work_out(tree, {**known, **{name: self.exact[name] for name in kept}})
            except TooMuch:
                raise
            except UserError:
                value = exact
            # a wrong number may be a bad index, or change the shape
            found.append(value if value.shape == exact.shape else exact)
        return found


def _fits_any(number: Printed, index: tuple[int, ...], candidates: list[np.ndarray]) -> bool:
    return any(number.fits(float(value[index])) for value in candidates)
