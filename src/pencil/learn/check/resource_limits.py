"""What the formulas of one file may compute: a hostile file neither fills the memory nor runs for long."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...config import UserError

LARGEST = 1_000_000  # numbers in one value, so that it cannot fill the memory
WORK = 24_000_000  # cells that the formulas of one file may compute, so that it cannot run for long
SECONDS = 10.0  # of CPU time, where a cell takes longer than foreseen
OVERHEAD = 600  # of one operation, in cells


class TooMuch(UserError):
    """The formulas of a file compute more than they may."""


class Budget:
    """What the formulas of one file may still compute."""

    def __init__(self):
        self.left, self.end = WORK, time.process_time() + SECONDS
        self.paid: set[object] = set()

    def spend(self, cells: int) -> None:
        self.left -= cells + OVERHEAD
        if self.left < 0 or time.process_time() > self.end:
            raise TooMuch(f"the formulas up to here compute more than the {WORK:,} numbers that a file may")


_BUDGET: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def limited() -> Iterator[None]:
    """One budget for all formulas that are worked out inside."""
    before = _BUDGET.set(Budget())
    try:
        yield
    finally:
        _BUDGET.reset(before)


def spend(cells: int) -> None:
    """Take the cells that an operation computes from the budget."""
    if (budget := _BUDGET.get()) is not None:
        budget.spend(cells)


def spend_once(key: object, cells: int) -> None:
    """The same for what is kept, so that a file pays for it once."""
    if (budget := _BUDGET.get()) is not None and key not in budget.paid:
        budget.paid.add(key)
        budget.spend(cells)


@contextmanager
def untimed() -> Iterator[None]:
    """The CPU time inside is not counted: importing torch takes seconds, and computes nothing of the file's."""
    began = time.process_time()
    try:
        yield
    finally:
        if (budget := _BUDGET.get()) is not None:
            budget.end += time.process_time() - began


def check_size(count: int) -> None:
    if count > LARGEST:
        raise UserError(f"a value of {count:,} numbers is more than the {LARGEST:,} a formula may hold")


def integer(x: Any) -> int:
    if not float(x).is_integer() or abs(x) > 2**31:
        raise ValueError(f"{float(x):g} is not a whole number in range")
    return int(x)
