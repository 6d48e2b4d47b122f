"""The training loop for a task that the user writes: any nn.Module, any data, in a folder that can be resumed."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import __version__
from ..collectives.distributed_map import distributed_map, ordered_sum
from ..collectives.processes import only_rank0_prints, process_group, rank0_first, world
from ..config import UserError, build
from ..console import note
from ..device import pick_device, random_state_kept
from ..runs.run import Run
from ..train import task as base
from ..train.loop import time_budget
from ..train.loop.state import Trained
from ..train.loop.trainer import Trainer
from ..train.settings import OPTIONAL, TrainConfig, check_final_rate, check_patience, fit_warmup, resumed, with_budget
from ..train.task import Batch, one_number, why_last

DEFAULTS: Mapping[str, Any] = dict(optimizer="adamw", weight_decay=0.0)  # of any module; Muon is for a model's blocks

FOLDER_ARGUMENTS = ("out=", "force=True")  # those that choose a folder, and replace it


class Task(base.Task):
    """A task of your own: `build`, `batch` and `loss`, and `held_out` or `evaluate`; the rest has defaults.

    `self.train` has the training settings, such as `self.train.batch` and `self.train.seed`, before `build` is called.
    """

    config: Any = None

    def held_out(self) -> Iterable[Batch]:
        """Batches that are not trained on."""
        raise UserError(f"{type(self).__name__} has no held-out data: give it `held_out`, or an `evaluate` of its own")

    @torch.no_grad()
    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        """Metrics, `val_loss` among them: the mean loss of the held-out batches, or of the first `batches` of them."""
        device = next(model.parameters()).device

        def batch_loss(batch: Batch) -> tuple[float, float]:
            size = self.targets(batch)
            return float(one_number(self.loss(model, tuple(tensor.to(device) for tensor in batch)), self)) * size, size

        losses = distributed_map(islice(self.held_out(), batches), batch_loss)
        total, count = ordered_sum(loss for loss, _ in losses), sum(size for _, size in losses)
        if not count:
            raise UserError(f"the held-out data of {type(self).__name__} is empty")
        return {"val_loss": total / count}


def fit(
    task: Task,
    out: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    quiet: bool = False,
    on_step: Callable[[int, dict[str, float]], Any] | None = None,
    on_evaluation: Callable[[int, dict[str, float]], Any] | None = None,
    **settings: Any,
) -> Trained:
    """Train a task of your own into the folder `out`; the settings are those of `train.`: steps=500, lr=1e-3.

    The optimizer is AdamW without weight decay unless others are given. With `resume` the run that is in the folder
    goes on from its newest checkpoint, to the same bits as if it had never stopped; without one it starts.
    """
    began, path, task_name = time_budget.clock(), Path(out), type(task).__name__
    if resume and (path / "config.toml").is_file():
        run = Run.open(path)
        if run.config["run"].get("task") != task_name:
            raise UserError(f"{path} is a run of {run.config['run'].get('task', run.family)}, not of {task_name}")
        config = build(TrainConfig, resumed(run.path, run.config["train"], settings, "steps="), "train.")
    else:
        run, config = None, build(TrainConfig, with_budget({**DEFAULTS, **settings}), "train.")
        config, notes = fit_warmup(config, "warmup" in settings)
        for line in () if quiet or not world().is_rank0 else notes:
            note(line)
    for name in OPTIONAL:
        if getattr(config, name) is not None:
            raise UserError(f"train.{name} has no effect on a task of your own: leave it out")
    check_patience(config, why_last(task))
    check_final_rate(config, settings)
    task.train = config
    facts = {"family": task_name, "task": task_name, "data": task.about(), "pencil": __version__}
    with only_rank0_prints(), process_group(pick_device(config.device)):
        if run is None:
            table = {"run": facts, "model": {}, "train": config}
            rank0_first(
                lambda: Run.create(path, table, None, force, words=FOLDER_ARGUMENTS) if world().is_rank0 else None
            )
            run = Run.open(path)
        trainer = Trainer(task, run, config, quiet=quiet, on_step=on_step, on_evaluation=on_evaluation, began=began)
        outcome = trainer.train()

    def load(path: Path, device: str) -> nn.Module:
        with random_state_kept(torch.device("cpu")):
            model = task.build()
        Run.open(path).load_weights(model)
        return model.to(device).eval()

    return Trained.of(run, outcome, load)
