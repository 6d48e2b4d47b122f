"""What a training writes into its run: checkpoints, the weights to be used, and the card that describes them."""

import errno
import math
import platform
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from .. import __version__
from ..files import write_aside
from ..manifest import WEIGHTS
from ..runs import Run
from . import checkpoint
from .ema import ExponentialMovingAverage
from .identity import identity
from .nonfinite import require_finite
from .optim import state_tensors
from .report import ProgressBar, model_card
from .settings import TrainConfig
from .task import Task, why_last
from .validation import Validation

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Saving:
    """The part of a trainer that writes: it has the attributes that are named here."""

    task: Task
    run: Run
    config: TrainConfig
    model: nn.Module
    optimizers: dict[str, torch.optim.Optimizer]
    ema: ExponentialMovingAverage | None
    device: torch.device
    step: int
    evaluated: int  # the step that was evaluated last
    best: dict[str, Any]
    validation: Validation
    pending: list[float]
    seconds: float
    skipped: int

    def averaged(self) -> AbstractContextManager[Any]:
        """The model with the weights it is used with: their moving average, where there is one."""
        return nullcontext() if self.ema is None else self.ema.in_place()

    def keep_best(self, results: dict[str, float]) -> None:
        """Save the weights that sample and eval use: the best by validation; the last where a test set is held out."""
        if not self.task.select_best or results["val_loss"] < self.best.get("val_loss", math.inf):
            best = {"step": self.step, **results}
            self.write_weights(best)
            self.best = best

    def save_interrupted_weights(self) -> None:
        """An interrupted run is used with its last weights, unless better ones were kept."""
        if (
            self.step
            and self.step != self.run.weights_step
            and (not self.task.select_best or not self.best.get("step"))
        ):
            self.write_weights({"step": self.step})

    def write_weights(self, facts: Mapping[str, Any]) -> None:
        """Write the weights with these facts about them, and the card that says the same."""
        with self.averaged():
            require_finite(self.model.state_dict(), WEIGHTS)
            self.run.write_weights(self.model, {**self._facts(), **facts})
        self.write_card()

    def write_card(self) -> None:
        """README.md, from what the weights' own file records: it describes those that are there."""
        if not (weights := self.run.weights_facts):
            return
        parameters = sum(p.numel() for p in self.model.parameters())
        card = model_card(
            self.run.path, self.run.config, parameters, weights, why_last(self.task), self.task.usage
        )  # fmt: skip
        write_aside(self.run.path / "README.md", card.encode())

    def _facts(self) -> dict[str, Any]:
        return {
            "family": self.run.family, "weights": "ema" if self.ema else "model", "pencil": __version__
        }  # fmt: skip

    def save(self) -> None:
        """A checkpoint of this step."""
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        if self.ema is not None:
            tensors |= {f"ema.{name}": t for name, t in self.ema.values.items()}
        state = {
            "of": identity(self.run), "optimizer": self.config.optimizer,
            "best": self.best, "pending": self.pending, "seconds": self.seconds, "skipped": self.skipped,
            "validation": self.validation.state(), "evaluation_due": self.evaluation_due(),
            "threads": torch.get_num_threads(), "device": self.device.type,
            "versions": {"pencil": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }  # fmt: skip
        tensors |= state_tensors(self.model, self.optimizers)
        require_finite(tensors, f"the checkpoint of step {self.step}")
        checkpoint.write(self.run.path, self.step, tensors, state, self.config.keep)

    def evaluation_due(self) -> bool:
        """Whether this step is one that is evaluated, and has not been."""
        due = self.step >= self.config.steps or self.step % self.config.eval_every == 0
        return due and self.evaluated != self.step

    def save_before_stop(self) -> str:
        """Save the weights before a bad update; what is kept, in words."""
        if self.step and self.step not in checkpoint.saved(self.run.path):
            self.save()
            self.save_interrupted_weights()
        return self.last_kept()

    def last_kept(self) -> str:
        steps = checkpoint.saved(self.run.path)
        return f"the checkpoint of step {steps[-1]} is kept" if steps else "no checkpoint had been written yet"

    def or_later(self, bar: ProgressBar, what: str, write: Callable[[], Any]) -> None:
        """Write something that is written again later; a full disk is reported, and training goes on."""
        try:
            write()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            bar.print(f"the disk is full: the {what} of step {self.step} could not be written; {self.last_kept()}; "
                      "training goes on")  # fmt: skip
