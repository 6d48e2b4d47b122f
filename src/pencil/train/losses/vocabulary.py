"""Losses over a vocabulary: of the logits a model returns, or fused with its output matrix where that is faster."""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from .fused import linear_cross_entropy

IGNORED = -100  # F.cross_entropy ignores one number; here every target below zero becomes it
LARGE = 1 << 28  # logits of a batch from which the fused loss is faster on CUDA, by benchmarks/loss.py


def next_token(
    logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"], smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """Mean cross-entropy, in nats a token, of each token's successor; targets below zero are ignored.

    `smoothing` is the probability spread evenly over all tokens (label smoothing).
    """
    flat = targets.flatten()
    flat = flat.masked_fill(flat < 0, IGNORED)
    return F.cross_entropy(logits.float().flatten(0, 1), flat, ignore_index=IGNORED, label_smoothing=smoothing)


def token_loss(
    model: nn.Module, targets: Int[Tensor, "B T"], *inputs: Any, smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """`next_token` of what the model returns for these inputs, without holding all its logits where they are many."""
    if fuses(model, targets):
        hidden = _hidden(model, *inputs)
        return linear_cross_entropy(hidden, *model.output_matrix, targets, smoothing)  # pyright: ignore
    return next_token(model(*inputs), targets, smoothing)


def _hidden(model: Any, *inputs: Any) -> Tensor:
    """The model's `hidden`; by a call of the model where that has hooks, as FSDP's, which gather its weights."""
    if not model._forward_pre_hooks:
        return model.hidden(*inputs)
    forward, model.forward = vars(model).get("forward"), model.hidden
    try:
        return model(*inputs)
    finally:
        del model.forward
        if forward is not None:
            model.forward = forward


def fuses(model: nn.Module, targets: Tensor) -> bool:
    """Whether the loss is fused with the output matrix: on CUDA, for many logits, if the model has one."""
    if not targets.is_cuda or not hasattr(type(model), "output_matrix"):
        return False
    return targets.numel() * len(model.output_matrix[0]) >= LARGE  # pyright: ignore
