"""Learning-rate schedules, as a factor of the peak rate; pure functions of the step."""

import math

from .settings import TrainConfig


def published_peak(width: int, warmup: int) -> float:
    """The peak of the first Transformer's rate, width^−½·min(step^−½, step·warmup^−1½): (width·warmup)^−½."""
    return (width * max(1, warmup)) ** -0.5


def factor(step: int, config: TrainConfig) -> float:
    """Linear warm-up, then cosine, constant, or constant and a linear decay over the last fifth (wsd).

    The schedule of the first Transformer (inverse-sqrt) falls as 1/√step: min(step^−½, step·warmup^−1½), as a share of
    its peak.
    """
    if config.schedule == "inverse-sqrt":
        return min((step + 1) / max(1, config.warmup), math.sqrt(max(1, config.warmup) / (step + 1)))
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
