"""What a training writes into its run: checkpoints, the weights to be used, and the card that describes them.

The card describes the file beside it. README.md of a run is written with the weights, from the facts in the weights'
own file: their step, and their metrics if they were evaluated. Where an interrupted run is used with its last weights,
and its best are still the untrained ones, resuming puts those back: the run ends as one that was never interrupted.
"""

import errno
import math
import platform
from collections.abc import Callable, Mapping
from concurrent import futures
from copy import deepcopy
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from ... import __version__
from ...collectives.processes import all_reduce_any, on_all_ranks, on_rank0, world
from ...files import write_aside
from ...runs.files import WEIGHTS
from ...runs.run import Run
from ...tensors import in_file_order
from ..optim import state_tensors
from ..parallel.shards import HostCopy, is_dtensor, own_pieces, piece_of
from ..task import Preview, Task, why_last
from ..validation import describe_highest
from . import checkpoint
from .ema import ExponentialMovingAverage, averaged
from .identity import identity
from .nonfinite import require_finite
from .report import ProgressBar, model_card
from .state import TrainState

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BackgroundWriter:
    """A thread that writes beside the training, one piece of work at a time; `wait` raises what the work raised.

    As a context it ends with its work: a training never ends while a file of it is being written.
    """

    def __init__(self) -> None:
        self.pool = futures.ThreadPoolExecutor(1, "pencil-checkpoint")
        self.work: futures.Future[object] | None = None  # until `wait` has asked for its end

    def start(self, work: Callable[[], object]) -> None:
        """Begin some work, after the one before it."""
        self.wait()
        self.work = self.pool.submit(work)

    def settle(self) -> None:
        """Wait for the end of the work."""
        if self.work is not None:
            futures.wait([self.work])

    def wait(self) -> None:
        """Wait for the end of the work, and raise what it raised."""
        self.settle()
        work, self.work = self.work, None
        if work is not None:
            work.result()

    def __enter__(self) -> "BackgroundWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.wait()
        else:  # what went wrong here would only hide the first error
            self.settle()


