"""Prefetch: batches made in advance on another thread, so that training does not wait for decoding."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any


class Prefetch:
    """Calls `make(step, micro)` a few steps early; the results are the same as if it were called now."""

    def __init__(self, make: Callable[[int, int], Any], accumulate: int, steps: int, depth: int = 4):
        self.make, self.accumulate, self.steps, self.depth = make, accumulate, steps, depth
        self.pool = ThreadPoolExecutor(2, thread_name_prefix="prefetch")
        self.waiting: dict[tuple[int, int], Future] = {}

    def __call__(self, step: int, micro: int) -> Any:
        for key in islice(self._from(step, micro), self.depth):
            if key not in self.waiting:
                self.waiting[key] = self.pool.submit(self.make, *key)
        early = self.waiting.pop((step, micro), None)  # none of a step after the last: the pace is measured with some
        return self.make(step, micro) if early is None else early.result()

    def _from(self, step: int, micro: int) -> Iterator[tuple[int, int]]:
        for at in range(step * self.accumulate + micro, self.steps * self.accumulate):
            yield divmod(at, self.accumulate)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
