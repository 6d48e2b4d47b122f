"""What a training writes into its run: checkpoints, the weights to be used, and the card that describes them."""

import errno
import math
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ... import __version__
from ...collectives.processes import all_reduce_any, on_all_ranks, on_rank0, world
from ...files import write_aside
from ...runs.manifest import WEIGHTS
from ...runs.run import Run
from ...tensors import in_file_order
from ..optim import state_tensors
from ..parallel.shards import HostCopy, own_pieces, piece_of, spread
from ..settings import Plan, TrainConfig
from ..task import Task, why_last
from ..validation import Validation, about_highest
from . import checkpoint
from .background import Background
from .ema import ExponentialMovingAverage
from .identity import identity
from .nonfinite import require_finite
from .pace import Budget
from .report import ProgressBar, model_card

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
    highest: dict[str, Any]  # the evaluation with the highest headline
    validation: Validation
    pending: list[float]
    seconds: float
    skipped: int
    budget: Budget | None
    plans: list[Plan]  # of the time budget, as far as they are in force
    background: Background  # in which the checkpoints are written
    host: HostCopy
    saving: int  # the step of the checkpoint that is written now, or was written last

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
        """An interrupted run is used with its last weights, unless better ones were kept; random ones are not."""
        kept = self.best.get("step") or (self.best and "from" in self.run.config["run"])
        last = not self.task.select_best or not kept
        if self.step and last and self.step != on_rank0(lambda: self.run.weights_step):
            self.write_weights({"step": self.step})

    def write_weights(self, facts: Mapping[str, Any]) -> None:
        """Write the weights with these facts about them, and the card that says the same."""
        facts = {**self._facts(), **facts}
        with self.averaged():
            tensors = self.model.state_dict()
            self._require_finite(tensors, WEIGHTS)
            if any(map(spread, tensors.values())):
                on_all_ranks(lambda: self._stream_weights(tensors, facts))
            else:
                on_rank0(lambda: self.run.write_weights(self.model, facts))
        on_rank0(self.write_card)

    def _stream_weights(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Gather the weights from all processes, one tensor at a time; rank 0 writes each before the next."""
        whole = _gathered(tensors)
        try:
            if world().is_rank0:
                shapes = {name: tuple(tensors[name].shape) for name in in_file_order(tensors)}
                self.run.stream_weights(shapes, {name: tensors[name].dtype for name in shapes}, whole, facts)
        finally:
            for _ in whole:  # the others send until all tensors are through, whatever happens to the file
                pass

    def write_card(self) -> None:
        """README.md, from what the weights' own file records: it describes those that are there."""
        if not world().is_rank0 or not (weights := self.run.weights_facts):
            return
        parameters = sum(p.numel() for p in self.model.parameters())
        last = why_last(self.task)
        highest = "" if last else about_highest(self.highest, weights, self.task.headline)
        card = model_card(
            self.run.path, self.run.config, parameters, weights, last, self.task.usage, highest, self.task.unit
        )
        write_aside(self.run.path / "README.md", card.encode())

    def _facts(self) -> dict[str, Any]:
        return {"family": self.run.family, "weights": "ema" if self.ema else "model", "pencil": __version__}

    def save(self) -> None:
        """A checkpoint of this step: it stands when this returns."""
        try:
            self.background.wait()
        except OSError as error:
            if error.errno not in DISK_FULL:  # if it is still full, this checkpoint fails too
                raise
        self._start_saving()
        self.background.wait()

    def save_later(self, bar: ProgressBar) -> None:
        """A checkpoint of this step, written while training goes on; one that is still being written comes first."""
        self.report_saving(bar, wait=True)
        self._start_saving()

    def report_saving(self, bar: ProgressBar, wait: bool = False) -> None:
        """Raise what went wrong with a checkpoint that was written beside the training; all ranks at the same step.

        A full disk is reported, and training goes on.
        """
        if self.background.thread is not None and (wait or not all_reduce_any(self.background.busy)[0]):
            self.or_later(bar, "checkpoint", self.background.wait, self.saving)

    def _start_saving(self) -> None:
        """Copy everything to the host's memory, and write it in a thread."""
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        if self.ema is not None:
            tensors |= {f"ema.{name}": t for name, t in self.ema.values.items()}
        tensors |= state_tensors(self.model, self.optimizers)
        self._require_finite(tensors, f"the checkpoint of step {self.step}")
        here = world()
        pieces = own_pieces(tensors, here.is_rank0)
        cuts = {name: piece.cut for name, piece in pieces.items() if piece.cut is not None}
        several = here.size > 1 and any(map(spread, tensors.values()))
        copies, copied = self.host.take({name: piece.tensor for name, piece in pieces.items()})
        state = deepcopy(self._state()) if here.is_rank0 else {}  # the training changes its lists
        run, step, keep, group = self.run, self.step, self.config.keep, self._group()

        def write() -> None:
            copied()
            try:
                checkpoint.write(run.path, step, copies, state, keep, cuts if several else None, group)
            except OSError:
                _ = run.path  # refused if it was renamed meanwhile
                raise

        self.saving = step
        self.background.start(write)

    def _group(self) -> Any:
        """The group by which the threads of the processes tell one another how far they are."""
        if world().size > 1 and self.background.group is None:
            self.background.group = torch.distributed.new_group(backend="gloo")
        return self.background.group

    def _state(self) -> dict[str, Any]:
        """What a checkpoint records besides tensors."""
        size = world().size
        planned = {} if self.budget is None else {"plans": self.plans, "budget": self.budget.state()}
        return {
            "of": identity(self.run),
            "optimizer": self.config.optimizer,
            "best": self.best,
            "pending": self.pending,
            "seconds": self.seconds,
            "skipped": self.skipped,
            "validation": self.validation.state(),
            "evaluation_due": self.evaluation_due(),
            "threads": torch.get_num_threads(),
            "device": self.device.type,
            **planned,
            **({"processes": size} if size > 1 else {}),
            "versions": {"pencil": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }

    def _require_finite(self, tensors: Mapping[str, Tensor], what: str) -> None:
        """Refuse to write what is not finite, on all ranks if it is so on one."""
        on_all_ranks(lambda: require_finite({name: piece_of(t).tensor for name, t in tensors.items()}, what))

    def evaluation_due(self) -> bool:
        """Whether this step is one that is evaluated, and has not been."""
        due = self.step >= self.config.steps or self.step % self.config.eval_every == 0
        return due and self.evaluated != self.step

    def save_before_stop(self) -> str:
        """Save the weights before a bad update; what is kept, in words."""
        self.background.settle()
        if self.step and self.step not in on_rank0(lambda: checkpoint.saved(self.run.path)):
            self.save()
            self.save_interrupted_weights()
        return self.last_kept()

    def last_kept(self) -> str:
        self.background.settle()
        steps = checkpoint.saved(self.run.path)
        return f"the checkpoint of step {steps[-1]} is kept" if steps else "no checkpoint had been written yet"

    def or_later(self, bar: ProgressBar, what: str, write: Callable[[], Any], step: int | None = None) -> None:
        """Write something that is written again later; a full disk is reported, and training goes on."""
        try:
            write()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            step = self.step if step is None else step
            bar.print(
                f"the disk is full: the {what} of step {step} could not be written; {self.last_kept()}; "
                "training goes on"
            )


def _gathered(tensors: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Whole tensors, one at a time; every process takes part."""
    for name, tensor in tensors.items():
        yield name, tensor.detach().full_tensor() if spread(tensor) else tensor
