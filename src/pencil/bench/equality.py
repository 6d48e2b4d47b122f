"""Whether two models are the same function: the difference of their outputs, against a bound that the dtype gives."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Equality:
    """The relative error of one output against another, and the bound it must keep, by dtype."""

    errors: dict[str, float]
    bounds: dict[str, float]

    @property
    def equal(self) -> bool:
        # NaN is not equal either
        return all(error <= self.bounds[name] for name, error in self.errors.items())

    def __or__(self, other: "Equality") -> "Equality":
        return Equality(self.errors | other.errors, self.bounds | other.bounds)


def bound(dtype: torch.dtype, width: int, depth: int) -> float:
    """A relative error that rounding can explain: each block rounds its values a few times, at random.

    In float32 the sums of `width` products round as well; those of half precision are added up in float32.
    """
    each = math.sqrt(width) if dtype == torch.float32 else 2.0
    return torch.finfo(dtype).eps * each * math.sqrt(depth)


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        return math.inf
    difference = (ours.double() - theirs.double()).norm()
    return (difference / theirs.double().norm()).item()


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """How products of float32 matrices are computed: "highest" in float32; "high", as the trainer does, in TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@torch.no_grad()
def compare(
    ours: Callable[[], Tensor], theirs: Callable[[], Tensor], dtype: torch.dtype, width: int, depth: int
) -> Equality:
    """The outputs of two calls in this dtype."""
    name = str(dtype).removeprefix("torch.")
    with matmul_precision("highest"):
        return Equality({name: relative_error(ours(), theirs())}, {name: bound(dtype, width, depth)})
