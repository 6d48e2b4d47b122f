"""Losses over a vocabulary: of the logits a model returns, or fused with its output matrix where that is faster."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

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


CHUNK = 8192  # tokens whose logits are held at once
ALIGNED = 64  # on CUDA the rows of the matrix are padded to a multiple of this: tensor cores are slow on odd sizes


def linear_cross_entropy(
    hidden: Float[Tensor, "*B D"],
    weight: Float[Tensor, "V D"],
    bias: Float[Tensor, "V"] | None,
    targets: Int[Tensor, "*B"],
    smoothing: float = 0.0,
    chunk: int = CHUNK,
) -> Float[Tensor, ""]:
    """The mean of `next_token(hidden weightᵀ + bias, targets, smoothing)`; targets below zero are ignored.

    The gradients are computed in the forward pass, where a chunk's logits are at hand, and scaled in the backward pass.
    Under autocast the products are in its dtype; sums, and the gradients of the matrix and the bias, are not.
    """
    kind = hidden.device.type
    half = torch.is_autocast_enabled(kind)
    x = hidden.flatten(0, -2).to(torch.get_autocast_dtype(kind) if half else weight.dtype)
    flat = targets.flatten()
    wanted = [torch.is_grad_enabled() and t is not None and t.requires_grad for t in (x, weight, bias)]
    total = _summed(x, weight, bias, flat, smoothing, chunk, *wanted)[0]
    return total / (flat >= 0).sum()


# an operator of its own is called as it is by compiled code, forwards and backwards
@torch.library.custom_op(
    "pencil::linear_cross_entropy",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor targets, float smoothing, int chunk, bool of_x, "
    "bool of_weight, bool of_bias) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _summed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float,
    chunk: int,
    of_x: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss summed over the tokens, and its gradient by each input where it is wanted, else an empty tensor."""
    vocab, count = len(weight), len(x)
    rows = -(-vocab // ALIGNED) * ALIGNED if x.is_cuda else vocab
    matrix = _padded(weight, rows, x.dtype)
    offset = None if bias is None else _padded(bias, rows, x.dtype)
    full = torch.promote_types(x.dtype, torch.float32)
    total = torch.zeros((), dtype=full, device=x.device)
    by_x = torch.empty_like(x) if of_x else x.new_empty(0)
    by_matrix = torch.zeros(rows if of_weight else 0, x.shape[1], dtype=full, device=x.device)
    by_offset = torch.zeros(vocab if of_bias else 0, dtype=full, device=x.device)
    pieces = max(1, -(-count // chunk))
    step = max(1, -(-count // pieces))  # chunks of equal size
    logits = x.new_empty(min(step, count), rows)
    for start in range(0, count, step):
        here = slice(start, start + step)
        some = x[here]
        z = logits[: len(some)]
        if offset is None:
            torch.mm(some, matrix.t(), out=z)
        else:
            torch.addmm(offset, some, matrix.t(), out=z)
        # z becomes its own gradient: logits and gradient are never held side by side
        total += softmax_loss_(z, targets[here], vocab, smoothing, of_x or of_weight or of_bias)
        if of_x:
            torch.mm(z, matrix, out=by_x[here])
        if of_weight:
            _add_product(by_matrix, z.t(), some)
        if of_bias:
            by_offset += z[:, :vocab].sum(0, dtype=full)
    return total, by_x, by_matrix[:vocab].to(weight.dtype), by_offset.to((weight if bias is None else bias).dtype)


def _padded(values: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """The values in this dtype, with zero rows after them."""
    values = values.to(dtype)
    return values if rows == len(values) else F.pad(values, (*[0, 0] * (values.ndim - 1), 0, rows - len(values)))


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, summed in the dtype of `total`."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif total.is_cuda:
        total += torch.mm(a, b, out_dtype=total.dtype)
    else:
        total += a @ b


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def softmax_loss_(z: Tensor, targets: Tensor, vocab: int, smoothing: float, gradient: bool) -> Tensor:
    """The summed loss of logits z, whose columns from `vocab` on are padding; z becomes its gradient by them."""
    if z.is_cuda and z.dtype != torch.float64 and _has_triton():
        from .triton_cross_entropy import softmax_loss_ as kernel

        return kernel(z, targets, vocab, smoothing, gradient).sum()
    real = targets >= 0
    at = targets.clamp_min(0)[:, None]
    full = z[:, :vocab].to(torch.promote_types(z.dtype, torch.float32))
    log_p = full.log_softmax(-1)
    losses = -(1 - smoothing) * log_p.gather(1, at)[:, 0]
    if smoothing:
        losses = losses - smoothing * log_p.mean(-1)
    if gradient:
        p = log_p.exp_()
        p -= smoothing / vocab
        p.scatter_add_(1, at, p.new_full((1, 1), smoothing - 1).expand_as(at))
        z[:, vocab:] = 0
        z[:, :vocab] = p.masked_fill_(~real[:, None], 0)
    return losses.masked_fill(~real, 0).sum()


@_summed.register_fake
def _(x, weight, bias, targets, smoothing, chunk, of_x, of_weight, of_bias):
    total = x.new_empty((), dtype=torch.promote_types(x.dtype, torch.float32))
    by_x = torch.empty_like(x) if of_x else x.new_empty(0)
    by_weight = weight.new_empty(len(weight) if of_weight else 0, x.shape[1])
    return total, by_x, by_weight, (weight if bias is None else bias).new_empty(len(weight) if of_bias else 0)


def _keep(ctx, inputs, output) -> None:
    ctx.wanted = inputs[-3:]
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)


def _scale(ctx, grad: Tensor | None, *_: Tensor | None):
    scaled = [
        (by.to(grad.dtype) * grad).to(by.dtype) if wanted and grad is not None else None
        for by, wanted in zip(ctx.saved_tensors, ctx.wanted, strict=True)
    ]
    return *scaled, *[None] * 6


_summed.register_autograd(_scale, setup_context=_keep)
