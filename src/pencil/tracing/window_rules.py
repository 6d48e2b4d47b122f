"""How operations over channels and windows compute a cell, forward and backward: convolutions, pooling, interpolation,
and the norms of convolution nets.

Three means make a few descriptions enough. What is not affine in the output's own index (the group of a channel) is in
that of another shape of the same cells (`folded`). Padding, and the zeros between the cells of a transposed
convolution, are a move (`laid`). And what is linear along each axis, with other weights at every place, is its matrix
along that axis, found by giving the operation the rows of a unit matrix (`_interpolated`).
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .graph import Array, Plan
from .rules import (
    Call,
    In,
    P,
    axis,
    cells,
    choose,
    fn,
    listed,
    mean_of,
    most,
    row_major,
    rule,
    sqrt,
    square,
    step,
    total,
    wanted_output,
)  # fmt: skip

Axes = Sequence[int]


def _each(values: Any, count: int) -> list[int]:
    """A number for each axis, of which one may stand for all."""
    values = [values] if isinstance(values, int) else list(values)
    return values * count if len(values) == 1 else values


def _window_axes(op: str) -> int:
    found = re.search(r"(\d)d", op)
    assert found is not None
    return int(found[1])


def laid(call: Call, x: In, sizes: Axes, starts: Axes, steps: Axes | None = None, fill: float = 0.0) -> In:
    """x in last axes of these sizes, where its cells are at start, start + step, …; at the other places is `fill`."""
    steps, own = steps or [1] * len(sizes), x.shape[-len(sizes) :]
    if tuple(sizes) == own and not any(starts) and set(steps) == {1}:
        return x
    places = np.full((*x.shape[: -len(sizes)], *sizes), math.prod(x.shape))
    to: list[Array] = []
    of: list[Array] = []
    for size, start, by, count in zip(sizes, starts, steps, own, strict=True):
        at = start + by * np.arange(count)
        kept = (at >= 0) & (at < size)
        to.append(at[kept])
        of.append(np.flatnonzero(kept))
    places[(..., *np.ix_(*to))] = np.arange(math.prod(x.shape)).reshape(x.shape)[(..., *np.ix_(*of))]
    return call.moved("laid", places, x, call.constant(fill, x.dtype))


# ---- convolutions: a sum over the channels of a group and the places of the kernel


def _product(
    call: Call, x: In, w: In, groups: int, stride: Axes, dilation: Axes, turned: bool = False, bias: In | None = None
) -> Plan:
    """Σ x·w over windows of x, which is padded already; `turned`: as a transposed convolution has its kernel."""
    kernel, rows, weight = w.shape[2:], row_major(x.shape), row_major(w.shape)
    first, second = w.shape[0] // groups, w.shape[1]
    inner, outputs = (first, second) if turned else (second, first)
    out, into = (weight[1], weight[0]) if turned else (weight[0], weight[1])
    sign, begin = (-1, sum((k - 1) * s for k, s in zip(kernel, weight[2:], strict=True))) if turned else (1, 0)
    # the axes are: example, group, channel in the group, places; of one group, or of groups of one, there is no fold
    drop = 1 if groups == 1 else 2 if outputs == 1 else None

    def along(strides: Axes) -> list[int]:
        return [s for i, s in enumerate(strides) if i != drop]

    counts = (inner, *kernel)
    of_x = cells(
        x, along([rows[0], inner * rows[1], 0, *(s * r for s, r in zip(stride, rows[2:], strict=True))]),
        zip([rows[1], *(d * r for d, r in zip(dilation, rows[2:], strict=True))], counts, strict=True),
    )  # fmt: skip
    none = [0] * len(kernel)
    of_w = cells(
        w, along([0, first * weight[0], out, *none]),
        zip([into, *(sign * s for s in weight[2:])], counts, strict=True), begin,
    )  # fmt: skip
    plan = total(of_x * of_w)
    plan = plan if bias is None else plan + cells(bias, along([0, outputs, 1, *none]))
    return plan if drop else call.folded((call.shape[0], groups, outputs, *call.shape[2:]), plan)


def _settings(call: Call) -> tuple[int, list[int], list[int], list[int]]:
    count = len(call.weight.shape) - 2
    stride, padding, dilation = (_each(call.args[name], count) for name in ("stride", "padding", "dilation"))
    return call.get("groups", 1), stride, padding, dilation


def _reach(kernel: Axes, dilation: Axes) -> list[int]:
    """How far the last place of a window is from its first."""
    return [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]


def _windowed(
    call: Call, x: In, kernel: Axes, places: Axes, stride: Axes, padding: Axes, dilation: Axes, fill: float = 0.0
) -> In:
    """x padded (or cut) to what so many windows read."""
    sizes = [(n - 1) * s + r + 1 for n, s, r in zip(places, stride, _reach(kernel, dilation), strict=True)]
    return laid(call, x, sizes, padding, fill=fill)


def _straight(call: Call, x: In, w: In, bias: In | None = None) -> Plan:
    groups, stride, padding, dilation = _settings(call)
    x = _windowed(call, x, w.shape[2:], call.shape[2:], stride, padding, dilation)
    return _product(call, x, w, groups, stride, dilation, bias=bias)


def _transposed(call: Call, x: In, w: In, bias: In | None = None) -> Plan:
    """The same with zeros between the cells of x, and the kernel turned round."""
    groups, stride, padding, dilation = _settings(call)
    reach = _reach(w.shape[2:], dilation)
    sizes = [n + r for n, r in zip(call.shape[2:], reach, strict=True)]
    x = laid(call, x, sizes, [r - p for r, p in zip(reach, padding, strict=True)], stride)
    return _product(call, x, w, groups, [1] * len(stride), dilation, turned=True, bias=bias)


@rule("patch", "convolution")
def _convolution(call: Call) -> Plan:
    return (_transposed if call.get("transposed") else _straight)(call, call.input, call.weight, call.get("bias"))


@rule("gradient", "convolution_backward")
def _convolution_backward(call: Call) -> Plan:
    g, x, turned, which = call.grad_output, call.input, call.get("transposed"), wanted_output(call)
    if which == 0:
        return (_straight if turned else _transposed)(call, g, call.weight)
    rows = row_major(g.shape)
    if which == 2:
        return total(cells(g, [rows[1]], zip((rows[0], *rows[2:]), (g.shape[0], *g.shape[2:]), strict=True)))
    # Σ over examples and places; `a` has the channel that comes first in the weight
    groups, stride, padding, dilation = _settings(call)
    a, b = (x, g) if turned else (g, x)
    kernel, places = call.shape[2:], a.shape[2:]
    b = _windowed(call, b, kernel, places, stride, padding, dilation)
    per, inner, of_a, of_b = call.shape[0] // groups, call.shape[1], row_major(a.shape), row_major(b.shape)
    drop = 0 if groups == 1 else 1 if per == 1 else None

    def along(strides: Axes) -> list[int]:
        return [s for i, s in enumerate(strides) if i != drop]

    counts = (a.shape[0], *places)
    plan = total(
        cells(a, along([per * of_a[1], of_a[1], 0, *[0] * len(kernel)]), zip((of_a[0], *of_a[2:]), counts, strict=True))
        * cells(
            b, along([inner * of_b[1], 0, of_b[1], *(d * s for d, s in zip(dilation, of_b[2:], strict=True))]),
            zip((of_b[0], *(by * s for by, s in zip(stride, of_b[2:], strict=True))), counts, strict=True),
        )
    )  # fmt: skip
    return plan if drop is not None else call.folded((groups, per, inner, *kernel), plan)


# ---- pooling


def _window(x: In, kernel: Axes, stride: Axes, dilation: Axes) -> P:
    rows, n = row_major(x.shape), len(kernel)
    along = [*rows[:-n], *(s * r for s, r in zip(stride, rows[-n:], strict=True))]
    return cells(x, along, [(d * r, k) for d, r, k in zip(dilation, rows[-n:], kernel, strict=True)])


def _along(call: Call, which: int, values: Array) -> Any:
    """A number for each place along one of the last axes: one number, if they are equal."""
    if len(set(values.tolist())) == 1:
        return values.tolist()[0]
    return cells(call.constant(values), [int(d == which % len(call.shape)) for d in range(len(call.shape))])


def _pool_settings(call: Call) -> tuple[list[int], ...]:
    n = _window_axes(call.op)
    kernel = _each(call.kernel_size, n)
    others = (_each(call.get(name) or standard, n) for name, standard in (("padding", 0), ("dilation", 1)))
    return kernel, _each(call.get("stride") or kernel, n), *others


@rule("pool", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(call: Call) -> Plan:
    kernel, stride, padding, dilation = _pool_settings(call)
    n, x = len(kernel), call.self
    places = call.shape[-n:]
    terms = _window(_windowed(call, x, kernel, places, stride, padding, dilation, -math.inf), kernel, stride, dilation)
    if call.out == 0:
        return most(terms)
    starts = [np.arange(count) * s - p for count, s, p in zip(places, stride, padding, strict=True)]
    return _place_of_largest(call, terms, kernel, dilation, starts)


def _place_of_largest(call: Call, terms: P, kernel: Axes, dilation: Axes, starts: Sequence[Array]) -> Plan:
    """Where the largest of a window is among the places of its input, from its number in the window."""
    n, at = len(kernel), 0
    first = step("number in the window", fn("argmax")(terms))
    rows = row_major(call.self.shape)
    for d, (k, by, begin) in enumerate(zip(kernel, dilation, starts, strict=True)):
        number = fn("mod")(fn("floor")(first / math.prod(kernel[d + 1 :])), k)
        at = at + (_along(call, d - n, begin) + number * by) * rows[len(rows) - n + d]
    return at


@rule("pool", "avg_pool2d", "avg_pool3d")
def _average_pool(call: Call) -> Plan:
    kernel, stride, padding, dilation = _pool_settings(call)
    n, x = len(kernel), call.self
    places, sizes = call.shape[-n:], x.shape[-n:]
    summed = total(_window(_windowed(call, x, kernel, places, stride, padding, dilation), kernel, stride, dilation))
    if divisor := call.get("divisor_override"):
        return summed / divisor
    counts: Any = 1
    for d in range(n):
        begin = np.arange(places[d]) * stride[d] - padding[d]
        end = np.minimum(begin + kernel[d], sizes[d] + padding[d])
        if not call.get("count_include_pad", True):
            begin, end = np.maximum(begin, 0), np.minimum(end, sizes[d])
        counts = _along(call, d - n, end - begin) * counts
    return summed / counts


@rule("pool", "adaptive_max_pool2d", "adaptive_max_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _adaptive_pool(call: Call) -> Plan:
    """Windows that divide the input; where they cannot be equal, from ⌊i·n/m⌋ to ⌈(i + 1)·n/m⌉."""
    n, x, largest = _window_axes(call.op), call.self, "max" in call.op
    places, sizes = call.shape[-n:], x.shape[-n:]
    if all(size % count == 0 for size, count in zip(sizes, places, strict=True)):
        kernel, ones = [size // count for size, count in zip(sizes, places, strict=True)], [1] * n
        terms = _window(x, kernel, kernel, ones)
        if not largest:
            return mean_of(terms)
        starts = [np.arange(count) * k for count, k in zip(places, kernel, strict=True)]
    elif not largest:
        return _interpolated(call)
    else:
        starts = [np.arange(count) * size // count for size, count in zip(sizes, places, strict=True)]
        ends = [-((-(np.arange(count) + 1) * size) // count) for size, count in zip(sizes, places, strict=True)]
        kernel = [int((end - begin).max()) for begin, end in zip(starts, ends, strict=True)]
        taps = [begin[:, None] + np.arange(k) for begin, k in zip(starts, kernel, strict=True)]
        taps = [np.where(tap < end[:, None], tap, -1) for tap, end in zip(taps, ends, strict=True)]
        terms = _gathered(call, x, taps, -math.inf)
    return most(terms) if call.out == 0 else _place_of_largest(call, terms, kernel, [1] * n, starts)


@rule("gradient", "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
@rule("gradient", "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def _max_pool_backward(call: Call) -> Plan:
    """Σ_j [place_j = cell]·g_j over all windows of the picture."""
    g, n = call.grad_output, _window_axes(call.op)
    count, shape, rows = math.prod(g.shape[-n:]), call.shape, row_major(call.shape)
    lead = len(shape) - n
    along = [s // math.prod(shape[lead:]) * count for s in rows[:lead]] + [0] * n
    here: Any = sum((axis(lead + d) * rows[lead + d] for d in range(n)), 0)
    at, values = (cells(t, along, [(1, count)]) for t in (call.indices, g))
    return total(choose(fn("eq")(at, here), values, 0))


# ---- what is linear along each axis, with weights of its own at every place


WIDE = 4  # places


def _gathered(call: Call, x: In, taps: Sequence[Array], fill: float = 0.0) -> P:
    """The cells of x at these places along its last axes (−1: none), as many for each place of the output."""
    n = len(taps)
    inside: Any = np.zeros(1, np.int64)
    missing: Any = np.zeros(1, bool)
    for d, tap in enumerate(taps):
        shape = [1] * (2 * n)
        shape[d], shape[n + d] = tap.shape
        inside = inside + tap.reshape(shape) * row_major(x.shape)[len(x.shape) - n + d]
        missing = missing | (tap.reshape(shape) < 0)
    count = math.prod(tap.shape[1] for tap in taps)
    plane = math.prod(x.shape[-n:])
    starts = np.arange(math.prod(x.shape) // plane).reshape(-1, *[1] * 2 * n) * plane
    return listed(call, x, np.where(missing, -1, inside + starts).reshape(-1, count), fill)


def _matrix(call: Call, x: In, which: int, n: int) -> Array:
    """The weights of the operation along one axis: a row for each place of its output."""
    size = x.shape[len(x.shape) - n + which]

    def alone(values: Any, others: Any) -> list[Any]:
        values = _each(values, n)
        return [value if d == which else others for d, value in enumerate(values)]

    # the other axes stay as they are: WIDE places, since kernels for pictures that are one place wide are others
    kind = torch.float64 if x.dtype == "float64" else torch.float32
    unit = (
        torch.eye(size, dtype=kind).reshape(1, size, *alone(size, 1)).expand(1, size, *alone(size, WIDE)).contiguous()
    )
    changed: dict[str, Any] = {"grad_output" if "grad_output" in call.args else "self": unit}
    if "grad_output" in call.args and "self" in call.args:
        changed["self"] = torch.zeros(1, size, *alone(call.self.shape[-n:], WIDE), dtype=kind)
    for name, others in (("output_size", WIDE), ("kernel_size", 1), ("stride", 1), ("padding", 0)):
        if call.get(name):
            changed[name] = alone(call.args[name], others)
    if "input_size" in call.args:
        changed["input_size"] = [1, size, *alone(call.args["input_size"][2:], WIDE)]
    scales = [name for name in ("scales", "scales_d", "scales_h", "scales_w") if name in call.args]
    if len(scales) == n:
        changed |= dict(zip(scales, alone([call.args[name] for name in scales], None), strict=True))
    rows = call.run(**changed)[(0, slice(None), *alone([slice(None)] * n, 0))]
    return rows.T.double().numpy()


INTERPOLATIONS = "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d".split()
INTERPOLATIONS += ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]
BACK = [f"upsample_nearest{n}d_backward" for n in (1, 2, 3)] + [
    f"_upsample_nearest_exact{n}d_backward" for n in (1, 2, 3)
]
BACK += [f"{op}_backward" for op in INTERPOLATIONS]
BACK += [f"{op}{n}d_backward" for op in ("avg_pool", "_adaptive_avg_pool") for n in (2, 3)]


@rule("resample", *INTERPOLATIONS)
@rule("gradient", *BACK)
def _interpolated(call: Call) -> Plan:
    """Σ weight·x over the places that have a weight, which is a product of one for each axis."""
    if call.get("divisor_override"):
        raise NotImplementedError("a divisor of one's own")
    n, x = _window_axes(call.op), call.args["grad_output" if "grad_output" in call.args else "self"]
    taps: list[Array] = []
    weights: list[Array] = []
    for d in range(n):
        matrix = _matrix(call, x, d, n)
        order = np.argsort(matrix == 0, axis=1, kind="stable")[:, : max(1, int((matrix != 0).sum(1).max()))]
        weight = np.take_along_axis(matrix, order, 1)
        taps.append(np.where(weight == 0, -1, order))
        weights.append(weight)
    terms = _gathered(call, x, taps)
    lead = len(call.shape) - n
    for d, weight in enumerate(weights):
        if set(np.unique(weight)) <= {0.0, 1.0}:
            continue
        along = [weight.shape[1] * (a == lead + d) for a in range(len(call.shape))]
        over = [(int(e == d), tap.shape[1]) for e, tap in enumerate(taps)]
        terms = terms * cells(call.constant(weight), along, over)
    return total(terms)


# ---- norms over channels: of a group of each example, of one channel of all examples


def _affine(x: P, mean: P, scale: P, bias: P | None) -> Plan:
    """In the order of the kernels: a·x + (β − a·mean), where a = γ/σ."""
    scale = step("γ/σ", scale)
    shift = -(scale * mean) if bias is None else bias - scale * mean
    return scale * x + shift


@rule("groupnorm", "native_group_norm")
def _group_norm(call: Call) -> Plan:
    x, groups, per, places = call.input, call.group, call.C // call.group, call.HxW
    n, lead = per * places, [groups * per * places, per * places]
    folds = [*lead, places, 1]  # the axes are: example, group, channel in the group, place
    terms = cells(x, lead if call.out else [*lead, 0, 0], [(1, n)])
    mean = step("mean", total(terms) / n)
    if call.out == 1:
        return mean
    inverse = 1 / step("√(variance + ε)", sqrt(step("variance", total(square(terms - mean)) / n) + call.eps))
    if call.out == 2:
        return inverse
    scale, bias = (
        None if call.get(name) is None else cells(call.args[name], [0, per, 1, 0]) for name in ("weight", "bias")
    )
    plan = _affine(cells(x, folds), mean, inverse if scale is None else inverse * scale, bias)
    return call.folded((call.N, groups, per, places), plan)


@rule("gradient", "native_group_norm_backward")
def _group_norm_backward(call: Call) -> Plan:
    """In the order of the kernel: ∂x = a·γ·g + b·x + c."""
    x, g, which = call.input, call.grad_out, wanted_output(call)
    groups, per, places = call.group, call.C // call.group, call.HxW
    n, example = per * places, groups * per * places
    if which:  # a channel of all examples
        over = [(example, call.N), (1, places)]
        all_g, all_x = (cells(t, [per * places, places], over) for t in (g, x))
        if which == 2:
            return call.folded((groups, per), total(all_g))
        mean, inverse = (cells(t, [1, 0], [(groups, call.N), (0, places)]) for t in (call.mean, call.rstd))
        return call.folded((groups, per), total((all_g * all_x - all_g * mean) * inverse))
    mean, a = (cells(t, [groups, 1, 0, 0]) for t in (call.mean, call.rstd))
    row_g, row_x = (cells(t, [example, n, 0, 0], [(places, per), (1, places)]) for t in (g, x))
    own_g, own_x = (cells(t, [example, n, places, 1]) for t in (g, x))
    if call.get("weight") is not None:
        row_g = row_g * cells(call.weight, [0, per, 0, 0], [(1, per), (0, places)])
        own_g = cells(call.weight, [0, per, 1, 0]) * own_g
    sum_g = step("Σ g·γ", total(row_g))
    b = step("b", (sum_g * mean - step("Σ g·γ·x", total(row_g * row_x))) * a * a * a / n)
    c = step("c", -(b * mean) - sum_g * a / n)
    return call.folded((call.N, groups, per, places), a * own_g + b * own_x + c)


def _channel(call: Call, values: In) -> P:
    """A number for each channel, which is axis 1."""
    return cells(values, [int(d == 1) for d in range(len(call.shape))])


def _of_channel(x: In, shape: Axes) -> tuple[P, int]:
    """All cells of the channel of an output of this shape (or of one that has only channels), and how many they are."""
    rows = row_major(x.shape)
    along = [rows[1] * (d == 1) for d in range(len(shape))] if len(shape) > 1 else [rows[1]]
    over = [(s, count) for d, (s, count) in enumerate(zip(rows, x.shape, strict=True)) if d != 1]
    return cells(x, along, over), math.prod(count for _, count in over)


@rule("layernorm", "_native_batch_norm_legit_no_training", "native_batch_norm", "_native_batch_norm_legit")
def _batch_norm(call: Call) -> Plan:
    x, training = call.input, call.get("training", False)
    if training:
        terms, n = _of_channel(x, call.shape)
        mean = step("mean", total(terms) / n)
        if call.out == 1:
            return mean
        squares = total(square(terms - mean))
        if call.out > 2:  # what it remembers for later
            now, old = (mean, call.running_mean) if call.out == 3 else (squares / (n - 1), call.running_var)
            return (1 - call.momentum) * cells(old, [1]) + call.momentum * now
        variance = step("variance", squares / n)
    else:
        mean, variance = _channel(call, call.running_mean), _channel(call, call.running_var)
    inverse = 1 / step("√(variance + ε)", sqrt(variance + call.eps))
    if call.out == 2:
        return inverse
    scale, bias = (None if call.get(name) is None else _channel(call, call.args[name]) for name in ("weight", "bias"))
    return _affine(call.broadcast(x), mean, inverse if scale is None else inverse * scale, bias)


@rule("gradient", "native_batch_norm_backward")
def _batch_norm_backward(call: Call) -> Plan:
    x, g, which, training = call.input, call.grad_out, wanted_output(call), call.get("train", False)
    (all_g, n), (all_x, _) = _of_channel(g, call.shape), _of_channel(x, call.shape)
    if which == 2:
        return total(all_g)

    def channel(values: In) -> P:
        return cells(values, [1]) if which else _channel(call, values)

    if training:
        mean, inverse = channel(call.save_mean), channel(call.save_invstd)
    else:
        mean, inverse = channel(call.running_mean), 1 / sqrt(channel(call.running_var) + call.eps)
    projected = step("Σ g·(x − mean)", total(all_g * (all_x - mean)))
    if which:
        return projected * inverse
    scale = inverse if call.get("weight") is None else inverse * channel(call.weight)
    own = call.broadcast(g)
    if training:
        along_x = (call.broadcast(x) - mean) * (projected / n * inverse * inverse)
        own = own - step("mean of g", total(all_g) / n) - along_x
    return own * scale


# ---- a weight as a direction and a length


@rule("weightnorm", "_weight_norm_interface")
def _weight_norm(call: Call) -> Plan:
    v, dim = call.v, call.get("dim", 0) % len(call.v.shape)
    others = [d for d in range(len(v.shape)) if d != dim]
    length = sqrt(total(square(call.over(v, others, keep=True))))
    return length if call.out else call.broadcast(v) * (call.broadcast(call.g) / step("‖v‖", length))
