"""A run evaluated on other data than its own: all of it, with the run's classes and its tokenizer."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..config import UserError
from ..data.hub import current_form
from ..data.images.examples import FileExamples
from ..families.registry import family
from ..runs.run import Run
from ..train.settings import TrainConfig
from ..train.task import DataChanged
from .data_record import short_hash, trained_files
from .run_setup import task_of, whole_path


def task_on(run: Run, config: TrainConfig, data: str, notify: Callable[[str], None]) -> tuple[Any, bool]:
    """The task of a run on this data, and whether it is other data than the run's own.

    Of the run's own data only what was held out is evaluated, as without --data. Of other data everything is, except
    files that the run was trained on.
    """
    record, facts = family(run.family), run.config["run"]
    source = whole_path(data, record.embedded)
    own = source == current_form(facts.get("data_path", ""))
    if own:
        try:
            task = task_of(run, config, notify=notify)
        except DataChanged:
            notify(f"{data} has changed since {run.path} was trained on it: it is evaluated as it is")
        else:
            notify(f"{data} is the data of {run.path}: its held-out part is evaluated")
            return task, False
    if "whole" not in inspect.signature(record.task.reopen).parameters:
        raise UserError(f"a {record.name} can be evaluated on its own data only: leave --data out")
    task = record.task.reopen(record, run, source, config, whole=True)
    if not own and task.hash == facts.get("data_hash"):
        notify(f"{data} is the data that {run.path} was trained on: its held-out part is evaluated")
        return task_of(run, config, data, notify), False
    left = _leave_out_trained(task, run, notify)
    if own and not left:
        notify(f"most of it is what {run.path} was trained on, so these are not the metrics of unseen data")
    return task, True


def _leave_out_trained(task: Any, run: Run, notify: Callable[[str], None]) -> bool:
    """Take out the images that the run was trained on; whether that is known."""
    data, trained = task.data, trained_files(run)
    test, hashes = getattr(data, "test", None), getattr(data, "hashes", {})
    if not trained or not hashes or not isinstance(test, FileExamples):
        return False
    kept = [i for i, source in enumerate(test.sources) if short_hash(hashes[source]) not in trained]
    if not kept:
        raise UserError(f"{run.path} was trained on all {len(test):,} images of {data.name}: none is left to evaluate")
    if len(kept) < len(test):
        notify(
            f"{run.path} was trained on {len(test) - len(kept):,} of the {len(test):,} images of {data.name}: they "
            "are left out"
        )
        sources, targets = ([part[i] for i in kept] for part in (test.sources, test.targets))
        task.data = replace(data, test=FileExamples(sources, targets, test.skipped))
    return True


def amount(task: Any) -> str:
    """How much a task evaluates on."""
    data = task.data
    if not hasattr(data, "test"):
        return f"{len(data.val):,} tokens"
    what = "videos" if getattr(task.config, "frames", 1) > 1 else "images" if hasattr(task, "transform") else "texts"
    return f"{len(data.test):,} {what if data.classes or what != 'texts' else 'pairs'}"
