"""How each ATen operation computes a cell: one description a kind of operation, as a plan (see `graph`).

First what rules are written with: plans as arithmetic, an operation as it was called, and the table of rules.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .graph import Array, Plan


def _operator(head: str) -> tuple[Callable[..., "P"], Callable[..., "P"]]:
    """A function as an operator between plans and numbers, which may stand on either side."""
    return lambda self, other: P((head, self, other)), lambda self, other: P((head, other, self))


class P(tuple):
    """A plan that can be written as arithmetic."""

    __slots__ = ()
    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("sub")
    __mul__: Callable[..., "P"]  # pyright: ignore[reportIncompatibleMethodOverride]
    __rmul__: Callable[..., "P"]  # pyright: ignore[reportIncompatibleMethodOverride]
    __mul__, __rmul__ = _operator("mul")
    __truediv__, __rtruediv__ = _operator("div")

    def __neg__(self) -> "P":
        return P(("neg", self))


def fn(name: str) -> Callable[..., P]:
    return lambda *args: P((name, *(number(a) if isinstance(a, int | float | complex) else a for a in args)))


def number(value: Any) -> Any:
    """A number as a plan holds it: what JSON cannot write is written as a string."""
    if isinstance(value, complex):
        return P(("num", str(value)))
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int) or math.isfinite(value) else P(("num", str(value)))


def step(name: str, plan: Plan) -> P:
    return P(("is", name, plan))


exp, log, sqrt, erf, tanh, sin, cos = map(fn, ("exp", "log", "sqrt", "erf", "tanh", "sin", "cos"))
total, most, least, square, choose = map(fn, ("sum", "max", "min", "square", "if"))


@dataclass(frozen=True)
class In:
    """A tensor an operation read: its node, shape and dtype."""

    node: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def exact(self) -> bool:
        return not self.dtype.startswith(("float", "bfloat", "complex"))


@dataclass
class Call:
    """One operation as it was called: its arguments by name, tensors as `In`, and the shape and dtype of an output."""

    op: str
    args: dict[str, Any]
    shape: tuple[int, ...]
    dtype: str
    out: int  # which of its outputs
    me: int  # the node this output becomes
    read: Callable[[In], Array]  # the values of a tensor read
    again: Callable[[], Any]  # the same operation on the places of its inputs, for what only moves
    table: Callable[[Array], str]  # keep a table, and give its key

    def __getattr__(self, name: str) -> Any:
        try:
            return self.args[name]
        except KeyError:
            raise AttributeError(name) from None

    def get(self, name: str, default: Any = None) -> Any:
        value = self.args.get(name)
        return default if value is None else value

    def broadcast(self, x: Any) -> Any:
        """An operand as broadcasting gives it to each cell; a plain number is itself."""
        if not isinstance(x, In):
            return number(x)
        strides = row_major(x.shape)
        lead = len(self.shape) - len(x.shape)
        along = [0] * lead + [0 if n == 1 else s for n, s in zip(x.shape, strides, strict=True)]
        return P(("ref", x.node, 0, along, []))

    def over(self, x: In, dims: Sequence[int] | int | None, keep: bool = False) -> P:
        """The list of cells of x that an output of a reduction was made of."""
        count = len(x.shape)
        dims = range(count) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
        gone = sorted(d % count for d in dims) if count else []
        strides = row_major(x.shape)
        along = [0 if d in gone else s for d, s in enumerate(strides) if keep or d not in gone]
        return P(("ref", x.node, 0, along, [[strides[d], x.shape[d]] for d in gone] or [[0, 1]]))

    def reduced(self) -> P:
        """The list of cells that an output of a reduction along `dim` was made of."""
        return self.over(self.self, self.get("dim"), bool(self.get("keepdim", False)))

    def line(self, x: In, dim: int) -> P:
        """The cells of x along one axis with the output's cell; x and the output have one shape."""
        strides, dim = row_major(x.shape), dim % max(len(x.shape), 1)
        if not x.shape:
            return P(("ref", x.node, 0, [], [[0, 1]]))
        along = [0 if d == dim else s for d, s in enumerate(strides)]
        return P(("ref", x.node, 0, along, [[strides[dim], x.shape[dim]]]))


