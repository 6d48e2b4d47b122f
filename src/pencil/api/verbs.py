"""The verbs on a run from Python, by the names of the command line: evaluate, resume, verify.

A run is its folder, what `pencil.load` gives, or what a training gave. Data is a path, or data in memory
(`data/in_memory.py`).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..collectives.processes import barrier_without_timeout, rank0_first
from ..config import UserError, refuse
from ..console import note
from ..data import in_memory
from ..runs.files import Fault
from ..runs.run import Loaded, Run
from .evaluate import evaluate_run
from .loading import load, open_run
from .resume import prepare_resume, trained_on
from .run_data import named_columns
from .several_processes import as_writer, check_same, processes
from .train import Callback, train_to_end
from .trained import TrainedRun
from .verifying import verify_run


def run_path(run: Any) -> Path:
    """The folder of a run: as a path, or of one that was opened or trained."""
    if isinstance(run, str | Path):
        return Path(run)
    path = run.run.path if isinstance(run, Loaded) else getattr(run, "path", None)
    if not isinstance(path, Path):
        raise UserError(f"a run is its folder, or what pencil.load or pencil.train gives, not {type(run).__name__}")
    return path


def columns_of(run: Path, data: Any, columns: Mapping[str, str | None]) -> dict[str, str]:
    """What the columns of data in memory are named for a run: as given, else as in its training, where they are."""
    names = in_memory.raw_columns(data)[0]
    recorded = {what: column for what, column in named_columns(open_run(run)).items() if column in names}
    return {**recorded, **{what: column for what, column in columns.items() if column is not None}}


def evaluate(
    run: Any,
    data: Any = None,
    *,
    text: str | None = None,
    label: str | None = None,
    source: str | None = None,
    target: str | None = None,
    image: str | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    by: str | None = None,
    baseline: bool = False,
    quiet: bool = False,
) -> dict[str, float]:
    """The metrics of a run on its held-out data, or on other data, as `pencil eval` has them.

    `data` is a path, or in memory: a table, (inputs, labels), or a list of pairs. `text`, `label`, `source`, `target`
    and `image` name columns of a table where they are others than in training.
    With `by`, another column of a table of texts with labels, also the accuracy for each of its values. With `baseline`
    also the metrics of simple classifiers, as baseline.commonest.accuracy; unless `quiet`, their table is shown.
    """
    path = run_path(run)
    columns = {"text": text, "label": label, "source": source, "target": target, "image": image}
    notify: Callable[[str], None] = (lambda line: None) if quiet else note
    folder = None if out is None else Path(out)
    in_memory.check_name(data)
    if not in_memory.is_data(data):
        refuse((any(columns.values()), "columns are named of data in memory: the run knows those of a file"))
        found = evaluate_run(path, None if data is None else str(data), device, dtype, folder, notify, by, baseline)
    else:
        with in_memory.forgotten(data, columns_of(path, data, columns)) as token:
            found = evaluate_run(path, token, device, dtype, folder, notify, by, baseline)
    for line in found.compared:
        notify(line)
    return found.metrics


def resume(
    run: Any,
    data: Any = None,
    *,
    allow_changes: bool = False,
    quiet: bool = False,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
    **settings: Any,
) -> TrainedRun:
    """Continue a run from its newest checkpoint, as `pencil resume` does; settings of training can be changed.

    A run that was trained on data in memory is given it again, unless it has a copy; it must be the same.
    """
    path = run_path(run)
    in_memory.check_name(data)
    if in_memory.is_data(data):
        data = in_memory.register(data, columns_of(path, data, {}))
    token = None if data is None else str(data)
    with processes(settings.get("device") or trained_on(path)):
        check_same({"command": "resume", "run": path.name, "train": settings, "data": token, "changes": allow_changes})
        training = rank0_first(lambda: as_writer(lambda: prepare_resume(path, settings, token, allow_changes), path))
        barrier_without_timeout()
        if training is None:  # nothing is left to do
            opened = open_run(path)
            facts = {"step": opened.weights_step}
            return TrainedRun(path, True, opened.weights_step or 0, facts, 0.0, load)
        notify: Callable[[str], None] = (lambda line: None) if quiet else note
        outcome = train_to_end(
            *training, allow_changes, notify=notify, quiet=quiet, on_step=on_step, on_evaluation=on_evaluation
        )
    return TrainedRun.of(Run(path), outcome, load)


def verify(run: Any) -> list[Fault]:
    """What is not whole in a run's folder, as `pencil verify` finds it: nothing, if the run is whole."""
    return [fault for _, fault in verify_run(run_path(run)) if fault is not None]
