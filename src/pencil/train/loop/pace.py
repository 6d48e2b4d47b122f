"""How long things take here: the time left, a time budget and its plans, and trial steps that are put back."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...collectives.dtensor import to_local
from ...collectives.processes import broadcast
from ...config import UserError
from ...device import random_state_kept
from ...progress import duration
from ...runs.run import Run
from ..optim import make_optimizers
from ..settings import Plan, TrainConfig
from .ema import ExponentialMovingAverage
from .nonfinite import FiniteGuard

SLOW = 2.0  # seconds of a first update that is a measure of the others, where nothing is compiled
EVALUATIONS = 10  # in a time budget, unless they take more than EVALUATION_SHARE of it
EVALUATION_SHARE = 0.1
SAVE_WEIGHTS = 4  # a checkpoint has the weights, up to two moments and an average: so many times the weights' time
# shares of a time budget
SPARE = 0.01  # safety margin that is not planned
HALF_LIFE = 0.05  # of the moving average of the time of an update
BETWEEN = 0.02  # the least time from one plan to the next
TOLERANCE = 0.02  # a plan stands as long as it ends so near to the budget, or to a tenth of what is left of it
OVER = 1.1  # an evaluation that is still going on then is left out
FEW = 0.1  # of the steps that a preset has: fewer teach a model next to nothing

clock = time.perf_counter  # the same in all processes of a machine


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


class Budget:
    """A time budget: how much of it is used, and how many steps fit into the rest.

    Time counts from the start of the command to its last line. What earlier commands of the same run used counts too.
    With several processes rank 0's clock decides, and the others follow its plans.
    """

    def __init__(self, minutes: float, began: float, state: Mapping[str, Any] | None = None):
        """`began` is when the command was started; `state` is that of the checkpoint it goes on from."""
        known = state or {}
        self.minutes, self.seconds, self.began = minutes, 60 * minutes, began
        # a process that was started again goes on with the command that had begun
        self.before = known.get("before" if known.get("command") == began else "used", 0.0)
        self.updates, self.busy = known.get("updates", 0.0), known.get("busy", 0.0)
        self.evaluation, self.pace_then = known.get("evaluation", 0.0), known.get("pace_then", 0.0)
        self.save, self.plot = known.get("save", 0.0), known.get("plot", 0.0)
        self.step, self.first, self.since = -1, -1, began
        self.planned, self.planned_step = began, -1

    def state(self) -> dict[str, float]:
        """What a checkpoint records of it."""
        names = ("before", "updates", "busy", "evaluation", "pace_then", "save", "plot")
        return {"used": self.used(), "command": self.began, **{name: getattr(self, name) for name in names}}

    @property
    def update(self) -> float:
        """Seconds of an update, by the recent ones; with all that is done between them but evaluations."""
        return self.busy / max(self.updates, 1e-9)

    def used(self) -> float:
        return self.before + clock() - self.began

    def left(self) -> float:
        return self.seconds - self.used()

    def over(self) -> bool:
        """Whether this command has used far more than what was left of the budget; before the first step, all of it."""
        had = self.seconds - self.before
        return had > 0 and clock() - self.began > (OVER if self.step >= 0 else 1) * had

    def count(self, step: int) -> None:
        """Count the updates since the last call; the first of a command may compile, and does not count."""
        now = clock()
        made, spent = step - self.step, now - self.since
        if self.first < 0:
            self.first = step
        elif made and step > self.first + 1:
            kept = 0.5 ** (spent / (HALF_LIFE * self.seconds))
            self.updates, self.busy = self.updates * kept + made, self.busy * kept + spent
        self.step, self.since = step, now

    def evaluated(self, seconds: float, save: float) -> None:
        """Count an evaluation, and the seconds that a checkpoint is expected to take."""
        self.evaluation, self.save, self.pace_then = seconds, save, self.update
        self.since += seconds

    def slower(self) -> float:
        """How many times slower the machine is than when the evaluation was measured; 1 where it is faster."""
        return max(1.0, self.update / self.pace_then) if self.pace_then else 1.0

    def need(self, step: int, steps: int, eval_every: int) -> float:
        """Seconds from this step to the last line of the command."""
        evaluations = -(-steps // eval_every) - step // eval_every
        rest = evaluations * self.evaluation + self.save + self.plot
        return (steps - step) * self.update + self.slower() * rest

    def due(self, step: int, config: TrainConfig, following: bool = False) -> bool:
        """Whether the steps must be planned anew: they would end too far from the budget.

        Recorded plans that are still to come are followed, unless there is no time for another step.
        """
        if config.steps <= step:
            return False
        left = self.left()
        if left < self.need(step, step + 1, step + 1):  # one more step, an evaluation and the end
            return True
        off = abs(left - self.need(step, config.steps, config.eval_every))
        if following or step == self.planned_step or off <= max(TOLERANCE * self.seconds, 0.1 * left, self.update):
            return False
        return clock() - self.planned >= BETWEEN * self.seconds or step + 1 >= config.steps

    def plan(self, step: int, config: TrainConfig, names: Iterable[str]) -> Plan:
        """The most steps that fit into the rest of the budget, and of these settings what follows from them.

        Evaluations and checkpoints that were not chosen are ten of each, or fewer if they would take over a tenth of
        the time; they stay where they are as long as there are about so many.
        """
        self.planned, self.planned_step = clock(), step
        room = self.left() - SPARE * self.seconds
        costs = {"eval_every": self.slower() * self.evaluation, "save_every": self.slower() * self.save}

        def fitted(steps: int) -> Plan:
            plan = {"step": step, "steps": steps}
            for name in names:
                count = max(1, min(EVALUATIONS, int(EVALUATION_SHARE * self.seconds / max(costs[name], 1e-9))))
                every = getattr(config, name)
                kept = every and 0.7 * count <= -(-steps // every) <= int(1.3 * count)
                plan[name] = every if kept else max(1, -(-steps // count))
            return plan

        least, most = step, step + int(max(0.0, room) / max(self.update, 1e-9))
        while least < most:
            steps = (least + most + 1) // 2
            every = fitted(steps).get("eval_every", config.eval_every)
            fits = self.need(step, steps, every) <= room
            least, most = (steps, most) if fits else (least, steps - 1)
        return fitted(least)

    def too_little(self, run: Run) -> UserError:
        """The error of a budget without room for a step."""
        each = ("step", self.update), ("evaluation", self.evaluation), ("checkpoint", self.save)
        known = [f"{'an' if name == 'evaluation' else 'a'} {name} {duration(value)}" for name, value in each if value]
        takes = f" ({', '.join(known)})" if known else ""
        again = f"pencil resume {run.path} and more --train.minutes, or fewer --train.eval_batches"
        if "task" in run.config["run"]:  # of pencil.fit
            again = "pencil.fit(…, resume=True) and more minutes, or fewer eval_batches"
        return UserError(
            f"train.minutes {self.minutes:g} is too little here: {duration(self.used())} were used before the first "
            f"step{takes}; {run.path} is not trained yet: go on with {again}"
        )

    def too_few(self, steps: int, usual: int, preset: str, family: str) -> str | None:
        """A sentence if the steps are far fewer than those that the preset has."""
        if steps >= FEW * usual:
            return None
        minutes = (self.used() + usual * self.update / (1 - EVALUATION_SHARE)) / 60
        enough = f"{minutes:.1f}" if minutes < 9.95 else f"{float(f'{minutes:.2g}'):.0f}"
        return (
            f"{steps:,} step{'s' * (steps > 1)} will hardly train a {family}: the preset {preset} trains for {usual:,} "
            f"steps, which takes about --train.minutes {enough} here; a smaller --preset, --model.width or "
            "--train.batch takes less"
        )


def planned_line(plan: Plan, config: TrainConfig, budget: Budget) -> str:
    """A plan in words."""
    steps, each = plan["steps"], duration(budget.update)
    if plan["step"]:
        return f"step {plan['step']:>6}  planned again at {each} per step: {steps:,} steps instead of {config.steps:,}"
    minutes = f"{budget.minutes:g} minute" + "s" * (budget.minutes != 1)
    return (
        f"at {each} per step, about {steps:,} steps fit into {minutes}, evaluated every "
        f"{plan.get('eval_every', config.eval_every):,}; the number is planned again while training"
    )


def plans_of(config: Mapping[str, Any]) -> list[Plan]:
    """The plans that a run has recorded, first to last."""
    columns = config.get("plans") or {}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def with_plans(config: Mapping[str, Any], plans: list[Plan]) -> dict[str, Any]:
    """The tables of a run with these plans, a column for each setting."""
    others = {name: table for name, table in config.items() if name != "plans"}
    return {**others, **({"plans": {name: [plan[name] for plan in plans] for name in plans[0]}} if plans else {})}


def time_updates(trainer: Any, pace: Pace, seconds: float, poll: Callable[[], None]) -> None:
    """Measure the pace by updates from step 0 that are put back.

    Weights, moments and average end as they began, and so do the random numbers: training is the same to the bit.
    `poll` is called after each, and may stop it by raising.
    """
    model, device = trainer.model, trainer.device
    before = {name: to_local(t).detach().to("cpu", copy=True) for name, t in model.state_dict().items()}
    warm_up, units, made = 3 if trainer.warms_up else 1, 0, 0  # the first compile, and fill caches
    started = clock()
    try:
        with random_state_kept(device):
            while made < warm_up:
                units = trainer.update()
                poll()
                made += 1
            trainer.guard.read(trainer.step)  # waits for the device
            began = last = clock()
            if broadcast(began - started) > SLOW and not trainer.warms_up:
                pace.count(1, began - started, units)
                return
            units = 0
            while made == warm_up or broadcast(last - began) < seconds:
                units += trainer.update()
                poll()
                made += 1
                trainer.guard.read(trainer.step)
                last = clock()
            pace.count(made - warm_up, last - began, units)
    finally:
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                to_local(tensor).copy_(before[name])
        trainer.step = 0
        trainer.optimizers = make_optimizers(model, trainer.config)
        trainer.guard = FiniteGuard(device, trainer.guard.stop)
        trainer.ema = ExponentialMovingAverage(model, trainer.config.ema) if trainer.config.ema else None
