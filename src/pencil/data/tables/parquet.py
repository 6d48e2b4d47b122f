"""Texts in a Parquet file, or in a folder of them, through the `datasets` package (an extra)."""

import hashlib
from pathlib import Path
from typing import Any

from ...config import UserError, install
from ...files import check_inside, check_regular, fingerprint


def is_parquet(path: Path) -> bool:
    """Whether a path is a Parquet file, or a folder that has such files."""
    if path.is_dir():
        return any(path.rglob("*.parquet"))
    return path.suffix.lower() == ".parquet"


def read_parquet(path: Path, data: str) -> tuple[list[str], list[list[str]], str]:
    """The names of the columns, the rows as text, and a hash of the files. The columns that hold no text are empty."""
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not path.exists():
        raise UserError(f"there is no file {data}")
    for file in files:
        check_regular(file)
        if path.is_dir():
            check_inside(file, path)
    try:
        import datasets
    except ImportError:
        raise UserError(f"{data} is a Parquet table, which needs the datasets package; {install('hub-data')}") from None
    try:
        datasets.disable_progress_bars()
        table: Any = datasets.Dataset.from_parquet([str(file) for file in files], keep_in_memory=True)
    except Exception as error:  # the package raises many kinds
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{data} cannot be read: {why}") from None
    finally:
        datasets.enable_progress_bars()
    names = list(table.features)
    columns = [_texts(table[name], table.features[name], datasets) for name in names]
    if not len(table):
        raise UserError(f"{data} is empty; write one pair a row")
    sha = hashlib.sha256(repr([(file.name, fingerprint(file)["sha256"]) for file in files]).encode()).hexdigest()
    return names, [list(row) for row in zip(*columns, strict=True)], sha


def _texts(column: Any, feature: Any, datasets: Any) -> list[str]:
    """A column as text: a class by its name, a number as it is written, and nothing for what is neither."""
    if isinstance(feature, datasets.ClassLabel):
        return ["" if value is None or value < 0 else feature.int2str(value) for value in column]
    return [str(value) if isinstance(value, (str, int, float)) else "" for value in column]
