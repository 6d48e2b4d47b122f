"""A run taken up again: verified, then the newest whole checkpoint loaded into a trainer."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from ..runs import Run
from ..tensors import rename
from . import checkpoint
from .identity import Change, check_start, check_weights, complete, record_changes, review
from .optim import load_state_tensors
from .settings import TrainConfig
from .validation import Validation


def restore(trainer: Any) -> list[str]:
    """Verify a run and load its newest whole checkpoint into a trainer; what the user should know about it."""
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
    if kept is not None:
        _keep_first_weights(trainer, kept)
        _load(trainer, kept)
        notes += _elsewhere(trainer, kept)
    if changes or chosen:
        record_changes(run, trainer.step, [*(c for c in changes if not c.free), *chosen], trainer.config)
    if lost is not None:
        notes.append(f"{lost}; it was removed, and the weights of step {trainer.step} take its place")
        trainer.best = {}
        if trainer.step:
            trainer.keep_best(trainer.evaluate())
    return notes


def chosen_changes(run: Run, config: TrainConfig) -> list[Change]:
    """The training settings, of those that change the result, that are not as the run has them."""
    defaults, was, now = asdict(TrainConfig()), run.config["train"], asdict(config)
    changes = [Change(f"train.{name}", was.get(name, defaults[name]), value) for name, value in now.items()]
    return [change for change in changes if change.was != change.now and not change.free]


def _load(trainer: Any, kept: checkpoint.Checkpoint) -> None:
    """A checkpoint into the model, the optimizers and the average."""
    tensors = _current_names(trainer, kept)
    weights = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
    if {n: t.shape for n, t in weights.items()} != {n: t.shape for n, t in trainer.model.state_dict().items()}:
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
    trainer.model.load_state_dict(weights)
    optim = {n: t for n, t in tensors.items() if n.startswith("optim.")}
    try:
        load_state_tensors(trainer.model, trainer.optimizers, optim)
    except KeyError as error:
        raise UserError(f"{kept.folder} is a checkpoint of another model: {error} is not in this one") from None
    if trainer.ema is not None:
        trainer.ema.restore({n.removeprefix("ema."): t for n, t in tensors.items() if n.startswith("ema.")})
    trainer.step, trainer.best, trainer.pending, trainer.seconds = kept.step, best, pending, seconds
    trainer.skipped = kept.state.get("skipped", 0)
    trainer.evaluated = -1 if kept.state.get("evaluation_due") else kept.step
    trainer.validation = Validation.restored(kept.state.get("validation"), best)


def _keep_first_weights(trainer: Any, kept: checkpoint.Checkpoint) -> None:
    """Make the untrained weights the run's own again, if they are its best so far.

    An interrupted run is used with later weights; one that goes on ends as if it had never been interrupted.
    """
    best = kept.state.get("best")
    if isinstance(best, dict) and best.get("step") == 0 and trainer.run.weights_step and trainer.task.select_best:
        trainer.write_weights(best)


def _elsewhere(trainer: Any, kept: checkpoint.Checkpoint) -> list[str]:
    """What of this machine is otherwise than where the checkpoint was saved."""
    here = {"threads": torch.get_num_threads(), "device": trainer.device.type}
    return [
        f"{key} was {kept.state[key]} and is {value} now: the result may differ in its last bits"
        for key, value in here.items()
        if kept.state.get(key, value) != value
    ]


def _current_names(trainer: Any, kept: checkpoint.Checkpoint) -> dict[str, Tensor]:
    """The tensors of a checkpoint under the names of this version."""
    family, tensors = trainer.task.family, {}
    if complete(kept.state) or kept.state["of"].get("model") == trainer.run.config["model"]:
        return kept.tensors
    for name, tensor in kept.tensors.items():
        # model.NAME, ema.NAME or optim.KIND.NAME.KEY
        cut = name.index(".", len("optim.") if name.startswith("optim.") else 0) + 1
        tensors[name[:cut] + rename(name[cut:], family.renamed_tensors)] = tensor
    return tensors
