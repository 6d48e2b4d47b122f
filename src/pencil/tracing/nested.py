"""Arguments and results as they come: tensors alone, in lists, in tuples, in dictionaries; each by a name."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any

from torch import Tensor


def tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors inside an argument or a result, each with a name."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from tensors(one, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for i, one in enumerate(value):
            yield from tensors(one, f"{name}.{i}" if name else str(i))


def mapped(value: Any, name: str, change: Callable[[str, Tensor], Tensor]) -> Any:
    """An argument or a result with each tensor in it changed, by the name `tensors` gives it."""
    if isinstance(value, Tensor):
        return change(name, value)
    if isinstance(value, Mapping):
        new = {key: mapped(one, f"{name}.{key}" if name else str(key), change) for key, one in value.items()}
        if all(new[key] is value[key] for key in new):
            return value
        other = copy(value)
        for key, one in new.items():
            other[key] = one  # pyright: ignore[reportIndexIssue]
        return other
    if isinstance(value, list | tuple):
        parts = [mapped(one, f"{name}.{i}" if name else str(i), change) for i, one in enumerate(value)]
        if all(a is b for a, b in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
