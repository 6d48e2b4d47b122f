"""How operations with places of their own compute a cell: sums at places, bags of rows, counts, sampled pictures."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .graph import Plan
from .rules import Call, In, P, axis, cells, choose, fn, least, listed, most, number, row_major, rule, step, total

# ---- what is added to places: Σ_j [index_j = place]·value_j


def _along_dim(t: In, dim: int) -> P:
    """The cells of t along one axis, with the output's other indices."""
    rows = row_major(t.shape)
    return cells(t, [s * (d != dim) for d, s in enumerate(rows)], [(rows[dim], t.shape[dim])])


@rule("sum", "scatter_add", "scatter_reduce", "index_add")
def _added(call: Call) -> Plan:
    """What is there, and what is added to it; or the product, the mean, the largest or least of all of that."""
    index, source = call.index, call.args["source" if call.op == "index_add" else "src"]
    dim = call.dim % max(len(call.shape), 1)
    if not call.shape:
        raise NotImplementedError("a single number that is added to")
    if call.op == "index_add":
        at = cells(index, [0] * len(call.shape), [(1, math.prod(index.shape))])
    else:
        at = _along_dim(index, dim)
        if any(index.shape[d] != n for d, n in enumerate(call.shape) if d != dim) or source.shape != index.shape:
            raise NotImplementedError("an index smaller than what it adds to")
    here, own, values = fn("eq")(at, axis(dim)), call.broadcast(call.self), _along_dim(source, dim)
    how, included = call.get("reduce", "sum"), call.get("include_self", True)
    if call.op == "index_add" and call.get("alpha", 1) != 1:
        values = call.alpha * values
    none: Any = {"sum": 0, "mean": 0, "prod": 1, "amax": -math.inf, "amin": math.inf}[how]
    reduced = {"amax": most, "amin": least, "prod": fn("prod")}.get(how, total)(choose(here, values, number(none)))
    if included:
        joined = {"amax": fn("greater"), "amin": fn("lesser"), "prod": fn("mul")}.get(how, fn("add"))
        reduced = joined(own, reduced)
    if how == "mean":
        count = int(included) + total(here)
        reduced = reduced / (count if included else fn("greater")(count, 1))
    return reduced if included else choose(most(here), reduced, own)


# ---- counts and places


@rule("lookup", "bucketize", "searchsorted")
def _bucket(call: Call) -> Plan:
    """How many of the sorted boundaries lie below."""
    edges = call.boundaries if call.op == "bucketize" else call.sorted_sequence
    if len(edges.shape) != 1 or call.get("sorter") is not None:
        raise NotImplementedError("boundaries of their own for each row")
    right = call.get("right", False) or call.get("side") == "right"
    below = fn("le" if right else "lt")(
        cells(edges, [0] * len(call.shape), [(1, edges.shape[0])]), call.broadcast(call.self)
    )
    return total(below)


@rule("lookup", "nonzero")
def _nonzero(call: Call) -> Plan:
    """The k-th place that is not 0, from the front: the k-th least of the places that are not."""
    x, n = call.self, math.prod(call.self.shape)
    ids = cells(call.constant(np.arange(n)), (0, 0), [(1, n)])
    found = step("place", -fn("kth")(choose(fn("ne")(cells(x, (0, 0), [(1, n)]), 0), -ids, -math.inf), axis(0)))
    index: Any = 0
    for d, (size, stride) in enumerate(zip(x.shape, row_major(x.shape), strict=True)):
        index = choose(fn("eq")(axis(1), d), fn("mod")(fn("floor")(found / stride), size), index)
    return index


@rule("sum", "histc")
def _histogram(call: Call) -> Plan:
    """How many fall into each of as many equal parts; the largest belongs to the last."""
    low, high, bins = call.get("min", 0), call.get("max", 0), call.get("bins", 100)
    if low == high:
        raise NotImplementedError("limits found in the values")
    x = call.over(call.self, None)
    x = P((*x[:3], [0], x[4]))
    part = fn("lesser")(fn("floor")((x - low) / (high - low) * bins), bins - 1)
    return total(fn("and")(fn("and")(fn("ge")(x, low), fn("le")(x, high)), fn("eq")(part, axis(0))))


# ---- rows of a table, several for each place


@rule("lookup", "_embedding_bag", "_embedding_bag_forward_only")
def _bag(call: Call) -> Plan:
    """The sum, the mean or the largest of the rows of each bag."""
    if call.out:
        return "constant"  # where each bag begins, and what else its gradient needs
    table, ids, starts = call.weight, call.read(call.indices).astype(np.int64), call.read(call.offsets).astype(np.int64)
    ends = starts[1:] if call.get("include_last_offset") else [*starts[1:], len(ids)]
    kept = np.arange(len(ids))[ids != call.get("padding_idx", -1)]
    bags = [kept[(kept >= begin) & (kept < end)] for begin, end in zip(starts, ends, strict=False)]
    counts = np.asarray([len(bag) for bag in bags])
    members = np.full((len(bags), 1, max(1, counts.max(initial=0))), -1)
    for row, bag in enumerate(bags):
        members[row, 0, : len(bag)] = bag
    width, largest = table.shape[1], call.get("mode", 0) == 2
    places = np.where(members < 0, -1, ids[members] * width + np.arange(width)[:, None])
    rows = listed(call, table, places.reshape(-1, members.shape[-1]), -math.inf if largest else 0.0)
    empty: Any = cells(call.constant(counts), (1, 0))
    if largest:
        return choose(empty, most(rows), 0)
    if call.get("per_sample_weights") is not None:
        among = np.broadcast_to(members, places.shape).reshape(-1, members.shape[-1])
        rows = rows * listed(call, call.per_sample_weights, among)
    return total(rows) if call.get("mode", 0) == 0 else total(rows) / fn("greater")(empty, 1)


