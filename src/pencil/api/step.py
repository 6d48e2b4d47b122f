"""A training step of a run, opened: on an input, or an update that the run really made, replayed from its seed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ..config import UserError, build
from ..runs.run import Loaded, Run
from ..tracing.live_trace import LiveTrace
from ..tracing.loss import EXACT, NONE, check_targets, logits_of
from ..tracing.step import StepTrace, check_loss, recorded_step, trace_step
from ..tracing.step_tape import StepTape
from ..tracing.tape import off
from ..train.freezing import freeze_parameters
from ..train.loop import checkpoint
from ..train.loop.trainer import Trainer
from ..train.optim import make_optimizers
from ..train.settings import TrainConfig, resumed
from .run_data import task_of


def step_on(loaded: Loaded, live: LiveTrace) -> StepTrace:
    """The training step on what a trace has read."""
    traced = live.traced_model
    targets = traced.targets
    if targets is None:
        raise UserError(
            f"a {loaded.run.family} has no loss without a target: name it with --target, or take a batch of the "
            "training with --update-at"
        )
    config = _as_recorded(build(TrainConfig, resumed(loaded.run.path, loaded.run.config["train"], {}), "train."))
    model = traced.model

    def loss(model: Any, *inputs: Tensor) -> Tensor:
        logits = logits_of(model(*inputs, **traced.keywords))
        right = check_targets(targets, logits)
        right = right.masked_fill(right < 0, NONE)
        logits = logits if logits.dtype in EXACT else logits.float()
        return F.cross_entropy(logits.flatten(0, -2), right.flatten(), ignore_index=NONE)

    loaded_without = {p for p in model.parameters() if not p.requires_grad}
    for p in loaded_without:
        p.requires_grad_(True)
    freeze_parameters(model, config.freeze)
    try:
        optimizers = list(make_optimizers(model, config).values())
        return trace_step(model, loss, traced.inputs, optimizers, clip=config.clip or None, labels=live.labels)
    finally:
        for p in loaded_without:
            p.requires_grad_(False)


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
        with recorded_step(trainer.model, list(trainer.optimizers.values())) as tape:
            recording.append(tape)
            trainer.update()
            recording.clear()
    (loss, *_) = trainer.guard.read(trainer.step).losses or [float("nan")]
    return StepTrace(tape, loss)


def prepare_replay(opened: Run, announce: Callable[[str], None]) -> tuple[Trainer, list[StepTape]]:
    """A trainer of the run on a CPU, and a list: while it holds a tape, the loss has its name there."""
    config = build(TrainConfig, resumed(opened.path, opened.config["train"], {}), "train.")
    was = opened.config["run"].get("device") or opened.config["train"].get("device")
    if was not in (None, "auto", "cpu"):
        announce(f"it was trained on {was}: replayed on a CPU, its weights differ by rounding")
    config, recording = _as_recorded(config), []
    task = NamedLoss(task_of(opened, config, None, announce), lambda: recording[-1] if recording else None)
    return Trainer(task, opened, config, quiet=True), recording  # pyright: ignore[reportArgumentType]


def _as_recorded(config: TrainConfig) -> TrainConfig:
    """Settings under which every operation of an update is seen; the arithmetic stays the same."""
    return replace(config, device="cpu", compile="off", recompute="none", parallel="auto")


def _announce(run: Run, updates: int, announce: Callable[[str], None]) -> None:
    if updates:
        announce(f"making {updates} update{'s' if updates > 1 else ''} again")
