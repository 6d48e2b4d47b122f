"""resume: a run goes on from its newest whole checkpoint."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..collectives.processes import barrier_without_timeout, rank0_first, world
from ..config import UserError, build, fitted, overrides, setting_types
from .launch import start_several
from .names import check_run
from .screens.terminal import note
from .suggestions import setting_meant, undotted_words
from .train import Settings, train_to_end

if TYPE_CHECKING:
    from ..api.run_setup import Training
    from ..runs.run import Run
    from ..train.settings import TrainConfig


def resume(
    run: Path,
    /,
    *settings: Settings,
    data: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    allow_changes: Annotated[bool, Parameter(negative=())] = False,
    processes: int | None = None,
) -> int:
    """Continue a run from its newest whole checkpoint, to the same bits as if it had never stopped.

    Parameters
    ----------
    run
        The run's folder. Training settings can be changed: pencil resume RUN --train.steps 4000. A change that alters
        the result, such as of train.lr, is announced and recorded in the run.
    data
        Where the data is, if it was moved; it must be the same, by its hash.
    allow_changes
        Go on although settings or files of the run were changed or damaged since it was saved.
    processes
        Train in so many processes on this machine; it need not be the number that the run began with.
    """
    from ..train.settings import TrainConfig

    for name in undotted_words(settings):
        meant = setting_meant(name, {"train": setting_types(TrainConfig)}) or "pencil resume --help lists its options"
        raise UserError(f"resume cannot use {name}; {meant}")
    changed = overrides(list(settings), ("train",))["train"]
    check_run(run)
    fitted(TrainConfig, changed, "train.")
    from ..api.loading import open_run
    from ..api.several_processes import as_writer, check_same
    from ..api.several_processes import processes as join_others

    if world().is_rank0:
        open_run(run)  # before the processes are started
    start_several(processes)
    with join_others(changed.get("device") or _device(run)):
        check_same(
            {"command": "resume", "run": run.name, "train": changed, "data": data, "allow_changes": allow_changes}
        )
        training = rank0_first(lambda: as_writer(lambda: _prepare(run, changed, data, allow_changes), run))
        barrier_without_timeout()
        return 0 if training is None else train_to_end(*training, allow_changes)


def _device(run: Path) -> str | None:
    """The device that a run was trained on; None where it cannot be read, which is reported later."""
    from ..api.loading import open_run

    try:
        return open_run(run).config["train"].get("device")
    except (UserError, OSError):
        return None


def _prepare(run: Path, changed: dict[str, Any], data: str | None, allow_changes: bool) -> "Training | None":
    """The run, its task and its settings; None where there is nothing left to do."""
    from ..api.loading import open_run
    from ..api.several_processes import say_restart
    from ..families import family
    from ..train.loop.identity import review_changes

    opened = open_run(run)
    if "import" in opened.config:
        place = shlex.quote(str(run))
        raise UserError(
            f"{run} was imported, so there is no training to continue; train from it: pencil train {opened.family} "
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


def _continue(opened: "Run", changed: dict[str, Any], data: str | None, allow_changes: bool) -> "Training | None":
    """Prepare a run whose settings were reviewed."""
    from ..api.run_data import task_of
    from ..api.run_setup import Training, check_memory
    from ..device import pick_device
    from ..families import family
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

    config = build(TrainConfig, resumed(opened.path, opened.config["train"], changed), "train.")
    check_settings(config, family(opened.family).train_settings, opened.family)
    check_final_rate(config, changed)
    check_processes(config, world().size)
    # a preset's inverse square root may warm up for longer than the run
    # and a time budget's plans, by which the schedule goes, may have fewer steps than the first, with its warm-up
    if "plans" not in opened.config or changed.keys() & {"steps", "warmup"}:
        fit_warmup(config, chosen="warmup" in changed or config.schedule != "inverse-sqrt")
    if pick_device(config.device).type == "cpu":
        record = family(opened.family)
        check_memory(record, record.read_config(opened.config["model"]), config)
    task = task_of(opened, config, data, note)
    check_patience(config, why_last(task))
    if data is not None and world().is_rank0:
        _record_place(opened, data)
    if not allow_changes and (line := _nothing_left(opened, config)):
        note(line)
        return None
    return Training(opened, task, config)


def _nothing_left(opened: "Run", config: "TrainConfig") -> str | None:
    """Why a run that has ended does not go on, and what continues it; None where there is something left to do."""
    from ..train.loop import checkpoint
    from ..train.loop.identity import newest_state
    from ..train.validation import Validation

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


def _record_place(run: "Run", data: str) -> None:
    """Write into the run where its data is."""
    from ..api.run_data import whole_path
    from ..data.hub import current_form
    from ..families import family
    from ..train.loop.identity import Change, record_changes

    was, now = run.config["run"]["data_path"], whole_path(data, family(run.family).embedded)
    if current_form(was) != now:
        with run.writing():
            run.config["run"]["data_path"] = now
            record_changes(run, 0, [Change("run.data_path", was, now)])
