"""Progress of long work: a loop says how far it is, and whoever watches shows it, or stops the work by raising."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
Watch = Callable[[int, int], None]  # how many of how many are done


@dataclass
class _Watched:
    watch: Watch
    place: tuple[int, int] = (0, 0)  # of the outermost loop
    loops: list[object] = field(default_factory=list)


_watched: ContextVar[_Watched | None] = ContextVar("watched", default=None)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Call `watch(done, total)` at every turn of the tracked loops inside; what it raises ends the loop."""
    before = _watched.set(_Watched(watch))
    try:
        yield
    finally:
        _watched.reset(before)


def track(items: Sequence[T]) -> Iterator[T]:
    """The items one by one, for whoever watches; without a watcher nothing else happens."""
    return pollable(items, len(items))


def pollable(items: Iterable[T], total: int | None = None) -> Iterator[T]:
    """As `track`, for a loop whose length is given, or unknown: then it can be stopped, and shows no progress."""
    watching, done = _watched.get(), 0
    if watching is None:
        yield from items
        return
    loop = object()
    watching.loops.append(loop)
    try:
        for item in items:
            _tell(watching, loop, done, total)
            yield item
            done += 1
        _tell(watching, loop, done, total)
    finally:
        watching.loops.remove(loop)


def _tell(watching: _Watched, loop: object, done: int, total: int | None) -> None:
    """Only the outermost loop has a place to show; the others call with it again, so that they can be stopped."""
    if total is not None and watching.loops[0] is loop:
        watching.place = done, total
    watching.watch(*watching.place)


def duration(seconds: float) -> str:
    """A time in words, with two or three digits."""
    if seconds < 0.95:
        return f"{seconds * 1000:.2g} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5940 else f"{seconds / 3600:.1f} h"
