"""What the jobs on images share: a forward pass and a train step, eager on a CPU and compiled on CUDA."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .plan import Plan

Ask = Callable[..., Tensor]  # (model, *inputs) to its output


def forward(plan: Plan, model: nn.Module, ask: Ask, given: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """A pass without gradients."""
    call = torch.compile(model) if plan.cuda else model

    @torch.no_grad()
    def one() -> Tensor:
        return ask(call, *given)

    return one


def train_step(
    plan: Plan, model: nn.Module, ask: Ask, given: tuple[Tensor, ...], loss: Callable[[Tensor], Tensor]
) -> Callable[[], None]:
    """Forward, backward and AdamW; on CUDA float32 weights under bfloat16 autocast, as `pencil train` has it."""
    call: Any = torch.compile(model) if plan.cuda else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    autocast = partial(torch.autocast, plan.device.type, torch.bfloat16) if plan.cuda else nullcontext

    def one() -> None:
        with autocast():
            value = loss(ask(call, *given).float())
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return one


def call_ours(model: Any, *given: Tensor) -> Tensor:
    return model(*given)
