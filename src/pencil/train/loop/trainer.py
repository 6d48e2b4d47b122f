"""The training loop: one for every family. `step` counts the updates; everything else is a function of it.

Batch order and dropout are functions of (seed, step), dropout also of the rank, so a resumed run is the same to the
last bit, with no random state to save. On a CPU this holds as it is (with the same number of threads); on CUDA some
kernels add in any order, and `--train.deterministic true` chooses the ones that do not.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ...collectives.processes import (
    World,
    all_reduce_any,
    barrier_without_timeout,
    broadcast,
    is_orphaned,
    process_group,
    world,
)
from ...config import UserError
from ...device import pick_device, random_state, random_state_kept, seed_generators
from ...inference.int8 import refuse_int8
from ...progress import duration
from ...runs.run import Run
from ..freezing import freeze_parameters
from ..optim import make_optimizers, step_unless
from ..parallel.dtensor_files import to_local
from ..parallel.fsdp import build_sharded, compile_blocks, materialize, shard
from ..parallel.gradients import GRADIENTS, Mode, autocast_of, compiles, mode_of, own_batch, uses_bfloat16
from ..recompute import recompute_blocks
from ..schedule import factor
from ..settings import Plan, TrainConfig, check_processes
from ..task import Batch, Task, random_of
from . import checkpoint, report, time_budget
from .checkpointer import DISK_FULL, Checkpointer, load, restore
from .ema import ExponentialMovingAverage
from .evaluator import Abandoned, Evaluator
from .nonfinite import FiniteGuard, name_samples
from .report import Metrics, NoMetrics, ProgressBar, open_logger, plot_losses
from .state import Outcome, TrainState, with_plan
from .time_budget import SLOW_UPDATE_SECONDS, Budget, Pace, describe_plan, plans_of, with_plans

LOG_EVERY_STEPS = 10
LONG_TRAINING_SECONDS = 3600  # a shorter training is proposed in place of a longer one
PREFETCHED_BATCHES = 4

Callback = Callable[[int, dict[str, float]], Any]


def build_model(task: Task, config: TrainConfig, mode: Mode, device: torch.device, here: World) -> nn.Module:
    """The model with its first weights; for FSDP the part of each parameter that this process has."""
    start, sharded, values = task.start, mode == "fsdp", None
    if sharded and start is None:
        model, values = build_sharded(task, here)
    else:
        model = task.build()
    if start is not None:
        start.load_into(model)
    refuse_int8(model, "trained")
    if mode != "alone":
        refuse_running_statistics(model)
    if not sharded:
        model.to(device)
    freeze_parameters(model, config.freeze)
    if sharded and compiles(config, device):
        compile_blocks(model)
    if config.recompute == "blocks":
        recompute_blocks(model)
    if sharded:
        shard(model, device, here.size, uses_bfloat16(config, device))
    if values is not None:
        materialize(model, values, device)
    return model


@contextmanager
def deterministic_kernels(one_thread: bool) -> Iterator[None]:
    """A context of kernels that add in one order.

    Threads divide sums, and one process has more of them than each of several: with `one_thread` there is only one.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    if one_thread:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        if one_thread:
            torch.set_num_threads(threads)


def refuse_running_statistics(model: nn.Module) -> None:
    """Refuse what changes while it trains and is no parameter: each process would have its own."""
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats and not isinstance(module, nn.SyncBatchNorm):
            raise UserError(
                f"{name} is a {type(module).__name__}, whose running statistics the processes would not share: use "
                "nn.GroupNorm or nn.LayerNorm, or one process without --train.exact"
            )


class Prefetch:
    """Makes batches in advance on other threads, so that training does not wait for decoding.

    It calls `make(step, micro)` a few steps early; the results are the same as if it were called now.
    """

    def __init__(self, make: Callable[[int, int], Batch], accumulate: int, steps: int, depth: int = PREFETCHED_BATCHES):
        self.make, self.accumulate, self.steps, self.depth = make, accumulate, steps, depth
        self.pool = ThreadPoolExecutor(2, thread_name_prefix="prefetch")
        self.waiting: dict[tuple[int, int], Future[Batch]] = {}

    def __call__(self, step: int, micro: int) -> Batch:
        at = step * self.accumulate + micro
        for number in range(at, min(at + self.depth, self.steps * self.accumulate)):
            key = divmod(number, self.accumulate)
            if key not in self.waiting:
                self.waiting[key] = self.pool.submit(self.make, *key)
        # steps after the last, with which the pace may be measured, are not made early
        early = self.waiting.pop((step, micro), None)
        return self.make(step, micro) if early is None else early.result()

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


