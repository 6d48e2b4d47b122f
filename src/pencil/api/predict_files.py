"""Predictions of any number of inputs, written to a table while they are made.

Inputs are read ahead on other threads, predicted in batches, and written in their order: a row each, a bad one with its
error. Rows go to a file of JSON lines beside the table, FILE.part, whose first line says what the prediction is of; a
killed prediction goes on behind the last whole row of it. At the end it becomes the table. So only some batches are in
memory, whatever the number of inputs.
"""

import csv
import io
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..config import UserError, check_output, package
from ..data.images.augment import ImageTransform
from ..data.images.decoding import pool
from ..data.inputs import Input, Kind
from ..families.family import FAMILIES, family
from ..families.predictions import Prediction, ReadPicture, Text, class_row, input_transform, read_picture
from ..files import lock_open_file, open_aside
from ..runs.files import WEIGHTS
from ..runs.run import Loaded
from .loading import predictor

ENDINGS = (".csv", ".jsonl", ".parquet")
BATCH = 64  # inputs in one forward pass
BATCHES_AHEAD = 3  # of pictures that are decoded before they are needed
BATCHES_SORTED = 16  # of texts, which are put in order of length, so that little is padded
KINDS: dict[str, Kind] = {"image": "picture", "prompt": "text", "source": "text"}  # by the option of `pencil sample`
PROBABILITY = "probability of "  # how the column of a class begins
PART_ROWS = 4096  # rows of a Parquet table that are written at a time
Progress = Callable[[int, int], None]  # how many are done, and how many of them could not be predicted


class PredictedFile(NamedTuple):
    """A table of predictions that is whole."""

    path: Path
    rows: int
    errors: int  # rows that have an error in place of a prediction
    resumed: int  # rows that were there from a prediction that was interrupted


def kind_of(name: str) -> Kind:
    """What the models of a family read; one without inputs of its own is refused."""
    record = family(name)
    if record.predict is not None:
        for option, kind in KINDS.items():
            if option in record.sample_options.REQUIRED:
                return kind
    able = [one.name for one in FAMILIES.values() if one.predict and KINDS.keys() & one.sample_options.REQUIRED.keys()]
    raise UserError(f"a {name} has no inputs to predict from, only {', '.join(able)} have: pencil sample draws from it")


def predict_file(
    loaded: Loaded,
    inputs: Iterator[Input],
    out: Path,
    options: Mapping[str, Any] | None = None,
    *,
    batch: int = BATCH,
    strict: bool = False,
    probabilities: bool = False,
    force: bool = False,
    progress: Progress = lambda done, errors: None,
) -> PredictedFile:
    """Write a row for each input into the table `out`, in their order; an interrupted prediction is gone on with.

    With `strict` the first input that cannot be predicted ends it, and the rows before stay. `probabilities` adds a
    column for each class. With `force` the table is made anew.
    """
    check_output("--out", out, *ENDINGS)
    if out.suffix.lower() == ".parquet":
        package("pyarrow", f"{out.name} is a Parquet table, which needs pyarrow", "hub-data")
    if batch < 1:
        raise UserError(f"--batch must be at least 1, not {batch}")
    kind, classes = kind_of(loaded.run.family), _classes(loaded)
    if probabilities and classes is None:
        raise UserError(f"{loaded.run.path} writes texts and has no classes: leave --probabilities out")
    predict = predictor(loaded, options or {})
    if out.exists() and not force:
        raise UserError(f"{out} is already there: --force replaces it, or choose another name")
    part = out.with_name(f"{out.name}.part")
    if force:
        part.unlink(missing_ok=True)
    columns = ["label", "probability"] if classes is not None else ["text", "ended"]
    columns += [f"{PROBABILITY}{name}" for name in classes or ()] if probabilities else []
    head = {
        "predictions of": _identity(loaded),
        "options": dict(options or {}),
        "columns": ["input", *columns, "error"],
    }
    with part.open("a+b") as file:
        lock_open_file(file.fileno(), f"{part} is being written by another process")
        done, errors = _continue(file, head, inputs, part)
        resumed = done
        for answers in _answers(predict, _prepared(loaded, inputs, kind, batch), kind, batch):
            rows = []
            for one, result, fault in answers:
                if fault and strict:
                    _write_rows(file, rows)
                    raise UserError(f"{fault}; {done + len(rows):,} rows are in {part}, and the same command goes on")
                errors += bool(fault)
                rows.append(_row(one, result, fault, columns))
            _write_rows(file, rows)
            done += len(rows)
            progress(done, errors)
        if not done:
            part.unlink()
            raise UserError("there is no input to predict from")
        _to_table(file, head["columns"], out)
        part.unlink()
    return PredictedFile(out, done, errors, resumed)


def _classes(loaded: Loaded) -> list[str] | None:
    """The names of the classes that are predicted; None where texts are."""
    if getattr(loaded.model.config, "output", "label") != "label":
        raise UserError(f"{loaded.run.path} tells no classes apart and writes no text: train it on texts with labels")
    return loaded.classes or None


def _identity(loaded: Loaded) -> dict[str, Any]:
    """The run and its weights."""
    run = loaded.run
    manifest = getattr(run, "manifest", None)
    weights = [entry.get("sha256") for entry in (manifest.files.get(WEIGHTS) or ())] if manifest is not None else []
    dtype = str(next(loaded.model.parameters()).dtype).removeprefix("torch.")
    return {
        "family": run.family,
        "run": manifest.run if manifest is not None else None,
        "weights": weights,
        "dtype": dtype,
    }


# ---- from inputs to answers

Prepared = tuple[Input, Any, str]  # an input, what is predicted from, and what is wrong with it
Answer = tuple[Input, Any, str]  # an input, its result, and what is wrong with it


