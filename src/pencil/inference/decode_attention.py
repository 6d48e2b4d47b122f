"""One new token a row and its cache, on CUDA: Triton kernels that write it, and attend to the filled slots."""

from inspect import unwrap

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from jaxtyping import Float, Int
from torch import Tensor

SLOTS = 64  # key slots of a program at once


def attend_rows(
    q: Float[Tensor, "B h 1 d"],
    k: Float[Tensor, "B g S d"],
    v: Float[Tensor, "B g S d"],
    scale: float,
    index: Int[Tensor, "B 1"],
    key_index: Int[Tensor, "B S"],
    held: Int[Tensor, "B"],
    first: int,
    within: int,
) -> Float[Tensor, "B h 1 d"]:
    """softmax(q kᵀ·scale) v over the keys up to each query's index, or below `first`, fewer than `within` steps away.

    Row b of the keys has filled its first held[b] slots. A query that has no key gets zeros.
    """
    batch, heads, _, width = q.shape
    groups = k.shape[1]
    out = torch.empty(batch, heads, 1, width, dtype=q.dtype, device=q.device)
    _kernel[(groups, batch)](  # pyright: ignore[reportIndexIssue]
        q,
        k,
        v,
        out,
        index,
        key_index,
        held,
        scale,
        first,
        within,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        k.stride(2),
        v.stride(0),
        v.stride(1),
        v.stride(2),
        index.stride(0),
        key_index.stride(0),
        heads // groups,
        width,
        max(16, triton.next_power_of_2(heads // groups)),
        max(16, triton.next_power_of_2(width)),
        SLOTS,
        num_stages=2,
    )
    return out


def write_rows(
    keys: Float[Tensor, "B g L d"],
    values: Float[Tensor, "B g L d"],
    k: Float[Tensor, "B g 1 d"],
    v: Float[Tensor, "B g 1 d"],
    slots: Int[Tensor, "B 1"],
) -> None:
    """Write each row's key and value into its slot, in one launch: two of torch's take three times as long."""
    batch, groups, _, width = k.shape
    _writing[(groups, batch)](  # pyright: ignore[reportIndexIssue]
        keys,
        values,
        k,
        v,
        slots,
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        values.stride(0),
        values.stride(1),
        values.stride(2),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        slots.stride(0),
        width,
        triton.next_power_of_2(width),
        num_warps=1,
    )


def _written(
    keys,
    values,
    k,
    v,
    slots,
    key_row,
    key_head,
    key_slot,
    value_row,
    value_head,
    value_slot,
    k_row,
    k_head,
    v_row,
    v_head,
    slots_row,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
):
    group, row, d = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.arange(0, D)
    slot = tl.load(slots + row * slots_row)
    inside = d < WIDTH
    key = tl.load(k + row * k_row + group * k_head + d, mask=inside)
    value = tl.load(v + row * v_row + group * v_head + d, mask=inside)
    here = keys + row * key_row + group * key_head + slot * key_slot + d
    tl.store(here, key.to(keys.dtype.element_ty), mask=inside)
    there = values + row * value_row + group * value_head + slot * value_slot + d
    tl.store(there, value.to(values.dtype.element_ty), mask=inside)


def _rows(
    q,
    k,
    v,
    out,
    index,
    key_index,
    held,
    scale,
    first,
    within,
    q_row,
    q_head,
    k_row,
    k_head,
    k_slot,
    v_row,
    v_head,
    v_slot,
    index_row,
    key_row,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    SLOTS: tl.constexpr,
):
    group, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    d, g = tl.arange(0, D), tl.arange(0, G)  # powers of two: a product takes at least 16 rows and columns
    k += row * k_row + group * k_head
    v += row * v_row + group * v_head
    key_index += row * key_row
    heads = group * GROUP + g
    inside = (g < GROUP)[:, None] & (d < WIDTH)[None]
    x = tl.load(q + row * q_row + heads[:, None] * q_head + d[None], mask=inside, other=0.0)
    query, filled = tl.load(index + row * index_row), tl.load(held + row).to(tl.int32)
    largest = tl.full((G,), -1e30, tl.float32)
    total = tl.zeros((G,), tl.float32)
    mixed = tl.zeros((G, D), tl.float32)
    for start in range(0, filled, SLOTS):
        at = start + tl.arange(0, SLOTS)
        there = at < filled
        loaded = there[:, None] & (d < WIDTH)[None]
        key = tl.load(key_index + at, mask=there, other=0)
        keys = tl.load(k + at[:, None] * k_slot + d[None], mask=loaded, other=0.0)
        values = tl.load(v + at[:, None] * v_slot + d[None], mask=loaded, other=0.0)
        seen = there & ((key <= query) | (key < first)) & (query - key < within)
        scores = (tl.dot(x, tl.trans(keys), input_precision="ieee") * scale).to(
            tl.float32
        )  # a compiled call's is double
        scores = tl.where(seen[None], scores, -1e30)
        most = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.where(seen[None], tl.exp(scores - most[:, None]), 0.0)
        shrunk = tl.exp(largest - most)
        total = total * shrunk + tl.sum(weights, 1)
        mixed = mixed * shrunk[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        largest = most
    z = mixed / tl.where(total > 0, total, 1.0)[:, None]
    where = out + (row * tl.num_programs(0) * GROUP + heads[:, None]) * WIDTH + d[None]
    tl.store(where, z.to(out.dtype.element_ty), mask=inside)


# the type checker of the tests wraps functions, and Triton reads the source
_kernel, _writing = triton.jit(unwrap(_rows)), triton.jit(unwrap(_written))
