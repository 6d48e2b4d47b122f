"""The training loop of the experiments, with seeded random numbers."""

import math
from collections.abc import Callable
from typing import Any, Literal

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
    optimizer: Literal["adamw", "muon"] = "adamw",
    warmup: int = 0,
    decay: bool = True,
    clip: float = 1.0,
    weight_decay: float = 0.0,
    beta2: float = 0.99,
    each: Callable[[int], None] | None = None,
) -> list[float]:
    """The loss of every step; `loss_of(step)` draws the batch of a step and returns its loss.

    The learning rate warms up linearly, then follows a cosine decay unless `decay` is False. With `optimizer` muon the
    matrices inside the blocks use Muon, at ten times the rate. Training stops at a loss that is not finite. `each` is
    called after every backward pass, before the gradients are clipped.
    """
    config = TrainConfig(
        steps=max(1, steps), lr=lr, muon_lr=10 * lr, optimizer=optimizer, weight_decay=weight_decay, beta2=beta2
    )
    optimizers = make_optimizers(model, config)
    model.train()
    losses = []
    for step in range(steps):
        loss = loss_of(step)
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            break
        loss.backward()
        if each is not None:
            each(step)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
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


def grad_norm(parameters: Any) -> float:
    """The norm of all these gradients together."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return float(torch.stack([g.double().norm() for g in grads]).norm()) if grads else 0.0


def points(xs: Any, ys: Any) -> list[tuple[float, float]]:
    """A curve as `measure` returns it."""
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]
