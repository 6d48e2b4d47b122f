"""Activation recomputation: a block keeps only its input, and is run again when the backward pass comes to it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..config import UserError
from ..core.probe import NullProbe, Probe


def named_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks of the model's stacks, each an nn.ModuleList of the name blocks, by their paths."""
    stacks = {name: part for name, part in model.named_modules() if name.split(".")[-1] == "blocks"}
    return {
        f"{name}.{number}": block
        for name, stack in stacks.items()
        if isinstance(stack, nn.ModuleList)
        for number, block in enumerate(stack)
    }


def model_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of the model's stacks."""
    return list(named_blocks(model).values())


def recompute_blocks(model: nn.Module) -> None:
    """Make every block of the model's stacks one whose activations are recomputed, to the same bits.

    Dropout draws the same numbers both times. A block that is probed, or runs without gradients, runs as it is.
    """
    blocks = model_blocks(model)
    if not blocks:
        raise UserError(
            "train.recompute blocks needs a model with blocks (an nn.ModuleList of that name): leave it out"
        )
    for block in blocks:
        block.forward = partial(_forward, block, block.forward)


def _forward(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    probed = any(isinstance(value, Probe) and not isinstance(value, NullProbe) for value in (*args, *kwargs.values()))
    if probed or not block.training or not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
