"""Resume a run from its newest checkpoint: verify it, then load its tensors and its state."""

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ...collectives.processes import on_all_ranks, on_rank0, world
from ...config import UserError
from ...files import beside
from ...runs.files import SHARED
from ...runs.run import Run
from ...tensors import rename
from ..optim import load_state_tensors
from ..parallel.shards import Pieces
from ..settings import TrainConfig
from ..task import Task
from . import checkpoint
from .checkpointer import Checkpointer
from .identity import Change, check_start, check_weights, record_changes, records_all_settings, review_changes

SHARED_FOLDER_WAIT_SECONDS = (0, 0.1, 0.5, 1, 2, 4)  # other machines may see a file of rank 0 some seconds later


class Restored(NamedTuple):
    """A run that was restored: what the user should know about it, and the state of its checkpoint."""

    notes: list[str]
    state: Mapping[str, Any]  # empty where there is no checkpoint


def restore(
    checkpointer: Checkpointer, evaluate: Callable[[], dict[str, float]], allow_changes: bool = False
) -> Restored:
    """Verify the run and load its newest whole checkpoint into the model, the optimizers and the state of a training.

    With several processes rank 0 verifies, and each of them reads its own pieces. `evaluate` gives the metrics of the
    weights, for a run whose own weights were lost.
    """
    run, state, recorded_changes = checkpointer.run, checkpointer.state, []
    check_shared(run.path)
    # a large checkpoint is read whole, which takes long
    verified = on_rank0(lambda: _verify(checkpointer, allow_changes, recorded_changes), patient=True)
    notes, lost, loaded = verified["notes"], verified["lost"], None
    if verified["step"] is not None:
        loaded = _open_verified(run, verified["step"], verified["sha256"])
        if verified["first"]:
            checkpointer.write_weights(loaded.state["best"])
        on_all_ranks(lambda: load(checkpointer, loaded))
        notes += differences_of_machine(checkpointer, loaded.state)
    if verified["changed"]:
        on_rank0(lambda: record_changes(run, state.step, recorded_changes, state.config))
        run.__dict__.pop("config", None)
    if lost is not None:
        notes.append(f"{lost}, and the weights of step {state.step} take its place")
        state.best = {}
        if state.step:
            checkpointer.keep_best(evaluate())
    return Restored(notes, {} if loaded is None else loaded.state)


def _verify(checkpointer: Checkpointer, allow_changes: bool, recorded_changes: list[Change]) -> dict[str, Any]:
    """Verify the run on rank 0; the result is sent to the other ranks, `recorded_changes` stay on this one.

    The result has the newest whole checkpoint, what the user should know, and whether there are changes to record.
    """
    run, task = checkpointer.run, checkpointer.task
    if allow_changes:
        for path, fault in run.check_files("tokenizer.json"):
            if fault is not None and path.is_file():
                run.accept(path.name)
    newest, notes = checkpoint.latest(run.path, foreign=allow_changes)
    changes, more = review_changes(
        run, task.family, allow_changes, None if newest is None else (newest.folder, newest.state)
    )
    lost = check_weights(run, allow_changes)
    notes += more if newest is not None else [*more, *check_start(run, allow_changes)]
    if newest is None and "from" in run.config["run"] and task.start is None:
        source = run.config["run"]["from"]
        raise UserError(
            f"{run.path} has no checkpoint with the weights of {source} that it starts from: train it anew with "
            f"--from {source} --out {run.path} --force"
        )
    chosen = chosen_changes(run, checkpointer.state.config)
    step = newest.step if newest else 0
    notes += [f"{change.name} is {change.now} from step {step} on; it was {change.was}" for change in chosen]
    recorded_changes += [*(change for change in changes if not change.free), *chosen]
    result = {"notes": notes, "lost": lost and f"{lost}; it was removed", "changed": bool(changes or chosen)}
    if newest is None:
        return {**result, "step": None}
    result |= {"step": newest.step, "sha256": newest.sha256, "first": _first_are_best(run, task, newest)}
    if result["first"] and "from" in run.config["run"]:
        # of a version that took them for untrained ones; they cannot be made again
        again = "the weights that the run began with, its best, were replaced when it was interrupted"
        result |= {"first": False, "lost": result["lost"] or again}
    return result


def _open_verified(run: Run, step: int, sha256: str) -> checkpoint.Checkpoint:
    """The checkpoint that rank 0 has verified; every rank must see the same one."""
    opened: list[checkpoint.Checkpoint] = []
    on_all_ranks(lambda: opened.append(checkpoint.read(run.path, step, sha256)))
    return opened[0]


def check_shared(path: Path) -> None:
    """Refuse a rank that does not see the folder that rank 0 writes to."""
    if world().size == 1:
        return
    sign = path / on_rank0(lambda: _create_sign(path))
    try:
        on_all_ranks(lambda: _wait_for_sign(path, sign))
    finally:
        if world().is_rank0:
            sign.unlink(missing_ok=True)


def _create_sign(path: Path) -> str:
    sign = beside(path / SHARED)  # under a name that the next writer sweeps away, should this one be killed
    sign.touch()
    return sign.name


