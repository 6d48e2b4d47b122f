"""The functions arithmetic is written in: each with its value, its written form, and its form in a spreadsheet.

A plan (see `graph`) is a tree of these. All work on numpy arrays elementwise; the reducers reduce a list of terms, the
last axis, to one value. `{}` in a form is an argument; in a reducer's form the whole list is one argument.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Function:
    """`binds` is how tightly the written form binds: 0 a sum, 1 a product, 2 a power, 3 a call."""

    of: Callable[..., Any]
    text: str
    sheet: str | None = None  # None: no spreadsheet has it
    binds: int = 3
    reduces: bool = False
    smooth: bool = True  # a small change of an argument changes the value a little


def _reducer(of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *_: of(x, axis=-1, keepdims=True)


def _kth(x: Any, k: Any) -> Any:
    return np.take_along_axis(x, _kth_at(x, k), -1)


def _kth_at(x: Any, k: Any) -> Any:
    order = np.argsort(-x, -1, kind="stable")
    return np.take_along_axis(order, np.broadcast_to(k.astype(int), (*x.shape[:-1], 1)), -1)


erf = np.vectorize(math.erf, otypes=[float])
BIG = "1E+307"  # what −∞ and ∞ are in a spreadsheet, which has neither

FUNCTIONS: dict[str, Function] = {
    "add": Function(np.add, "{} + {}", "{}+{}", 0),
    "sub": Function(np.subtract, "{} − {}", "{}-{}", 0),
    "mul": Function(np.multiply, "{}·{}", "{}*{}", 1),
    "div": Function(np.divide, "{}/{}", "{}/{}", 1),
    "neg": Function(np.negative, "−{}", "-{}", 1),
    "pow": Function(np.power, "{}^{}", "{}^{}", 2),
    "square": Function(np.square, "{}²", "{}^2", 2),
    "sqrt": Function(np.sqrt, "√{}", "SQRT({})", 2),
    "exp": Function(np.exp, "e^{}", "EXP({})", 2),
    "log": Function(np.log, "ln {}", "LN({})", 2),
    "sin": Function(np.sin, "sin({})", "SIN({})"),
    "cos": Function(np.cos, "cos({})", "COS({})"),
    "tan": Function(np.tan, "tan({})", "TAN({})"),
    "atan": Function(np.arctan, "atan({})", "ATAN({})"),
    "tanh": Function(np.tanh, "tanh({})", "TANH({})"),
    "erf": Function(erf, "erf({})", "ERF({})"),
    "abs": Function(np.abs, "|{}|", "ABS({})"),
    "floor": Function(np.floor, "⌊{}⌋", "FLOOR({},1)", smooth=False),
    "ceil": Function(np.ceil, "⌈{}⌉", "CEILING({},1)", smooth=False),
    "trunc": Function(np.trunc, "whole part of {}", "TRUNC({})", smooth=False),
    "rounded": Function(lambda a: a, "{}", "{}", 2),  # stored in the tensor's precision, computed in a higher one
    "multiplied": Function(lambda a: a, "{}", "{}", 2),  # part of a difference, of products rounded before it is taken
    "double": Function(
        lambda a: a, "{}", "{}", 2
    ),  # made of plain numbers in double precision, rounded where it is used
    "whole": Function(np.trunc, "whole part of {}", "TRUNC({})", smooth=False),
    # a number in the middle goes to the even one, which ROUND of a spreadsheet does not
    "round": Function(
        np.round,
        "nearest whole to {}",
        "IF(ABS(({0})-TRUNC({0}))=0.5,2*ROUND(({0})/2,0),ROUND({0},0))",
        smooth=False,
    ),
    "sign": Function(np.sign, "sign({})", "SIGN({})", smooth=False),
    "mod": Function(np.mod, "{} mod {}", "MOD({},{})", 1, smooth=False),
    "greater": Function(np.maximum, "max({}, {})", "MAX({},{})"),
    "lesser": Function(np.minimum, "min({}, {})", "MIN({},{})"),
    "eq": Function(np.equal, "{} = {}", "N({}={})", 0, smooth=False),
    "ne": Function(np.not_equal, "{} ≠ {}", "N({}<>{})", 0, smooth=False),
    "lt": Function(np.less, "{} < {}", "N({}<{})", 0, smooth=False),
    "le": Function(np.less_equal, "{} ≤ {}", "N({}<={})", 0, smooth=False),
    "gt": Function(np.greater, "{} > {}", "N({}>{})", 0, smooth=False),
    "ge": Function(np.greater_equal, "{} ≥ {}", "N({}>={})", 0, smooth=False),
    "and": Function(lambda a, b: (a != 0) & (b != 0), "{} and {}", "N(AND({},{}))", 0, smooth=False),
    "or": Function(lambda a, b: (a != 0) | (b != 0), "{} or {}", "N(OR({},{}))", 0, smooth=False),
    "xor": Function(lambda a, b: (a != 0) ^ (b != 0), "{} or else {}", "N(({}<>0)<>({}<>0))", 0, smooth=False),
    "not": Function(lambda a: a == 0, "not {}", "N({}=0)", 2, smooth=False),
    "bitand": Function(lambda a, b: a.astype(int) & b.astype(int), "{} & {}", None, 0, smooth=False),
    "bitor": Function(lambda a, b: a.astype(int) | b.astype(int), "{} | {}", None, 0, smooth=False),
    "bitxor": Function(lambda a, b: a.astype(int) ^ b.astype(int), "{} xor {}", None, 0, smooth=False),
    "isfinite": Function(np.isfinite, "{} is finite", None, 0, smooth=False),
    "isnan": Function(np.isnan, "{} is not a number", None, 0, smooth=False),
    "isinf": Function(np.isinf, "{} is infinite", None, 0, smooth=False),
    "if": Function(lambda c, a, b: np.where(c != 0, a, b), "{1} if {0} else {2}", "IF({},{},{})", 0),
    "complex": Function(lambda a, b: a + 1j * b, "{} + {}i", None, 0),
    "real": Function(np.real, "real part of {}"),
    "imag": Function(np.imag, "imaginary part of {}"),
    # lists of terms to one value
    # with a second argument: the relative rounding of the running total, where that is stored in half precision
    "sum": Function(_reducer(np.sum), "Σ({})", "SUM({})", reduces=True),
    "prod": Function(_reducer(np.prod), "Π({})", "PRODUCT({})", reduces=True),
    "max": Function(_reducer(np.max), "max({})", "MAX({})", reduces=True),
    "min": Function(_reducer(np.min), "min({})", "MIN({})", reduces=True),
    "argmax": Function(
        _reducer(np.argmax), "place of the largest of ({})", "(MATCH(MAX({0}),{0},0)-1)", reduces=True, smooth=False
    ),
    "argmin": Function(
        _reducer(np.argmin), "place of the least of ({})", "(MATCH(MIN({0}),{0},0)-1)", reduces=True, smooth=False
    ),
    "kth": Function(_kth, "number {1} of ({0}) from the largest", "LARGE({},{}+1)", reduces=True),
    "kth_at": Function(_kth_at, "place of number {1} of ({0}) from the largest", None, reduces=True, smooth=False),
}
