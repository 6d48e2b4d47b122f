"""Evaluations while training: watched, so that they show their progress and stop at once."""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import Event
from typing import Any

import numpy as np

from ...collectives.distributed_map import StopEverywhere, distributed_evaluation, gather_results
from ...collectives.fsdp_gathering import serve_others
from ...collectives.processes import all_reduce_any, broadcast, world
from ...config import UserError
from ...files import write_aside
from ...progress import duration, watched
from ..parallel.gradients import Alone
from ..task import Preview
from ..tasks.metrics import is_detail
from ..validation import amount_of, higher, overfitting
from . import pace
from .checkpointer import Saving
from .pace import SAVE_WEIGHTS, Budget, Pace, time_updates
from .report import FIRST_LINE, Metrics, ProgressBar

Callback = Callable[[int, dict[str, float]], Any]


class Abandoned(StopEverywhere):
    """An evaluation that is not finished: training is to stop, and a resumed one makes it again."""


class TooLong(StopEverywhere):
    """A first evaluation that takes long: the pace of training is measured and shown before it."""


class Evaluating(Saving):
    """The part of a trainer that evaluates."""

    pace: Pace
    budget: Budget | None
    stopping: Event
    autocast: Callable[[], AbstractContextManager[Any]]
    on_evaluation: Callback | None
    gradients: Alone

    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        with self.autocast(), self.averaged(), self.gradients.running(), distributed_evaluation():
            try:
                results = self.task.evaluate(self.model, self.config.eval_batches)
            finally:
                serve_others()
        if world().size == 1:
            return results
        # what follows is decided by them, on all processes alike
        return broadcast({name: float(value) for name, value in results.items()})

    def _evaluate(self, metrics: Metrics, bar: ProgressBar) -> None:
        """Metrics, the weights to be used and a preview; stops where the weights are good for nothing."""
        began, before = pace.clock(), self.best
        results, shown = self._watched_evaluation(bar)
        self.or_later(bar, "metrics", lambda: metrics.write(step=self.step, **results))
        writing = pace.clock()
        self.or_later(bar, "weights", lambda: self.keep_best(results))
        if self.best is not before:  # weights were written
            self.pace.save = SAVE_WEIGHTS * (pace.clock() - writing)
        if shown is not None:
            self.or_later(bar, "preview", lambda: self._write_preview(shown))
        self.pace.evaluation = pace.clock() - began
        if self.budget is not None:
            self.budget.evaluated(self.pace.evaluation, self.pace.save or self.budget.save)
        self.evaluated = self.step
        self.highest = higher(self.highest, {"step": self.step, **results}, self.task.headline)
        values = "  ".join(f"{name} {value:.4f}" for name, value in results.items() if not is_detail(name))
        bar.print(f"step {self.step:>6}  {values}")
        if self.validation.add(results["val_loss"]):
            bar.print(self._overfitting())
        self._call(self.on_evaluation, results)

    def _watched_evaluation(self, bar: ProgressBar) -> tuple[dict[str, float], Preview | None]:
        """Results and a preview. The pace is measured before a first evaluation that takes long, and shown."""
        began, unmeasured = time.monotonic(), not self.step and not self.pace.updates

        def watch(done: int, total: int) -> None:
            bar.evaluating(done, total)
            if self.budget is not None and world().is_rank0 and self.budget.over() and not self.stopping.is_set():
                bar.print(f"the time is up: the evaluation of step {self.step} is left out")
                self.stopping.set()
            if self.stopping.is_set():
                raise Abandoned
            spent = time.monotonic() - began
            if unmeasured and spent > FIRST_LINE and (not done or spent / done * (total - done) > FIRST_LINE):
                raise TooLong

        try:
            with watched(watch):
                return self._results_and_preview()
        except TooLong:
            unmeasured = False
            self._measure_pace(FIRST_LINE / 2)
            whole = duration(self.pace.left(0, self.config))
            bar.print(
                f"about {self.pace.rate:,.0f} {self.task.unit}/s: {self.config.steps:,} steps take about "
                f"{whole}; first the untrained model is evaluated"
            )
            with watched(watch):
                return self._results_and_preview()
        finally:
            bar.evaluated()

    def _results_and_preview(self) -> tuple[dict[str, float], Preview | None]:
        results = self.evaluate()
        if not math.isfinite(results["val_loss"]):
            raise UserError(
                f"training stopped after step {self.step}: val_loss is {results['val_loss']}; {self.last_kept()}; "
                "a lower --train.lr may help"
            )
        return results, self._preview()

    def _preview(self) -> Preview | None:
        """Made by rank 0 alone."""
        shown = None

        def make() -> None:
            nonlocal shown
            if world().is_rank0:
                shown = self.task.preview(self.model)

        self.model.eval()
        with self.averaged(), self.gradients.running():
            gather_results(make)
        return shown

    def _write_preview(self, shown: Preview) -> None:
        (self.run.path / "samples").mkdir(exist_ok=True)
        write_aside(self.run.path / "samples" / f"step-{self.step:08d}{shown.suffix}", shown.content)

    def _overfitting(self) -> str:
        kept = f"the weights of step {self.best.get('step')}" if self.task.select_best else "the last weights"
        return overfitting(amount_of(self.task), f"{kept} are kept")

    def _measure_pace(self, seconds: float) -> None:
        """Measure the pace before the first step."""

        def poll() -> None:
            if all_reduce_any(self.stopping.is_set())[0]:
                raise Abandoned

        time_updates(self, self.pace, seconds, poll)

    def _call(self, callback: Callback | None, values: dict[str, float]) -> None:
        """Call it; False stops the training, and a word, which would be ignored, is refused."""
        if callback is None or not world().is_rank0:
            return
        answer = callback(self.step, values)
        if isinstance(answer, str):
            raise UserError(f"a callback returned {answer!r}: False stops the training, True or nothing goes on")
        if isinstance(answer, bool | np.bool_) and not answer:
            self.stopping.set()