class Stopping(threading.Event):
    """Set by a signal; also where torchrun, which started this process, has ended without ending it."""

    def is_set(self) -> bool:
        return super().is_set() or is_orphaned()


@contextmanager
def interruptible(stopping: threading.Event) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP (a closed terminal) stop the loop after its step; a second Ctrl-C stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    # `nohup` has made the process ignore SIGHUP, which must stay so
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Trainer:
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
        self.task, self.run, self.allow_changes, self.state = task, run, allow_changes, TrainState(config)
        self.on_step, self.on_evaluation, self.propose = on_step, on_evaluation, propose
        self.began, self.usual_steps = time_budget.clock() if began is None else began, usual_steps
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
            self.group.enter_context(deterministic_kernels(config.exact and self.device.type == "cpu"))
        self._seed(0)
        self.model = build_model(task, config, self.mode, self.device, self.here)
        barrier_without_timeout()  # for data that is encoded before
        self.optimizers = make_optimizers(self.model, config)
        self.autocast = autocast_of(config, self.device)
        self.gradients = GRADIENTS[self.mode](task, self.model, config, self.device, self.autocast, self.here)
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
        self.guard = FiniteGuard(self.device, config.nonfinite == "stop")
        self.pace, self.stopping = Pace(), Stopping()
        self.checkpointer = Checkpointer(task, run, self.state, self.model, self.optimizers, self.ema, self.device)
        self.evaluator = Evaluator(
            task, self.state, self.gradients, self.ema, self.checkpointer, self.pace, self.stopping, self._report_pace
        )

    @property
    def config(self) -> TrainConfig:
        """The settings in force: those of the latest plan, where there is a time budget."""
        return self.state.config

    @property
    def step(self) -> int:
        """How many updates were made."""
        return self.state.step

    def _seed(self, step: int, rank: int = 0) -> None:
        """Dropout's random numbers, like the batch, follow from (seed, step, rank): no state to save."""
        seed_generators(int(random_of(self.config.seed, step, 1 << 20, rank).integers(1 << 62)), self.device)

    def update(self) -> int:
        """Make one optimizer step, left out if its loss or gradient is not finite; returns the units of its batch."""
        self._seed(self.step, self.here.rank)
        self.model.train()
        batches = [self.batch(self.step, micro) for micro in range(self.config.accumulate)]
        loss, norm, units = self.gradients(self.step, batches)
        left_out = self.guard.check(loss, norm)
        rate_factor = factor(self.step, self.config, self.state.plans)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate_factor
            step_unless(optimizer, left_out)
            optimizer.zero_grad(set_to_none=True)
        self.state.step += 1
        if self.ema is not None:
            self.ema.update(self.step, left_out)
        return units

    def read_losses(self, metrics: Metrics, bar: ProgressBar) -> None:
        """Read the losses since the last time; report updates that were left out, and stop if they may not be."""
        losses, norms, left_out = self.guard.read(self.step)
        self.state.pending += losses
        self.state.pending_norms += norms
        for update in left_out:
            self.state.skipped += 1
            skipped, allowed = self.state.skipped, self.config.max_skipped
            samples = [
                name for micro in range(self.config.accumulate) for name in self.task.sample_ids(update.step - 1, micro)
            ]
            metrics.write(step=update.step, nonfinite=update.what, samples=samples)
            line = f"the {update.what}, and its update was left out; its batch: {name_samples(samples)}"
            if not self.guard.stop and skipped <= allowed:
                bar.print(f"step {update.step}: {line} ({skipped} of at most {allowed})")
                continue
            if self.guard.stop:
                self.state.step = update.step - 1  # the weights are those before it
                saved = self.checkpointer.save_before_stop()
                mend = "a lower --train.lr may help, or --train.nonfinite skip leaves such updates out"
            else:
                saved = self.checkpointer.describe_last()
                mend = f"--train.max_skipped {allowed} allows no more; a lower --train.lr may help"
            raise UserError(f"training stopped at step {update.step}: {line}; {saved}; {mend}")

    def train(self) -> Outcome:
        """Train to the last step, or until interrupted; everything in the run folder is written on the way."""
        only_writer = self.run.writing() if self.here.is_rank0 else nullcontext()
        with self.group, only_writer, closing(self.batch) if isinstance(self.batch, Prefetch) else nullcontext():
            try:
                return self._train()
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                raise UserError(
                    f"the disk is full: step {self.step} could not be saved in {self.run.path}; "
                    f"{self.checkpointer.describe_last()}; free some space, then: pencil resume {self.run.path}"
                ) from None

    def restore(self) -> list[str]:
        """Resume from the run's newest checkpoint, if it has one; what the user should know about it."""
        settings_before = self.run.config["train"]  # `restore` may record other settings
        restored = restore(self.checkpointer, self.evaluator.evaluate, self.allow_changes)
        self._open_budget(settings_before, restored.state)
        return restored.notes

    def replay(self, step: int, begin: Callable[[int], object] = lambda updates: None) -> None:
        """Come to the state of the training at a step again, and write nothing.

        From the newest checkpoint that is not after it, or from the first weights, the updates are made once more;
        `begin` gets their number. A training that began with another run's weights needs a checkpoint.
        """
        newest, _ = checkpoint.latest(self.run.path, until=step)
        if newest is not None:
            load(self.checkpointer, newest)
            self._open_budget(self.run.config["train"], newest.state)
        elif "from" in self.run.config["run"]:
            raise UserError(
                f"{self.run.path} began with the weights of another run, and has no checkpoint of step {step} or "
                "before to go on from: choose a later step, or train it with a larger --train.keep"
            )
        begin(step - self.step)
        while self.step < step:
            self.update()
            self.guard.recent.clear()

    def _train(self) -> Outcome:
        notes = self.restore()
        start = self.step
        if self.task.start is not None:
            self.checkpointer.save()  # the weights it starts from: the source is not needed again
        bar = ProgressBar(self.config.steps, start, self.task.unit, quiet=self.quiet)
        for line in notes:
            bar.print(line)
        metrics = self._open_metrics(start)
        if metrics.fault is not None:
            bar.print(f"{metrics.fault}, and is left out")
        with closing(metrics), interruptible(self.stopping), bar, self.checkpointer.writer:
            try:
                if self.state.budget is not None and not self.state.plans:
                    self._make_first_plan(metrics, bar, self.state.budget)
                self._begin(bar)
                self._loop(metrics, bar)
            except Abandoned:  # before the first step: there is nothing to save
                pass
        if self.here.is_rank0 and (self.step or self.state.evaluated >= 0):  # otherwise nothing was measured
            plot_losses(self.run.path)
        if self.here.is_rank0:
            self.checkpointer.write_card()
        return self._outcome()

    def _open_metrics(self, start: int) -> Metrics:
        """The file of metrics, which rank 0 writes."""
        if not self.here.is_rank0:
            return NoMetrics()
        logger = open_logger(self.config.logger, self.run.path, self.run.config)
        metrics = Metrics(self.run.path, start, logger, not start or self.state.evaluated == start)
        for line in Metrics.read(self.run.path):
            if isinstance(line.get(self.task.headline), int | float):
                self.state.record_headline(line, self.task.headline)
        return metrics

    def _begin(self, bar: ProgressBar) -> None:
        """Write the settings if they are others than the run's; report data that is little for them."""
        if self.here.is_rank0 and asdict(self.config) != self.run.config["train"]:
            self._write_config()
        amount, embedded = self.task.amount, getattr(self.task.family, "embedded", ())
        new_with_own_data = not self.step and self.run.config["run"].get("data") not in embedded
        started = "from" in self.run.config["run"]
        if amount and new_with_own_data and (line := amount.too_little(self.config, started)):
            bar.print(line)

    def _write_config(self) -> None:
        budget = self.state.budget
        tables = with_plans(self.run.config, [] if budget is None else [*budget.plans, *budget.following])
        self.run.write_config({**tables, "train": self.config})

    # the pace, and the plans of a time budget

    def time_updates(self, measured: Pace, seconds: float, poll: Callable[[], None]) -> None:
        """Measure the pace by updates from step 0 that are put back: training is the same to the bit.

        `poll` is called after each, and may stop it by raising.
        """
        warm_up, units, made = 3 if self.warms_up else 1, 0, 0  # the first compile, and fill caches
        with self._put_back():
            started = time_budget.clock()
            while made < warm_up:
                units = self.update()
                poll()
                made += 1
            self.guard.read(self.step)  # waits for the device
            began = last = time_budget.clock()
            if broadcast(began - started) > SLOW_UPDATE_SECONDS and not self.warms_up:
                measured.count(1, began - started, units)
                return
            units = 0
            while made == warm_up or broadcast(last - began) < seconds:
                units += self.update()
                poll()
                made += 1
                self.guard.read(self.step)
                last = time_budget.clock()
            measured.count(made - warm_up, last - began, units)

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        """A context of updates from step 0 after which weights, moments, average and random numbers are as before."""
        before = {name: to_local(t).detach().to("cpu", copy=True) for name, t in self.model.state_dict().items()}
        try:
            with random_state_kept(self.device):
                yield
        finally:
            with torch.no_grad():
                for name, tensor in self.model.state_dict().items():
                    to_local(tensor).copy_(before[name])
            self.state.step = 0
            self.optimizers.update(make_optimizers(self.model, self.config))
            self.guard = FiniteGuard(self.device, self.guard.stop)
            if self.ema is not None:
                self.ema.reset()

    def _measure_pace(self, seconds: float) -> None:
        """Measure the pace before the first step."""

        def poll() -> None:
            if all_reduce_any(self.stopping.is_set())[0]:
                raise Abandoned

        self.time_updates(self.pace, seconds, poll)

    def _report_pace(self, seconds: float) -> str:
        """Measure the pace before the first step; the line that reports it."""
        self._measure_pace(seconds)
        whole = duration(self.pace.left(0, self.config))
        return f"about {self.pace.rate:,.0f} {self.task.unit}/s: {self.config.steps:,} steps take about {whole}"

    def _open_budget(self, settings_before: Mapping[str, Any], checkpointed: Mapping[str, Any]) -> None:
        """Take up a time budget where the checkpoint left it: the plans so far, and those recorded of later steps.

        `settings_before` are the training settings that the run had before this command changed any; `checkpointed` is
        the state of the checkpoint.
        """
        recorded = broadcast(plans_of(self.run.config))
        if self.config.minutes is None or (self.config.steps and not recorded):
            return  # another number of steps was chosen, or an older version decided it for good
        plans, following = list(checkpointed.get("plans", ())), []
        count = len(plans)
        if [(plan["step"], plan["steps"]) for plan in recorded[:count]] == [
            (plan["step"], plan["steps"]) for plan in plans
        ]:
            # the run's own have lost what was chosen after the checkpoint
            plans, following = recorded[:count], recorded[count:]
        for name in ("eval_every", "save_every"):
            if recorded and getattr(self.config, name) != settings_before.get(name):  # it was chosen since
                for plan in (*plans, *following):
                    plan.pop(name, None)
        budget = Budget(self.config.minutes, self.began, checkpointed.get("budget"), plans, following)
        self.state.open_budget(budget)

    def _make_first_plan(self, metrics: Metrics, bar: ProgressBar, budget: Budget) -> None:
        """Measure an update, an evaluation and a plot; decide the steps by them, unless they are recorded."""
        undecided = [name for name in ("eval_every", "save_every") if not getattr(self.config, name)]
        if not all_reduce_any(self.here.is_rank0 and budget.over())[0]:
            self._measure_pace(min(3.0, budget.seconds / 20))
            budget.updates, budget.busy = self.pace.updates, self.pace.seconds
            try:
                self._evaluate(metrics, bar)
            except Abandoned:
                if not all_reduce_any(self.here.is_rank0 and budget.over())[0]:
                    raise
                self.stopping.clear()  # the time is up, and a step is made all the same
        if self.state.evaluation_due:  # the time was up
            self.state.evaluated = self.step
        else:
            plotting = time_budget.clock()
            if self.here.is_rank0:
                plot_losses(self.run.path)
            budget.plot = time_budget.clock() - plotting
        if budget.following:
            self._follow(budget.following.pop(0), bar)
            return
        plan = broadcast(budget.plan(0, self.config, undecided))
        line = budget.too_little() or describe_plan(plan, self.config, budget)
        self._follow(plan, bar)
        notes = self.state.fit_warmup()
        few, facts = None, self.run.config["run"]
        if self.usual_steps is not None:
            few = budget.too_few(plan["steps"], self.usual_steps, facts["preset"], facts["family"])
        for sentence in (line, *notes, *([few] if few else [])):
            bar.print(sentence)

    def _plan_again(self, bar: ProgressBar) -> bool:
        """Follow the next recorded plan, or have rank 0 make one, where it is time for it; whether there is one."""
        budget = self.state.budget
        if budget is None:
            return False
        budget.count(self.step)
        if budget.following and budget.following[0]["step"] <= self.step:
            self._follow(budget.following.pop(0), bar)
            return True
        due = self.here.is_rank0 and budget.due(self.step, self.config)
        if not all_reduce_any(due)[0]:
            return False
        names = [name for name in budget.plans[0] if name.endswith("_every")]
        plan = broadcast(budget.plan(self.step, self.config, names))
        if with_plan(self.config, plan) == self.config and not budget.following:
            return False
        if plan["steps"] != self.config.steps:
            bar.print(describe_plan(plan, self.config, budget))
        budget.following.clear()
        self._follow(plan, bar)
        if self.here.is_rank0:
            self.checkpointer.write_or_postpone(bar, "plan", self._write_config)
        return True

    def _follow(self, plan: Plan, bar: ProgressBar) -> None:
        """Train by this plan from this step on."""
        self.state.follow(plan)
        bar.set_total(self.config.steps)
        if isinstance(self.batch, Prefetch):
            self.batch.steps = self.config.steps

    # the loop

    def _loop(self, metrics: Metrics, bar: ProgressBar) -> None:
        stopping = self.stopping
        first, changed = self.step, False  # whether anything is to be saved
        units, busy, trained = 0, 0.0, 0.0  # units and seconds since the last line of metrics; seconds in all
        stopped, due, read_each = all_reduce_any(stopping.is_set(), False, self.on_step is not None)
        while True:
            self.checkpointer.raise_failure(bar)
            if self.state.evaluation_due:
                self.read_losses(metrics, bar)
                with suppress(Abandoned):
                    self._evaluate(metrics, bar)
                    changed = True
                (stopped,) = all_reduce_any(stopping.is_set())
            self._take_snapshot(bar)
            ended = self.state.ended
            if not (ended or stopped) and self._plan_again(bar):
                if self.step == self.config.steps:  # it ends here, where no line was due
                    self.read_losses(metrics, bar)
                    self._log(metrics, bar, units, busy)
                    units, busy = 0, 0.0
                continue  # this step may have to be evaluated
            if self.step and changed and (ended or stopped):
                self.read_losses(metrics, bar)
                self.checkpointer.raise_failure(bar, wait=True)
                self.checkpointer.save()
            elif self.step and changed and self.step % self.config.save_every == 0:
                self.read_losses(metrics, bar)
                self.checkpointer.save_later(bar)
            if stopped and not ended:
                self.checkpointer.save_interrupted_weights()
            if ended or stopped:
                return
            started = time.perf_counter()
            batch_units, changed = self.update(), True
            log = self.step % LOG_EVERY_STEPS == 0 or self.step == self.config.steps
            begins = self.step == first + 1
            # several processes read their losses at the same steps, since all may have to stop there
            show = log or (due if self.here.size > 1 else bar.due(trained + time.perf_counter() - started))
            if show or begins or read_each:
                self.read_losses(metrics, bar)  # waits for the device
            spent = time.perf_counter() - started
            units, busy = units + batch_units, busy + spent
            if not begins or (spent > SLOW_UPDATE_SECONDS and not self.warms_up):
                self.pace.count(1, spent, batch_units)
                trained += spent
            if show and self.pace.updates and self.state.pending:
                loss, budget = sum(self.state.pending) / len(self.state.pending), self.state.budget
                left = self.pace.left(self.step, self.config) if budget is None else budget.left()
                bar.update(self.step, loss, self.pace.rate, max(0.0, left), trained)
                self._propose(bar, first, trained)
            if self.on_step is not None:
                self._call(self.on_step, self._last_loss())
            if log:
                self._log(metrics, bar, units, busy)
                units, busy = 0, 0.0
            stopped, due = all_reduce_any(stopping.is_set(), self.here.is_rank0 and bar.due(trained))

    def _take_snapshot(self, bar: ProgressBar) -> None:
        """Keep the weights of this step where they belong to the series; its seconds are no update's."""
        if not self.checkpointer.takes_snapshots:
            return
        started = time_budget.clock()
        self.checkpointer.write_or_postpone(bar, "snapshot", self.checkpointer.take_snapshot)
        if self.state.budget is not None:
            self.state.budget.since += time_budget.clock() - started

    def _evaluate(self, metrics: Metrics, bar: ProgressBar) -> None:
        self._call(self.on_evaluation, self.evaluator.run(metrics, bar))

    def _call(self, callback: Callback | None, values: dict[str, float]) -> None:
        """Call it; False stops the training, and a word, which would be ignored, is refused."""
        if callback is None or not self.here.is_rank0:
            return
        answer = callback(self.step, values)
        if isinstance(answer, str):
            raise UserError(f"a callback returned {answer!r}: False stops the training, True or nothing goes on")
        if isinstance(answer, bool | np.bool_) and not answer:
            self.stopping.set()

    def _propose(self, bar: ProgressBar, first: int, trained: float) -> None:
        """Once, when the pace is known, propose what would take less time than a training of hours."""
        unknown = trained < report.FIRST_REPORT_SECONDS
        if self.propose is None or not self.here.is_rank0 or first or self.config.minutes is not None or unknown:
            return
        propose, self.propose = self.propose, None
        whole = self.pace.left(0, self.config)
        if whole > LONG_TRAINING_SECONDS and (line := propose(whole)):
            bar.print(line)

    def _last_loss(self) -> dict[str, float]:
        """The metrics for `on_step`; without a loss if the update was left out."""
        loss = {"train_loss": self.state.pending[-1]} if self.state.pending else {}
        return {**loss, "lr": self.state.learning_rate}

    def _log(self, metrics: Metrics, bar: ProgressBar, units: int, seconds: float) -> None:
        """Write a line of metrics: mean loss and gradient norm since the line before; so many units took so long."""
        state = self.state
        state.seconds += seconds
        losses, state.pending = state.pending, []
        norms, state.pending_norms = state.pending_norms, []
        if not losses:  # every update since the last line was left out
            return
        line = dict(
            step=self.step,
            train_loss=sum(losses) / len(losses),
            # a checkpoint of an older version has losses without them
            **({"grad_norm": sum(norms) / len(norms)} if norms else {}),
            lr=state.learning_rate,
            rate=round(units / max(seconds, 1e-9), 1),
            time=round(state.seconds, 3),
        )
        self.checkpointer.write_or_postpone(bar, "metrics", lambda: metrics.write(**line))

    def _outcome(self) -> Outcome:
        early = ""
        if self.state.ended and self.step < self.config.steps:
            count = self.config.patience
            early = f"no better validation loss in {count} evaluation" + "s" * (count > 1)
        state, budget = self.state, self.state.budget
        overfits = self.evaluator.describe_overfitting() if state.validation.overfits else ""
        used = "" if budget is None else f"{budget.used():.0f} of {budget.seconds:.0f} s used"
        return Outcome(self.step, state.ended, state.best, state.seconds, early, overfits, state.highest, used)
