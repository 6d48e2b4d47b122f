"""predict: the predictions of any number of inputs, as a table."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..config import UserError
from ..console import note
from .evaluate import DTYPE_HELP
from .names import check_run
from .screens.terminal import LINE_EVERY, QUIET, progress_bar


def predict(
    run: Path,
    /,
    *inputs: Annotated[str, Parameter(allow_leading_hyphen=True)],
    out: Path,
    column: str | None = None,
    probabilities: Annotated[bool, Parameter(negative=())] = False,
    strict: Annotated[bool, Parameter(negative=())] = False,
    force: Annotated[bool, Parameter(negative=())] = False,
    batch: int = 64,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    beams: int | None = None,
    truncate: Annotated[bool, Parameter(negative=())] = False,
    seed: int | None = None,
    device: str = "auto",
    dtype: Annotated[str, Parameter(help=DTYPE_HELP)] = "auto",
) -> int:
    """Predict from any number of inputs, and write a table: a row each, in their order.

    A vit or a reader gives the class and its probability, a captioner or seq2seq its text. An input that cannot be read
    has its error in its row. A prediction that was interrupted is gone on with by the same command.

    Parameters
    ----------
    run
        The run's folder.
    inputs
        Pictures, folders of them, or texts in files: a .txt file (a path or a text a line), a table (.csv, .tsv, .jsonl
        or .parquet, with one input a row); - is standard input, a row for each line, a blank one too.
    out
        The table to write: .csv, .jsonl or .parquet.
    column
        The column of the tables that has the inputs, where that is not clear.
    probabilities
        Add a column for each class, with its probability.
    strict
        End at the first input that cannot be predicted; the rows before it are kept.
    force
        Replace a table of that name, or one that was begun.
    batch
        Inputs in one forward pass.
    max_new_tokens
        Of texts: the maximum number of tokens to generate.
    temperature
        Of texts: sampling temperature; 0 is greedy.
    beams
        Of a seq2seq: beam search with this many beams, of which the best is written.
    truncate
        Of a reader: read the beginning of a text that is longer than the context; else it has an error in its row.
    seed
        Of texts: random seed.
    device
        auto, cpu, cuda or mps.
    """
    if not inputs:
        raise UserError("INPUTS are missing: give files, folders, tables, or - for standard input")
    check_run(run)
    from ..api.loading import load
    from ..api.predict_files import kind_of, predict_file
    from ..data.inputs import check_source, count_inputs, inputs_of
    from ..device import pick_device

    loaded = load(run, pick_device(device), dtype)
    kind = kind_of(loaded.run.family)
    for source in inputs:
        check_source(source, kind, column)
    given = {"max_new_tokens": max_new_tokens, "temperature": temperature, "beams": beams, "seed": seed}
    given["truncate"] = truncate or None
    options = {name: value for name, value in given.items() if value is not None}
    with ExitStack() as stack:
        result = predict_file(
            loaded,
            inputs_of(inputs, kind, column),
            out,
            options,
            batch=batch,
            strict=strict,
            probabilities=probabilities,
            force=force,
            progress=_progress(count_inputs(inputs, kind), stack),
        )
    note(f"{result.path}: {_counted(result.rows, 'row')}{_besides(result)}")
    return 0


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _besides(result: Any) -> str:
    """The rest of the sentence: rows with errors, and rows of an earlier prediction."""
    errors = f", {result.errors:,} of them with an error" if result.errors else ""
    return errors + (f"; {result.resumed:,} were there from before" if result.resumed else "")


def _progress(total: int | None, stack: ExitStack) -> Any:
    """What shows how many are done: a bar where their number is known, else a line now and then."""
    if total is not None:
        show = stack.enter_context(progress_bar("predicting"))
        return lambda done, errors: show(done / max(total, done))
    began, due = time.monotonic(), QUIET

    def progress(done: int, errors: int) -> None:
        nonlocal due
        if (spent := time.monotonic() - began) >= due:
            due = spent + LINE_EVERY
            note(f"predicting: {done:,} after {spent:.0f} s, {_counted(errors, 'error')}")

    return progress
