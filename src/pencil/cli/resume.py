"""resume: a run goes on from its newest whole checkpoint."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..collectives.processes import barrier_without_timeout, rank0_first, world
from ..config import UserError, fitted, overrides, setting_types
from ..runs.files import example_run
from .launch import start_several
from .names import check_run
from .parsing import setting_meant, undotted_words
from .train import Settings, train_to_end


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
    if check_run(run) == example_run(run):
        raise UserError(
            f"{run} comes with Pencil and stays as it is: pencil train FAMILY --from {run} --data … trains another "
            "from its weights"
        )
    fitted(TrainConfig, changed, "train.")
    from ..api.loading import open_run
    from ..api.resume import prepare_resume, trained_on
    from ..api.several_processes import as_writer, check_same
    from ..api.several_processes import processes as join_others

    if world().is_rank0:
        open_run(run)  # before the processes are started
    start_several(processes)
    with join_others(changed.get("device") or trained_on(run)):
        check_same(
            {"command": "resume", "run": run.name, "train": changed, "data": data, "allow_changes": allow_changes}
        )
        training = rank0_first(lambda: as_writer(lambda: prepare_resume(run, changed, data, allow_changes), run))
        barrier_without_timeout()
        return 0 if training is None else train_to_end(*training, allow_changes)
