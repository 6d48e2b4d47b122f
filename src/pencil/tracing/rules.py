"""How each ATen operation computes a cell: one description a kind of operation, as a plan (see `graph`).

First what rules are written with: plans as arithmetic, an operation as it was called, and the table of rules.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .graph import ROUNDING, Array, Plan
from .half_precision import HALF


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


def running_total(terms: Plan, dtype: str) -> P:
    """A sum whose running total is stored in this dtype."""
    return total(terms, ROUNDING[dtype]) if dtype in HALF else total(terms)


@dataclass(frozen=True)
class In:
    """A tensor an operation read: its node, shape and dtype."""

    node: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def half(self) -> bool:
        return self.dtype in HALF

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
    run: Callable[..., Any]  # the same operation, with these arguments changed
    table: Callable[[Array], str]  # keep a table, and give its key
    beside: Callable[..., int]  # a node that this one's plan is written with: its name, plan and shape, or its values
    device: str  # the type of the device that computed it

    def __getattr__(self, name: str) -> Any:
        try:
            return self.args[name]
        except KeyError:
            raise AttributeError(name) from None

    def get(self, name: str, default: Any = None) -> Any:
        value = self.args.get(name)
        return default if value is None else value

    def constant(self, values: Any, dtype: str = "float64") -> In:
        """A tensor of numbers that follow from the operation alone, such as the weights of an interpolation."""
        array = np.asarray(values)
        return In(self.beside("constant", None, array.shape, dtype, array), array.shape, dtype)

    def moved(self, name: str, places: Array, *sources: In) -> In:
        """A tensor that only moves: each cell is at a place in the sources laid end to end."""
        plan = ("table", self.table(places.reshape(-1)), [x.node for x in sources])
        return In(self.beside(name, plan, places.shape, sources[0].dtype), places.shape, sources[0].dtype)

    def extended(self, x: In, fill: float = 0.0) -> In:
        """The cells of x in one row, and one more: what is read where there is none."""
        n = math.prod(x.shape)
        ends = [[0, ["ref", x.node, 0, [1], []]], [n, ["ref", self.constant(fill, x.dtype).node, 0, [0], []]]]
        return In(self.beside("extended", ("cat", 0, ends), (n + 1,), x.dtype), (n + 1,), x.dtype)

    def folded(self, shape: Sequence[int], plan: Plan) -> Plan:
        """The output described in another shape of the same cells, where strides say what they cannot in its own."""
        return P(("ref", self.beside("folded", plan, tuple(shape), self.dtype, self.out), 0, row_major(self.shape), []))

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


def cells(x: In | int, along: Sequence[int], over: Iterable[Sequence[int]] = (), start: int = 0) -> P:
    """Cells of a tensor or node: a stride for each axis of the output; with `over` the (step, count) of terms."""
    node = x.node if isinstance(x, In) else x
    return P(("ref", node, start, list(along), [list(one) for one in over]))


def axis(number: int) -> P:
    """The cell's own index along an axis."""
    return P(("axis", number))


def listed(call: "Call", x: In, places: Array, fill: float = 0.0) -> P:
    """The cells of x at these places (−1: none), a row for each cell of the output."""
    if (missing := places < 0).any():
        x, places = call.extended(x, fill), np.where(missing, math.prod(x.shape), places)
    return P(("list", x.node, call.table(places), places.shape[-1]))


