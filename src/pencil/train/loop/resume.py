"""A run taken up again: verified, then the newest whole checkpoint loaded into a trainer."""

import platform
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from ..validation import Validation
from . import checkpoint
from .identity import Change, check_start, check_weights, complete, record_changes, review


def restore(trainer: Any) -> list[str]:
    """Verify a run and load its newest whole checkpoint into a trainer; what the user should know about it.

    With several processes rank 0 verifies, and each of them reads its own pieces.
    """
    run, written = trainer.run, []
    check_shared(run.path)
    found = on_rank0(lambda: _verify(trainer, written), patient=True)  # a large checkpoint is read whole
    notes, lost = found["notes"], found["lost"]
    if found["step"] is not None:
        kept = _opened(run, found)
        if found["first"]:
            trainer.write_weights(kept.state["best"])
        on_all_ranks(lambda: _load(trainer, kept))
        notes += _elsewhere(trainer, kept)
    if found["changed"]:
        on_rank0(lambda: record_changes(run, trainer.step, written, trainer.config))
        run.__dict__.pop("config", None)
    if lost is not None:
        notes.append(f"{lost}, and the weights of step {trainer.step} take its place")
        trainer.best = {}
        if trainer.step:
            trainer.keep_best(trainer.evaluate())
    return notes


def _verify(trainer: Any, written: list[Change]) -> dict[str, Any]:
    """What rank 0 finds in the run: the newest whole checkpoint, what the user should know, changes to record."""
    run, record, allow = trainer.run, trainer.task.family, trainer.allow_changes
    if allow:
        for path, fault in run.check_files("tokenizer.json"):
            if fault is not None and path.is_file():
                run.accept(path.name)
    kept, notes = checkpoint.latest(run.path, foreign=allow)
    changes, more = review(run, record, allow, None if kept is None else (kept.folder, kept.state))
    lost = check_weights(run, allow)
    notes += more if kept is not None else [*more, *check_start(run, allow)]
    if kept is None and "from" in run.config["run"] and getattr(trainer.task, "start", None) is None:
        source = run.config["run"]["from"]
        raise UserError(
            f"{run.path} has no checkpoint with the weights of {source} that it starts from: train it anew with "
            f"--from {source} --out {run.path} --force"
        )
    chosen = chosen_changes(run, trainer.config)
    notes += [f"{one.name} is {one.now} from step {kept.step if kept else 0} on; it was {one.was}" for one in chosen]
    written += [*(c for c in changes if not c.free), *chosen]
    found = {"notes": notes, "lost": lost and f"{lost}; it was removed", "changed": bool(changes or chosen)}
    if kept is None:
        return {**found, "step": None}
    found |= {"step": kept.step, "sha256": kept.sha256, "first": _first_are_best(trainer, kept)}
    if found["first"] and "from" in run.config["run"]:
        # of a version that took them for untrained ones; they cannot be made again
        again = "the weights that the run began with, its best, were replaced when it was interrupted"
        found |= {"first": False, "lost": found["lost"] or again}
    return found


def _opened(run: Run, found: Mapping[str, Any]) -> checkpoint.Checkpoint:
    """The checkpoint that rank 0 has verified; every rank must see the same one."""
    opened: list[checkpoint.Checkpoint] = []
    on_all_ranks(lambda: opened.append(checkpoint.read(run.path, found["step"], found["sha256"])))
    return opened[0]


def check_shared(path: Path) -> None:
    """Refuse a rank that does not see the folder that rank 0 writes to."""
    if world().size == 1:
        return
    sign = path / on_rank0(lambda: _put_sign(path))
    try:
        on_all_ranks(lambda: _see(path, sign))
    finally:
        if world().is_rank0:
            sign.unlink(missing_ok=True)


def _put_sign(path: Path) -> str:
    sign = beside(path / SHARED)  # under a name that the next writer sweeps away, should this one be killed
    sign.touch()
    return sign.name


def _see(path: Path, sign: Path) -> None:
    """Wait for a file of rank 0: other machines may see it a few seconds later."""
    for wait in (0, 0.1, 0.5, 1, 2, 4):
        time.sleep(wait)
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


