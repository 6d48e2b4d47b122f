"""An evaluation that is divided among the processes of a training.

Each takes its share of the batches. The results of all batches come to all processes and are added up in the order of
the batches, so that they are those of one process, to the bit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from itertools import islice
from operator import add
from typing import Any, TypeVar

from ..progress import track
from .fsdp_gathering import serve_others
from .processes import on_all_ranks, world

T = TypeVar("T")
R = TypeVar("R")

_distributed: ContextVar[bool] = ContextVar("distributed", default=False)


class StopEverywhere(Exception):
    """Ends an evaluation on all processes when it is raised on one; subclasses give the reason."""


@contextmanager
def distributed_evaluation() -> Iterator[None]:
    """A context in which all processes evaluate together."""
    before = _distributed.set(world().size > 1)
    try:
        yield
    finally:
        _distributed.reset(before)


def distributed_map(items: Iterable[T], work: Callable[[T], R]) -> list[R]:
    """Map `work` over the items, in order; in `distributed_evaluation` JSON must be able to express its results."""
    if not _distributed.get():
        return [work(item) for item in (track(items) if isinstance(items, Sequence) else items)]
    rank, size = world().rank, world().size
    indices = track(range(rank, len(items), size)) if isinstance(items, Sequence) else None
    own_items = islice(items, rank, None, size) if indices is None else (items[i] for i in indices)  # pyright: ignore
    answers = gather_results(lambda: [work(item) for item in own_items])
    count = sum(map(len, answers))
    return [answers[number % size][number // size] for number in range(count)]


def ordered_sum(values: Iterable[float]) -> float:
    """The sum of floats from the first to the last; Python's own `sum` compensates for rounding since 3.12."""
    return reduce(add, values, 0.0)


def gather_results(work: Callable[[], Any]) -> list[Any]:
    """Call `work` on each process; returns the results by rank. If one process raises `StopEverywhere`, so do all."""

    def attempt() -> dict[str, Any]:
        try:
            return {"value": work()}
        except StopEverywhere as reason:
            return {"ended": type(reason).__name__}
        finally:
            serve_others()

    if world().size == 1:
        return [work()]
    answers = on_all_ranks(attempt)
    for answer in answers:
        if "ended" in answer:
            raise next(kind for kind in StopEverywhere.__subclasses__() if kind.__name__ == answer["ended"])
    return [answer["value"] for answer in answers]