def row_major(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def wanted_output(call: Call) -> int:
    """Which gradient this output is: what `output_mask` leaves out is not returned, and later outputs move up."""
    return [i for i, wanted in enumerate(call.output_mask) if wanted][call.out]


Rule = Callable[[Call], Plan]  # a plan; of a leaf its kind as text, or nothing where the kind is that of the rule
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
    "mish": ("activation", ("self",), lambda x: x * tanh(step("ln(1 + e^x)", log(1 + exp(x))))),
    "celu": (
        "activation", ("self", ("alpha", 1)), lambda x, a: choose(fn("gt")(x, 0), x, (exp(x / a) - 1) * a)
    ),
    "_prelu_kernel": ("activation", ("self", "weight"), lambda x, w: choose(fn("gt")(x, 0), x, w * x)),
    "softshrink": (
        "activation", ("self", ("lambd", 0.5)),
        lambda x, by: choose(fn("gt")(x, by), x - by, choose(fn("lt")(x, -by), x + by, 0 * x)),
    ),
    "hardshrink": (
        "activation", ("self", ("lambd", 0.5)), lambda x, by: choose(fn("le")(fn("abs")(x), by), 0, x)
    ),
    "threshold": (
        "activation", ("self", "threshold", "value"), lambda x, limit, value: choose(fn("le")(x, limit), value, x)
    ),
    "asin": ("elementwise", ("self",), lambda x: fn("atan")(x / sqrt(1 - square(x)))),
    "acos": ("elementwise", ("self",), lambda x: math.pi / 2 - fn("atan")(x / sqrt(1 - square(x)))),
    "sinh": ("elementwise", ("self",), lambda x: 0.5 * exp(x) - 0.5 * exp(-x)),
    "cosh": ("elementwise", ("self",), lambda x: 0.5 * exp(x) + 0.5 * exp(-x)),
    "erfc": ("elementwise", ("self",), lambda x: 1 - erf(x)),
    "frac": ("elementwise", ("self",), lambda x: x - fn("trunc")(x)),
    "sinc": ("elementwise", ("self",), lambda x: choose(fn("eq")(x, 0), 1, sin(math.pi * x) / (math.pi * x))),
    "logit": ("elementwise", ("self",), lambda x: log(x / (1 - x))),
    "fmod": ("elementwise", ("self", "other"), lambda a, b: a - fn("trunc")(a / b) * b),
    "fmax": ("elementwise", ("self", "other"), fn("greater")),
    "fmin": ("elementwise", ("self", "other"), fn("lesser")),
    "hypot": ("elementwise", ("self", "other"), lambda a, b: sqrt(square(a) + square(b))),
    "xlogy": ("elementwise", ("self", "other"), lambda a, b: choose(fn("eq")(a, 0), 0, a * log(b))),
    "logaddexp": (
        "elementwise", ("self", "other"), lambda a, b: fn("greater")(a, b) + log(1 + exp(-fn("abs")(a - b)))
    ),
    "atan2": (
        "elementwise", ("self", "other"),
        lambda y, x: choose(
            fn("eq")(x, 0), fn("sign")(y) * (math.pi / 2),
            fn("atan")(y / x) + choose(fn("gt")(x, 0), 0, choose(fn("ge")(y, 0), math.pi, -math.pi)),
        ),
    ),
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
    alpha = fn("rounded")(alpha) if alpha != 1 and call.dtype in HALF else alpha
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
    if power == 1:
        return x
    if power == 2:
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


@rule("activation", "glu")
def _glu(call: Call) -> Plan:
    x, dim = call.self, call.get("dim", -1) % len(call.shape)
    strides = row_major(x.shape)
    gate = cells(x, strides, start=call.shape[dim] * strides[dim])
    return cells(x, strides) * step("σ", 1 / (1 + exp(-gate)))


@rule("activation", "log_sigmoid_forward")
def _log_sigmoid(call: Call) -> Plan:
    x = call.broadcast(call.self)
    power = exp(-fn("abs")(x))
    return power if call.out else fn("lesser")(x, 0) - log(1 + power)


@rule("activation", "rrelu_with_noise")
def _random_relu(call: Call) -> Plan:
    if call.out:
        return "noise"
    x = call.broadcast(call.self)
    drawn = (
        fn("rounded")(cells(call.me + 1, row_major(call.shape)))
        if call.get("training")
        else (call.get("lower", 0.125) + call.get("upper", 1 / 3)) / 2
    )
    return choose(fn("gt")(x, 0), x, drawn * x)


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
        return "noise"
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
    **dict.fromkeys(("any", "_is_any_true"), lambda terms: fn("ne")(most(fn("ne")(terms, 0)), 0)),
    **dict.fromkeys(("all", "_is_all_true"), lambda terms: fn("ne")(least(fn("ne")(terms, 0)), 0)),
    "logsumexp": _log_sum_exp,
    "linalg_vector_norm": lambda terms: sqrt(total(square(terms))),
    "norm": lambda terms: sqrt(total(square(terms))),
    "count_nonzero": lambda terms: total(fn("ne")(terms, 0)),
    "nansum": lambda terms: total(choose(fn("isnan")(terms), 0, terms)),
}


