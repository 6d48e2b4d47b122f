"""Operations that work cell by cell: arithmetic, comparisons, activations, rotations."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..graph import Plan
from .words import RULES, Call, P, Rule, choose, cos, erf, exp, fn, log, row_major, rule, sin, sqrt, square, step, tanh

_Formula = Callable[..., Any]


def times(factor: Any, plan: P) -> P:
    """A product; a factor of 1 is left out."""
    return plan if factor == 1 else factor * plan


ELEMENTWISE: dict[str, tuple[str, Sequence[str], _Formula]] = {
    "neg": ("scale", ("self",), lambda x: -x),
    "abs": ("elementwise", ("self",), fn("abs")),
    "exp": ("elementwise", ("self",), exp),
    "log": ("elementwise", ("self",), log),
    "log2": ("elementwise", ("self",), lambda x: log(x) / math.log(2)),
    "log10": ("elementwise", ("self",), lambda x: log(x) / math.log(10)),
    "log1p": ("elementwise", ("self",), lambda x: log(1 + x)),
    "expm1": ("elementwise", ("self",), lambda x: exp(x) - 1),
    "exp2": ("elementwise", ("self",), lambda x: fn("pow")(2.0, x)),
    "sqrt": ("elementwise", ("self",), sqrt),
    "rsqrt": ("elementwise", ("self",), lambda x: 1 / sqrt(x)),
    "reciprocal": ("elementwise", ("self",), lambda x: 1 / x),
    "square": ("elementwise", ("self",), square),
    "sin": ("sine/cosine", ("self",), sin),
    "cos": ("sine/cosine", ("self",), cos),
    "tan": ("sine/cosine", ("self",), fn("tan")),
    "atan": ("elementwise", ("self",), fn("atan")),
    "tanh": ("activation", ("self",), tanh),
    "erf": ("elementwise", ("self",), erf),
    "sigmoid": ("activation", ("self",), lambda x: 1 / (1 + exp(-x))),
    "silu": ("activation", ("self",), lambda x: x / (1 + exp(-x))),
    "relu": ("activation", ("self",), lambda x: fn("greater")(x, 0)),
    "relu6": ("activation", ("self",), lambda x: fn("lesser")(fn("greater")(x, 0), 6)),
    "sign": ("elementwise", ("self",), fn("sign")),
    "floor": ("elementwise", ("self",), fn("floor")),
    "ceil": ("elementwise", ("self",), fn("ceil")),
    "trunc": ("elementwise", ("self",), fn("trunc")),
    "round": ("elementwise", ("self",), fn("round")),
    "logical_not": ("mask", ("self",), fn("not")),
    "isfinite": ("mask", ("self",), fn("isfinite")),
    "isnan": ("mask", ("self",), fn("isnan")),
    "isinf": ("mask", ("self",), fn("isinf")),
    "mul": ("scale", ("self", "other"), lambda a, b: a * b if isinstance(b, P) else b * a),
    "maximum": ("elementwise", ("self", "other"), fn("greater")),
    "minimum": ("elementwise", ("self", "other"), fn("lesser")),
    "eq": ("mask", ("self", "other"), fn("eq")),
    "ne": ("mask", ("self", "other"), fn("ne")),
    "lt": ("mask", ("self", "other"), fn("lt")),
    "le": ("mask", ("self", "other"), fn("le")),
    "gt": ("mask", ("self", "other"), fn("gt")),
    "ge": ("mask", ("self", "other"), fn("ge")),
    "logical_and": ("mask", ("self", "other"), fn("and")),
    "logical_or": ("mask", ("self", "other"), fn("or")),
    "logical_xor": ("mask", ("self", "other"), fn("xor")),
    "remainder": ("elementwise", ("self", "other"), fn("mod")),
    "where": ("mask", ("condition", "self", "other"), choose),
    "masked_fill": ("mask", ("mask", "value", "self"), choose),
    "addcmul": ("elementwise", ("self", "tensor1", "tensor2", "value"), lambda s, a, b, v: s + times(v, a * b)),
    "addcdiv": ("elementwise", ("self", "tensor1", "tensor2", "value"), lambda s, a, b, v: s + times(v, a / b)),
    "lerp": ("elementwise", ("self", "end", "weight"), lambda a, b, w: a + w * (b - a)),
    "polar": ("rotation", ("abs", "angle"), lambda r, t: fn("complex")(r * cos(t), r * sin(t))),
    "complex": ("rotation", ("real", "imag"), fn("complex")),
    "sgn": ("elementwise", ("self",), fn("sign")),
}  # fmt: skip


def _by_cell(names: Sequence[str], formula: _Formula) -> Rule:
    return lambda call: formula(
        *(call.broadcast(call.get(name, 1) if name == "value" else call.args[name]) for name in names)
    )


for _op, (_kind, _names, _formula) in ELEMENTWISE.items():
    RULES[_op] = (_kind, _by_cell(_names, _formula))


@rule("sum", "add", "sub", "rsub")
def _add(call: Call) -> Plan:
    a, b, alpha = call.broadcast(call.self), call.broadcast(call.other), call.get("alpha", 1)
    if call.dtype == "bool":
        return fn("or")(a, b)
    if call.op == "rsub":
        a, b = b, a
        return P(("sub", a, b if alpha == 1 else P(("mul", alpha, b))))
    return P(("add" if call.op == "add" else "sub", a, b if alpha == 1 else P(("mul", alpha, b))))


@rule("elementwise", "div", "floor_divide")
def _div(call: Call) -> Plan:
    ratio = P(("div", call.broadcast(call.self), call.broadcast(call.other)))
    mode = "floor" if call.op == "floor_divide" else call.get("rounding_mode")
    return ratio if mode is None else fn(mode)(ratio)


@rule("elementwise", "pow")
def _pow(call: Call) -> Plan:
    x, power = call.broadcast(call.self), call.broadcast(call.exponent)
    if power in (2, 2.0):
        return square(x)
    if power == 0.5:
        return sqrt(x)
    return P(("pow", x, power))


@rule("elementwise", "clamp", "clamp_min", "clamp_max", "hardtanh")
def _clamp(call: Call) -> Plan:
    x = call.broadcast(call.self)
    low, high = (call.get(a, call.get(b)) for a, b in (("min", "min_val"), ("max", "max_val")))
    x = x if low is None else fn("greater")(x, call.broadcast(low))
    return x if high is None else fn("lesser")(x, call.broadcast(high))


@rule("activation", "gelu")
def _gelu(call: Call) -> Plan:
    x = call.broadcast(call.self)
    if call.get("approximate", "none") == "tanh":
        inner = step("inner", math.sqrt(2 / math.pi) * (x + 0.044715 * P(("pow", x, 3))))
        return 0.5 * x * (1 + step("tanh", tanh(inner)))
    return x * step("Φ", 0.5 * (1 + erf(x / math.sqrt(2))))


@rule("activation", "softplus", "leaky_relu", "elu", "hardsigmoid", "hardswish")
def _other_activation(call: Call) -> Plan:
    x = call.broadcast(call.self)
    if call.op == "softplus":
        beta, limit = call.get("beta", 1), call.get("threshold", 20)
        return choose(fn("gt")(x * beta, limit), x, log(1 + exp(x * beta)) / beta)
    if call.op == "leaky_relu":
        return choose(fn("gt")(x, 0), x, x * call.get("negative_slope", 0.01))
    if call.op == "elu":
        bent = (exp(x * call.get("input_scale", 1)) - 1) * call.get("alpha", 1)
        return choose(fn("gt")(x, 0), x, bent) * call.get("scale", 1)
    ramp = fn("lesser")(fn("greater")(x + 3, 0), 6) / 6
    return ramp if call.op == "hardsigmoid" else x * ramp


@rule("mask", "bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor")
def _bits(call: Call) -> Plan:
    if call.op == "bitwise_not":
        return fn("not")(call.broadcast(call.self)) if call.dtype == "bool" else -1 - call.broadcast(call.self)
    name = call.op.removeprefix("bitwise_")
    return fn(name if call.dtype == "bool" else f"bit{name}")(call.broadcast(call.self), call.broadcast(call.other))


@rule("mask", "tril", "triu")
def _triangle(call: Call) -> Plan:
    rows, columns = (P(("axis", len(call.shape) - k)) for k in (2, 1))
    compare = "le" if call.op == "tril" else "ge"
    return choose(fn(compare)(columns - rows, call.get("diagonal", 0)), call.broadcast(call.self), 0)


@rule("rotation", "view_as_complex", "view_as_real", "real", "imag", "conj_physical", "_conj")
def _complex(call: Call) -> Plan:
    x = call.self
    strides = row_major(x.shape)
    if call.op == "view_as_complex":
        parts = [P(("ref", x.node, k, strides[:-1], [])) for k in (0, 1)]
        return fn("complex")(*parts)
    if call.op == "view_as_real":
        z = P(("ref", x.node, 0, [*strides, 0], []))
        return choose(P(("axis", len(x.shape))), fn("imag")(z), fn("real")(z))
    z = call.broadcast(x)
    if call.op in ("_conj", "conj_physical"):
        return fn("complex")(fn("real")(z), -fn("imag")(z))
    return fn(call.op)(z)


@rule("modulation", "native_dropout")
def _dropped(call: Call) -> Plan:
    if call.out == 1:
        return None  # drawn
    kept = P(("ref", call.me + 1, 0, row_major(call.shape), []))
    return call.broadcast(call.input) * kept / (1 - call.p)
