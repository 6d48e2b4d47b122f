"""How each operation of the backward pass computes a cell: plans, as in `rules`, where g is ∂L/∂output.

Most of a backward pass is made of operations that the forward pass has too: products, sums, views. Here are the others.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .graph import Plan
from .rules import (
    Call,
    In,
    P,
    axis,
    cells,
    choose,
    erf,
    exp,
    fn,
    row_major,
    rule,
    sqrt,
    square,
    step,
    tanh,
    total,
    wanted_output,
)  # fmt: skip

equal, differ = fn("eq"), fn("ne")


# ---- losses and softmax


@rule("gradient", "nll_loss_backward")
def _nll(call: Call) -> Plan:
    if call.get("weight") is not None or len(call.shape) != 2:
        raise NotImplementedError("a loss with weights or of this shape")
    target, reduction = cells(call.target, (1, 0)), call.get("reduction", 1)
    g = cells(call.grad_output, (0, 0) if reduction else (1, 0))
    if reduction == 1:
        g = g / call.broadcast(call.total_weight)
    is_target = fn("and")(equal(target, axis(1)), differ(target, call.get("ignore_index", -100)))
    return choose(is_target, -g, 0)


@rule("gradient", "_softmax_backward_data")
def _softmax(call: Call) -> Plan:
    weighted = call.line(call.grad_output, call.dim) * call.line(call.output, call.dim)
    return (call.broadcast(call.grad_output) - step("Σ g·y", total(weighted))) * call.broadcast(call.output)


@rule("gradient", "_log_softmax_backward_data")
def _log_softmax(call: Call) -> Plan:
    summed = step("Σ g", total(call.line(call.grad_output, call.dim)))
    return call.broadcast(call.grad_output) - exp(call.broadcast(call.output)) * summed


@rule("gradient", "mse_loss_backward")
def _mse(call: Call) -> Plan:
    factor = 2 / math.prod(call.self.shape) if call.get("reduction", 1) == 1 else 2.0
    difference = call.broadcast(call.self) - call.broadcast(call.target)
    return difference * factor * call.broadcast(call.grad_output)


# ---- activations


def _operands(call: Call, other: str) -> tuple[Any, Any]:
    """The gradient of the output, and the input or output that the derivative is computed from."""
    return call.broadcast(call.grad_output), call.broadcast(call.args[other])


@rule("gradient", "gelu_backward")
def _gelu(call: Call) -> Plan:
    g, x = _operands(call, "self")
    if call.get("approximate", "none") == "none":
        density = step("φ", exp(-(x * x) / 2) / math.sqrt(2 * math.pi))
        return g * (step("Φ", 0.5 * (1 + erf(x / math.sqrt(2)))) + x * density)
    k, cubic = math.sqrt(2 / math.pi), 0.044715
    t = step("tanh", tanh(k * (x + fn("pow")(x, 3) * cubic)))
    return g * (0.5 * (1 + t) + 0.5 * x * (1 - square(t)) * (k * (1 + 3 * cubic * square(x))))


@rule("gradient", "silu_backward")
def _silu(call: Call) -> Plan:
    g, x = _operands(call, "self")
    sigmoid = step("σ", 1 / (1 + exp(-x)))
    return g * sigmoid * (1 + x * (1 - sigmoid))


@rule("gradient", "tanh_backward")
def _tanh(call: Call) -> Plan:
    g, y = _operands(call, "output")
    return g * (1 - square(y))


@rule("gradient", "sigmoid_backward")
def _sigmoid(call: Call) -> Plan:
    g, y = _operands(call, "output")
    return g * (1 - y) * y


@rule("gradient", "threshold_backward")
def _threshold(call: Call) -> Plan:
    g, x = _operands(call, "self")
    return choose(fn("le")(x, call.threshold), 0, g)


@rule("gradient", "native_dropout_backward")
def _dropout(call: Call) -> Plan:
    return call.broadcast(call.grad_output) * call.broadcast(call.mask) * call.scale


# ---- norms


@rule("gradient", "native_layer_norm_backward")
def _layer_norm(call: Call) -> Plan:
    """In the order of the kernel, whose rounding is larger than that of the usual formula where |mean| ≫ σ.

    With a = 1/σ: ∂x = a·gγ + b·x + c, b = (Σ gγ·mean − Σ gγ·x)·a³/n, c = −b·mean − Σ gγ·a/n.
    """
    x, g, which = call.input, call.grad_out, wanted_output(call)
    n, size = math.prod(call.normalized_shape), math.prod(x.shape)
    lead, strides = len(x.shape) - len(call.normalized_shape), row_major(x.shape)
    if which:  # γ and β: sums over the rows, which lie one after the other
        here, rows = row_major(call.shape), size // n
        all_g, all_x = (cells(t, here, [(n, rows)]) for t in (g, x))
        if which == 2:
            return total(all_g)
        mean, inverse = (cells(t, [0] * len(here), [(1, rows)]) for t in (call.mean, call.rstd))
        return total(all_g * (inverse * all_x - inverse * mean))
    row = [s if d < lead else 0 for d, s in enumerate(strides)]
    mean, a = (cells(t, [s // n for s in row]) for t in (call.mean, call.rstd))
    row_g, row_x, own_g = cells(g, row, [(1, n)]), cells(x, row, [(1, n)]), call.broadcast(g)
    if call.get("weight") is not None:
        row_g = row_g * cells(call.weight, [0] * len(strides), [(1, n)])
        own_g = own_g * call.broadcast(call.weight)
    sum_g = step("Σ g·γ", total(row_g))
    b = step("b", (sum_g * mean - step("Σ g·γ·x", total(row_g * row_x))) * a * a * a / n)
    c = step("c", -(b * mean) - sum_g * a / n)
    return a * own_g + b * call.broadcast(x) + c


@rule("gradient", "_fused_rms_norm_backward")
def _rms_norm(call: Call) -> Plan:
    x, g, which = call.input, call.grad_out, wanted_output(call)
    n, size = math.prod(call.normalized_shape), math.prod(x.shape)
    lead, strides = len(x.shape) - len(call.normalized_shape), row_major(x.shape)
    if which:
        here, rows = row_major(call.shape), size // n
        inverse = cells(call.rstd, [0] * len(here), [(1, rows)])
        return total(cells(g, here, [(n, rows)]) * cells(x, here, [(n, rows)]) * inverse)
    row = [s if d < lead else 0 for d, s in enumerate(strides)]
    a = cells(call.rstd, [s // n for s in row])
    row_g, row_x, own_g = cells(g, row, [(1, n)]), cells(x, row, [(1, n)]), call.broadcast(g)
    if call.get("weight") is not None:
        row_g = row_g * cells(call.weight, [0] * len(strides), [(1, n)])
        own_g = own_g * call.broadcast(call.weight)
    return a * own_g - call.broadcast(x) * a * a * a * step("Σ g·γ·x", total(row_g * row_x)) / n


# ---- lookups and places: what was read from a place is added to it


@rule("gradient", "embedding_dense_backward")
def _embedding(call: Call) -> Plan:
    """Σ_t [id_t = row]·g[t]: no table, which would have a row for every token of the vocabulary."""
    if call.get("scale_grad_by_freq"):
        raise NotImplementedError("gradients that are divided by how often a token occurs")
    count, width = math.prod(call.indices.shape), call.shape[1]
    ids, g = cells(call.indices, (0, 0), [(1, count)]), cells(call.grad_output, (0, 1), [(width, count)])
    summed, padding = total(choose(equal(ids, axis(0)), g, 0)), call.get("padding_idx", -1)
    return summed if padding < 0 else choose(equal(axis(0), padding), 0, summed)


def placed(g: In, zero: int, dim: int, begin: int, one: bool, shape: Sequence[int]) -> Plan:
    """The gradient of a part: that of the part, and around it 0, which the node `zero` holds. Ranges, so no table."""
    strides, end = row_major(g.shape), begin + (1 if one else g.shape[dim])
    if one:
        strides.insert(dim, 0)
    around = cells(zero, [0] * len(shape))
    parts = [(0, around), (begin, cells(g, strides, start=-begin * strides[dim])), (end, around)]
    ends = [begin, end, shape[dim]]
    return ("cat", dim, [list(part) for part, stop in zip(parts, ends, strict=True) if part[0] < stop])


def accumulated(base: In, places: int, count: int, values: In, shape: Sequence[int], indexed: slice) -> Plan:
    """base[cell] + Σ_j [place_j = cell]·value_j, of `count` values; the axes `indexed` are, by the node `places`."""
    where = sum(
        (axis(d) * s for d, s in zip(range(indexed.start, indexed.stop), row_major(shape[indexed]), strict=True)), 0
    )
    at = cells(places, [0] * len(shape), [(1, count)])
    after = math.prod(shape[indexed.stop :])
    along = [count * s // math.prod(shape[indexed]) for s in row_major(shape)[: indexed.start]]
    along += [0] * len(shape[indexed]) + row_major(shape[indexed.stop :])
    added = cells(values, along, [(after, count)])
    return cells(base, row_major(shape)) + total(choose(equal(at, where), added, 0))


# ---- Adam in one kernel, which writes three tensors for each parameter


def first_moment(m: P, g: P, options: Mapping[str, Any]) -> P:
    return m + (1 - options["beta1"]) * (g - m)


def second_moment(v: P, g: P, options: Mapping[str, Any]) -> P:
    return options["beta2"] * v + (1 - options["beta2"]) * square(g)


def adam(w: P, m: P, v: P, t: P, options: Mapping[str, Any], decoupled: bool) -> P:
    """The weight after step t, from its moments after it: w(1 − ηλ) − η/(1 − β₁ᵗ)·m/(√v/√(1 − β₂ᵗ) + ε).

    Its decay (1 − ηλ) is AdamW's, `decoupled` from the moments; Adam adds λw to the gradient instead.
    """
    power = fn("pow")
    rate = step("η/(1 − β₁ᵗ)", options["lr"] / (1 - power(options["beta1"], t)))
    scale = step("√(1 − β₂ᵗ)", sqrt(1 - power(options["beta2"], t)))
    if decoupled and options["weight_decay"]:
        w = w * (1 - fn("mul")(options["lr"], options["weight_decay"]))
    return w - rate * m / (sqrt(v) / scale + options["eps"])
