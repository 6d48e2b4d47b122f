"""The training loop: one for every family. `step` counts the updates; everything else is a function of it."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from threading import Event
from typing import Any

import torch
from torch import Tensor

from ...collectives.processes import all_reduce_any, broadcast, process_group, wait_long, world
from ...config import UserError
from ...device import pick_device, random_state, seed_generators
from ...runs.run import Run
from ..building import build_model, same_bits_again
from ..optim import make_optimizers, step_unless
from ..parallel.exact import make_gradients
from ..parallel.gradients import autocast_of, compiles, mode_of
from ..parallel.rows import own_batch
from ..parallel.shards import HostCopy
from ..schedule import factor
from ..settings import Plan, TrainConfig, check_processes, fit_warmup
from ..task import Batch, Task, random_of
from ..validation import Validation, amount_of, higher
from . import pace
from .background import Background
from .checkpointer import DISK_FULL
from .ema import ExponentialMovingAverage
from .evaluator import Abandoned, Callback, Evaluating
from .interrupt import interruptible
from .loggers import open_logger
from .nonfinite import FiniteGuard, named
from .pace import SLOW, Budget, Pace, planned_line, plans_of, with_plans
from .prefetch import Prefetch
from .report import FIRST_LINE, Metrics, NoMetrics, ProgressBar, plot_losses
from .resume import restore
from .state import Outcome

LOG_EVERY = 10
LONG = 3600  # seconds of a whole training, from which a shorter one is proposed


class Trainer(Evaluating):
    """A model, its optimizers and the run they write to.

    `on_step(step, metrics)` is called after each update with train_loss and lr, `on_evaluation(step, metrics)` after
    each evaluation with its results. If one returns False, training stops as at Ctrl-C: it saves, and can be resumed.
    `propose(seconds)` is asked, once, for a shorter training when the whole of it would take more than an hour here.
    `began` is when a time budget begins (by `time.perf_counter`); `usual_steps` are those of a run without one.
    """

    def __init__(
        self,
        task: Task,
        run: Run,
        config: TrainConfig,
        allow_changes: bool = False,
        *,
        on_step: Callback | None = None,
        on_evaluation: Callback | None = None,
        propose: Callable[[float], str | None] | None = None,
        quiet: bool = False,
        began: float | None = None,
        usual_steps: int | None = None,
    ):
        self.task, self.run, self.config, self.allow_changes = task, run, config, allow_changes
        self.on_step, self.on_evaluation, self.propose = on_step, on_evaluation, propose
        self.began, self.usual_steps = pace.clock() if began is None else began, usual_steps
        self.here = world()
        check_processes(config, self.here.size)
        self.quiet = quiet or not self.here.is_rank0
        self.mode = mode_of(config, self.here.size)
        self.device = pick_device(config.device)
        if self.device.type == "cuda" and self.here.size > 1:
            self.device = torch.device("cuda", self.here.local)
        self.group = ExitStack()  # left at the end of the training
        self.group.enter_context(process_group(self.device, alone=self.mode in ("ddp", "fsdp")))
        self.group.callback(random_state(self.device))  # the caller's
        if config.deterministic:
            self.group.enter_context(same_bits_again(config.exact and self.device.type == "cpu"))
        self._seed(0)
        self.model = build_model(task, config, self.mode, self.device, self.here)
        wait_long()  # for data that is encoded before
        self.optimizers = make_optimizers(self.model, config)
        self.autocast = autocast_of(config, self.device)
        self.gradients = make_gradients(self.mode)(task, self.model, config, self.device, self.autocast, self.here)
        # whether the first updates are slower than the others
        self.warms_up = compiles(config, self.device) or self.device.type != "cpu"
        if self.device.type == "cuda":
            self.group.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high")
        # an accelerator should not wait for its next batch; on a CPU prefetching pays only where images are decoded
        prefetch = task.slow or self.device.type != "cpu"
        batch = partial(own_batch, task, here=self.here)
        self.batch = Prefetch(batch, config.accumulate, config.steps or 1 << 62) if prefetch else batch
        self.ema = ExponentialMovingAverage(self.model, config.ema) if config.ema else None
        self.step = 0
        self.seconds = 0.0
        self.best: dict[str, Any] = {}
        self.highest: dict[str, Any] = {}
        self.evaluated = -1
        self.validation = Validation()
        self.pace = Pace()
        self.budget: Budget | None = None
        self.spent: dict[str, float] | None = None  # of the budget, as a checkpoint records it
        self.plans: list[Plan] = []
        self.following: list[Plan] = []  # recorded plans of later steps
        self.stopping = Event()
        self.guard = FiniteGuard(self.device, config.nonfinite == "stop")
        self.skipped = 0  # updates left out because they were not finite
        self.background, self.host, self.saving = Background(), HostCopy(), 0
        self.pending: list[float] = []  # losses since the last line of metrics

    def _seed(self, step: int, rank: int = 0) -> None:
        """Dropout's random numbers, like the batch, follow from (seed, step, rank): no state to save."""
        seed_generators(int(random_of(self.config.seed, step, 1 << 20, rank).integers(1 << 62)), self.device)

    @property
    def loss(self) -> Callable[[Batch], Tensor]:
        """The loss of a batch, compiled if it is to be."""
        return self.gradients.loss

    @loss.setter
    def loss(self, loss: Callable[[Batch], Tensor]) -> None:
        self.gradients.loss = loss

    def update(self) -> int:
        """One optimizer step, left out if its loss or gradient is not finite; how many units were in its batch."""
        self._seed(self.step, self.here.rank)
        self.model.train()
        batches = [self.batch(self.step, micro) for micro in range(self.config.accumulate)]
        loss, norm, units = self.gradients(self.step, batches)
        left_out = self.guard.check(loss, norm)
        now = factor(self.step, self.config, self.plans)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * now
            step_unless(optimizer, left_out)
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.ema is not None:
            self.ema.update(self.step, left_out)
        return units

    def read_losses(self, metrics: Metrics, bar: ProgressBar) -> None:
        """Read the losses since the last time; report updates that were left out, and stop if they may not be."""
        losses, left_out = self.guard.read(self.step)
        self.pending += losses
        for found in left_out:
            self.skipped += 1
            samples = [
                name for micro in range(self.config.accumulate) for name in self.task.sample_ids(found.step - 1, micro)
            ]
            metrics.write(step=found.step, nonfinite=found.what, samples=samples)
            stop = self.guard.stop or self.skipped > self.config.max_skipped
            report = f"the {found.what}, and its update was left out; its batch: {named(samples)}"
            if not stop:
                bar.print(f"step {found.step}: {report} ({self.skipped} of at most {self.config.max_skipped})")
                continue
            if self.guard.stop:
                self.step = found.step - 1  # the weights are those before it
                kept = self.save_before_stop()
                mend = "a lower --train.lr may help, or --train.nonfinite skip leaves such updates out"
            else:
                kept = self.last_kept()
                mend = f"--train.max_skipped {self.config.max_skipped} allows no more; a lower --train.lr may help"
            raise UserError(f"training stopped at step {found.step}: {report}; {kept}; {mend}")

    def train(self) -> Outcome:
        """Train to the last step, or until interrupted; everything in the run folder is written on the way."""
        alone = self.run.writing() if self.here.is_rank0 else nullcontext()
        with self.group, alone, closing(self.batch) if isinstance(self.batch, Prefetch) else nullcontext():
            try:
                return self._train()
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                raise UserError(
                    f"the disk is full: step {self.step} could not be saved in {self.run.path}; {self.last_kept()}; "
                    f"free some space, then: pencil resume {self.run.path}"
                ) from None

    def _train(self) -> Outcome:
        was = self.run.config["train"]  # `restore` may record other settings
        notes = restore(self)
        start = self.step
        self._open_budget(was)
        if getattr(self.task, "start", None) is not None:
            self.save()  # the weights it starts from: the source is not needed again
        bar = ProgressBar(self.config.steps, start, self.task.unit, quiet=self.quiet)
        for line in notes:
            bar.print(line)
        metrics = self._metrics(start)
        if metrics.fault is not None:
            bar.print(f"{metrics.fault}, and is left out")
        with closing(metrics), interruptible() as self.stopping, bar, self.background:
            try:
                if self.budget is not None and not self.plans:
                    self._first_plan(metrics, bar, self.budget)
                self._begin(bar)
                self._loop(metrics, bar)
            except Abandoned:  # before the first step: there is nothing to save
                pass
        if self.here.is_rank0 and (self.step or self.evaluated >= 0):  # otherwise nothing was measured
            plot_losses(self.run.path)
        if self.here.is_rank0:
            self.write_card()
        return self._outcome()

    def _metrics(self, start: int) -> Metrics:
        """The file of metrics, which rank 0 writes."""
        if not self.here.is_rank0:
            return NoMetrics()
        logger = open_logger(self.config.logger, self.run.path, self.run.config)
        metrics = Metrics(self.run.path, start, logger, not start or self.evaluated == start)
        for line in Metrics.read(self.run.path):
            if isinstance(line.get(self.task.headline), int | float):
                self.highest = higher(self.highest, line, self.task.headline)
        return metrics

    def _begin(self, bar: ProgressBar) -> None:
        """Write the settings if they are others than the run's; report data that is little for them."""
        if self.here.is_rank0 and asdict(self.config) != self.run.config["train"]:
            self._write_config()
        amount, embedded = amount_of(self.task), getattr(self.task.family, "embedded", ())
        own = not self.step and self.run.config["run"].get("data") not in embedded
        started = "from" in self.run.config["run"]
        if amount and own and (line := amount.too_little(self.config, started)):
            bar.print(line)

    def _write_config(self) -> None:
        tables = with_plans(self.run.config, [*self.plans, *self.following])
        self.run.write_config({**tables, "train": self.config})

    def _open_budget(self, was: Mapping[str, Any]) -> None:
        """Take up a time budget where the checkpoint left it: the plans so far, and those recorded of later steps.

        `was` are the training settings that the run had before this command changed any.
        """
        recorded = broadcast(plans_of(self.run.config))
        if self.config.minutes is None or (self.config.steps and not recorded):
            self.plans = []  # another number of steps was chosen, or an older version decided it for good
            return
        self.budget = Budget(self.config.minutes, self.began, self.spent)
        count = len(self.plans)
        if [(plan["step"], plan["steps"]) for plan in recorded[:count]] == [
            (plan["step"], plan["steps"]) for plan in self.plans
        ]:
            # the run's own have lost what was chosen after the checkpoint
            self.plans, self.following = recorded[:count], recorded[count:]
        for name in ("eval_every", "save_every"):
            if recorded and getattr(self.config, name) != was.get(name):  # it was chosen since
                for plan in (*self.plans, *self.following):
                    plan.pop(name, None)
        if self.plans:
            self.config = _following(self.config, self.plans[-1])

    def _first_plan(self, metrics: Metrics, bar: ProgressBar, budget: Budget) -> None:
        """Measure an update, an evaluation and a plot; decide the steps by them, unless they are recorded."""
        undecided = [name for name in ("eval_every", "save_every") if not getattr(self.config, name)]
        if all_reduce_any(self.here.is_rank0 and budget.over())[0]:
            raise budget.too_little(self.run)
        self._measure_pace(min(3.0, budget.seconds / 20))
        budget.updates, budget.busy = self.pace.updates, self.pace.seconds
        try:
            self._evaluate(metrics, bar)
        except Abandoned:
            if all_reduce_any(self.here.is_rank0 and budget.over())[0]:
                raise budget.too_little(self.run) from None
            raise
        plotting = pace.clock()
        if self.here.is_rank0:
            plot_losses(self.run.path)
        budget.plot = pace.clock() - plotting
        if self.following:
            self._adopt(self.following.pop(0), bar)
            return
        plan = broadcast(budget.plan(0, self.config, undecided))
        if not plan["steps"]:
            raise budget.too_little(self.run)
        line = planned_line(plan, self.config, budget)
        self._adopt(plan, bar)
        self.config, notes = fit_warmup(self.config, chosen=False)
        few, facts = None, self.run.config["run"]
        if self.usual_steps is not None:
            few = budget.too_few(plan["steps"], self.usual_steps, facts["preset"], facts["family"])
        for sentence in (line, *notes, *([few] if few else [])):
            bar.print(sentence)

    def _plan_again(self, bar: ProgressBar) -> bool:
        """Follow the next recorded plan, or have rank 0 make one, where it is time for it; whether there is one."""
        if self.budget is None:
            return False
        self.budget.count(self.step)
        if self.following and self.following[0]["step"] <= self.step:
            self._adopt(self.following.pop(0), bar)
            return True
        due = self.here.is_rank0 and self.budget.due(self.step, self.config, bool(self.following))
        if not all_reduce_any(due)[0]:
            return False
        names = [name for name in self.plans[0] if name.endswith("_every")]
        plan = broadcast(self.budget.plan(self.step, self.config, names))
        if _following(self.config, plan) == self.config and not self.following:
            return False
        if plan["steps"] != self.config.steps:
            bar.print(planned_line(plan, self.config, self.budget))
        self.following = []
        self._adopt(plan, bar)
        if self.here.is_rank0:
            self.or_later(bar, "plan", self._write_config)
        return True

    def _adopt(self, plan: Plan, bar: ProgressBar) -> None:
        """Train by this plan from this step on."""
        self.plans.append(plan)
        self.config = _following(self.config, plan)
        bar.total = self.config.steps
        bar.progress.update(bar.task, total=bar.total)
        if isinstance(self.batch, Prefetch):
            self.batch.steps = self.config.steps

    def _loop(self, metrics: Metrics, bar: ProgressBar) -> None:
        stopping = self.stopping
        first, changed = self.step, False  # whether anything is to be saved
        seen, busy, trained = 0, 0.0, 0.0
        stopped, due, each = all_reduce_any(stopping.is_set(), False, self.on_step is not None)
        while True:
            self.report_saving(bar)
            if self.evaluation_due():
                self.read_losses(metrics, bar)
                with suppress(Abandoned):
                    self._evaluate(metrics, bar)
                    changed = True
                (stopped,) = all_reduce_any(stopping.is_set())
            ended = self._ended()
            if not (ended or stopped) and self._plan_again(bar):
                if self.step == self.config.steps:  # it ends here, where no line was due
                    self.read_losses(metrics, bar)
                    self.seconds += busy
                    self._log(metrics, bar, seen / max(busy, 1e-9))
                    self.pending, seen, busy = [], 0, 0.0
                continue  # this step may have to be evaluated
            if self.step and changed and (ended or stopped):
                self.read_losses(metrics, bar)
                self.report_saving(bar, wait=True)
                self.save()
            elif self.step and changed and self.step % self.config.save_every == 0:
                self.read_losses(metrics, bar)
                self.save_later(bar)
            if stopped and not ended:
                self.save_interrupted_weights()
            if ended or stopped:
                return
            started = time.perf_counter()
            units, changed = self.update(), True
            log = self.step % LOG_EVERY == 0 or self.step == self.config.steps
            begins = self.step == first + 1
            # several processes read their losses at the same steps, since all may have to stop there
            show = log or (due if self.here.size > 1 else bar.due(trained + time.perf_counter() - started))
            if show or begins or each:
                self.read_losses(metrics, bar)  # waits for the device
            spent = time.perf_counter() - started
            seen, busy = seen + units, busy + spent
            if not begins or (spent > SLOW and not self.warms_up):
                self.pace.count(1, spent, units)
                trained += spent
            if show and self.pace.updates and self.pending:
                loss = sum(self.pending) / len(self.pending)
                left = self.pace.left(self.step, self.config) if self.budget is None else self.budget.left()
                bar.update(self.step, loss, self.pace.rate, max(0.0, left), trained)
                self._propose(bar, first, trained)
            if self.on_step is not None:
                self._call(self.on_step, self._last_loss())
            if log:
                self.seconds += busy
                self._log(metrics, bar, seen / busy)
                self.pending, seen, busy = [], 0, 0.0
            stopped, due = all_reduce_any(stopping.is_set(), self.here.is_rank0 and bar.due(trained))

    def _ended(self) -> bool:
        """Whether the last step was made and evaluated, or no better one is expected."""
        last = 0 < self.config.steps <= self.step
        return self.evaluated == self.step and (last or self.validation.exhausted(self.config.patience))

    def _propose(self, bar: ProgressBar, first: int, trained: float) -> None:
        """Once, when the pace is known: what would take less time than a training of hours."""
        early = first or self.config.minutes is not None or trained < FIRST_LINE
        if self.propose is None or not self.here.is_rank0 or early:
            return
        propose, self.propose = self.propose, None
        whole = self.pace.left(0, self.config)
        if whole > LONG and (line := propose(whole)):
            bar.print(line)

    def _rate(self) -> float:
        """The learning rate of the last update."""
        return self.config.lr * factor(self.step - 1, self.config, self.plans)

    def _last_loss(self) -> dict[str, float]:
        """For a callback; without a loss if the update was left out."""
        loss = {"train_loss": self.pending[-1]} if self.pending else {}
        return {**loss, "lr": self._rate()}

    def _log(self, metrics: Metrics, bar: ProgressBar, rate: float) -> None:
        if not self.pending:  # every update since the last line was left out
            return
        loss = sum(self.pending) / len(self.pending)
        line = dict(step=self.step, train_loss=loss, lr=self._rate(), rate=round(rate, 1), time=round(self.seconds, 3))
        self.or_later(bar, "metrics", lambda: metrics.write(**line))

    def _outcome(self) -> Outcome:
        early = ""
        if self._ended() and self.step < self.config.steps:
            count = self.config.patience
            early = f"no better validation loss in {count} evaluation" + "s" * (count > 1)
        overfits = self._overfitting() if self.validation.overfits else ""
        used = "" if self.budget is None else f"{self.budget.used():.0f} of {self.budget.seconds:.0f} s used"
        return Outcome(self.step, self._ended(), self.best, self.seconds, early, overfits, self.highest, used)


def _following(config: TrainConfig, plan: Plan) -> TrainConfig:
    """The settings under a plan."""
    return replace(config, **{name: value for name, value in plan.items() if name != "step"})
