"""A training in several processes: rank 0 makes the run and prepares the data, the others open it."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from .. import __version__
from ..collectives.processes import (
    RankError,
    agent_name,
    broadcast,
    launch_folder,
    launch_name,
    on_all_ranks,
    only_rank0_prints,
    process_group,
    rank0_first,
    require_same_on_all_ranks,
    restarts,
    several_machines,
    world,
)
from ..config import UserError, build
from ..device import pick_device
from ..runs.run import Run
from ..train.loop import checkpoint
from ..train.settings import TrainConfig
from .loading import open_run
from .run_data import task_of
from .run_setup import Training

T = TypeVar("T")
Notify = Callable[[str], None]
MAX_FRUITLESS_RESTARTS = 3  # restarts in a row that may come no further


@contextmanager
def processes(device: str | None) -> Iterator[None]:
    """Join the other processes of this training, where torchrun has started some; only rank 0 prints."""
    with only_rank0_prints(), process_group(pick_device(device or "auto")):
        yield


def check_same(settings: Any) -> None:
    """Refuse processes that were not all started with the same settings and versions."""
    table = json.loads(json.dumps(settings, default=str))
    require_same_on_all_ranks({**table, "pencil": __version__, "torch": torch.__version__}, "settings")


def make_once(make: Callable[[Path | None], Training], out: Path | None, name: str | None, notify: Notify) -> Training:
    """The run that rank 0 makes, opened by the others too.

    After a restart it is the one that was made before, if it has a checkpoint; else it is made anew in its place.
    """
    if world().size == 1 and not restarts():
        return make(None)
    made: list[Training] = []
    new: list[bool] = []

    def by_writer() -> None:
        if not world().is_rank0:
            return
        earlier = _find_earlier_run(out, name)
        if earlier is not None:
            say_restart(earlier, notify)
        elif restarts():
            _count_restart(0, "before training began")
        new.append(earlier is None)
        if earlier is None or not checkpoint.saved_steps(earlier.path):
            made.append(make(None if earlier is None else earlier.path))
        else:
            made.append(_open_again(earlier))

    rank0_first(by_writer)
    place = broadcast([str(made[0][0].path.resolve()), made[0][0].id, new[0]] if made else None)

    def by_others() -> None:
        if not made:
            made.append(as_writer(lambda: _open_again(_open_as_seen_here(*place[:2])), place[0]))

    try:
        on_all_ranks(by_others, patient=True)  # where they do not share rank 0's cache
    except Exception:
        if world().is_rank0 and place[2]:  # nobody is to find half a run
            shutil.rmtree(place[0], ignore_errors=True)
        raise
    return made[0]


def as_writer(work: Callable[[], T], run: str | Path) -> T:
    """What `work` returns. What rank 0 could open and this process cannot is a file that it sees otherwise."""
    try:
        return work()
    except RankError:
        raise
    except UserError as error:
        if world().is_rank0:
            raise
        why = re.split("[:;] ", str(error))[0]  # without its mend, which is another
        sentence = f"it cannot open {run} as rank 0 does: {why}; all processes need the same files"
        raise RankError(world().rank, sentence) from None


def say_restart(run: Run, notify: Notify) -> None:
    """Report that a restarted training goes on; refuse to, where several restarts in a row came no further."""
    if not restarts() or not world().is_rank0:
        return
    step = max(checkpoint.saved_steps(run.path), default=0)
    notify(f"A process had ended: restart {restarts()}, on with {run.path} from step {step}")
    every = run.config["train"].get("save_every")
    _count_restart(step, f"no further than step {step}", f"; --train.save_every below {every} saves more often")


def _count_restart(step: int, where: str, mend: str = "") -> None:
    """Give up where several restarts in a row ended at the same step."""
    folder = launch_folder()
    if folder is None:
        return
    with open(folder / "restarts", "a+", encoding="utf-8") as file:
        file.write(f"{step}\n")
        file.seek(0)
        steps = file.read().split()
    if len(steps) > MAX_FRUITLESS_RESTARTS and len(set(steps[-MAX_FRUITLESS_RESTARTS - 1 :])) == 1:
        how = "came" if mend else "ended"
        raise UserError(f"{MAX_FRUITLESS_RESTARTS} restarts in a row {how} {where}, so the training is given up{mend}")


def _open_again(run: Run) -> Training:
    config = build(TrainConfig, run.config["train"], "train.")
    return Training(run, task_of(run, config), config)


def _open_as_seen_here(place: str, number: str | None) -> Run:
    """Rank 0's run, as this process sees it."""
    try:
        run = open_run(place)
    except (UserError, OSError):
        run = None
    if run is None or run.id != number:
        raise RankError(
            world().rank,
            f"it cannot see the run folder {place} that rank 0 has made: all processes need one file system",
        )
    return run


def _find_earlier_run(out: Path | None, name: str | None) -> Run | None:
    """The run that this training made before it was restarted. On several machines not every restart is counted."""
    if not restarts() and not several_machines():
        return None
    usual = sorted(Path("runs").glob("*/config.toml"), key=os.path.getmtime, reverse=True)
    for path in [out] if out else [Path("runs", name)] if name else [config.parent for config in usual]:
        try:
            run = open_run(path)
            made = run.config["run"]
            if made.get("launch") == launch_name() and (restarts() or made.get("agent") == agent_name()):
                return run
        except (UserError, OSError):
            continue
    return None
