"""The training loop: one for every family. `step` counts the updates; everything else is a function of it."""

import errno
import math
import os
import platform
import signal
import threading
import time
import warnings
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..config import UserError, upgraded
from ..device import pick_device
from ..files import write_aside
from ..runs import Run, rename
from . import checkpoint
from .ema import ExponentialMovingAverage
from .optim import load_state_tensors, make_optimizers, state_tensors
from .prefetch import Prefetch
from .report import Metrics, ProgressBar, model_card, plot_losses
from .schedule import factor
from .settings import TrainConfig
from .task import Task, random_of

LOG_EVERY = 10


@dataclass
class Outcome:
    """How a training ended."""

    step: int
    finished: bool
    best: dict[str, Any]
    seconds: float


@contextmanager
def interruptible():
    """Ctrl-C and SIGTERM stop the loop after its step; a second Ctrl-C stops at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def stop(number: int, frame: Any) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Trainer:
    """A model, its optimizers and the run they write to."""

    def __init__(self, task: Task, run: Run, config: TrainConfig):
        self.task, self.run, self.config = task, run, config
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
        self.recent: list[tuple[Tensor, Tensor]] = []  # loss and gradient norm since they were last fetched
        self.pending: list[float] = []  # losses since the last line of metrics

    def _seed(self, step: int) -> None:
        """Dropout's random numbers, like the batch, follow from (seed, step): no state to save."""
        torch.manual_seed(int(random_of(self.config.seed, step, 1 << 20).integers(1 << 62)))

    def update(self) -> int:
        """One optimizer step; how many units were in its batch."""
        self._seed(self.step)
        self.model.train()
        losses, seen = [], 0
        for micro in range(self.config.accumulate):
            batch = self.batch(self.step, micro)
            seen += self.task.count(batch)
            if self.device.type == "cuda":
                batch = tuple(t.pin_memory().to(self.device, non_blocking=True) for t in batch)
            with self.autocast():
                loss = self.loss(tuple(t.to(self.device) for t in batch)) / self.config.accumulate
            loss.backward()
            losses.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip or math.inf)
        now = factor(self.step, self.config)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * now
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.recent.append((torch.stack(losses).sum(), norm.detach()))
        self.step += 1
        if self.ema is not None:
            self.ema.update(self.step)
        return seen

    def fetch_losses(self) -> None:
        """Fetch the losses since the last time, and stop if one of them, or a gradient norm, is not finite."""
        if not self.recent:
            return
        values = torch.stack([torch.stack(pair) for pair in self.recent]).tolist()
        first = self.step - len(values)
        self.recent.clear()
        for i, (loss, norm) in enumerate(values):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = f"loss is {loss}" if not math.isfinite(loss) else f"gradient norm is {norm}"
                steps = checkpoint.saved(self.run.path)
                kept = f"the checkpoint of step {steps[-1]} is kept" if steps else "no checkpoint had been written yet"
                raise UserError(
                    f"training stopped at step {first + i + 1}: the {what}; {kept}; a lower --train.lr may help"
                )
            self.pending.append(loss)

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
            self.best = {"step": self.step, **results}
            with self.averaged():
                self.run.write_weights(self.model, {**self._facts(), **self.best})

    def save_interrupted_weights(self) -> None:
        """An interrupted run is used with its last weights, unless better ones were kept."""
        if self.step and (not self.task.select_best or not self.best.get("step")):
            with self.averaged():
                self.run.write_weights(self.model, {**self._facts(), "step": self.step})

    def _facts(self) -> dict[str, Any]:
        return {
            "family": self.task.family.name, "weights": "ema" if self.ema else "model", "pencil": __version__
        }  # fmt: skip

    def save(self) -> None:
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        if self.ema is not None:
            tensors |= {f"ema.{name}": t for name, t in self.ema.values.items()}
        state = {
            "of": self._identity(), "optimizer": self.config.optimizer,
            "best": self.best, "pending": self.pending, "seconds": self.seconds,
            "threads": torch.get_num_threads(), "device": self.device.type,
            "versions": {"pencil": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }  # fmt: skip
        checkpoint.write(
            self.run.path, self.step, tensors | state_tensors(self.model, self.optimizers), state, self.config.keep
        )

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must belong to: the same model on the same data."""
        facts = self.run.config["run"]
        return {"family": facts["family"], "data": facts.get("data_hash"), "model": self.run.config["model"]}

    def restore(self) -> list[str]:
        """Load the newest intact checkpoint; what the user should know about it."""
        kept, notes = checkpoint.latest(self.run.path)
        if kept is None:
            return notes
        tensors, belongs = self._current_names(kept)
        weights = {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")}
        expected = {n: t.shape for n, t in self.model.state_dict().items()}
        if {n: t.shape for n, t in weights.items()} != expected or belongs != self._identity():
            raise UserError(f"{checkpoint.folder_of(self.run.path, kept.step)} is a checkpoint of another model")
        if kept.state["optimizer"] != self.config.optimizer:
            was = kept.state["optimizer"]
            raise UserError(
                f"{self.run.path} was trained with {was} and cannot be resumed with {self.config.optimizer}"
            )
        self.model.load_state_dict(weights)
        load_state_tensors(self.model, self.optimizers, {n: t for n, t in tensors.items() if n.startswith("optim.")})
        if self.ema is not None:
            self.ema.restore({n.removeprefix("ema."): t for n, t in tensors.items() if n.startswith("ema.")})
        self.step, self.best = kept.step, kept.state["best"]
        self.pending, self.seconds = kept.state["pending"], kept.state["seconds"]
        here = {"threads": torch.get_num_threads(), "device": self.device.type}
        for key, value in here.items():
            if kept.state[key] != value:
                notes.append(f"{key} was {kept.state[key]} and is {value} now: the result may differ in its last bits")
        return notes

    def _current_names(self, kept: checkpoint.Checkpoint) -> tuple[dict[str, Tensor], Any]:
        """The tensors of a checkpoint, and what it belongs to, under the names of this version."""
        belongs = kept.state.get("of")
        if not isinstance(belongs, dict) or belongs == self._identity():
            return kept.tensors, belongs
        family = self.task.family
        belongs = belongs | {"model": upgraded(family.config, belongs.get("model") or {})}
        tensors = {}
        for name, tensor in kept.tensors.items():
            # model.NAME, ema.NAME or optim.KIND.NAME.KEY
            cut = name.index(".", len("optim.") if name.startswith("optim.") else 0) + 1
            tensors[name[:cut] + rename(name[cut:], family.renamed_tensors)] = tensor
        return tensors, belongs

    def train(self) -> Outcome:
        """Train to the last step, or until interrupted; everything in the run folder is written on the way."""
        with self.run.writing(), closing(self.batch) if isinstance(self.batch, Prefetch) else nullcontext():
            try:
                return self._train()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise
                steps = checkpoint.saved(self.run.path)
                kept = (
                    f"the checkpoint of step {steps[-1]} is intact" if steps else "no checkpoint had been written yet"
                )
                raise UserError(
                    f"the disk is full: step {self.step} could not be saved in {self.run.path}; {kept}; "
                    f"free some space, then: pencil resume {self.run.path}"
                ) from None

    def _train(self) -> Outcome:
        config = self.config
        notes = self.restore()
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
                    self.fetch_losses()
                    results = self.evaluate()
                    metrics.write(step=self.step, **results)
                    self.keep_best(results)
                    self._preview()
                    bar.print(f"step {self.step:>6}  " + "  ".join(f"{k} {v:.4f}" for k, v in results.items()))
                if fresh and self.step and (last or stopping.is_set() or self.step % config.save_every == 0):
                    self.fetch_losses()
                    self.save()
                if stopping.is_set() and not last:
                    self.save_interrupted_weights()
                if last or stopping.is_set():
                    break
                started = time.perf_counter()
                seen += self.update()
                log = self.step % LOG_EVERY == 0 or self.step == config.steps
                if log:
                    self.fetch_losses()
                busy += time.perf_counter() - started
                if log:
                    self.seconds += busy
                    loss = sum(self.pending) / len(self.pending)
                    metrics.write(
                        step=self.step, train_loss=loss, lr=config.lr * factor(self.step - 1, config),
                        rate=round(seen / busy, 1), time=round(self.seconds, 3),
                    )  # fmt: skip
                    bar.update(self.step, loss, seen / busy)
                    self.pending, seen, busy = [], 0, 0.0
        metrics.close()
        plot_losses(self.run.path)
        parameters = sum(p.numel() for p in self.model.parameters())
        card = model_card(self.run.path, self.run.config, parameters, self.best, self.task.select_best, self.task.usage)
        write_aside(self.run.path / "README.md", card.encode())
        return Outcome(self.step, self.step >= config.steps, self.best, self.seconds)

    def _preview(self) -> None:
        self.model.eval()
        with self.averaged():
            shown = self.task.preview(self.model)
        (self.run.path / "samples").mkdir(exist_ok=True)
        write_aside(self.run.path / "samples" / f"step-{self.step:08d}{shown.suffix}", shown.content)