def row_major(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


Rule = Callable[[Call], Plan]
RULES: dict[str, tuple[str, Rule]] = {}  # operation -> kind, rule


def rule(kind: str, *ops: str) -> Callable[[Rule], Rule]:
    def keep(function: Rule) -> Rule:
        for op in ops:
            RULES[op] = (kind, function)
        return function

    return keep


# ---- cell by cell: arithmetic, comparisons, activations, rotations


_Formula = Callable[..., Any]


def times(factor: Any, plan: P) -> P:
    """A product; a factor of 1 is left out."""
    return plan if factor == 1 else factor * plan


def ramp(x: Any) -> P:
    """From 0 at −3 to 1 at 3."""
    return fn("lesser")(fn("greater")(x + 3, 0), 6) / 6


_Names = Sequence[str | tuple[str, float]]  # the arguments of a formula, some with what they are if left out
ELEMENTWISE: dict[str, tuple[str, _Names, _Formula]] = {
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
    "leaky_relu": (
        "activation", ("self", ("negative_slope", 0.01)), lambda x, slope: choose(fn("gt")(x, 0), x, x * slope)
    ),
    "elu": (
        "activation", ("self", ("input_scale", 1), ("alpha", 1), ("scale", 1)),
        lambda x, inner, alpha, scale: choose(fn("gt")(x, 0), x, (exp(x * inner) - 1) * alpha) * scale,
    ),
    "softplus": (
        "activation", ("self", ("beta", 1), ("threshold", 20)),
        lambda x, beta, limit: choose(fn("gt")(x * beta, limit), x, log(1 + exp(x * beta)) / beta),
    ),
    "hardsigmoid": ("activation", ("self",), lambda x: ramp(x)),
    "hardswish": ("activation", ("self",), lambda x: x * ramp(x)),
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
    "addcmul": ("elementwise", ("self", "tensor1", "tensor2", ("value", 1)), lambda s, a, b, v: s + times(v, a * b)),
    "addcdiv": ("elementwise", ("self", "tensor1", "tensor2", ("value", 1)), lambda s, a, b, v: s + times(v, a / b)),
    "lerp": ("elementwise", ("self", "end", "weight"), lambda a, b, w: a + w * (b - a)),
    "polar": ("rotation", ("abs", "angle"), lambda r, t: fn("complex")(r * cos(t), r * sin(t))),
    "complex": ("rotation", ("real", "imag"), fn("complex")),
    "sgn": ("elementwise", ("self",), fn("sign")),
}  # fmt: skip


def _by_cell(names: _Names, formula: _Formula) -> Rule:
    return lambda call: formula(
        *(call.broadcast(call.args[name] if isinstance(name, str) else call.get(*name)) for name in names)
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
        return fn("complex")(*(P(("ref", x.node, k, strides[:-1], [])) for k in (0, 1)))
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
    mask = P(("ref", call.me + 1, 0, row_major(call.shape), []))
    return call.broadcast(call.input) * mask / (1 - call.p)


# ---- over a line of cells: sums, choices, softmax, norms, losses


def mean_of(terms: P) -> P:
    return total(terms) / count_of(terms)


def count_of(terms: P) -> int:
    """How many cells a list has."""
    return math.prod(count for _, count in terms[4])


def _log_sum_exp(terms: P) -> P:
    top = step("max", most(terms))
    return choose(fn("eq")(top, -math.inf), -math.inf, top + log(step("total", total(exp(terms - top)))))


REDUCTIONS: dict[str, Callable[[P], P]] = {
    "sum": total,
    "mean": mean_of,
    "prod": fn("prod"),
    "amax": most,
    "amin": least,
    "any": lambda terms: fn("ne")(most(fn("ne")(terms, 0)), 0),
    "all": lambda terms: fn("ne")(least(fn("ne")(terms, 0)), 0),
    "logsumexp": _log_sum_exp,
    "linalg_vector_norm": lambda terms: sqrt(total(square(terms))),
    "norm": lambda terms: sqrt(total(square(terms))),
}


@rule("sum", *REDUCTIONS)
def _reduce(call: Call) -> Plan:
    if (power := call.get("ord", call.get("p", 2))) != 2:
        raise NotImplementedError(f"a norm of order {power}")
    return REDUCTIONS[call.op](call.reduced())


@rule("sum", "var", "std", "var_mean")
def _variance(call: Call) -> Plan:
    terms = call.reduced()
    mean = step("mean", mean_of(terms))
    if call.op == "var_mean" and call.out == 1:
        return mean
    correction = call.get("correction", 1 if call.get("unbiased", True) else 0)
    variance = total(square(terms - mean)) / (count_of(terms) - correction)
    return sqrt(step("variance", variance)) if call.op == "std" else variance


@rule("sample", "max", "min", "argmax", "argmin", "topk", "sort", "median", "mode")
def _largest(call: Call) -> Plan:
    x, dim = call.self, call.get("dim")
    if call.op in ("topk", "sort"):
        if not call.get("largest", call.op == "topk" or call.get("descending", False)):
            raise NotImplementedError(f"{call.op} from the least")
        dim = (dim if dim is not None else -1) % len(x.shape)
        terms = call.over(x, dim, keep=True)
        return fn("kth" if call.out == 0 else "kth_at")(terms, P(("axis", dim)))
    if call.op in ("median", "mode"):
        raise NotImplementedError(call.op)
    if isinstance(call.get("other"), In):
        return fn("greater" if call.op == "max" else "lesser")(call.broadcast(x), call.broadcast(call.other))
    terms = call.reduced()
    place = call.op.startswith("arg") or call.out == 1
    return fn(f"{'arg' if place else ''}{call.op.removeprefix('arg')}")(terms)


@rule("softmax", "_softmax", "_log_softmax", "softmax", "_safe_softmax")
def _softmax(call: Call) -> Plan:
    x, terms = call.broadcast(call.self), call.line(call.self, call.dim)
    top = step("max", most(terms))
    sum_ = step("total", total(exp(terms - top)))
    if call.op == "_log_softmax":
        return x - top - log(sum_)
    if call.op == "_safe_softmax":
        # a fully masked row gives zeros
        return choose(fn("eq")(top, -math.inf), 0, exp(x - top) / sum_)
    return exp(x - top) / sum_


@rule("sum", "cumsum")
def _running(call: Call) -> Plan:
    if not call.shape:
        return call.broadcast(call.self)
    strides, dim = row_major(call.shape), call.dim % len(call.shape)
    before = fn("rounded")(P(("ref", call.me, -strides[dim], strides, [])))
    x = call.broadcast(call.self)
    return choose(fn("eq")(P(("axis", dim)), 0), x, before + x)


def _normalized(call: Call) -> tuple[P, int]:
    """The cells that a norm over the last axes takes together, and how many they are."""
    x, lead = call.input, len(call.input.shape) - len(call.normalized_shape)
    strides = row_major(x.shape)
    along = [s if d < lead else 0 for d, s in enumerate(strides)][: len(call.shape)]
    terms = P(("ref", x.node, 0, along, [[strides[d], x.shape[d]] for d in range(lead, len(x.shape))]))
    return terms, math.prod(x.shape[lead:])


@rule("layernorm", "native_layer_norm")
def _layer_norm(call: Call) -> Plan:
    x = call.input
    terms, n = _normalized(call)
    mean = step("mean", total(terms) / n)
    if call.out == 1:
        return mean
    variance = step("variance", total(square(terms - mean)) / n)
    std = step("√(variance + ε)", sqrt(variance + call.eps))
    if call.out == 2:
        return 1 / std
    out = (call.broadcast(x) - mean) / std
    out = out if call.get("weight") is None else out * call.broadcast(call.weight)
    return out if call.get("bias") is None else out + call.broadcast(call.bias)


@rule("rmsnorm", "_fused_rms_norm")
def _rms_norm(call: Call) -> Plan:
    x = call.input
    terms, n = _normalized(call)
    mean = step("mean of squares", total(square(terms)) / n)
    eps = call.get("eps", 2.0**-23 if x.dtype == "float32" else 2.0**-52)
    rms = step("√(mean + ε)", sqrt(mean + eps))
    if call.out == 1:
        return 1 / rms
    out = call.broadcast(x) / rms
    return out if call.get("weight") is None else out * call.broadcast(call.weight)


@rule("layernorm", "_native_batch_norm_legit_no_training", "native_batch_norm")
def _batch_norm(call: Call) -> Plan:
    if call.out or call.get("training"):
        raise NotImplementedError("batch norm in training")
    x = call.input

    def channel(t: In) -> P:
        return P(("ref", t.node, 0, [int(d == 1) for d in range(len(x.shape))], []))

    out = (call.broadcast(x) - channel(call.running_mean)) / sqrt(channel(call.running_var) + call.eps)
    out = out if call.get("weight") is None else out * channel(call.weight)
    return out if call.get("bias") is None else out + channel(call.bias)


@rule("loss", "nll_loss_forward")
def _nll(call: Call) -> Plan:
    x, targets = call.self, call.read(call.target).reshape(-1)
    if call.get("weight") is not None or len(x.shape) != 2:
        raise NotImplementedError("a loss with weights or of this shape")
    counted = np.flatnonzero(targets != call.get("ignore_index", -100))
    if call.out == 1:
        return len(counted) if call.get("reduction", 1) else 0
    if not len(counted) and call.get("reduction", 1):
        return P(("num", "nan")) if call.get("reduction", 1) == 1 else 0
    places = counted * x.shape[1] + targets[counted]
    if call.get("reduction", 1) == 0:
        places = np.arange(len(targets)) * x.shape[1] + np.clip(targets, 0, None)
        skipped = fn("eq")(call.broadcast(call.target), call.get("ignore_index", -100))
        return choose(skipped, 0, -P(("list", x.node, call.table(places), 1)))
    loss = -total(P(("list", x.node, call.table(places[None]), len(places))))
    return loss / len(counted) if call.get("reduction", 1) == 1 else loss


@rule("loss", "mse_loss", "binary_cross_entropy_with_logits")
def _cell_loss(call: Call) -> Plan:
    if call.get("weight") is not None or call.get("pos_weight") is not None:
        raise NotImplementedError("a loss with weights")
    alone, reduction = call.get("reduction", 1) == 0, call.get("reduction", 1)
    x, y = (call.broadcast(t) if alone else call.over(t, None) for t in (call.self, call.target))
    if call.op == "mse_loss":
        loss = square(x - y)
    else:
        # x − xy + ln(1 + e^−x), without a power that overflows
        loss = fn("greater")(x, 0) - x * y + log(1 + exp(-fn("abs")(x)))
    if alone:
        return loss
    return total(loss) / math.prod(call.self.shape) if reduction == 1 else total(loss)


# ---- sums of products: matrices, and the patches of a convolution


OPERANDS = (
    ("mat1", "mat2"),
    ("batch1", "batch2"),
    ("mat", "vec"),
    ("self", "mat2"),
    ("self", "vec"),
    ("self", "tensor"),
)


@rule("dot", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv")
def _dot(call: Call) -> Plan:
    a, b = next((call.args[x], call.args[y]) for x, y in OPERANDS if x in call.args and y in call.args)
    rows, columns = row_major(a.shape), row_major(b.shape)
    inner = a.shape[-1]
    if len(b.shape) == 1:  # a matrix, or a vector, with a vector
        left, right, down = rows[:-1], [0] * (len(a.shape) - 1), 1
    else:
        batch = columns[:-2] or [0] * (len(a.shape) - 2)
        left, right, down = [*rows[:-1], 0], [*batch, 0, columns[-1]], columns[-2]
    product = total(P(("ref", a.node, 0, left, [[rows[-1], inner]])) * P(("ref", b.node, 0, right, [[down, inner]])))
    if not call.op.startswith(("addm", "baddbmm")):
        return product
    alpha, beta = call.get("alpha", 1), call.get("beta", 1)
    product = times(alpha, product)
    return product if beta == 0 else product + times(beta, call.broadcast(call.self))


@rule("patch", "convolution")
def _convolution(call: Call) -> Plan:
    x, w = call.input, call.weight
    if call.get("transposed") or call.get("groups", 1) != 1:
        raise NotImplementedError("a convolution that is transposed, or in groups")
    count = len(w.shape) - 2
    stride, dilation = (list(v) * (count if len(v) == 1 else 1) for v in (call.stride, call.dilation))
    here, kernel = row_major(x.shape), row_major(w.shape)
    along = [here[0], 0, *(s * n for s, n in zip(stride, here[2:], strict=True))]
    inner = [here[1], *(d * n for d, n in zip(dilation, here[2:], strict=True))]
    steps = [[s, n] for s, n in zip(inner, w.shape[1:], strict=True)]
    across = [[s, n] for s, n in zip(kernel[1:], w.shape[1:], strict=True)]
    weights = P(("ref", w.node, 0, [0, kernel[0], *([0] * count)], across))
    product = total(P(("ref", x.node, 0, along, steps)) * weights)
    if call.get("bias") is None:
        return product
    return product + P(("ref", call.bias.node, 0, [0, 1, *([0] * count)], []))


# ---- operations that only move values: copies, lookups, joins, and views of memory


COPIES = "clone contiguous detach alias lift_fresh lift_fresh_copy lift copy _to_copy resolve_conj positive".split()
# dtypes in an order in which each is exact in the later ones
WIDTHS: Sequence[str] = (
    "bool uint8 int8 int16 bfloat16 float16 int32 float32 int64 float64 complex64 complex128".split()
)


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
    exact = WIDTHS.index(call.dtype) >= WIDTHS.index(x.dtype) or "int" in call.dtype
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


# ---- without inputs: constants, ranges, noise


@rule("constant", "full", "full_like", "new_full", "fill", "scalar_tensor")
def _full(call: Call) -> Plan:
    value = next(call.args[name] for name in ("fill_value", "value", "s") if name in call.args)
    return call.broadcast(value)


@rule("constant", "zeros", "zeros_like", "new_zeros", "zero", "ones", "ones_like", "new_ones")
def _same(call: Call) -> Plan:
    return int("one" in call.op)


@rule("constant", "arange")
def _arange(call: Call) -> Plan:
    start, step, index = number(call.get("start", 0)), number(call.get("step", 1)), P(("axis", 0))
    along = index if step == 1 else step * index
    return along if start == 0 else start + along


@rule("constant", "linspace")
def _linspace(call: Call) -> Plan:
    steps = max(call.steps - 1, 1)
    return number(call.start) + (call.end - call.start) / steps * P(("axis", 0))


@rule("constant", "eye")
def _eye(call: Call) -> Plan:
    return fn("eq")(P(("axis", 0)), P(("axis", 1)))


DRAWN = "rand randn rand_like randn_like randint randperm bernoulli multinomial normal uniform exponential".split()


UNSET = "empty empty_like new_empty empty_strided new_empty_strided".split()


@rule("noise", *DRAWN)
@rule("constant", *UNSET)
def _values_alone(call: Call) -> Plan:
    return None
