"""Learning-rate schedules, as a factor of the peak rate; pure functions of the step and of the plans of a budget."""

import math
from collections.abc import Sequence
from dataclasses import replace

from .settings import Plan, TrainConfig


def published_peak(width: int, warmup: int) -> float:
    """The peak of the first Transformer's rate, width^−½·min(step^−½, step·warmup^−1½): (width·warmup)^−½."""
    return (width * max(1, warmup)) ** -0.5


def factor(step: float, config: TrainConfig, plans: Sequence[Plan] = ()) -> float:
    """Linear warm-up, then cosine, constant, or constant and a linear decay over the last fifth (wsd).

    The schedule of the first Transformer (inverse-sqrt) falls as 1/√step: min(step^−½, step·warmup^−1½), as a share of
    its peak. The others end at the last step: where a time budget has planned it anew, at that of the plan in force.
    """
    if config.schedule == "inverse-sqrt":
        return min((step + 1) / max(1, config.warmup), math.sqrt(max(1, config.warmup) / (step + 1)))
    if len(plans) > 1:
        step, config = step_of_first_plan(step, plans), replace(config, steps=plans[0]["steps"])
    if step < config.warmup:
        return (step + 1) / (config.warmup + 1)
    along = (step - config.warmup) / max(1, config.steps - config.warmup)
    final = config.final_lr_fraction
    if config.schedule == "cosine":
        return final + (1 - final) * (1 + math.cos(math.pi * min(1.0, along))) / 2
    if config.schedule == "wsd":
        left = max(0.0, (config.steps - step) / max(1, config.steps // 5))
        return max(final, min(1.0, left))
    return 1.0


def step_of_first_plan(step: float, plans: Sequence[Plan]) -> float:
    """Where a step lies on the schedule of the first plan, the only one that has a schedule of its own.

    Each later plan stretches or compresses what is left of that schedule to the steps that it has left: so the learning
    rate makes no jump where a plan is made, and has decayed at the last step of the last plan. Plans that were made
    after the step do not change it.
    """
    total = plans[0]["steps"]
    place, since, last = 0.0, 0, total
    later = [(plan["step"], plan["steps"]) for plan in plans[1:] if plan["step"] <= step]
    for at, steps in [*later, (step, 0)]:
        if last > since:
            place += (total - place) * (at - since) / (last - since)
        since, last = at, steps
    return place