class Checkpointer:
    """Writes a training into its run.

    A checkpoint is copied to the host's memory, and written by a thread while training goes on.
    """

    def __init__(
        self,
        task: Task,
        run: Run,
        state: TrainState,
        model: nn.Module,
        optimizers: dict[str, torch.optim.Optimizer],
        ema: ExponentialMovingAverage | None,
        device: torch.device,
    ):
        self.task, self.run, self.state, self.device = task, run, state, device
        self.model, self.optimizers, self.ema = model, optimizers, ema
        self.writer, self.host = BackgroundWriter(), HostCopy()
        self.saving_step = 0  # that of the checkpoint that is written now, or was written last
        self._thread_group: torch.distributed.ProcessGroup | None = None

    def keep_best(self, results: dict[str, float]) -> None:
        """Save the weights that sample and eval use: the best by validation; the last where a test set is held out."""
        if not self.task.select_best or results["val_loss"] < self.state.best.get("val_loss", math.inf):
            best = {"step": self.state.step, **results}
            self.write_weights(best)
            self.state.best = best

    def save_interrupted_weights(self) -> None:
        """An interrupted run is used with its last weights, unless better ones were kept; random ones are not."""
        step, best = self.state.step, self.state.best
        has_trained_best = best.get("step") or (best and "from" in self.run.config["run"])
        use_last = not self.task.select_best or not has_trained_best
        if step and use_last and step != on_rank0(lambda: self.run.weights_step):
            self.write_weights({"step": step})

    def write_weights(self, facts: Mapping[str, Any]) -> None:
        """Write the weights with these facts about them, and the card that says the same."""
        weights = "ema" if self.ema else "model"
        facts = {"family": self.run.family, "weights": weights, "pencil": __version__, **facts}
        with averaged(self.ema):
            tensors = self.model.state_dict()
            self._require_finite(tensors, WEIGHTS)
            if any(map(is_dtensor, tensors.values())):
                on_all_ranks(lambda: self._stream_weights(tensors, facts))
            else:
                on_rank0(lambda: self.run.write_weights(self.model, facts))
        on_rank0(self.write_card)

    def _stream_weights(self, tensors: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Gather the weights from all processes, one tensor at a time; rank 0 writes each before the next."""
        # one tensor at a time; every process takes part
        whole = ((name, t.full_tensor() if is_dtensor(t) else t) for name, t in tensors.items())
        try:
            if world().is_rank0:
                shapes = {name: tuple(tensors[name].shape) for name in in_file_order(tensors)}
                self.run.stream_weights(shapes, {name: tensors[name].dtype for name in shapes}, whole, facts)
        finally:
            for _ in whole:  # the others send until all tensors are through, whatever happens to the file
                pass

    def write_preview(self, preview: Preview) -> None:
        """Write a sample of this step into samples/."""
        (self.run.path / "samples").mkdir(exist_ok=True)
        write_aside(self.run.path / "samples" / f"step-{self.state.step:08d}{preview.suffix}", preview.content)

    def write_card(self) -> None:
        """Write README.md from what the weights' own file records, so that it describes those that are there."""
        if not world().is_rank0 or not (weights := self.run.weights_facts):
            return
        parameters = sum(p.numel() for p in self.model.parameters())
        last = why_last(self.task)
        highest = "" if last else describe_highest(self.state.highest, weights, self.task.headline)
        card = model_card(
            self.run.path, self.run.config, parameters, weights, last, self.task.usage, highest, self.task.unit
        )
        write_aside(self.run.path / "README.md", card.encode())

    def save(self) -> None:
        """Write a checkpoint of this step; it is complete when this returns."""
        try:
            self.writer.wait()
        except OSError as error:
            if error.errno not in DISK_FULL:  # if it is still full, this checkpoint fails too
                raise
        self._start_saving()
        self.writer.wait()

    def save_later(self, bar: ProgressBar) -> None:
        """Write a checkpoint of this step while training goes on; one that is still being written comes first."""
        self.raise_failure(bar, wait=True)
        self._start_saving()

    def raise_failure(self, bar: ProgressBar, wait: bool = False) -> None:
        """Raise what went wrong with a checkpoint that was written beside the training; all ranks at the same step.

        A full disk is reported, and training goes on.
        """
        work = self.writer.work
        if work is not None and (wait or not all_reduce_any(not work.done())[0]):
            self.write_or_postpone(bar, "checkpoint", self.writer.wait, self.saving_step)

    def _start_saving(self) -> None:
        """Copy everything to the host's memory, and write it in a thread."""
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        if self.ema is not None:
            tensors |= {f"ema.{name}": t for name, t in self.ema.values.items()}
        tensors |= state_tensors(self.model, self.optimizers)
        self._require_finite(tensors, f"the checkpoint of step {self.state.step}")
        here = world()
        pieces = own_pieces(tensors, here.is_rank0)
        cuts = {name: piece.cut for name, piece in pieces.items() if piece.cut is not None}
        several = here.size > 1 and any(map(is_dtensor, tensors.values()))
        copies, copied = self.host.take({name: piece.tensor for name, piece in pieces.items()})
        recorded = deepcopy(self._record()) if here.is_rank0 else {}  # the training changes its lists
        run, step, keep, group = self.run, self.state.step, self.state.config.keep, self._group()

        def write() -> None:
            copied()
            try:
                checkpoint.write(run.path, step, copies, recorded, keep, cuts if several else None, group)
            except OSError:
                _ = run.path  # refused if it was renamed meanwhile
                raise

        self.saving_step = step
        self.writer.start(write)

    def _group(self) -> "torch.distributed.ProcessGroup | None":
        """The process group of the writing threads, which go on beside the collectives of the training."""
        if world().size > 1 and self._thread_group is None:
            self._thread_group = torch.distributed.new_group(backend="gloo")  # pyright: ignore[reportAttributeAccessIssue]
        return self._thread_group

    def _record(self) -> dict[str, Any]:
        """What a checkpoint records besides tensors."""
        size, budget = world().size, self.state.budget
        return {
            "of": identity(self.run),
            "optimizer": self.state.config.optimizer,
            **self.state.state_dict(),
            "threads": torch.get_num_threads(),
            "device": self.device.type,
            **({} if budget is None else {"plans": budget.plans, "budget": budget.state()}),
            **({"processes": size} if size > 1 else {}),
            "versions": {"pencil": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }

    def _require_finite(self, tensors: Mapping[str, Tensor], what: str) -> None:
        """Refuse to write what is not finite, on all ranks if it is so on one."""
        on_all_ranks(lambda: require_finite({name: piece_of(t).tensor for name, t in tensors.items()}, what))

    def save_before_stop(self) -> str:
        """Save the weights before a bad update; returns which checkpoint is kept, for the report of the stop."""
        self.writer.settle()
        if self.state.step and self.state.step not in on_rank0(lambda: checkpoint.saved_steps(self.run.path)):
            self.save()
            self.save_interrupted_weights()
        return self.describe_last()

    def describe_last(self) -> str:
        """Which checkpoint is the last one, for the report of a stop."""
        self.writer.settle()
        steps = checkpoint.saved_steps(self.run.path)
        return f"the checkpoint of step {steps[-1]} is kept" if steps else "no checkpoint had been written yet"

    def write_or_postpone(
        self, bar: ProgressBar, what: str, write: Callable[[], object], step: int | None = None
    ) -> None:
        """Write something that is written again later; a full disk is reported, and training goes on."""
        try:
            write()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            step = self.state.step if step is None else step
            bar.print(
                f"the disk is full: the {what} of step {step} could not be written; {self.describe_last()}; "
                "training goes on"
            )