@rule("sum", *REDUCTIONS)
def _reduce(call: Call) -> Plan:
    if "norm" in call.op and (power := call.get("ord", call.get("p", 2))) != 2:
        return _norm(fn("abs")(call.reduced()), power)
    return REDUCTIONS[call.op](call.reduced())


def _norm(terms: P, power: float) -> P:
    """(Σ |x|^p)^(1/p); of p = ∞ the largest, of 0 the number that are not 0."""
    if math.isinf(power):
        return most(terms) if power > 0 else least(terms)
    if power in (0, 1):
        return total(terms if power else fn("ne")(terms, 0))
    return fn("pow")(total(fn("pow")(terms, power)), 1 / power)


@rule("sum", "aminmax")
def _aminmax(call: Call) -> Plan:
    return (most if call.out else least)(call.reduced())


@rule("sum", "var", "std", "var_mean", "std_mean")
def _variance(call: Call) -> Plan:
    terms = call.reduced()
    mean = step("mean", mean_of(terms))
    if call.out == 1:
        return mean
    correction = call.get("correction", 1 if call.get("unbiased", True) else 0)
    variance = total(square(terms - mean)) / (count_of(terms) - correction)
    return sqrt(step("variance", variance)) if call.op.startswith("std") else variance


@rule("sample", "max", "min", "argmax", "argmin")
def _largest(call: Call) -> Plan:
    if isinstance(call.get("other"), In):
        return fn("greater" if call.op == "max" else "lesser")(call.broadcast(call.self), call.broadcast(call.other))
    place = call.op.startswith("arg") or call.out == 1
    return fn(f"{'arg' if place else ''}{call.op.removeprefix('arg')}")(call.reduced())


@rule("sample", "topk", "sort", "kthvalue", "median")
def _in_order(call: Call) -> Plan:
    """The k-th of a line, and its place in it: from the largest, or of the negated line, from the least."""
    x, dim = call.self, call.get("dim", None if call.op == "median" else -1)
    if call.op in ("topk", "sort"):
        terms, k = call.over(x, dim, keep=True), axis(dim % len(x.shape)) if x.shape else 0
        falling = call.get("largest", True) if call.op == "topk" else call.get("descending", False)
    else:
        terms, falling = call.over(x, dim, bool(call.get("keepdim"))), False
        k = (count_of(terms) - 1) // 2 if call.op == "median" else call.k - 1
    if call.out == 1:
        return fn("kth_at")(terms if falling else -terms, k)
    return fn("kth")(terms, k) if falling else -fn("kth")(-terms, k)


@rule("softmax", "_softmax", "_log_softmax", "softmax", "_safe_softmax")
def _softmax(call: Call) -> Plan:
    x, terms = call.broadcast(call.self), call.line(call.self, call.dim)
    top = step("max", most(terms))
    sum_ = step("total", total(exp(terms - top)))
    if call.op == "_log_softmax":
        # in half precision the sum and its logarithm are stored in it
        return x - top - (fn("rounded")(log(fn("rounded")(sum_))) if call.self.half else log(sum_))
    if call.op == "_safe_softmax":
        # a fully masked row gives zeros
        return choose(fn("eq")(top, -math.inf), 0, exp(x - top) / sum_)
    return exp(x - top) / sum_


