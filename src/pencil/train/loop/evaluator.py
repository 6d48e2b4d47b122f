"""Evaluations while training: watched, so that they show their progress and stop at once.

An evaluation can be abandoned. Loops over batches go through `track`; a trainer watches them, shows how far they are,
and stops them at Ctrl-C by raising between two batches, where nothing is half written. The checkpoint records that the
evaluation is due, and the resumed run makes it first. A task whose loops are not tracked works too: Ctrl-C then waits
for its evaluation.
"""

import math
import time
from collections.abc import Callable
from threading import Event

from ...collectives.distributed_map import StopEverywhere, distributed_evaluation, gather_results, serve_others
from ...collectives.processes import broadcast, world
from ...config import UserError
from ...device import random_state_kept
from ...progress import watched
from ..model_selection import describe_overfitting
from ..parallel.gradients import Gradients
from ..task import Batch, Preview, Task
from ..tasks.metrics import is_detail
from . import report, time_budget
from .checkpointer import Checkpointer
from .ema import ExponentialMovingAverage, averaged
from .inside import first_examples, measure_inside
from .report import Metrics, ProgressBar
from .state import TrainState
from .time_budget import Pace


class Abandoned(StopEverywhere):
    """An evaluation that is not finished: training is to stop, and a resumed one makes it again."""


class TooLong(StopEverywhere):
    """A first evaluation that takes long: the pace of training is measured and shown before it."""


class Evaluator:
    """Evaluates a model while it is trained, and keeps the best weights.

    `report_pace(seconds)` measures the pace of training for so long, and returns the line that reports it. An
    evaluation ends where `stopping` is set.
    """

    def __init__(
        self,
        task: Task,
        state: TrainState,
        gradients: Gradients,
        ema: ExponentialMovingAverage | None,
        checkpointer: Checkpointer,
        pace: Pace,
        stopping: Event,
        report_pace: Callable[[float], str],
    ):
        self.task, self.state, self.gradients, self.ema = task, state, gradients, ema
        self.model, self.checkpointer = gradients.model, checkpointer
        self.pace, self.stopping, self.report_pace = pace, stopping, report_pace
        self.examples: Batch | None = None  # those that the model is measured with inside
        self.left_out = ""  # what is not measured there, as a sentence

    def evaluate(self) -> dict[str, float]:
        """The metrics of the weights that the model is used with."""
        self.model.eval()
        with self.gradients.autocast(), averaged(self.ema), self.gradients.running(), distributed_evaluation():
            try:
                results = self.task.evaluate(self.model, self.state.config.eval_batches)
            finally:
                serve_others()
        if world().size == 1:
            return results
        # what follows is decided by them, on all processes alike
        return broadcast({name: float(value) for name, value in results.items()})

    def preview(self) -> Preview | None:
        """A sample of the model."""
        return self.task.preview(self.model)

    def look_inside(self) -> tuple[Preview | None, dict[str, float]]:
        """A sample of the model, and what is measured inside it; rank 0 alone makes both."""
        preview, inside = None, {}

        def look() -> None:
            nonlocal preview, inside
            if world().is_rank0:
                preview = self.preview()
                with random_state_kept(self.gradients.device):
                    inside = self._measure_inside()

        self.model.eval()
        with averaged(self.ema), self.gradients.running():
            gather_results(look)
        return preview, inside

    def _measure_inside(self) -> dict[str, float]:
        if self.examples is None:
            self.examples = first_examples(self.task)
        with self.gradients.autocast():
            inside, self.left_out = measure_inside(self.task, self.model, self.gradients.to_device(self.examples))
        return inside

    def run(self, metrics: Metrics, bar: ProgressBar) -> dict[str, float]:
        """Evaluate this step; write metrics, a preview, and the weights if they are the best; return the results.

        An evaluation whose loss is not finite ends the training: the weights are good for nothing.
        """
        began, best_before, write = time_budget.clock(), self.state.best, self.checkpointer.write_or_postpone
        before = self.left_out
        results, preview, inside = self._evaluate_watched(bar)
        if self.left_out != before:
            bar.print(self.left_out)
        write(bar, "metrics", lambda: metrics.write(step=self.state.step, **results, **inside))
        writing = time_budget.clock()
        write(bar, "weights", lambda: self.checkpointer.keep_best(results))
        if self.state.best is not best_before:  # weights were written
            self.pace.save = time_budget.CHECKPOINT_PER_WEIGHTS * (time_budget.clock() - writing)
        if preview is not None:
            write(bar, "preview", lambda: self.checkpointer.write_preview(preview))
        self.pace.evaluation = time_budget.clock() - began
        if self.state.budget is not None:
            self.state.budget.count_evaluation(self.pace.evaluation, self.pace.save)
        announce = self.state.record_evaluation(results, self.task.headline)
        values = "  ".join(f"{name} {value:.4f}" for name, value in results.items() if not is_detail(name))
        bar.print(f"step {self.state.step:>6}  {values}")
        if announce:
            bar.print(self.describe_overfitting())
        return results

    def describe_overfitting(self) -> str:
        """The sentence about a validation loss that rises."""
        weights = f"the weights of step {self.state.best.get('step')}" if self.task.select_best else "the last weights"
        return describe_overfitting(self.task.amount, f"{weights} are kept")

    def _evaluate_watched(self, bar: ProgressBar) -> tuple[dict[str, float], Preview | None, dict[str, float]]:
        """Results, a preview and what is measured inside.

        The pace is measured before a first evaluation that takes long, and shown.
        """
        began, unmeasured = time.monotonic(), not self.state.step and not self.pace.updates
        budget, long = self.state.budget, report.FIRST_REPORT_SECONDS

        def watch(done: int, total: int) -> None:
            bar.evaluating(done, total)
            if budget is not None and world().is_rank0 and budget.over() and not self.stopping.is_set():
                bar.print(f"the time is up: the evaluation of step {self.state.step} is left out")
                self.stopping.set()
            if self.stopping.is_set():
                raise Abandoned
            spent = time.monotonic() - began
            if unmeasured and spent > long and (not done or spent / done * (total - done) > long):
                raise TooLong

        try:
            with watched(watch):
                return self._results_and_more()
        except TooLong:
            unmeasured = False
            bar.print(f"{self.report_pace(long / 2)}; first the untrained model is evaluated")
            with watched(watch):
                return self._results_and_more()
        finally:
            bar.evaluated()

    def _results_and_more(self) -> tuple[dict[str, float], Preview | None, dict[str, float]]:
        results = self.evaluate()
        if not math.isfinite(results["val_loss"]):
            raise UserError(
                f"training stopped after step {self.state.step}: val_loss is {results['val_loss']}; "
                f"{self.checkpointer.describe_last()}; a lower --train.lr may help"
            )
        return results, *self.look_inside()
