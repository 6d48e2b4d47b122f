"""How each operation of the backward pass computes a cell: plans, as in `rules`, where g is ∂L/∂output.

Most of a backward pass is made of operations that the forward pass has too: products, sums, views. Here are the others.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .graph import Plan
from .half_precision import HALF
from .optimizer_settings import made_of
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
    log,
    row_major,
    rule,
    running_total,
    sqrt,
    square,
    step,
    tanh,
    total,
    wanted_output,
)  # fmt: skip

equal, differ = fn("eq"), fn("ne")


# ---- losses and softmax


@rule("gradient", "nll_loss_backward", "nll_loss2d_backward")
def _nll(call: Call) -> Plan:
    classes = len(call.shape) > 1  # the axis after the examples; one example has that alone
    target_strides = row_major(call.target.shape)
    along = [*target_strides[:1], 0, *target_strides[1:]] if classes else [0]
    target, reduction = cells(call.target, along), call.get("reduction", 1)
    g = cells(call.grad_output, [0] * len(along) if reduction else along)
    if call.get("weight") is not None:
        g = cells(call.weight, [int(d == classes) for d in range(len(along))]) * g
    if reduction == 1:
        g = g / call.broadcast(call.total_weight)
    is_target = fn("and")(equal(target, axis(int(classes))), differ(target, call.get("ignore_index", -100)))
    return choose(is_target, -g, 0)


@rule("gradient", "_softmax_backward_data")
def _softmax(call: Call) -> Plan:
    g, y = call.broadcast(call.grad_output), call.broadcast(call.output)
    weighted = call.line(call.grad_output, call.dim) * call.line(call.output, call.dim)
    if call.device != "cpu" and call.grad_output.dtype in HALF:  # the products are stored, and then read twice
        stored = fn("rounded")
        return stored(g * y) - step("Σ g·y", total(stored(weighted))) * y
    return (g - step("Σ g·y", total(weighted))) * y


@rule("gradient", "_log_softmax_backward_data")
def _log_softmax(call: Call) -> Plan:
    summed = step("Σ g", total(call.line(call.grad_output, call.dim)))
    return call.broadcast(call.grad_output) - exp(call.broadcast(call.output)) * summed


def _between(difference: P, limit: float, inside: float) -> Any:
    """Of a loss that is square near 0 and linear beyond: the slope there, the difference here."""
    return choose(
        fn("lt")(fn("abs")(difference), limit), difference * inside, fn("sign")(difference) * (limit * inside)
    )


LOSSES: dict[str, Callable[[Call, P, P], Any]] = {
    "mse_loss": lambda call, x, y: 2.0 * (x - y),
    "huber_loss": lambda call, x, y: _between(x - y, call.delta, 1.0),
    "smooth_l1_loss": lambda call, x, y: _between(x - y, call.beta, 1 / call.beta if call.beta else 1.0),
    "binary_cross_entropy": lambda call, x, y: (x - y) / fn("greater")((1 - x) * x, 1e-12),
    "soft_margin_loss": lambda call, x, y: -y * step("e^−yx", exp(-y * x)) / (1 + exp(-y * x)),
}


@rule("gradient", *(f"{op}_backward" for op in LOSSES))
def _loss(call: Call) -> Plan:
    x, y = call.broadcast(call.self), call.broadcast(call.target)
    plan = LOSSES[call.op.removesuffix("_backward")](call, x, y)
    plan = plan if call.get("weight") is None else call.broadcast(call.weight) * plan
    plan = plan * call.broadcast(call.grad_output)
    return plan / math.prod(call.self.shape) if call.get("reduction", 1) == 1 else plan


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


def _sigmoid(x: P) -> P:
    return step("σ", 1 / (1 + exp(-x)))


def _silu(g: P, x: P) -> Any:
    return g * _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))


def _mish(g: P, x: P) -> Any:
    slow = step("tanh ln(1 + e^x)", tanh(log(1 + exp(x))))
    return g * (slow + x * _sigmoid(x) * (1 - square(slow)))


def _elu(g: P, x: P, alpha: float, scale: float, inner: float, is_result: bool) -> Any:
    below = inner * (alpha * scale + x) if is_result else inner * alpha * scale * exp(x * inner)
    return choose(fn("le")(x, 0), g * below, g * scale)


def _softplus(g: P, x: P, beta: float, limit: float) -> Any:
    power = step("e^βx", exp(x * beta))
    return choose(fn("gt")(x * beta, limit), g, g * power / (1 + power))


def _log_sigmoid(g: P, x: P, power: P) -> Any:
    portion = power / (1 + power)  # the power is e^−|x|
    return g * choose(fn("lt")(x, 0), 1 - portion, portion)


def _within(x: P, limit: float) -> P:
    return fn("le")(fn("abs")(x), limit)


# the gradient of the output, and what the slope is computed from
SLOPES: dict[str, tuple[Sequence[str], Callable[..., Any]]] = {
    "silu_backward": (("self",), _silu),
    "mish_backward": (("self",), _mish),
    "tanh_backward": (("output",), lambda g, y: g * (1 - square(y))),
    "sigmoid_backward": (("output",), lambda g, y: g * (1 - y) * y),
    "threshold_backward": (("self", "threshold"), lambda g, x, limit: choose(fn("le")(x, limit), 0, g)),
    "elu_backward": (("self_or_result", "alpha", "scale", "input_scale", "is_result"), _elu),
    "softplus_backward": (("self", "beta", "threshold"), _softplus),
    "log_sigmoid_backward": (("self", "buffer"), _log_sigmoid),
    "leaky_relu_backward": (("self", "negative_slope"), lambda g, x, slope: choose(fn("gt")(x, 0), g, slope * g)),
    "hardtanh_backward": (
        ("self", "min_val", "max_val"),
        lambda g, x, low, high: choose(fn("and")(fn("gt")(x, low), fn("lt")(x, high)), g, 0),
    ),
    "hardsigmoid_backward": (("self",), lambda g, x: choose(fn("lt")(fn("abs")(x), 3), g / 6, 0)),
    "hardswish_backward": (
        ("self",), lambda g, x: choose(_within(x, 3), g * (0.5 + x / 3), choose(fn("gt")(x, 3), g, 0))
    ),
    "softshrink_backward": (("self", "lambd"), lambda g, x, by: choose(_within(x, by), 0, g)),
    "hardshrink_backward": (("self", "lambd"), lambda g, x, by: choose(_within(x, by), 0, g)),
}  # fmt: skip


@rule("gradient", *SLOPES)
def _slope(call: Call) -> Plan:
    names, formula = SLOPES[call.op]
    g = call.args["grad_output" if "grad_output" in call.args else "grad_out"]
    return formula(call.broadcast(g), *(call.broadcast(call.args[name]) for name in names))


@rule("gradient", "rrelu_with_noise_backward")
def _random_relu(call: Call) -> Plan:
    g, x = _operands(call, "self")
    return (
        g * call.broadcast(call.noise)
        if call.training
        else choose(fn("gt")(x, 0), g, (call.lower + call.upper) / 2 * g)
    )


@rule("gradient", "_prelu_kernel_backward")
def _prelu(call: Call) -> Plan:
    g, x = _operands(call, "self")
    positive = fn("gt")(x, 0)
    return choose(positive, 0, x * g) if call.out else choose(positive, g, call.broadcast(call.weight) * g)


@rule("gradient", "glu_backward")
def _glu(call: Call) -> Plan:
    """Of a·σ(b): σ(b)·g for a, which is the first half, and a·σ(b)(1 − σ(b))·g for b."""
    dim, rows = call.dim % len(call.shape), row_major(call.shape)
    half, along = call.shape[dim] // 2, row_major(call.grad_output.shape)
    across = half * rows[dim]
    first_g, second_g = cells(call.grad_output, along), cells(call.grad_output, along, start=-half * along[dim])
    a, own, b = (cells(call.self, rows, start=start) for start in (-across, 0, across))
    gate = step("σ(b)", 1 / (1 + exp(-own)))
    return choose(fn("lt")(axis(dim), half), first_g * _sigmoid(b), second_g * a * gate * (1 - gate))


@rule("gradient", "native_dropout_backward")
def _dropout(call: Call) -> Plan:
    return call.broadcast(call.grad_output) * call.broadcast(call.mask) * call.scale


# ---- norms


@rule("gradient", "native_layer_norm_backward")
def _layer_norm(call: Call) -> Plan:
    """∂x = (ĝ − mean(ĝ) − x̂·mean(ĝ·x̂))/σ with ĝ = g·γ, rounded as the kernel does, which is more where |mean| ≫ σ.

    With a = 1/σ the kernel adds a·ĝ + b·x − (b·mean + Σ ĝ·a/n), b = (Σ ĝ·mean − Σ ĝ·x)·a³/n: each product rounds by its
    own size, so b·x and b·mean by theirs; what b itself is off by is multiplied with their difference alone.
    """
    x, g, which = call.input, call.grad_out, wanted_output(call)
    n, size = math.prod(call.normalized_shape), math.prod(x.shape)
    lead, strides = len(x.shape) - len(call.normalized_shape), row_major(x.shape)
    if which:  # γ and β: sums over the rows, which lie one after the other
        here, rows = row_major(call.shape), size // n
        all_g, all_x = (cells(t, here, [(n, rows)]) for t in (g, x))
        if which == 2:
            return running_total(all_g, x.dtype)
        mean, inverse = (cells(t, [0] * len(here), [(1, rows)]) for t in (call.mean, call.rstd))
        return running_total(all_g * (inverse * all_x - inverse * mean), x.dtype)
    row = [s if d < lead else 0 for d, s in enumerate(strides)]
    mean, a = (cells(t, [s // n for s in row]) for t in (call.mean, call.rstd))
    row_g, row_x, own_g = cells(g, row, [(1, n)]), cells(x, row, [(1, n)]), call.broadcast(g)
    if call.get("weight") is not None:
        row_g = row_g * cells(call.weight, [0] * len(strides), [(1, n)])
        own_g = own_g * call.broadcast(call.weight)
    product, sum_g = fn("multiplied"), step("Σ ĝ", total(row_g))
    own_x = step("x̂", (product(call.broadcast(x)) - product(mean)) * step("1/σ", a))
    along = step("mean(ĝ·x̂)", (step("Σ ĝ·x", total(row_g * row_x)) - sum_g * mean) * a / n)
    own_g = product(step("ĝ", own_g)) - product(step("mean(ĝ)", sum_g / n)) - product(own_x * along)
    return own_g * step("1/σ", a)


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


@rule("gradient", "_weight_norm_interface_backward")
def _weight_norm(call: Call) -> Plan:
    """Of v·γ/‖v‖: for γ the part of g along v; for v what is left of g, times γ/‖v‖."""
    v, dim = call.saved_v, call.dim % len(call.saved_v.shape)
    others = [d for d in range(len(v.shape)) if d != dim]
    along_v = step("Σ g·v", total(call.over(call.grad_w, others, keep=True) * call.over(v, others, keep=True)))
    length = call.broadcast(call.saved_norms)
    if call.out:
        return along_v / length
    left = call.broadcast(call.grad_w) - call.broadcast(v) * along_v / (length * length)
    return call.broadcast(call.saved_g) / length * left


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
    return m + made_of("1 − {β₁}".format_map(options["letters"]), 1 - options["beta1"]) * (g - m)


def second_moment(v: P, g: P, options: Mapping[str, Any]) -> P:
    return options["beta2"] * v + made_of("1 − {β₂}".format_map(options["letters"]), 1 - options["beta2"]) * square(g)


def adam(w: P, m: P, v: P, t: P, options: Mapping[str, Any], decoupled: bool) -> P:
    """The weight after step t, from its moments after it: w(1 − ηλ) − η/(1 − β₁^t)·m/(√v/√(1 − β₂^t) + ε).

    Its decay (1 − ηλ) is AdamW's, `decoupled` from the moments; Adam adds λw to the gradient instead.
    """
    power, letters = fn("pow"), options["letters"]
    rate = step("{η}/(1 − {β₁}^step)".format_map(letters), options["lr"] / (1 - power(options["beta1"], t)))
    scale = step("√(1 − {β₂}^step)".format_map(letters), sqrt(1 - power(options["beta2"], t)))
    if decoupled and options["weight_decay"]:
        w = w * made_of("1 − {η}·{λ}".format_map(letters), 1 - options["lr"] * options["weight_decay"])
    return w - rate * m / (sqrt(v) / scale + options["eps"])
