"""What experiments share: seeded random numbers, and a plain training loop."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...train.optim import make_optimizers
from ...train.settings import TrainConfig
from ...train.tasks import random_of


def dice(seed: int, step: int = 0, stream: int = 0) -> torch.Generator:
    """Random numbers of their own for (seed, step, stream), whatever was drawn before."""
    return torch.Generator().manual_seed(int(random_of(seed, step, stream).integers(1 << 62)))


def built(make: Callable[[], Any], seed: int) -> Any:
    """A model made with the seed's random numbers: two arms of one shape begin with the same weights."""
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
    """The loss of every step; `loss_of(step)` draws the step's batch and gives its loss.

    The rate warms up linearly and then falls by a cosine, unless it shall stay. With `optimizer` muon the matrices
    inside the blocks are Muon's, at ten times the rate. A loss that is no longer finite ends the training there.
    `each` is called after every backward pass, with the gradients in place and not yet clipped.
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


def last(losses: list[float], count: int, worst: float) -> float:
    """The mean of the last losses, none counted as more than `worst`: what guessing, or a broken training, gives."""
    tail = losses[-count:]
    return sum(min(loss, worst) if math.isfinite(loss) else worst for loss in tail) / len(tail)


def grad_norm(parameters: Any) -> float:
    """The length of all these gradients taken as one vector."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return float(torch.stack([g.double().norm() for g in grads]).norm()) if grads else 0.0


def points(xs: Any, ys: Any) -> list[tuple[float, float]]:
    """A curve as `measure` gives it."""
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]
