"""The functions that formulas of worked examples may call, on float64 arrays."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any

import numpy as np

from ..config import UserError

LARGEST = 1_000_000  # numbers in one value, so that it cannot fill the memory
WORK = 20_000_000  # cells that the formulas of one file may compute, so that it cannot run for long
SECONDS = 10.0  # of CPU time, where a cell takes longer than foreseen
OVERHEAD = 300  # of one operation, in cells
CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf}


class TooMuch(UserError):
    """The formulas of a file compute more than they may."""


class Budget:
    """What the formulas of one file may still compute."""

    def __init__(self):
        self.left, self.end = WORK, time.process_time() + SECONDS

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


def check_size(count: int) -> None:
    if count > LARGEST:
        raise UserError(f"a value of {count:,} numbers is more than the {LARGEST:,} a formula may hold")


def integer(x: Any) -> int:
    if not float(x).is_integer() or abs(x) > 2**31:
        raise ValueError(f"{float(x):g} is not a whole number in range")
    return int(x)


def _sizes(parts: tuple[Any, ...]) -> list[int]:
    """The sizes in reshape(x, 2, 3) or reshape(x, shape(y))."""
    return [integer(size) for part in parts for size in np.ravel(part)]


def _each(function: Callable) -> Callable:
    def each(x):
        return function(x)

    return each


def _along(function: Callable) -> Callable:
    def along(x, *, axis=None, keepdims=False):
        return function(x, axis=None if axis is None else integer(axis), keepdims=bool(keepdims))

    return along


def _filled(number: float) -> Callable:
    def filled(*shape):
        sizes = _sizes(shape)
        check_size(prod(sizes))
        return np.full(sizes, number)

    return filled


_erf = np.vectorize(math.erf, otypes=[float])


def _softmax(x, *, axis=-1):
    raised = np.exp(x - np.max(x, axis=integer(axis), keepdims=True))
    return raised / raised.sum(axis=integer(axis), keepdims=True)


def _layernorm(x, gamma=1, beta=0, *, eps=0):
    check_size(prod(np.broadcast_shapes(np.shape(x), np.shape(gamma), np.shape(beta))))
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * gamma + beta


def _concat(*parts, axis=-1):
    return np.concatenate(parts, axis=integer(axis))


def _stack(*parts, axis=0):
    return np.stack(parts, axis=integer(axis))


def _reshape(x, *shape):
    return np.reshape(x, _sizes(shape))


def _transpose(x, *axes):
    return np.transpose(x, _sizes(axes) or None)


def _fold(image, patch):
    *outer, height, width = image.shape
    p = integer(patch)
    if p < 1 or height % p or width % p:
        raise ValueError(f"{height}×{width} is not cut evenly by patches of {p}")
    return image.reshape(*outer, height // p, p, width // p, p)


def _swap(folded):
    return np.swapaxes(folded, -3, -2)


def _glue(swapped):
    *outer, down, across, p, q = swapped.shape
    return swapped.reshape(*outer, down * across, p * q)


def _arange(start, stop=None, step=1):
    first, last = (0.0, float(start)) if stop is None else (float(start), float(stop))
    check_size(math.ceil((last - first) / float(step)))
    return np.arange(first, last, float(step))


def _eye(n):
    check_size(integer(n) ** 2)
    return np.eye(integer(n))


def _causal(n):
    check_size(integer(n) ** 2)
    return np.where(np.tri(integer(n)) > 0, 0.0, -np.inf)


def _where(condition, yes, no):
    check_size(prod(np.broadcast_shapes(np.shape(condition), np.shape(yes), np.shape(no))))
    return np.where(condition != 0, yes, no)


def _round(x, digits=0):
    return np.round(x, integer(digits))


FUNCTIONS: dict[str, Callable] = {
    **{name: _each(getattr(np, name)) for name in ("sqrt", "exp", "log", "log2", "sin", "cos", "tanh", "abs")},
    **{name: _each(getattr(np, name)) for name in ("floor", "ceil", "shape", "ravel")},
    **{name: _along(getattr(np, name)) for name in ("sum", "mean", "var", "std", "max", "min", "prod", "argmax")},
    "erf": _each(_erf),
    "relu": _each(lambda x: np.maximum(x, 0)),
    "sigmoid": _each(lambda x: 1 / (1 + np.exp(-x))),
    "silu": _each(lambda x: x / (1 + np.exp(-x))),
    "gelu": _each(lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2)))),
    "softmax": _softmax,
    "layernorm": _layernorm,
    "concat": _concat,
    "stack": _stack,
    "reshape": _reshape,
    "transpose": _transpose,
    "fold": _fold,
    "swap": _swap,
    "glue": _glue,
    "arange": _arange,
    "zeros": _filled(0.0),
    "ones": _filled(1.0),
    "eye": _eye,
    "causal": _causal,
    "where": _where,
    "round": _round,
}
