"""The training loop: one for every family. `step` counts the updates; everything else is a function of it."""

import errno
import math
import os
import platform
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import __version__
from ..config import UserError
from ..device import pick_device
from ..files import write_aside
from ..runs import WEIGHTS, Run
from . import checkpoint
from .ema import ExponentialMovingAverage
from .identity import identity
from .interrupt import interruptible
from .nonfinite import FiniteGuard, named, require_finite
from .optim import make_optimizers, state_tensors, step_unless
from .prefetch import Prefetch
from .report import Metrics, ProgressBar, model_card, plot_losses
from .resume import restore
from .schedule import factor
from .settings import TrainConfig
from .task import Batch, Task, random_of

LOG_EVERY = 10
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass
class Outcome:
    """How a training ended."""

    step: int
    finished: bool
    best: dict[str, Any]
    seconds: float


class Trainer:
    """A model, its optimizers and the run they write to."""

    def __init__(self, task: Task, run: Run, config: TrainConfig, allow_changes: bool = False):
        self.task, self.run, self.config, self.allow_changes = task, run, config, allow_changes
        self.device = pick_device(config.device)
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        self._seed(0)
        self.model = task.build().to(self.device)
        self.optimizers = make_optimizers(self.model, config)
        half = config.dtype == "bfloat16" or (config.dtype == "auto" and self.device.type == "cuda")
        self.autocast = partial(torch.autocast, self.device.type, torch.bfloat16) if half else nullcontext
        if half and self.device.type == "cpu":
            # a CPU without bfloat16 units falls back to another kernel, with a page of warnings
            warnings.filterwarnings("ignore", "mkldnn_matmul failed")
        loss = partial(task.loss, self.model)
        compiled = config.compile == "on" or (config.compile == "auto" and self.device.type == "cuda")
        self.loss = torch.compile(loss) if compiled else loss
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        # an accelerator should not wait for its next batch; on a CPU prefetching pays only where images are decoded
        prefetch = task.slow or self.device.type != "cpu"
        self.batch = Prefetch(task.batch, config.accumulate, config.steps) if prefetch else task.batch
        self.ema = ExponentialMovingAverage(self.model, config.ema) if config.ema else None
        self.step = 0
        self.seconds = 0.0
        self.best: dict[str, Any] = {}
        self.guard = FiniteGuard(self.device, config.nonfinite == "stop")
        self.skipped = 0  # updates left out because they were not finite
        self.pending: list[float] = []  # losses since the last line of metrics

    def _seed(self, step: int) -> None:
        """Dropout's random numbers, like the batch, follow from (seed, step): no state to save."""
        torch.manual_seed(int(random_of(self.config.seed, step, 1 << 20).integers(1 << 62)))

    def update(self) -> int:
        """One optimizer step, left out if its loss or gradient is not finite; how many units were in its batch."""
        self._seed(self.step)
        self.model.train()
        batches = [self.batch(self.step, micro) for micro in range(self.config.accumulate)]
        weights = [self.task.targets(batch) for batch in batches]
        losses = [torch.zeros((), device=self.device)]
        for batch, weight in zip(batches, weights, strict=True):
            if not weight:  # the mean over no targets is no number
                continue
            with self.autocast():
                loss = self.loss(self._to_device(batch)) * (weight / sum(weights))
            loss.backward()
            losses.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip or math.inf)
        left_out = self.guard.check(torch.stack(losses).sum(), norm.detach())
        now = factor(self.step, self.config)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * now
            step_unless(optimizer, left_out)
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        if self.ema is not None:
            self.ema.update(self.step, left_out)
        return sum(map(self.task.count, batches))

    def _to_device(self, batch: Batch) -> Batch:
        if self.device.type == "cuda":
            batch = tuple(t.pin_memory() for t in batch)
        return tuple(t.to(self.device, non_blocking=True) for t in batch)

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
                kept = self._save_before_stop()
                mend = "a lower --train.lr may help, or --train.nonfinite skip leaves such updates out"
            else:
                kept = self._last_kept()
                mend = f"--train.max_skipped {self.config.max_skipped} allows no more; a lower --train.lr may help"
            raise UserError(f"training stopped at step {found.step}: {report}; {kept}; {mend}")

    def _save_before_stop(self) -> str:
        """Save the weights before a bad update; what is kept, in words."""
        if self.step and self.step not in checkpoint.saved(self.run.path):
            self.save()
            self.save_interrupted_weights()
        return self._last_kept()

    def _last_kept(self) -> str:
        steps = checkpoint.saved(self.run.path)
        return f"the checkpoint of step {steps[-1]} is kept" if steps else "no checkpoint had been written yet"

    def averaged(self) -> AbstractContextManager[Any]:
        """The model with the weights it is used with: their moving average, where there is one."""
        return nullcontext() if self.ema is None else self.ema.in_place()

    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        with self.autocast(), self.averaged():
            return self.task.evaluate(self.model, self.config.eval_batches)

    def keep_best(self, results: dict[str, float]) -> None:
        """Save the weights that sample and eval use: the best by validation; the last where a test set is held out."""
        if not self.task.select_best or results["val_loss"] < self.best.get("val_loss", math.inf):
            best = {"step": self.step, **results}
            self._write_weights(best)
            self.best = best

    def save_interrupted_weights(self) -> None:
        """An interrupted run is used with its last weights, unless better ones were kept."""
        if self.step and (not self.task.select_best or not self.best.get("step")):
            self._write_weights({"step": self.step})

    def _write_weights(self, facts: Mapping[str, Any]) -> None:
        with self.averaged():
            require_finite(self.model.state_dict(), WEIGHTS)
            self.run.write_weights(self.model, {**self._facts(), **facts})

    def _facts(self) -> dict[str, Any]:
        return {
            "family": self.task.family.name, "weights": "ema" if self.ema else "model", "pencil": __version__
        }  # fmt: skip

    def save(self) -> None:
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        if self.ema is not None:
            tensors |= {f"ema.{name}": t for name, t in self.ema.values.items()}
        state = {
            "of": identity(self.run), "optimizer": self.config.optimizer,
            "best": self.best, "pending": self.pending, "seconds": self.seconds, "skipped": self.skipped,
            "threads": torch.get_num_threads(), "device": self.device.type,
            "versions": {"pencil": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }  # fmt: skip
        tensors |= state_tensors(self.model, self.optimizers)
        require_finite(tensors, f"the checkpoint of step {self.step}")
        checkpoint.write(self.run.path, self.step, tensors, state, self.config.keep)

    def train(self) -> Outcome:
        """Train to the last step, or until interrupted; everything in the run folder is written on the way."""
        with self.run.writing(), closing(self.batch) if isinstance(self.batch, Prefetch) else nullcontext():
            try:
                return self._train()
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
                raise UserError(
                    f"the disk is full: step {self.step} could not be saved in {self.run.path}; {self._last_kept()}; "
                    f"free some space, then: pencil resume {self.run.path}"
                ) from None

    def _or_later(self, bar: ProgressBar, what: str, write: Callable[[], Any]) -> None:
        """Write something that is written again later; a full disk is reported, and training goes on."""
        try:
            write()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            bar.print(f"the disk is full: the {what} of step {self.step} could not be written; {self._last_kept()}; "
                      "training goes on")  # fmt: skip

    def _train(self) -> Outcome:
        config = self.config
        notes = restore(self)
        start = self.step
        bar = ProgressBar(config.steps, start, self.task.unit)
        for line in notes:
            bar.print(line)
        metrics = Metrics(self.run.path, start, config.logger)
        if asdict(config) != self.run.config["train"]:
            self.run.write_config({**self.run.config, "train": config})
        seen, busy = 0, 0.0
        with interruptible() as stopping, bar:
            while True:
                last = self.step >= config.steps
                fresh = self.step > start or start == 0
                if fresh and (last or self.step % config.eval_every == 0):
                    self.read_losses(metrics, bar)
                    self._evaluate(metrics, bar)
                if fresh and self.step and (last or stopping.is_set()):
                    self.read_losses(metrics, bar)
                    self.save()
                elif fresh and self.step and self.step % config.save_every == 0:
                    self.read_losses(metrics, bar)
                    self._or_later(bar, "checkpoint", self.save)
                if stopping.is_set() and not last:
                    self.save_interrupted_weights()
                if last or stopping.is_set():
                    break
                started = time.perf_counter()
                seen += self.update()
                log = self.step % LOG_EVERY == 0 or self.step == config.steps
                if log:
                    self.read_losses(metrics, bar)
                busy += time.perf_counter() - started
                if log:
                    self.seconds += busy
                    self._log(metrics, bar, seen / busy)
                    self.pending, seen, busy = [], 0, 0.0
        metrics.close()
        plot_losses(self.run.path)
        parameters = sum(p.numel() for p in self.model.parameters())
        card = model_card(self.run.path, self.run.config, parameters, self.best, self.task.select_best, self.task.usage)
        write_aside(self.run.path / "README.md", card.encode())
        return Outcome(self.step, self.step >= config.steps, self.best, self.seconds)

    def _log(self, metrics: Metrics, bar: ProgressBar, rate: float) -> None:
        if not self.pending:  # every update since the last line was left out
            return
        loss = sum(self.pending) / len(self.pending)
        line = dict(step=self.step, train_loss=loss, lr=self.config.lr * factor(self.step - 1, self.config),
                    rate=round(rate, 1), time=round(self.seconds, 3))  # fmt: skip
        self._or_later(bar, "metrics", lambda: metrics.write(**line))
        bar.update(self.step, loss, rate)

    def _evaluate(self, metrics: Metrics, bar: ProgressBar) -> None:
        """Metrics, the weights to be used and a preview; stops where the weights are good for nothing."""
        results = self.evaluate()
        if not math.isfinite(results["val_loss"]):
            raise UserError(
                f"training stopped after step {self.step}: val_loss is {results['val_loss']}; {self._last_kept()}; "
                "a lower --train.lr may help"
            )
        self._or_later(bar, "metrics", lambda: metrics.write(step=self.step, **results))
        self._or_later(bar, "weights", lambda: self.keep_best(results))
        self._or_later(bar, "preview", self._preview)
        bar.print(f"step {self.step:>6}  " + "  ".join(f"{k} {v:.4f}" for k, v in results.items()))

    def _preview(self) -> None:
        self.model.eval()
        with self.averaged():
            shown = self.task.preview(self.model)
        (self.run.path / "samples").mkdir(exist_ok=True)
        write_aside(self.run.path / "samples" / f"step-{self.step:08d}{shown.suffix}", shown.content)
