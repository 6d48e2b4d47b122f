"""How long things take here: the time that is left, and a time budget with its plans.

A time budget is planned again and again (`Budget`). With `train.minutes` a few updates are timed and put back
(weights, moments, average and random numbers), the first evaluation and the plot are timed, and the steps follow. Time
counts from the start of the command (`cli/launch.py`: `began`) to its last line. A plan stands as long as it would end
within 2 % of the budget, or a tenth of what is left; else the number of steps is planned anew, by the recent pace, and
training ends when there is no time for another step. Rank 0 decides each plan and the others follow it. A plan is
recorded with its step, in `[plans]` of the run's config.toml and in every checkpoint: a run that is taken up again
follows the recorded plans to the same bits, and makes its own after them, with the time that was left at the
checkpoint. The schedule is that of the first plan; each later plan stretches or compresses what is left of it
(`train/schedule.py`), so the learning rate makes no jump and has decayed at the last step. With one plan a run has the
bits of `--train.steps` with that number. An evaluation that is still going on at 1.1 times the budget is left out, as
at Ctrl-C, and `resume` makes it.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...progress import duration
from ..settings import Plan, TrainConfig

SLOW_UPDATE_SECONDS = 2.0  # a first update that takes longer is a measure of the others, where nothing is compiled
EVALUATIONS_PER_BUDGET = 10  # unless they take more than EVALUATION_SHARE of the time
EVALUATION_SHARE = 0.1
# a checkpoint has the weights, up to two moments and an average: it takes so many times as long as the weights
CHECKPOINT_PER_WEIGHTS = 4
# shares of the time of a budget
UNPLANNED_SHARE = 0.01  # a safety margin
HALF_LIFE_SHARE = 0.05  # the half-life of the moving average of the time per update
PLAN_INTERVAL_SHARE = 0.02  # the least time from one plan to the next
TOLERANCE_SHARE = 0.02  # a plan stands as long as it ends so near to the budget, or to a tenth of what is left of it
ABANDON_SHARE = 1.1  # an evaluation that is still going on then is left out
FEW_STEPS_SHARE = 0.1  # fewer of the steps that a preset has teach a model next to nothing

clock = time.perf_counter  # the same in all processes of a machine


@dataclass
class Pace:
    """Seconds per update, evaluation (with its preview and its weights written) and checkpoint, as measured."""

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
        """Units per second."""
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
    With several processes rank 0's clock decides, and the others follow its plans. `plans` are those that were in force
    so far; `following` are recorded plans of later steps, which a run that was killed follows once more.
    """

    def __init__(
        self,
        minutes: float,
        began: float,
        state: Mapping[str, Any] | None = None,
        plans: Iterable[Plan] = (),
        following: Iterable[Plan] = (),
    ):
        """`began` is when the command was started; `state` is that of the checkpoint it goes on from."""
        recorded = state or {}
        self.plans, self.following = list(plans), list(following)
        self.minutes, self.seconds, self.began = minutes, 60 * minutes, began
        # a process that was started again goes on with the command that had begun
        self.before = recorded.get("before" if recorded.get("command") == began else "used", 0.0)
        self.updates, self.busy = recorded.get("updates", 0.0), recorded.get("busy", 0.0)
        self.evaluation, self.pace_then = recorded.get("evaluation", 0.0), recorded.get("pace_then", 0.0)
        self.save, self.plot = recorded.get("save", 0.0), recorded.get("plot", 0.0)
        self.step, self.first, self.since = -1, -1, began
        self.planned, self.planned_step = began, -1

    def state(self) -> dict[str, float]:
        """What a checkpoint records of it."""
        names = ("before", "updates", "busy", "evaluation", "pace_then", "save", "plot")
        return {"used": self.used(), "command": self.began, **{name: getattr(self, name) for name in names}}

    @property
    def update(self) -> float:
        """Seconds per update, by the recent ones; with all that is done between them but evaluations."""
        return self.busy / max(self.updates, 1e-9)

    def used(self) -> float:
        return self.before + clock() - self.began

    def left(self) -> float:
        return self.seconds - self.used()

    def over(self) -> bool:
        """Whether this command has used far more than what was left of the budget; before the first step, all of it."""
        had = self.seconds - self.before
        return had > 0 and clock() - self.began > (ABANDON_SHARE if self.step >= 0 else 1) * had

    def count(self, step: int) -> None:
        """Count the updates since the last call; the first of a command may compile, and does not count."""
        now = clock()
        made, spent = step - self.step, now - self.since
        if self.first < 0:
            self.first = step
        elif made and step > self.first + 1:
            decay = 0.5 ** (spent / (HALF_LIFE_SHARE * self.seconds))
            self.updates, self.busy = self.updates * decay + made, self.busy * decay + spent
        self.step, self.since = step, now

    def count_evaluation(self, seconds: float, save: float) -> None:
        """Count an evaluation, and the seconds that a checkpoint is expected to take, if that is known by now."""
        self.evaluation, self.save, self.pace_then = seconds, save or self.save, self.update
        self.since += seconds

    def slower(self) -> float:
        """How many times slower the machine is than when the evaluation was measured; 1 where it is faster."""
        return max(1.0, self.update / self.pace_then) if self.pace_then else 1.0

    def need(self, step: int, steps: int, eval_every: int) -> float:
        """Seconds from this step to the last line of the command."""
        evaluations = -(-steps // eval_every) - step // eval_every
        rest = evaluations * self.evaluation + self.save + self.plot
        return (steps - step) * self.update + self.slower() * rest

    def due(self, step: int, config: TrainConfig) -> bool:
        """Whether the steps must be planned anew: they would end too far from the budget.

        Recorded plans that are still to come are followed, unless there is no time for another step.
        """
        if config.steps <= step:
            return False
        left = self.left()
        if left < self.need(step, step + 1, step + 1):  # one more step, an evaluation and the end
            return True
        off = abs(left - self.need(step, config.steps, config.eval_every))
        near = off <= max(TOLERANCE_SHARE * self.seconds, 0.1 * left, self.update)
        if self.following or step == self.planned_step or near:
            return False
        return clock() - self.planned >= PLAN_INTERVAL_SHARE * self.seconds or step + 1 >= config.steps

    def plan(self, step: int, config: TrainConfig, names: Iterable[str]) -> Plan:
        """The most steps that fit into the rest of the budget, at least one, and what follows of these settings.

        Evaluations and checkpoints that were not chosen are ten of each, or fewer if they would take over a tenth of
        the time; they stay where they are as long as there are about so many.
        """
        self.planned, self.planned_step = clock(), step
        seconds_left = self.left() - UNPLANNED_SHARE * self.seconds
        costs = {"eval_every": self.slower() * self.evaluation, "save_every": self.slower() * self.save}

        def plan_for(steps: int) -> Plan:
            plan = {"step": step, "steps": steps}
            for name in names:
                count = max(
                    1, min(EVALUATIONS_PER_BUDGET, int(EVALUATION_SHARE * self.seconds / max(costs[name], 1e-9)))
                )
                every = getattr(config, name)
                about_as_many = every and 0.7 * count <= -(-steps // every) <= int(1.3 * count)
                plan[name] = every if about_as_many else max(1, -(-steps // count))
            return plan

        least = max(1, step)
        most = max(least, step + int(max(0.0, seconds_left) / max(self.update, 1e-9)))
        while least < most:
            steps = (least + most + 1) // 2
            every = plan_for(steps).get("eval_every", config.eval_every)
            fits = self.need(step, steps, every) <= seconds_left
            least, most = (steps, most) if fits else (least, steps - 1)
        return plan_for(least)

    def too_little(self) -> str | None:
        """A sentence where the budget has no room for a step; one is made all the same."""
        if self.updates and self.left() >= self.need(0, 1, 1):
            return None
        each = ("step", self.update), ("evaluation", self.evaluation), ("checkpoint", self.save)
        measured = [
            f"{'an' if name == 'evaluation' else 'a'} {name} {duration(seconds)}" for name, seconds in each if seconds
        ]
        takes = f" ({', '.join(measured)})" if measured else ""
        return (
            f"train.minutes {self.minutes:g} is too little here: {duration(self.used())} were used before the first "
            f"step{takes}; one step is made, and more minutes or fewer eval_batches make more"
        )

    def too_few(self, steps: int, usual: int, preset: str, family: str) -> str | None:
        """A sentence if the steps are far fewer than those that the preset has."""
        if steps >= FEW_STEPS_SHARE * usual:
            return None
        minutes = (self.used() + usual * self.update / (1 - EVALUATION_SHARE)) / 60
        enough = f"{minutes:.1f}" if minutes < 9.95 else f"{float(f'{minutes:.2g}'):.0f}"
        return (
            f"{steps:,} step{'s' * (steps > 1)} will hardly train a {family}: the preset {preset} trains for {usual:,} "
            f"steps, which takes about --train.minutes {enough} here; a smaller --preset, --model.width or "
            "--train.batch takes less"
        )


def describe_plan(plan: Plan, config: TrainConfig, budget: Budget) -> str:
    """The line that reports a plan."""
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


def with_plans(config: Mapping[str, Any], plans: Sequence[Plan]) -> dict[str, Any]:
    """The tables of a run with these plans, a column for each setting."""
    others = {name: table for name, table in config.items() if name != "plans"}
    return {**others, **({"plans": {name: [plan[name] for plan in plans] for name in plans[0]}} if plans else {})}