@rule("sum", "cumsum", "cumprod")
def _running(call: Call) -> Plan:
    if not call.shape:
        return call.broadcast(call.self)
    strides, dim = row_major(call.shape), call.dim % len(call.shape)
    before = fn("rounded")(P(("ref", call.me, -strides[dim], strides, [])))
    x = call.broadcast(call.self)
    return choose(fn("eq")(axis(dim), 0), x, before * x if call.op == "cumprod" else before + x)


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


@rule("loss", "nll_loss_forward", "nll_loss2d_forward")
def _nll(call: Call) -> Plan:
    """−Σ w·x[target]/Σ w over what is counted; x has an axis of classes, and perhaps more after it."""
    x, targets = call.self, call.read(call.target).reshape(-1)
    reduction, weight = call.get("reduction", 1), call.get("weight")
    after = math.prod(x.shape[2:])
    classes = x.shape[1] if len(x.shape) > 1 else x.shape[0]
    at = np.arange(len(targets))
    places = at // after * classes * after + np.clip(targets, 0, classes - 1) * after + at % after
    if reduction == 0:
        if call.out == 1:
            return 0
        loss = -P(("list", x.node, call.table(places), 1))
        if weight is not None:
            loss = loss * P(("list", weight.node, call.table(np.clip(targets, 0, classes - 1)), 1))
        return choose(fn("eq")(call.broadcast(call.target), call.get("ignore_index", -100)), 0, loss)
    counted = np.flatnonzero(targets != call.get("ignore_index", -100))
    if call.out == 1 and weight is None:
        return len(counted)
    if not len(counted):
        return P(("num", "nan")) if reduction == 1 and call.out == 0 else 0
    terms: Any = P(("list", x.node, call.table(places[counted][None]), len(counted)))
    divisor: Any = len(counted)
    if weight is not None:
        weights = P(("list", weight.node, call.table(targets[counted][None]), len(counted)))
        terms, divisor = weights * terms, running_total(weights, weight.dtype)
    if call.out == 1:
        return divisor
    summed = running_total(terms, x.dtype)
    return -summed / (fn("rounded")(divisor) if x.half else divisor) if reduction == 1 else -summed


def _distance(x: P, y: P, limit: float) -> Any:
    """Half the square of a difference that is small, of a larger one its size."""
    size = fn("abs")(x - y)
    return choose(fn("lt")(size, limit), 0.5 * square(size), limit * (size - 0.5 * limit))


LOSSES: dict[str, Callable[[Call, P, P], Any]] = {
    "mse_loss": lambda call, x, y: square(x - y),
    # x − xy + ln(1 + e^−x), without a power that overflows
    "binary_cross_entropy_with_logits": lambda call, x, y: fn("greater")(x, 0) - x * y + log(1 + exp(-fn("abs")(x))),
    "binary_cross_entropy": lambda call, x, y: (
        (y - 1) * fn("greater")(log(1 - x), -100) - y * fn("greater")(log(x), -100)
    ),
    "huber_loss": lambda call, x, y: _distance(x, y, call.get("delta", 1.0)),
    "smooth_l1_loss": lambda call, x, y: _distance(x, y, call.get("beta", 1.0)) / call.get("beta", 1.0),
    "soft_margin_loss": lambda call, x, y: log(1 + exp(-y * x)),
}


@rule("loss", *LOSSES)
def _cell_loss(call: Call) -> Plan:
    if call.get("pos_weight") is not None or (call.op == "smooth_l1_loss" and not call.get("beta", 1.0)):
        raise NotImplementedError("a loss with weights of the right, or without a width")
    alone, reduction = call.get("reduction", 1) == 0, call.get("reduction", 1)
    if not alone and call.get("weight") is not None and call.weight.shape != call.self.shape:
        raise NotImplementedError("a loss with weights of another shape")
    x, y, *weight = (
        call.broadcast(t) if alone else call.over(t, None)
        for t in (call.self, call.target, call.get("weight"))
        if t is not None
    )
    loss = LOSSES[call.op](call, x, y)
    loss = loss * weight[0] if weight else loss
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
    ("self", "other"),
)


@rule("dot", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "vdot", "addmv")
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


