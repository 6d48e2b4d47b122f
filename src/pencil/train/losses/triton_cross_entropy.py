"""The loss of a chunk of logits on CUDA, and its gradient in their place: one Triton kernel, one program a token."""

from inspect import unwrap

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

BLOCK = 4096  # logits of a program at once
LOWEST = tl.constexpr(-1e30)  # in place of −∞, whose difference with itself is no number


def softmax_loss_(z: Tensor, targets: Tensor, vocab: int, smoothing: float, gradient: bool) -> Tensor:
    """The loss of each row of logits z, whose columns from `vocab` on are padding; z becomes its gradient by them."""
    losses = torch.empty(len(z), dtype=torch.float32, device=z.device)
    block = min(BLOCK, triton.next_power_of_2(z.shape[1]))
    _rows[(len(z),)](  # pyright: ignore[reportIndexIssue]
        z,
        targets,
        losses,
        vocab,
        z.stride(0),
        z.shape[1],
        smoothing,
        smoothing > 0,
        gradient,
        block,
        num_warps=max(1, min(16, block // 256)),
    )
    return losses


def _softmax_loss(
    logits,
    targets,
    losses,
    vocab,
    stride,
    width,
    smoothing,
    SMOOTH: tl.constexpr,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    chosen = tl.load(logits + tl.maximum(target, 0)).to(tl.float32)
    # one pass for the largest logit and the sum of exponentials, in each lane by itself
    largest = tl.full((BLOCK,), LOWEST, tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < vocab, other=LOWEST).to(tl.float32)
        ratio = tl.exp(-tl.abs(x - largest))
        sums = tl.where(x > largest, sums * ratio + 1, sums + ratio)
        largest = tl.maximum(x, largest)
        if SMOOTH:
            plain += tl.where(at < vocab, x, 0.0)
    most = tl.max(largest, 0)
    log_sum = most + tl.log(tl.sum(sums * tl.exp(largest - most), 0))
    loss = log_sum - (1 - smoothing) * chosen
    if SMOOTH:
        loss -= smoothing / vocab * tl.sum(plain, 0)
    tl.store(losses + row, tl.where(target >= 0, loss, 0.0))
    if GRADIENT:
        # the row was just read, and is still in the cache of the device
        for start in range(0, width, BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(logits + at, mask=at < vocab, other=LOWEST).to(tl.float32)
            p = tl.exp(x - log_sum) - smoothing / vocab
            p = tl.where(at == target, p - (1 - smoothing), p)
            p = tl.where((at < vocab) & (target >= 0), p, 0.0)
            tl.store(logits + at, p.to(logits.dtype.element_ty), mask=at < width)


# a checker of types may have wrapped the function, and Triton reads the names of the module it is in
_rows = triton.jit(unwrap(_softmax_loss))
