"""The training loop: one for every family. `step` counts the updates done; all else is a function of it."""

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
from ..config import UserError
from ..files import write_aside
from ..runs import Run
from . import checkpoint
from .ahead import Ahead
from .average import Average
from .optim import load_state_tensors, make_optimizers, state_tensors
from .progress import Bar
from .report import Metrics, model_card, plot_losses
from .schedule import factor
from .settings import TrainConfig
from .tasks import Task, random_of

LOG_EVERY = 10


@dataclass
class Outcome:
    """How a training ended."""

    step: int
    finished: bool
    best: dict[str, Any]
    seconds: float


def pick_device(name: str) -> torch.device:
    """CUDA, then Apple's MPS, then the CPU, unless one is named."""
    if name == "auto":
        mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(f"device {name} is not to be had here; try auto or cpu") from None
    return device


@contextmanager
def interruptible():
    """Ctrl-C and SIGTERM ask the loop to end after its step; a second Ctrl-C ends at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
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
            # a processor without such units multiplies all the same, by another route, after a page of stack frames
            warnings.filterwarnings("ignore", "mkldnn_matmul failed")
        loss = partial(task.loss, self.model)
        compiled = config.compile == "on" or (config.compile == "auto" and self.device.type == "cuda")
        self.loss = torch.compile(loss) if compiled else loss
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        # an accelerator should not wait for its next batch; a CPU has the work to do itself, unless it is decoding
        ahead = task.slow or self.device.type != "cpu"
        self.batch = Ahead(task.batch, config.accumulate, config.steps) if ahead else task.batch
        self.average = Average(self.model, config.ema) if config.ema else None
        self.step = 0
        self.seconds = 0.0
        self.best: dict[str, Any] = {}
        self.recent: list[tuple[Tensor, Tensor]] = []  # loss and gradient norm since the last look
        self.pending: list[float] = []  # losses since the last line of metrics

    def _seed(self, step: int) -> None:
        """Dropout's random numbers, like the batch, follow from (seed, step): no state to save."""
        torch.manual_seed(int(random_of(self.config.seed, step, 1 << 20).integers(1 << 62)))

    def update(self) -> int:
        """One optimizer step; how many units it saw."""
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
        if self.average is not None:
            self.average.update(self.step)
        return seen

    def look(self) -> None:
        """Fetch the losses since the last look, and stop if one of them, or a gradient, is not finite."""
        if not self.recent:
            return
        values = torch.stack([torch.stack(pair) for pair in self.recent]).tolist()
        first = self.step - len(values)
        self.recent.clear()
        for i, (loss, norm) in enumerate(values):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = f"loss was {loss}" if not math.isfinite(loss) else f"gradient's norm was {norm}"
                steps = checkpoint.saved(self.run.path)
                kept = f"the checkpoint of step {steps[-1]} is kept" if steps else "no checkpoint had been written yet"
                raise UserError(
                    f"training stopped at step {first + i + 1}: the {what}; {kept}; a lower --train.lr may help"
                )
            self.pending.append(loss)

    def averaged(self) -> AbstractContextManager[Any]:
        """The model with the weights it is used with: their average, where one is kept."""
        return nullcontext() if self.average is None else self.average.in_place()

    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        with self.autocast(), self.averaged():
            return self.task.evaluate(self.model, self.config.eval_batches)

    def keep_best(self, measures: dict[str, float]) -> None:
        """The weights that sample and eval read: the best by validation; the last where the test would choose them."""
        if not self.task.chooses or measures["val_loss"] < self.best.get("val_loss", math.inf):
            self.best = {"step": self.step, **measures}
            with self.averaged():
                self.run.write_weights(self.model, {**self._facts(), **self.best})

    def keep_untold(self) -> None:
        """A run cut short is used as it stands where no measurement says otherwise."""
        if self.step and (not self.task.chooses or not self.best.get("step")):
            with self.averaged():
                self.run.write_weights(self.model, {**self._facts(), "step": self.step})

    def _facts(self) -> dict[str, Any]:
        return {
            "family": self.task.family, "weights": "ema" if self.average else "model", "pencil": __version__
        }  # fmt: skip

    def save(self) -> None:
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        if self.average is not None:
            tensors |= {f"ema.{name}": t for name, t in self.average.values.items()}
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
        """What a checkpoint must be of to be gone on from: the same model on the same data."""
        facts = self.run.config["run"]
        return {"family": facts["family"], "data": facts.get("data_hash"), "model": self.run.config["model"]}

    def restore(self) -> list[str]:
        """Go back to the newest whole checkpoint; what the user should know about it."""
        kept, notes = checkpoint.latest(self.run.path)
        if kept is None:
            return notes
        weights = {n.removeprefix("model."): t for n, t in kept.tensors.items() if n.startswith("model.")}
        expected = {n: t.shape for n, t in self.model.state_dict().items()}
        if {n: t.shape for n, t in weights.items()} != expected or kept.state.get("of") != self._identity():
            raise UserError(f"{checkpoint.folder_of(self.run.path, kept.step)} is a checkpoint of another model")
        if kept.state["optimizer"] != self.config.optimizer:
            was = kept.state["optimizer"]
            raise UserError(f"{self.run.path} is trained with {was}, and cannot go on with {self.config.optimizer}")
        self.model.load_state_dict(weights)
        load_state_tensors(
            self.model, self.optimizers, {n: t for n, t in kept.tensors.items() if n.startswith("optim.")}
        )
        if self.average is not None:
            self.average.restore({n.removeprefix("ema."): t for n, t in kept.tensors.items() if n.startswith("ema.")})
        self.step, self.best = kept.step, kept.state["best"]
        self.pending, self.seconds = kept.state["pending"], kept.state["seconds"]
        here = {"threads": torch.get_num_threads(), "device": self.device.type}
        for key, value in here.items():
            if kept.state[key] != value:
                notes.append(f"{key} was {kept.state[key]} and is {value} now: the result may differ in its last bits")
        return notes

    def train(self) -> Outcome:
        """Go on to the last step, or until interrupted; everything the run folder holds is written on the way."""
        with self.run.writing(), closing(self.batch) if isinstance(self.batch, Ahead) else nullcontext():
            try:
                return self._train()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                    raise
                steps = checkpoint.saved(self.run.path)
                kept = f"the checkpoint of step {steps[-1]} is whole" if steps else "no checkpoint had been written yet"
                raise UserError(
                    f"the disk is full: step {self.step} could not be saved in {self.run.path}; {kept}; "
                    f"make room, then: pencil resume {self.run.path}"
                ) from None

    def _train(self) -> Outcome:
        config = self.config
        notes = self.restore()
        start = self.step
        bar = Bar(config.steps, start, self.task.unit)
        for line in notes:
            bar.say(line)
        metrics = Metrics(self.run.path, start, config.logger)
        if asdict(config) != self.run.config["train"]:
            self.run.write_config({**self.run.config, "train": config})
        seen, busy = 0, 0.0
        with interruptible() as asked, bar:
            while True:
                last = self.step >= config.steps
                fresh = self.step > start or start == 0
                if fresh and (last or self.step % config.eval_every == 0):
                    self.look()
                    measures = self.evaluate()
                    metrics.write(step=self.step, **measures)
                    self.keep_best(measures)
                    self._preview()
                    bar.say(f"step {self.step:>6}  " + "  ".join(f"{k} {v:.4f}" for k, v in measures.items()))
                if fresh and self.step and (last or asked.is_set() or self.step % config.save_every == 0):
                    self.look()
                    self.save()
                if asked.is_set() and not last:
                    self.keep_untold()
                if last or asked.is_set():
                    break
                begun = time.perf_counter()
                seen += self.update()
                log = self.step % LOG_EVERY == 0 or self.step == config.steps
                if log:
                    self.look()
                busy += time.perf_counter() - begun
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
        card = model_card(self.run.path, self.run.config, parameters, self.best, self.task.chooses, self.task.usage)
        write_aside(self.run.path / "README.md", card.encode())
        return Outcome(self.step, self.step >= config.steps, self.best, self.seconds)

    def _preview(self) -> None:
        self.model.eval()
        with self.averaged():
            shown = self.task.preview(self.model)
        write_aside(self.run.path / "samples" / f"step-{self.step:08d}{shown.suffix}", shown.content)
