"""The training loop of the experiments, with seeded random numbers."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...train.optim import make_optimizers
from ...train.settings import TrainConfig
from ...train.task import random_of


def generator(seed: int, step: int = 0, stream: int = 0) -> torch.Generator:
    """A random generator for (seed, step, stream), independent of all others."""
    return torch.Generator().manual_seed(int(random_of(seed, step, stream).integers(1 << 62)))


def seeded(make: Callable[[], Any], seed: int) -> Any:
    """A model initialised with this seed: two arms with the same shapes start from the same weights."""
    torch.manual_seed(seed)
    return make()


def train(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    steps: int,
    *,
    lr: float = 1e-3,
    warmup: int = 0,
    decay: bool = True,
    beta2: float = 0.99,
) -> list[float]:
    """The loss of every step; `loss_of(step)` draws the batch of a step and returns its loss.

    The learning rate warms up linearly, then follows a cosine decay unless `decay` is False. Training stops at a loss
    that is not finite.
    """
    config = TrainConfig(steps=max(1, steps), lr=lr, optimizer="adamw", weight_decay=0.0, beta2=beta2)
    optimizers = make_optimizers(model, config)
    model.train()
    losses = []
    for step in range(steps):
        loss = loss_of(step)
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            break
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = _rate(step, steps, warmup, decay)
        for one in optimizers.values():
            for group in one.param_groups:
                group["lr"] = group["peak"] * rate
            one.step()
            one.zero_grad(set_to_none=True)
    return losses


def _rate(step: int, steps: int, warmup: int, decay: bool) -> float:
    if step < warmup:
        return (step + 1) / (warmup + 1)
    along = (step - warmup) / max(1, steps - warmup)
    return (1 + math.cos(math.pi * along)) / 2 if decay else 1.0


def mean_of_last(losses: list[float], count: int, worst: float) -> float:
    """The mean of the last losses, each at most `worst`, the loss of guessing; so is a loss that is not finite."""
    tail = losses[-count:]
    return sum(min(loss, worst) if math.isfinite(loss) else worst for loss in tail) / len(tail)


def seconds(work: Callable[[], object]) -> float:
    """How long a piece of work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def points(xs: Any, ys: Any) -> list[tuple[float, float]]:
    """A curve as `measure` returns it."""
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]


def by_step(losses: list[float]) -> list[tuple[float, float]]:
    """The curve of the losses of a training."""
    return points(range(len(losses)), losses)