def added_back(call: Call, x: In, of: np.ndarray, size: int) -> Plan:
    """The sum of the entries of x that came from each cell of a picture: `of` has, of each entry, its cell, or −1."""
    order = np.argsort(of, kind="stable")
    order = order[of[order] >= 0]
    rank = np.arange(len(order)) - np.searchsorted(of[order], of[order])
    entries = np.full((size, max(1, rank.max(initial=0) + 1)), -1)
    entries[of[order], rank] = order
    starts = np.arange(math.prod(x.shape) // len(of))[:, None, None] * len(of)
    return total(listed(call, x, np.where(entries < 0, -1, entries + starts).reshape(-1, entries.shape[1])))


def numbered(size: Sequence[int]) -> torch.Tensor:
    """A picture of the numbers of its cells, from 1: 0 is what lies outside."""
    return torch.arange(1.0, math.prod(size) + 1, dtype=torch.float64).reshape(1, 1, *size)


@rule("sum", "col2im")
def _folded_patches(call: Call) -> Plan:
    """Σ over the patches that have the cell."""
    settings = (call.kernel_size, call.dilation, call.padding, call.stride)
    of = torch.ops.aten.im2col.default(numbered(call.output_size), *settings)
    return added_back(call, call.self, of.reshape(-1).long().numpy() - 1, math.prod(call.output_size))


@rule("gradient", *(f"{kind}_pad{n}d_backward" for kind in ("reflection", "replication") for n in (1, 2, 3)))
def _padding(call: Call) -> Plan:
    """Σ over the places that a cell was copied to."""
    size = call.shape[-len(call.padding) // 2 :]
    forward = getattr(torch.ops.aten, call.op.removesuffix("_backward")).default
    of = forward(numbered(size), call.padding).reshape(-1).long().numpy() - 1
    return added_back(call, call.grad_output, of, math.prod(size))


# ---- pictures read between their pixels


@rule("constant", "affine_grid_generator")
def _affine_grid(call: Call) -> Plan:
    """θ times (x, y, 1), of coordinates from −1 to 1."""
    theta, n = call.theta, call.theta.shape[1]
    unit = torch.eye(n, n + 1, dtype=getattr(torch, theta.dtype))[None]
    plain = call.run(theta=unit, size=[1, *call.size[1:]])[0]
    base = torch.cat([plain, torch.ones_like(plain[..., :1])], -1)
    along = [0, *row_major(base.shape)[:-1], 0]
    at = cells(call.constant(base.double().numpy()), along, [(1, n + 1)])
    return total(at * cells(theta, [n * (n + 1), *[0] * n, n + 1], [(1, n + 1)]))


@rule("resample", "grid_sampler_2d")
def _sampled(call: Call) -> Plan:
    """Σ pixel·max(0, 1 − |x − x_pixel|)·max(0, 1 − |y − y_pixel|) over the four around the point."""
    if call.interpolation_mode != 0 or call.padding_mode == 2:
        raise NotImplementedError("another interpolation than between four, or a border that reflects")
    picture, grid = call.input, call.grid
    points, (n, channels, *size) = call.read(grid).astype(np.float64), picture.shape
    rows = row_major(grid.shape)
    taps, hats = [], []
    corners = np.asarray([[0, 0], [0, 1], [1, 0], [1, 1]])
    for k, count in ((1, size[0]), (0, size[1])):
        point = cells(grid, [rows[0], 0, rows[1], rows[2]], start=k)
        aligned = call.align_corners
        place = (1 + point) / 2 * (count - 1) if aligned else ((1 + point) * count - 1) / 2
        at = (points[..., k] + 1) / 2 * (count - 1) if aligned else ((points[..., k] + 1) * count - 1) / 2
        if call.padding_mode == 1:
            place, at = fn("lesser")(fn("greater")(place, 0), count - 1), at.clip(0, count - 1)
        first = np.floor(np.nan_to_num(at).clip(-2, count + 1)).astype(np.int64)
        tap = first[..., None] + corners[:, 1 - k]
        taps.append(tap)
        strides = row_major(tap.shape)
        known = cells(call.constant(tap), [strides[0], 0, strides[1], strides[2]], [(1, 4)])
        hats.append(fn("greater")(1 - fn("abs")(step("xy"[k], place) - known), 0))
    y, x = taps
    inside = (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
    planes = np.arange(n * channels).reshape(n, channels, 1, 1, 1) * (size[0] * size[1])
    places = np.where(inside[:, None], (y * size[1] + x)[:, None] + planes, -1)
    return total(listed(call, picture, places.reshape(-1, 4)) * hats[0] * hats[1])
