"""A cache of the values used last, limited by their number and by their bytes."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Cache(Generic[K, V]):
    """The values used last, at most so many and of so many bytes; `on_drop` hears of each key that is dropped.

    The value used last is kept whatever its size. Sizes are measured anew at every use, since a trace grows when its
    blocks are opened.
    """

    def __init__(
        self,
        most: int,
        most_bytes: int | None = None,
        bytes_of: Callable[[V], int] = lambda value: 0,
        on_drop: Callable[[K], object] = lambda key: None,
    ):
        self._most, self._most_bytes, self._bytes_of, self._on_drop = most, most_bytes, bytes_of, on_drop
        self._values: OrderedDict[K, V] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def __getitem__(self, key: K) -> V:
        """The value of a key that is kept; this does not count as using it."""
        return self._values[key]

    def get(self, key: K) -> V | None:
        """The value of a key, or None; this does not count as using it."""
        return self._values.get(key)

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        return self.put(key, self._values[key] if key in self._values else make())

    def put(self, key: K, value: V) -> V:
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > 1 and self._is_full():
            self._on_drop(self._values.popitem(last=False)[0])
        return value

    def pop(self, key: K) -> V | None:
        return self._values.pop(key, None)

    def _is_full(self) -> bool:
        if len(self._values) > self._most:
            return True
        return self._most_bytes is not None and sum(map(self._bytes_of, self._values.values())) > self._most_bytes