def _load(trainer: Any, kept: checkpoint.Checkpoint) -> None:
    """A checkpoint into the model, the optimizers and the average: of each tensor what this process has of it."""
    tensors, own = _current_names(trainer, kept), trainer.model.state_dict()
    weights = {n.removeprefix("model."): s for n, s in tensors.shapes.items() if n.startswith("model.")}
    if weights != {n: tuple(t.shape) for n, t in own.items()}:
        raise UserError(f"{kept.folder} is a checkpoint of another model: its tensors have other names or shapes")
    try:
        was, best = kept.state["optimizer"], dict(kept.state["best"])
        pending, seconds = list(kept.state["pending"]), float(kept.state["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{kept.folder / 'state.json'} is not the state of a training: {error}") from None
    if was != trainer.config.optimizer and kept.step:
        raise UserError(
            f"{trainer.run.path} was trained with {was} and cannot be resumed with {trainer.config.optimizer}"
        )
    parameters = dict(trainer.model.named_parameters())
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors.like(f"model.{name}", tensor))
    optim = {}
    try:
        for name in (n for n in tensors if n.startswith("optim.")):
            parameter = parameters[name.split(".", 2)[2].rpartition(".")[0]]
            same = tensors.shapes[name] == tuple(parameter.shape)  # a moment has the form of its parameter
            optim[name] = tensors.like(name, parameter) if same else tensors[name]
        load_state_tensors(trainer.model, trainer.optimizers, optim)
    except KeyError as error:
        raise UserError(f"{kept.folder} is a checkpoint of another model: {error} is not in this one") from None
    if trainer.ema is not None:
        average = [n.removeprefix("ema.") for n in tensors if n.startswith("ema.")]
        trainer.ema.restore({n: tensors.like(f"ema.{n}", parameters[n]) for n in average if n in parameters})
    trainer.step, trainer.best, trainer.pending, trainer.seconds = kept.step, best, pending, seconds
    trainer.skipped = kept.state.get("skipped", 0)
    trainer.evaluated = -1 if kept.state.get("evaluation_due") else kept.step
    trainer.validation = Validation.restored(kept.state.get("validation"), best)
    trainer.plans, trainer.spent = list(kept.state.get("plans", ())), kept.state.get("budget")


def _first_are_best(trainer: Any, kept: checkpoint.Checkpoint) -> bool:
    """Whether the untrained weights, the best so far, must be made the run's own again.

    An interrupted run is used with later weights; one that goes on ends as if it had never been interrupted.
    """
    best = kept.state.get("best")
    first = isinstance(best, dict) and best.get("step") == 0
    return bool(first and trainer.run.weights_step and trainer.task.select_best)


def _elsewhere(trainer: Any, kept: checkpoint.Checkpoint) -> list[str]:
    """What of this machine is otherwise than where the checkpoint was saved."""
    here = {"threads": torch.get_num_threads(), "device": trainer.device.type}
    was = {"processes": 1, **kept.state}
    if not trainer.config.exact:
        here["processes"] = world().size
    changed = {key: value for key, value in here.items() if was.get(key, value) != value}
    effect = dict.fromkeys(changed, "the result may differ in its last bits")
    if "processes" in changed and _drops(trainer.model):
        effect["processes"] = "dropout draws other numbers, and the result differs (--train.exact true has the same)"
    return [f"{key} was {was[key]} and is {value} now: {effect[key]}" for key, value in changed.items()]


def _drops(model: nn.Module) -> bool:
    """Whether a model has dropout, torch's or our own."""
    settings = (
        ("dropout" if isinstance(m, nn.Dropout) and k == "p" else k, v)
        for m in model.modules()
        for k, v in vars(m).items()
    )
    return any("dropout" in key and isinstance(value, float) and value > 0 for key, value in settings)


def _current_names(trainer: Any, kept: checkpoint.Checkpoint) -> Pieces:
    """The tensors of a checkpoint under the names of this version."""
    if complete(kept.state) or kept.state["of"].get("model") == trainer.run.config["model"]:
        return kept.tensors

    def current(name: str) -> str:
        # model.NAME, ema.NAME or optim.KIND.NAME.KEY
        cut = name.index(".", len("optim.") if name.startswith("optim.") else 0) + 1
        return name[:cut] + rename(name[cut:], trainer.task.family.renamed_tensors)

    return kept.tensors.renamed(current)
