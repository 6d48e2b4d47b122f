"""Settings of how data is read."""

from dataclasses import dataclass
from typing import Literal

from .augment import Fit


@dataclass(frozen=True)
class DataConfig:
    """How data is read; what is unset follows from the data."""

    fit: Fit | None = None  # pictures of another shape: crop to their middle, pad with grey bars, squash both sides
    delimiter: Literal["comma", "semicolon", "tab", "pipe"] | None = None  # of a table
    header: bool | None = None  # whether the first line of a table names its columns
    text_column: str | None = None  # of texts with labels: a column's name, or its number from 1; of JSON a key
    label_column: str | None = None
    source_column: str | None = None  # of pairs of texts
    target_column: str | None = None
