"""Operations that only move values: copies, lookups, joins, and views of memory."""

import math

import numpy as np

from ..graph import Plan
from .words import Call, In, P, fn, row_major, rule

COPIES = "clone contiguous detach alias lift_fresh lift_fresh_copy lift copy _to_copy resolve_conj positive".split()
# dtypes in an order in which each is exact in the later ones
WIDTHS = "bool uint8 int8 int16 bfloat16 float16 int32 float32 int64 float64 complex64 complex128".split()


def _width(dtype: str) -> int:
    return [str(name) for name in WIDTHS].index(dtype)


@rule("move", *COPIES)
def _copied(call: Call) -> Plan:
    x = call.args.get("src", call.args.get("self", call.args.get("input")))
    plan = call.broadcast(x)
    if not isinstance(x, In) or x.dtype == call.dtype:
        return plan
    if call.dtype == "bool":
        return fn("ne")(plan, 0)
    if "int" in call.dtype and not x.exact:
        return fn("whole")(plan)
    exact = _width(call.dtype) >= _width(x.dtype) or "int" in call.dtype
    # a narrower dtype rounds, so the value is another
    return plan if exact else P(("add", plan, 0))


@rule("lookup", "embedding")
def _embedding(call: Call) -> Plan:
    table, ids = call.weight, call.read(call.indices).astype(np.int64)
    width = table.shape[1]
    return P(("list", table.node, call.table((ids[..., None] * width + np.arange(width)).reshape(-1)), 1))


@rule("concat", "cat")
def _cat(call: Call) -> Plan:
    parts, start = [], 0
    dim = call.get("dim", 0) % max(len(call.shape), 1)
    for x in call.tensors:
        if math.prod(x.shape) == 0:
            continue
        strides = row_major(x.shape)
        parts.append([start, ["ref", x.node, -start * strides[dim], strides, []]])
        start += x.shape[dim]
    return P(("cat", dim, parts))


# operations that only move values: the same operation is run on the places of its inputs
MOVES = """
view _unsafe_view reshape _reshape_alias permute transpose t expand squeeze unsqueeze slice select split
unsafe_split split_with_sizes unbind chunk as_strided flatten unflatten narrow diagonal movedim swapaxes unfold
view_as expand_as stack repeat flip roll rot90 index index_select gather take take_along_dim masked_select
constant_pad_nd reflection_pad1d tile repeat_interleave slice_scatter select_scatter index_put index_copy scatter
index_fill masked_scatter diagonal_scatter as_strided_scatter _index_put_impl pixel_shuffle pixel_unshuffle
channel_shuffle
""".split()


@rule("move", *MOVES)
def _moved(call: Call) -> Plan:
    if call.op == "repeat_interleave" and "self" not in call.args:
        raise NotImplementedError("repeats counted by a tensor")
    return call.again()
