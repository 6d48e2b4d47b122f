"""How long things take here: the time left, a time budget as a number of steps, and trial steps that are put back."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..config import UserError
from ..processes import from_writer
from ..progress import duration
from .ema import ExponentialMovingAverage
from .local import local
from .nonfinite import FiniteGuard
from .optim import make_optimizers
from .settings import TrainConfig, fit_warmup

SLOW = 2.0  # seconds of a first update that is a measure of the others, where nothing is compiled
EVALUATIONS = 10  # in a time budget, unless they take more than EVALUATION_SHARE of it
EVALUATION_SHARE = 0.1
SAVE_WEIGHTS = 4  # a checkpoint has the weights, up to two moments and an average: so many times the weights' time


@dataclass
class Pace:
    """Seconds of an update, an evaluation (with its preview and its weights written) and a save, as measured."""

    updates: int = 0
    seconds: float = 0.0
    units: int = 0  # tokens, images, …
    evaluation: float = 0.0
    save: float = 0.0

    def count(self, updates: int, seconds: float, units: int) -> None:
        self.updates, self.seconds, self.units = self.updates + updates, self.seconds + seconds, self.units + units

    @property
    def update(self) -> float:
        return self.seconds / max(1, self.updates)

    @property
    def rate(self) -> float:
        """Units a second."""
        return self.units / max(self.seconds, 1e-9)

    def left(self, step: int, config: TrainConfig) -> float:
        """Seconds from this step to the last, with the evaluations and the saves on the way."""

        def times(every: int) -> int:
            return -(-config.steps // every) - step // every

        evaluations, saves = (times(every) for every in (config.eval_every, config.save_every))
        return (config.steps - step) * self.update + evaluations * self.evaluation + saves * self.save


def fit_budget(config: TrainConfig, pace: Pace, seconds: float, run: Path) -> tuple[TrainConfig, list[str]]:
    """The steps for which so many seconds are enough, and what follows from them where it was not chosen; in words.

    Evaluations and saves that were not chosen are ten of each, or fewer if they would take over a tenth of the time.
    """
    counts, spent, each = {}, 0.0, pace.update
    for name, cost in (("eval_every", pace.evaluation), ("save_every", pace.save)):
        if every := getattr(config, name):
            spent, each = spent + cost, each + cost / every
        else:
            counts[name] = max(1, min(EVALUATIONS, int(EVALUATION_SHARE * seconds / max(cost, 1e-9))))
            spent += counts[name] * cost
    steps = int((seconds - spent) / max(each, 1e-9))
    if steps < 1:
        raise UserError(
            f"train.minutes {config.minutes:g} is too little here: a step takes {duration(pace.update)}, an evaluation "
            f"{duration(pace.evaluation)} and a checkpoint {duration(pace.save)}; {run} has untrained weights: go on "
            f"with pencil resume {run} and more --train.minutes, or fewer --train.eval_batches"
        )
    unit = 10 ** max(0, len(str(steps)) - 2)  # two digits are as exact as the pace is
    steps = steps // unit * unit
    every = {name: -(-steps // count) for name, count in counts.items()}
    decided, notes = fit_warmup(replace(config, steps=steps, **every), chosen=False)
    minutes = f"{config.minutes:g} minute" + "s" * (config.minutes != 1)
    line = f"at {duration(pace.update)} a step, {minutes} are {steps:,} steps, evaluated every {decided.eval_every:,}"
    return decided, [line, *notes]


def time_updates(trainer: Any, pace: Pace, seconds: float, poll: Callable[[], None]) -> None:
    """Measure the pace by updates from step 0 that are put back.

    Weights, moments and average end as they began, and so do the random numbers: training is the same to the bit.
    `poll` is called after each, and may stop it by raising.
    """
    model, device = trainer.model, trainer.device
    before = {name: local(t).detach().to("cpu", copy=True) for name, t in model.state_dict().items()}
    warm_up, units, made = 3 if trainer.warms_up else 1, 0, 0  # the first compile, and fill caches
    started = time.perf_counter()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            while made < warm_up:
                units = trainer.update()
                poll()
                made += 1
            trainer.guard.read(trainer.step)  # waits for the device
            began = last = time.perf_counter()
            if from_writer(began - started) > SLOW and not trainer.warms_up:
                pace.count(1, began - started, units)
                return
            units = 0
            while made == warm_up or from_writer(last - began) < seconds:
                units += trainer.update()
                poll()
                made += 1
                trainer.guard.read(trainer.step)
                last = time.perf_counter()
            pace.count(made - warm_up, last - began, units)
    finally:
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                local(tensor).copy_(before[name])
        trainer.step = 0
        trainer.optimizers = make_optimizers(model, trainer.config)
        trainer.guard = FiniteGuard(device, trainer.guard.stop)
        trainer.ema = ExponentialMovingAverage(model, trainer.config.ema) if trainer.config.ema else None
