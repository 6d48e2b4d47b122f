"""Pictures of the hub, through the `datasets` package (an extra)."""

import hashlib
import io
from pathlib import Path
from typing import Any

from ..config import UserError
from .folders import PHOTOS
from .images import FileExamples, PictureData, Skipped, Target, check_classes


class Cell:
    """One picture of a table, read when it is decoded."""

    def __init__(self, table: Any, row: int, column: str):
        self.table, self.row, self.column = table, row, column
        self.name = f"row {row}"

    def open(self) -> io.BufferedIOBase:
        cell = self.table[self.row][self.column]
        return io.BytesIO(cell["bytes"]) if cell["bytes"] is not None else Path(cell["path"]).open("rb")


def from_hub(name: str, want: str) -> PictureData:
    """`hub:OWNER/NAME`, or a folder of parquet files the `datasets` package can read."""
    try:
        import datasets
    except ImportError:
        raise UserError(
            "hub data sets need the datasets package; pip install 'pencil-transformers[datasets]'"
        ) from None
    try:
        found = datasets.load_dataset(name)
    except Exception as error:  # the package raises many kinds, each with a sentence of its own
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"hub:{name} cannot be loaded: {why}") from None
    features = next(iter(found.values())).features
    pictures = [key for key, kind in features.items() if isinstance(kind, datasets.Image)]
    kind = datasets.ClassLabel if want == "label" else datasets.Value
    targets = [k for k, f in features.items() if isinstance(f, kind) and (want == "label" or f.dtype == "string")]
    if not pictures or not targets:
        raise UserError(f"hub:{name} has columns {', '.join(features)}: no picture with a {want} among them")
    column, target = pictures[0], targets[0]
    names = tuple(map(str, features[target].names)) if want == "label" else ()
    test = next((found[key] for key in ("test", "validation", "valid", "val") if key in found), None)
    train = found.get("train", next(iter(found.values())))
    if test is None:
        halves = train.train_test_split(test_size=0.1, seed=0)
        train, test = halves["train"], halves["test"]
    if want == "label":
        check_classes([str(names[i]) for i in set(train[target])], f"hub:{name}")
    skipped: Skipped = []

    def examples(table: Any) -> FileExamples:
        values: list[Target] = list(table[target])
        without = [i for i, value in enumerate(values) if value in (None, "", -1)]
        if without:
            raise UserError(f"hub:{name} has {len(without)} pictures without a {want}, the first in row {without[0]}")
        undecoded = table.cast_column(column, datasets.Image(decode=False))
        return FileExamples([Cell(undecoded, i, column) for i in range(len(table))], values, skipped)

    parts = examples(train), examples(test)
    sha = hashlib.sha256(repr([part.targets for part in parts]).encode()).hexdigest()
    native = dict(image_size=(64, 64), channels=3, patch=(8, 8))
    augment = PHOTOS if want == "label" else dict(crop=0.9)
    short = name.rstrip("/").split("/")[-1]
    return PictureData(
        short, sha, parts[0], parts[1], names, native, augment, skipped=skipped, chosen_by="test" not in found
    )