def _prepared(loaded: Loaded, inputs: Iterator[Input], kind: Kind, batch: int) -> Iterator[Prepared]:
    """The inputs as the model takes them, in their order; pictures are decoded ahead."""
    if kind == "text":
        yield from ((one, one.value, one.fault) for one in inputs)
        return
    transform = input_transform(loaded)
    waiting: deque[Any] = deque()
    for one in inputs:
        waiting.append(pool().submit(_decoded, one, transform))
        if len(waiting) > BATCHES_AHEAD * batch:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _decoded(one: Input, transform: ImageTransform) -> Prepared:
    if one.fault:
        return one, None, one.fault
    try:
        return one, ReadPicture(read_picture(one.value, transform)), ""
    except (UserError, OSError, ValueError) as error:
        return one, None, str(error)


def _answers(
    predict: Callable[[Sequence[Any]], list[Any]], prepared: Iterator[Prepared], kind: Kind, batch: int
) -> Iterator[list[Answer]]:
    """The results in the order of the inputs, some batches at a time."""
    size = batch if kind == "picture" else batch * BATCHES_SORTED
    while window := list(islice(prepared, size)):
        answers: list[Answer] = [(one, None, fault) for one, _, fault in window]
        good = [i for i, (*_, fault) in enumerate(window) if not fault]
        if kind == "text":
            good.sort(key=lambda i: len(str(window[i][1])))
        for begin in range(0, len(good), batch):
            few = good[begin : begin + batch]
            for i, (result, fault) in zip(few, _each(predict, [window[i][1] for i in few]), strict=True):
                answers[i] = window[i][0], result, fault
        yield answers


def _each(predict: Callable[[Sequence[Any]], list[Any]], values: list[Any]) -> list[tuple[Any, str]]:
    """The result of each value, or why it has none: a batch that is refused is divided, down to the one at fault."""
    try:
        return [(result, "") for result in predict(values)]
    except UserError as error:
        if len(values) == 1:
            return [(None, str(error))]
    half = len(values) // 2
    return _each(predict, values[:half]) + _each(predict, values[half:])


def _row(one: Input, result: Any, fault: str, columns: Sequence[str]) -> dict[str, Any]:
    """The row of an input, as JSON has it."""
    values: dict[str, Any] = dict.fromkeys(columns)
    if isinstance(result, list):  # of a beam search, best first
        result = result[0]
    if isinstance(result, Prediction):
        likely = class_row(result)
        values |= {"label": likely["label"], "probability": likely["probability"]}
        each = {f"{PROBABILITY}{name}": value for name, value in likely["probabilities"].items()}
        values |= {name: each[name] for name in columns if name in each}
    elif isinstance(result, Text):
        values |= {"text": result.text, "ended": result.ended}
    return {"input": _written(one.name), **values, "error": _written(fault) or None}


def _written(text: str) -> str:
    """A text that can be written as UTF-8: of a name that is none, the bytes are written out."""
    return text.encode("utf-8", "backslashreplace").decode()


# ---- the part file, and the table


def _write_rows(file: IO[bytes], rows: Iterable[Mapping[str, Any]]) -> None:
    file.write(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    file.flush()


def _continue(file: IO[bytes], head: Mapping[str, Any], inputs: Iterator[Input], part: Path) -> tuple[int, int]:
    """Go behind the last whole row that is there, past the inputs that it is of; how many there are, and errors."""
    file.seek(0)
    first = file.readline()
    if not first.endswith(b"\n"):
        file.truncate(0)
        _write_rows(file, [head])
        return 0, 0
    if _parsed(first) != json.loads(json.dumps(head)):
        raise UserError(
            f"{part} is of another prediction: of another run, other weights or other options; --force makes it anew"
        )
    done = errors = 0
    place = file.tell()
    while (line := file.readline()).endswith(b"\n") and (row := _parsed(line)):
        one = next(inputs, None)
        if one is None or _written(one.name) != row.get("input"):
            now = "there is none" if one is None else f"it is {one.name}"
            raise UserError(
                f"{part} has {row.get('input')} as input {done + 1:,}, and now {now}: the inputs have changed; --force "
                "makes it anew"
            )
        done, errors, place = done + 1, errors + bool(row.get("error")), file.tell()
    file.truncate(place)
    file.seek(place)
    return done, errors


def _parsed(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        row = json.loads(line)
        return row if isinstance(row, dict) else None
    return None


def _to_table(file: IO[bytes], columns: Sequence[str], out: Path) -> None:
    """The rows of the part file as the table, which is there whole or not at all."""
    file.seek(0)
    file.readline()
    rows = (json.loads(line) for line in file)
    with open_aside(out) as table:
        if out.suffix.lower() == ".jsonl":
            for row in rows:
                table.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        elif out.suffix.lower() == ".csv":
            text = io.TextIOWrapper(table, encoding="utf-8", newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([row[name] for name in columns] for row in rows)
            text.flush()
            text.detach()
        else:
            _to_parquet(rows, columns, table)


def _to_parquet(rows: Iterator[Mapping[str, Any]], columns: Sequence[str], table: IO[bytes]) -> None:
    arrow, parquet = (
        package(name, "a Parquet table needs pyarrow", "hub-data") for name in ("pyarrow", "pyarrow.parquet")
    )
    numbers = [name for name in columns if name == "probability" or name.startswith(PROBABILITY)]
    schema = arrow.schema([(name, arrow.float64() if name in numbers else arrow.string()) for name in columns])
    with parquet.ParquetWriter(table, schema) as writer:
        while some := list(islice(rows, PART_ROWS)):
            writer.write_table(arrow.Table.from_pylist([dict(row) for row in some], schema=schema))