@rule("dot", "_trilinear")
def _trilinear(call: Call) -> Plan:
    """Σ a·b·c over some axes, of three tensors that lack others."""
    gone, factors, sizes = call.sumdim, [], {}
    for x, lacks in ((call.i1, call.expand1), (call.i2, call.expand2), (call.i3, call.expand3)):
        strides, shape = row_major(x.shape), list(x.shape)
        for d in sorted(lacks):
            strides.insert(d, 0)
            shape.insert(d, 1)
        sizes |= {d: n for d, n in enumerate(shape) if n > 1}
        factors.append((x, [s * (n > 1) for s, n in zip(strides, shape, strict=True)]))
    a, b, c = (
        cells(x, [s for d, s in enumerate(to) if d not in gone], [(to[d], sizes.get(d, 1)) for d in gone])
        for x, to in factors
    )
    return total(a * b * c)


@rule("dot", "_cdist_forward", "_euclidean_dist")
def _distances(call: Call) -> Plan:
    a, b = call.x1, call.x2
    n, rows, columns = a.shape[-1], row_major(a.shape), row_major(b.shape)
    if len(a.shape) != len(b.shape) or a.shape[:-2] != b.shape[:-2]:
        raise NotImplementedError("distances that are broadcast")
    x, y = cells(a, [*rows[:-1], 0], [(1, n)]), cells(b, [*columns[:-2], 0, columns[-2]], [(1, n)])
    if call.op == "_euclidean_dist":  # of many: in the order of the kernel, by a product
        return sqrt(fn("greater")(total(-2 * x * y) + total(square(x)) + total(square(y)), 0))
    return sqrt(total(square(x - y))) if call.p == 2 else _norm(fn("abs")(x - y), call.p)


@rule("fourier", "_fft_r2c", "_fft_c2c", "_fft_c2r")
def _fourier(call: Call) -> Plan:
    """Σ x·e^(∓2πi·jk/n) over the axes, as the sum that it is."""
    x, dims = call.self, [d % len(call.shape) for d in call.dim]
    real = call.op == "_fft_c2r"
    counts = [call.last_dim_size if real and d == dims[-1] else x.shape[d] for d in dims]
    sign = -1 if call.op == "_fft_r2c" or call.get("forward") else 1
    rows, over = row_major(x.shape), [x.shape[d] for d in dims]
    along = [0 if d in dims else s for d, s in enumerate(rows)]
    terms = cells(x, along, [(rows[d], n) for d, n in zip(dims, over, strict=True)])
    for i, (d, n) in enumerate(zip(dims, counts, strict=True)):
        turns = np.exp(sign * 2j * np.pi * (np.outer(np.arange(call.shape[d]), np.arange(over[i])) % n) / n)
        if real and d == dims[-1]:  # the other half of a spectrum is this one's conjugate
            turns = turns * np.where((np.arange(over[i]) == 0) | (2 * np.arange(over[i]) == n), 1, 2)
        steps = [(int(j == i), count) for j, count in enumerate(over)]
        terms = terms * cells(
            call.constant(turns, "complex128"), [over[i] * (a == d) for a in range(len(call.shape))], steps
        )
    size = math.prod(counts) ** (call.normalization / 2)
    summed = fn("real")(total(terms)) if real else total(terms)
    return summed if size == 1 else summed / size


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
channel_shuffle reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d im2col
upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d max_unpool2d max_unpool3d _pack_padded_sequence _pad_packed_sequence
slice_backward select_backward
""".split()


@rule("move", *MOVES)
def _moved(call: Call) -> Plan:
    if call.op == "repeat_interleave" and "self" not in call.args:
        raise NotImplementedError("repeats counted by a tensor")
    if call.op.endswith("ed_sequence") and call.out:
        return "constant"  # how many sequences are left at each step
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
SHAPES = "hann_window hamming_window blackman_window bartlett_window kaiser_window".split()


@rule("noise", *DRAWN)
@rule("constant", *UNSET, *SHAPES)
def _values_alone(call: Call) -> Plan:
    return None
