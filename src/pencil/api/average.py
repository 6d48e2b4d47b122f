"""The mean of a run's last checkpoints as a run of its own: as the first Transformer was used."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..config import UserError, build
from ..device import pick_device
from ..families.family import Family, family
from ..files import beside, sweep_folders, write_aside
from ..progress import track
from ..runs.files import DATA_COPY, DATA_RECORD, ORIGINAL
from ..runs.run import Run
from ..tensors import in_file_order
from ..train.loop import checkpoint
from ..train.loop.report import model_card
from ..train.settings import TrainConfig
from .loading import load_model, open_run
from .run_data import task_of

Notify = Callable[[str], None]


def average_run(
    run: Path, last: int, out: Path | None, force: bool, device: str, notify: Notify
) -> tuple[Run, dict[str, float]]:
    """A new run with the mean of the last checkpoints' weights, and its metrics on the held-out data.

    The weights of a checkpoint are those that the run would be used with at its step: their moving average, where the
    training keeps one.
    """
    opened = open_run(run)
    if last < 2:
        raise UserError(f"--last must be at least 2, not {last}: the mean of one checkpoint is that checkpoint")
    path = out or run.with_name(f"{run.resolve().name}-average")
    if path.exists() and not force:
        raise UserError(f"{path} exists already; choose another --out, or --force to replace it")
    if path.exists() and (not (path / "config.toml").is_file() or path.resolve() == run.resolve()):
        raise UserError(f"{path} is not another run that could be replaced; choose another --out")
    record, config = family(opened.family), build(TrainConfig, opened.config["train"], "train.")
    checkpoints = _newest(opened, last)
    steps = [one.step for one in checkpoints]
    shapes = _shapes(record, opened, checkpoints)
    notify(f"{run}: the mean of the checkpoints of steps {', '.join(map(str, steps))}")
    table = {**opened.config, "average": {"from": str(run.resolve()), "steps": steps}}
    kept = {name: opened.path / name for name in (DATA_RECORD, DATA_COPY, ORIGINAL)}
    others = {name: file.read_bytes() for name, file in kept.items() if file.is_file()}
    tokenizer = opened.tokenizer if (opened.path / "tokenizer.json").is_file() else None
    task = task_of(opened, config, notify=notify)
    sweep_folders(path)
    aside = beside(path)
    try:
        made = Run.create(aside, table, tokenizer, others=others)
        facts: dict[str, Any] = {"family": record.name, "weights": "average", "pencil": __version__, "step": steps[-1]}
        with made.writing():
            dtypes = {name: _tensor_of(checkpoints[-1], name).dtype for name in shapes}
            made.stream_weights(shapes, dtypes, _means(checkpoints, shapes, dtypes), facts)
            model = load_model(made, pick_device(device))
            metrics = {name: float(value) for name, value in task.evaluate(model, config.eval_batches).items()}
            made.write_weights(model, facts | metrics)
            count = sum(p.numel() for p in model.parameters())
            card = model_card(path, made.config, count, made.weights_facts, "", task.usage, "", task.unit)
            write_aside(aside / "README.md", card.encode())
        old = Run.open(path).put_aside() if path.exists() else None
        aside.rename(path)
        if old is not None:
            shutil.rmtree(old)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return Run.open(path), metrics


def _newest(run: Run, last: int) -> list[checkpoint.Checkpoint]:
    """The last checkpoints of a run, oldest first, each verified."""
    for what, sentence in (("import", "was imported"), ("average", "is an average itself")):
        if what in run.config:
            raise UserError(f"{run.path} {sentence}: it has no checkpoints")
    stored, _, faults = checkpoint.survey(run.path)
    for fault in (fault for fault in faults if fault.kind == "foreign"):
        raise UserError(str(fault))
    steps = sorted({one.step for one in stored})
    if len(steps) < last:
        one = len(steps) == 1
        there = f"{len(steps) or 'no'} checkpoint{'' if one else 's'}"
        there += f", of step{'' if one else 's'} {', '.join(map(str, steps))}" if steps else ""
        raise UserError(
            f"{run.path} has {there}, and --last asks for {last}: a training keeps the newest {last} with "
            f"--train.keep {last}"
        )
    return [checkpoint.read(run.path, step) for step in steps[-last:]]


def _shapes(record: Family, run: Run, checkpoints: Sequence[checkpoint.Checkpoint]) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights; checkpoints that are not of one model, or whose tensors have no mean, are refused."""
    with torch.device("meta"):
        model = record.create(record.read_config(run.config["model"]))
    tensors = model.state_dict()
    shapes = {name: tuple(tensors[name].shape) for name in in_file_order(tensors)}
    for one in checkpoints:
        of, newest = (state.state.get("of") or {} for state in (one, checkpoints[-1]))
        for part in ("model", "data", "tokenizer"):
            if of.get(part) != newest.get(part):
                raise UserError(
                    f"the checkpoints of steps {one.step} and {checkpoints[-1].step} of {run.path} have different "
                    f"settings ([{part}]): a smaller --last leaves the older ones out"
                )
        if {name: one.tensors.shapes.get(f"model.{name}") for name in shapes} != shapes:
            raise UserError(f"{one.folder} is a checkpoint of another model: its tensors have other names or shapes")
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise UserError(f"{name} of {run.path} holds whole numbers, which have no mean")
    return shapes


def _tensor_of(one: checkpoint.Checkpoint, name: str) -> Tensor:
    """A weight as the run would be used with it at the step of a checkpoint."""
    return one.tensors[f"ema.{name}" if f"ema.{name}" in one.tensors else f"model.{name}"]


def _means(
    checkpoints: Sequence[checkpoint.Checkpoint],
    shapes: dict[str, tuple[int, ...]],
    dtypes: dict[str, torch.dtype],
) -> Iterator[tuple[str, Tensor]]:
    """Each tensor's mean, computed in float64."""
    for name in track(list(shapes)):
        total = sum((_tensor_of(one, name).double() for one in checkpoints), torch.zeros(shapes[name]).double())
        yield name, (total / len(checkpoints)).to(dtypes[name])
