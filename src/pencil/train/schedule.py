"""Learning-rate schedules, as a factor of the peak rate; pure functions of the step."""

import math

from .settings import TrainConfig


def factor(step: int, config: TrainConfig) -> float:
    """Warm up linearly, then follow the cosine, stay and decay (wsd: the last fifth, linearly), or stay.

    The first Transformer's (paper) falls as 1/√step: min(step^−½, step·warmup^−1½), as a share of its peak.
    """
    if config.schedule == "paper":
        return min((step + 1) / max(1, config.warmup), math.sqrt(max(1, config.warmup) / (step + 1)))
    warmup = min(config.warmup, config.steps // 5)  # a short run must reach its full rate too
    if step < warmup:
        return (step + 1) / (warmup + 1)
    along = (step - warmup) / max(1, config.steps - warmup)
    if config.schedule == "cosine":
        return config.min_lr + (1 - config.min_lr) * (1 + math.cos(math.pi * min(1.0, along))) / 2
    if config.schedule == "wsd":
        left = max(0.0, (config.steps - step) / max(1, config.steps // 5))
        return max(config.min_lr, min(1.0, left))
    return 1.0
