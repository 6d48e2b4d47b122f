"""A run prepared to go on from its newest checkpoint: what was changed in it is reviewed, and what is left to do."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..collectives.processes import world
from ..config import UserError, build
from ..console import note
from ..data.hub import current_form
from ..device import pick_device
from ..families.family import family
from ..runs.run import Run
from ..train.loop import checkpoint
from ..train.loop.resume_changes import Change, newest_state, record_changes, review_changes
from ..train.model_selection import Validation
from ..train.settings import (
    TrainConfig,
    check_final_rate,
    check_patience,
    check_processes,
    check_settings,
    fit_warmup,
    resumed,
)
from ..train.task import why_last
from .loading import open_run
from .run_data import task_of, whole_path
from .run_setup import Training, check_memory
from .several_processes import say_restart


def trained_on(run: Path) -> str | None:
    """The device that a run was trained on; None where it cannot be read, which is reported later."""
    try:
        return open_run(run).config["train"].get("device")
    except (UserError, OSError):
        return None


def prepare_resume(run: Path, changed: Mapping[str, Any], data: str | None, allow_changes: bool) -> Training | None:
    """The run, its task and its settings; None where there is nothing left to do."""
    opened = open_run(run)
    origin = "was imported" if "import" in opened.config else "is an average of checkpoints"
    if "import" in opened.config or "average" in opened.config:
        place = shlex.quote(str(run))
        raise UserError(
            f"{run} {origin}, so there is no training to continue; train from it: pencil train {opened.family} "
            f"--from {place} --data DATA"
        )
    if allow_changes and world().is_rank0:
        with opened.writing():
            if fault := opened.mend_manifest():
                note(f"{fault}; it is written anew, of the files as they are, which cannot be verified")
    # before the data is read; the trainer reports it
    changes, notes = review_changes(opened, family(opened.family), allow_changes)
    say_restart(opened, note)
    try:
        return _continue(opened, changed, data, allow_changes)
    except UserError as error:
        if not changes:
            raise
        raise UserError(f"{error}; {notes[-1]}") from None


def _continue(opened: Run, changed: Mapping[str, Any], data: str | None, allow_changes: bool) -> Training | None:
    """Prepare a run whose settings were reviewed."""
    record = family(opened.family)
    config = build(TrainConfig, resumed(opened.path, opened.config["train"], changed), "train.")
    check_settings(config, record.train_settings, record.name)
    check_final_rate(config, changed)
    check_processes(config, world().size)
    # a preset's inverse square root may warm up for longer than the run
    # and a time budget's plans, by which the schedule goes, may have fewer steps than the first, with its warm-up
    planned = "plans" in opened.config
    if not planned or changed.keys() & {"steps", "warmup"}:
        # which was fitted to that first plan, so it is fitted again where the steps chosen now are fewer than it has
        follows = config.schedule == "inverse-sqrt" or (planned and config.warmup > config.steps)
        config, fitted = fit_warmup(config, chosen="warmup" in changed or not follows)
        for line in fitted:
            note(line)
    if pick_device(config.device).type == "cpu":
        check_memory(record, record.read_config(opened.config["model"]), config)
    task = task_of(opened, config, data, note)
    check_patience(config, why_last(task))
    if data is not None and world().is_rank0:
        _record_place(opened, data)
    if not allow_changes and (line := _nothing_left(opened, config)):
        note(line)
        return None
    return Training(opened, task, config)


def _nothing_left(opened: Run, config: TrainConfig) -> str | None:
    """Why a run that has ended does not go on, and what continues it; None where there is something left to do."""
    steps, newest = checkpoint.saved_steps(opened.path), newest_state(opened.path)
    if not steps or newest is None or newest[1].get("evaluation_due"):
        return None
    validation = Validation.restored(newest[1].get("validation"), {})
    if steps[-1] < config.steps and not validation.exhausted(config.patience):
        return None
    opened.verify("tokenizer.json", "model.safetensors")
    newest_whole, faults = checkpoint.latest(opened.path)
    for line in faults:
        note(line)
    if newest_whole is None or newest_whole.step < min(steps[-1], config.steps):
        return None
    if newest_whole.step < config.steps:
        return (
            f"{opened.path} stopped at step {newest_whole.step} of {config.steps}: no better validation loss in "
            f"{validation.without_better} evaluations; --train.patience 0 continues it"
        )
    made = f"{opened.path} has made {newest_whole.step} steps and train.steps is {config.steps}"
    return f"{made}; a larger --train.steps continues it"


def _record_place(run: Run, data: str) -> None:
    """Write into the run where its data is."""
    was, now = run.config["run"]["data_path"], whole_path(data, family(run.family).embedded)
    if current_form(was) != now:
        with run.writing():
            run.config["run"]["data_path"] = now
            record_changes(run, 0, [Change("run.data_path", was, now)])
