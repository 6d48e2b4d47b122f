"""Values as JSON: numbers that are not finite become words, arrays become base64."""

import base64
import json
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def number(value: Any) -> float | int | str:
    """A number as JSON writes it; "inf", "-inf" and "nan" are words."""
    if isinstance(value, complex):
        return f"{value.real:g}{value.imag:+g}i"
    if isinstance(value, bool | int | np.integer):
        return int(value)
    value = float(value)
    return value if math.isfinite(value) else "nan" if value != value else "inf" if value > 0 else "-inf"


def packed(values: ArrayLike, dtype: str) -> str:
    """An array as base64 of its little-endian bytes."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<")).tobytes()).decode()


def to_json(data: object) -> bytes:
    """Data as JSON; a number that is not finite is the word inf, -inf or nan, since JSON has none."""
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else "nan" if math.isnan(data) else "inf" if data > 0 else "-inf"
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, (list, tuple)) else data
