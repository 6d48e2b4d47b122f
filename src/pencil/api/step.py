"""A training step of a run, opened: on an input, or an update that the run really made, replayed from its seed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..config import UserError, build
from ..console import note
from ..core.layers import evaluating
from ..inference.text_batches import vocabulary_labels
from ..runs.run import Loaded, Run
from ..tracing.live_trace import LiveTrace
from ..tracing.loss import EXACT, NONE, check_targets, logits_of
from ..tracing.recording import EveryValue
from ..tracing.step import StepTrace, check_loss, record_step, trace_step
from ..tracing.step_tape import StepTape
from ..tracing.tape import off
from ..train.freezing import freeze_parameters
from ..train.loop import checkpoint
from ..train.loop.trainer import Trainer
from ..train.optim import make_optimizers
from ..train.settings import TrainConfig, resumed
from .run_data import task_of


class StepMaker:
    """Makes training steps on what a trace has read, with the settings of its run and without dropout.

    A step can be recorded, which changes nothing, or taken: then the model and what its optimizers remember go on.
    """

    def __init__(self, loaded: Loaded, live: LiveTrace):
        if live.traced_model.targets is None and live.loss is None:
            raise UserError(
                f"a {loaded.run.family} has no loss without a target: name it with --target, or take a batch of the "
                "training with --update-at"
            )
        recorded = resumed(loaded.run.path, loaded.run.config["train"], {})
        self._live, self._config = live, _as_recorded(build(TrainConfig, recorded, "train."))
        self.model = live.traced_model.model
        with self._trainable():
            self.optimizers = make_optimizers(self.model, self._config)

    def record(self) -> StepTrace:
        """The step, recorded; the model is afterwards as it was."""
        inputs, optimizers = self._live.traced_model.inputs, list(self.optimizers.values())
        with self._trainable():
            labels = self._live.labels
            return trace_step(self.model, self._loss, inputs, optimizers, clip=self.clip, labels=labels, warn=note)

    def take(self) -> tuple[float, list[float]]:
        """Take the step by the operations of a recorded one: the loss before it, and of targets the probability."""
        traced, plain = self._live.traced_model, {}
        if traced.probed:  # which keeps the model from its fused routes, as a recording does
            plain["probe"] = EveryValue(lambda name, value: value)
        with ExitStack() as stack:
            stack.enter_context(self._trainable())
            stack.enter_context(evaluating(self.model.modules()))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            likely: list[float] = []
            if self._live.loss is None:
                logits, right = self._rows(self.model, *traced.inputs, **plain)
                loss, counted = F.cross_entropy(logits, right, ignore_index=NONE), right >= 0
                all_likely = logits.detach().log_softmax(-1).exp()
                likely = all_likely[counted].gather(-1, right[counted, None])[:, 0].tolist()
            else:
                loss = self._live.loss(partial(self.model, **plain), *traced.inputs)
            check_loss(loss)
            loss.backward()
            trained = [p for p in self.model.parameters() if p.grad is not None]
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(trained, self.clip, foreach=False)
            for optimizer in self.optimizers.values():
                optimizer.step()
            for p in trained:
                p.grad = None
            return float(loss.detach()), likely

    @property
    def clip(self) -> float | None:
        """The largest norm that all gradients may have together."""
        return self._config.clip or None

    @property
    def targets(self) -> list[int]:
        """The right index for each row of the logits, less than 0 where there is none."""
        targets = self._live.traced_model.targets
        return [] if targets is None else torch.as_tensor(targets).flatten().tolist()

    def _loss(self, model: Any, *inputs: Tensor) -> Tensor:
        if self._live.loss is not None:
            return self._live.loss(model, *inputs)
        return F.cross_entropy(*self._rows(model, *inputs), ignore_index=NONE)

    def _rows(self, model: Any, *inputs: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
        """The logits, a row for each target, and the targets."""
        traced = self._live.traced_model
        logits = logits_of(model(*inputs, **traced.keywords, **more))
        right = check_targets(traced.targets, logits)
        logits = logits if logits.dtype in EXACT else logits.float()
        return logits.flatten(0, -2), right.masked_fill(right < 0, NONE).flatten()

    @contextmanager
    def _trainable(self) -> Iterator[None]:
        """The model with gradients for all that the run trains."""
        without = [p for p in self.model.parameters() if not p.requires_grad]
        for p in without:
            p.requires_grad_(True)
        freeze_parameters(self.model, self._config.freeze)
        try:
            yield
        finally:
            for p in without:
                p.requires_grad_(False)


def step_on(loaded: Loaded, live: LiveTrace) -> StepTrace:
    """The training step on what a trace has read, in the precision of the weights as they are loaded."""
    return StepMaker(loaded, live).record()


def precision_note(run: Run) -> str:
    """What to say of a step on an input, where the run was trained in another precision than it is recorded in."""
    if not _trained_in_bfloat16(run):
        return ""
    return "this run was trained in bfloat16, and the step on an input is recorded in single precision"


def _trained_in_bfloat16(run: Run) -> bool:
    dtype = run.config["train"].get("dtype", "auto")
    return dtype == "bfloat16" or (dtype == "auto" and _trained_on(run).startswith("cuda"))


def _trained_on(run: Run) -> str:
    """The device that a run was trained on, as its newest checkpoint has it; "auto" if none does."""
    saved, _ = checkpoint.find(Path(str(run.path)))
    state = (checkpoint.state_of(saved[0]) if saved else None) or {}
    return str(state.get("device") or run.config["train"].get("device") or "auto")


class NamedLoss:
    """A task whose loss has a name in the trace."""

    def __init__(self, task: Any, tape: Callable[[], StepTape | None]):
        self._task, self._tape = task, tape
        if hasattr(task, "noise"):
            # random numbers are made by arithmetic with whole numbers, of which no gradient knows
            self._draw, task.noise = task.noise, self._noise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def _noise(self, *arguments: Any) -> Any:
        with off():
            drawn = self._draw(*arguments)
        if (tape := self._tape()) is not None:
            for name, value in zip(("noise.time", "noise", "noise.chance"), drawn, strict=True):
                tape.leaf_names[id(value)] = ([name], "noise")
        return drawn

    def loss(self, model: Any, batch: Any) -> Tensor:
        loss, tape = self._task.loss(model, batch), self._tape()
        if tape is not None:
            check_loss(loss)
            tape.check_graph(loss)
            tape.name(loss, "loss")
        return loss


def trace_update(run: str | Path, step: int, announce: Callable[[str], None] = lambda line: None) -> StepTrace:
    """The update that a run made after `step`, on its own batch, from its own weights and moments, with its dropout.

    The weights are those of the newest checkpoint that is not after the step, or the first ones; the updates between
    are made again, as the training made them. The run is not changed.
    """
    opened = Run.open(Path(run))
    made = checkpoint.saved_steps(opened.path)
    if not made:
        raise UserError(f"{opened.path} has no checkpoint, so it is not known which updates it made")
    if not 0 <= step < made[-1]:
        raise UserError(f"{opened.path} has made {made[-1]} updates: choose one from 0 to {made[-1] - 1}, not {step}")
    trainer, recording = prepare_replay(opened, announce)
    with trainer.group:
        trainer.replay(step, lambda updates: _announce(opened, updates, announce))

        def update(tape: StepTape) -> None:
            recording[:], tape.clip = [tape], trainer.config.clip or None
            trainer.update()
            recording.clear()

        tape, traced = record_step(trainer.model, list(trainer.optimizers.values()), update)
    (loss, *_) = trainer.guard.read(trainer.step).losses or [float("nan")]
    trace = StepTrace(tape, traced, loss, _labels(opened, trainer.model))
    if fault := trace.fault:
        announce(fault)
    return trace


def _labels(run: Run, model: Any) -> dict[str, list[str]]:
    """The labels of the rows of tables: the tokens of the vocabulary, and the classes."""
    labels = {"K": list(map(str, run.config["run"].get("classes") or []))}
    if (run.path / "tokenizer.json").is_file() and getattr(model.config, "vocab", None):
        labels["V"] = vocabulary_labels(run.tokenizer, model.config.vocab)
    return labels


def prepare_replay(opened: Run, announce: Callable[[str], None]) -> tuple[Trainer, list[StepTape]]:
    """A trainer of the run on a CPU, and a list: while it holds a tape, the loss has its name there."""
    config = build(TrainConfig, resumed(opened.path, opened.config["train"], {}), "train.")
    if (was := _trained_on(opened)) not in ("auto", "cpu"):
        half = _trained_in_bfloat16(opened) and config.dtype == "auto"
        precision = " in bfloat16: replayed on a CPU in single precision" if half else ": replayed on a CPU"
        announce(f"it was trained on {was}{precision}, its weights differ by rounding")
    config, recording = _as_recorded(config), []
    task = NamedLoss(task_of(opened, config, None, announce), lambda: recording[-1] if recording else None)
    return Trainer(task, opened, config, quiet=True), recording  # pyright: ignore[reportArgumentType]


def _as_recorded(config: TrainConfig) -> TrainConfig:
    """Settings under which every operation of an update is seen; the arithmetic stays the same."""
    return replace(config, device="cpu", compile="off", recompute="none", parallel="auto")


def _announce(run: Run, updates: int, announce: Callable[[str], None]) -> None:
    if updates:
        announce(f"making {updates} update{'s' if updates > 1 else ''} again")
