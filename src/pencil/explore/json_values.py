"""Values as JSON: numbers that are not finite become words, arrays become base64."""

import base64
import math
from typing import Any

import numpy as np


def number(value: Any) -> float | int | str:
    """A number as JSON writes it; "inf", "-inf" and "nan" are words."""
    if isinstance(value, complex):
        return f"{value.real:g}{value.imag:+g}i"
    if isinstance(value, bool | int | np.integer):
        return int(value)
    value = float(value)
    return value if math.isfinite(value) else "nan" if value != value else "inf" if value > 0 else "-inf"


def packed(values: Any, dtype: str) -> str:
    """An array as base64 of its little-endian bytes."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<")).tobytes()).decode()


def address(name: str, index: Any) -> str:
    """The address of a cell."""
    return f"{name}[{','.join(str(int(i)) for i in index)}]" if len(index) else name