def _wait_for_sign(path: Path, sign: Path) -> None:
    """Wait for a file of rank 0."""
    for seconds in SHARED_FOLDER_WAIT_SECONDS:
        time.sleep(seconds)
        if sign.exists():
            return
    raise UserError(
        f"{platform.node()} does not see the folder {path} of rank 0: choose one that all machines share, with --out"
    )


def chosen_changes(run: Run, config: TrainConfig) -> list[Change]:
    """The training settings, of those that change the result, that are not as the run has them."""
    defaults, was, now = asdict(TrainConfig()), run.config["train"], asdict(config)
    changes = [
        Change(f"train.{name}", _as_toml(was.get(name, defaults[name])), _as_toml(value)) for name, value in now.items()
    ]
    return [change for change in changes if change.was != change.now and not change.free]


def _as_toml(value: Any) -> Any:
    """A value as config.toml gives it back: TOML has lists, and no tuples."""
    return list(value) if isinstance(value, tuple) else value


def load(checkpointer: Checkpointer, loaded: checkpoint.Checkpoint) -> None:
    """Load a checkpoint into the model, the optimizers, the average and the state: of each tensor this rank's part."""
    model, state, ema = checkpointer.model, checkpointer.state, checkpointer.ema
    tensors, current = _under_current_names(checkpointer, loaded), model.state_dict()
    weights = {n.removeprefix("model."): s for n, s in tensors.shapes.items() if n.startswith("model.")}
    if weights != {n: tuple(t.shape) for n, t in current.items()}:
        raise UserError(f"{loaded.folder} is a checkpoint of another model: its tensors have other names or shapes")
    try:
        optimizer = loaded.state["optimizer"]
        state.load_state_dict(loaded.state)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{loaded.folder / 'state.json'} is not the state of a training: {error}") from None
    if optimizer != state.config.optimizer and loaded.step:
        raise UserError(
            f"{checkpointer.run.path} was trained with {optimizer} and cannot be resumed with {state.config.optimizer}"
        )
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in current.items():
            tensor.copy_(tensors.like(f"model.{name}", tensor))
    moments = {}
    try:
        for name in (n for n in tensors if n.startswith("optim.")):
            parameter = parameters[name.split(".", 2)[2].rpartition(".")[0]]
            same = tensors.shapes[name] == tuple(parameter.shape)  # a moment has the shape of its parameter
            moments[name] = tensors.like(name, parameter) if same else tensors[name]
        load_state_tensors(model, checkpointer.optimizers, moments)
    except KeyError as error:
        raise UserError(f"{loaded.folder} is a checkpoint of another model: {error} is not in this one") from None
    if ema is not None:
        average = [n.removeprefix("ema.") for n in tensors if n.startswith("ema.")]
        ema.restore({n: tensors.like(f"ema.{n}", parameters[n]) for n in average if n in parameters})


def _first_are_best(run: Run, task: Task, newest: checkpoint.Checkpoint) -> bool:
    """Whether the untrained weights, the best so far, must be made the run's own again.

    An interrupted run is used with later weights; one that goes on ends as if it had never been interrupted.
    """
    best = newest.state.get("best")
    first = isinstance(best, dict) and best.get("step") == 0
    return bool(first and run.weights_step and task.select_best)


def differences_of_machine(checkpointer: Checkpointer, recorded: Mapping[str, Any]) -> list[str]:
    """What of this machine and its processes is otherwise than where a checkpoint with this state was saved."""
    now = {"threads": torch.get_num_threads(), "device": checkpointer.device.type}
    then = {"processes": 1, **recorded}
    if not checkpointer.state.config.exact:
        now["processes"] = world().size
    changed = {key: value for key, value in now.items() if then.get(key, value) != value}
    effect = dict.fromkeys(changed, "the result may differ in its last bits")
    if "processes" in changed and _has_dropout(checkpointer.model):
        effect["processes"] = "dropout draws other numbers, and the result differs (--train.exact true has the same)"
    return [f"{key} was {then[key]} and is {value} now: {effect[key]}" for key, value in changed.items()]


def _has_dropout(model: nn.Module) -> bool:
    """Whether a model has dropout, torch's or our own."""
    settings = (
        ("dropout" if isinstance(m, nn.Dropout) and k == "p" else k, v)
        for m in model.modules()
        for k, v in vars(m).items()
    )
    return any("dropout" in key and isinstance(value, float) and value > 0 for key, value in settings)


def _under_current_names(checkpointer: Checkpointer, loaded: checkpoint.Checkpoint) -> Pieces:
    """The tensors of a checkpoint under the names of this version."""
    if records_all_settings(loaded.state) or loaded.state["of"].get("model") == checkpointer.run.config["model"]:
        return loaded.tensors

    def current(name: str) -> str:
        # model.NAME, ema.NAME or optim.KIND.NAME.KEY
        cut = name.index(".", len("optim.") if name.startswith("optim.") else 0) + 1
        return name[:cut] + rename(name[cut:], checkpointer.task.family.renamed_tensors)

    return loaded.tensors.renamed(current)
