"""The small language of a worked example's formulas: arithmetic on float64 arrays, and nothing else of Python."""

import ast
import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..config import UserError, nearest

# a formula must neither fill the machine nor keep it busy
NUMBERS, LETTERS, DEPTH = 1_000_000, 2_000, 80
CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf}
BINARY: dict[type, tuple[str, Callable]] = {
    ast.Add: ("+", np.add),
    ast.Sub: ("-", np.subtract),
    ast.Mult: ("*", np.multiply),
    ast.Div: ("/", np.divide),
    ast.FloorDiv: ("//", np.floor_divide),
    ast.Mod: ("%", np.mod),
    ast.Pow: ("**", np.power),
    ast.MatMult: ("@", np.matmul),
}
COMPARE: dict[type, Callable] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}


def read(text: str) -> ast.expr:
    """A formula taken apart; nothing is worked out yet."""
    if len(text) > LETTERS:
        raise UserError(f"a formula of {len(text):,} letters is too long; name its parts in steps of their own")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(" ".join(text.split()), mode="eval").body
    except SyntaxError as error:
        raise UserError(f"the formula {_short(text)} is not understood: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError):
        raise UserError(f"the formula {_short(text)} cannot be read") from None


def names(tree: ast.expr) -> set[str]:
    """The values a formula speaks of; functions have names of their own."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called}


def work_out(tree: ast.expr, known: Mapping[str, np.ndarray]) -> np.ndarray:
    """The value of a formula where these names are known."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _value(tree, known, 0)
    except RecursionError:
        raise UserError("the formula is nested too deeply; name its parts in steps of their own") from None


def _value(node: ast.AST, known: Mapping[str, np.ndarray], depth: int) -> np.ndarray:
    # numpy hands back a bare number where an array has no axes
    return np.asarray(_worked(node, known, depth), dtype=np.float64)


def _worked(node: ast.AST, known: Mapping[str, np.ndarray], depth: int) -> Any:
    if depth > DEPTH:
        raise RecursionError
    inner = partial(_value, known=known, depth=depth + 1)
    match node:
        case ast.Constant(value=bool() | int() | float() as number):
            try:
                return float(number)
            except OverflowError:
                raise UserError("a number in the formula is too large") from None
        case ast.Name(id=name):
            if name not in known and name not in CONSTANTS:
                raise UserError(f"nothing above is named {name}; {nearest(name, {*known, *CONSTANTS})}")
            return known[name] if name in known else CONSTANTS[name]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            rows = [inner(part) for part in parts]
            _room(sum(row.size for row in rows))
            if len({row.shape for row in rows}) > 1:
                raise UserError(f"the rows of {_said(node)} differ in shape")
            return np.stack(rows) if rows else np.zeros(0)
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return -inner(part)
        case ast.UnaryOp(op=ast.UAdd(), operand=part):
            return inner(part)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return _combined(node, *BINARY[type(op)], inner(left), inner(right))
        case ast.BinOp(op=ast.BitXor()):
            raise UserError(f"in {_said(node)} ^ is not a power; write **")
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in COMPARE for op in ops):
            sides = [inner(part) for part in (left, *others)]
            true = np.asarray(1.0)
            for op, a, b in zip(ops, sides, sides[1:], strict=False):
                true = _combined(node, "*", np.multiply, true, _combined(node, "<", COMPARE[type(op)], a, b))
            return true
        case ast.Attribute(value=part, attr="T"):
            whole = inner(part)
            return whole if whole.ndim < 2 else np.swapaxes(whole, -1, -2)
        case ast.Attribute(attr=name):
            raise UserError(f".{name} is not understood: only .T, a matrix turned, may follow a dot")
        case ast.Subscript(value=part, slice=place):
            return _picked(node, inner(part), place, inner)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if name not in FUNCTIONS:
                raise UserError(f"{name} is not a function of formulas; {nearest(name, FUNCTIONS)}")
            given = [inner(part) for part in args]
            _room(sum(part.size for part in given))
            return _called(node, name, given, {str(word.arg): inner(word.value) for word in keywords})
    raise UserError(f"{_said(node)} is not understood in a formula")


def _combined(node: ast.AST, symbol: str, function: Callable, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    try:
        if symbol == "@":
            shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *a.shape[-2:-1], *b.shape[-1:])
        else:
            shape = np.broadcast_shapes(a.shape, b.shape)
        _room(prod(shape))
        return np.asarray(function(a, b), dtype=np.float64)
    except UserError:
        raise
    except ValueError:
        raise UserError(f"in {_said(node)} the shapes {by(a.shape)} and {by(b.shape)} do not fit") from None


def _called(node: ast.AST, name: str, args: list[np.ndarray], keywords: dict[str, np.ndarray]) -> Any:
    function = FUNCTIONS[name]
    try:
        inspect.signature(function).bind(*args, **keywords)
    except TypeError:
        raise UserError(f"{_said(node)} is not understood; write {name}{inspect.signature(function)}") from None
    try:
        return function(*args, **keywords)
    except UserError:
        raise
    except (ValueError, TypeError, IndexError, ArithmeticError) as error:
        raise UserError(f"{_said(node)} cannot be worked out: {str(error).splitlines()[0]}") from None


def _picked(node: ast.AST, whole: np.ndarray, place: ast.AST, inner: Callable) -> Any:
    def index(part: ast.AST) -> Any:
        match part:
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if end is None else _whole(inner(end)) for end in (lower, upper, step)))
            case ast.Constant(value=None):
                return None
            case ast.Constant(value=value) if value is ...:
                return ...
        where = inner(part)
        if where.size > 1:
            _room(where.size * max(1, prod(whole.shape[1:])))
        if not np.all(np.abs(where) < 2**31) or np.any(where != np.floor(where)):
            raise IndexError
        return where.astype(int)

    try:
        return whole[tuple(map(index, place.elts)) if isinstance(place, ast.Tuple) else index(place)]
    except UserError:
        raise
    except (IndexError, ValueError, TypeError):
        raise UserError(f"there is no {_said(node)}: the shape is {by(whole.shape)}") from None


def by(shape: tuple[int, ...]) -> str:
    """2×3, or what a shape without axes is."""
    return "×".join(map(str, shape)) if shape else "a single number"


def _said(node: ast.AST) -> str:
    try:
        return _short(ast.unparse(node))
    except RecursionError:
        return "the formula"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def _room(count: int) -> None:
    if count > NUMBERS:
        raise UserError(f"a value of {count:,} numbers is more than the {NUMBERS:,} a formula may hold")


def _whole(x: Any) -> int:
    if not float(x).is_integer() or abs(x) > 2**31:
        raise ValueError(f"{float(x):g} is not a whole number to count with")
    return int(x)


def _sizes(parts: tuple[Any, ...]) -> list[int]:
    """reshape(x, 2, 3) and reshape(x, shape(y)) alike."""
    return [_whole(size) for part in parts for size in np.ravel(part)]


def _each(function: Callable) -> Callable:
    def each(x):
        return function(x)

    return each


def _along(function: Callable) -> Callable:
    def along(x, *, axis=None, keepdims=False):
        return function(x, axis=None if axis is None else _whole(axis), keepdims=bool(keepdims))

    return along


def _filled(number: float) -> Callable:
    def filled(*shape):
        sizes = _sizes(shape)
        _room(prod(sizes))
        return np.full(sizes, number)

    return filled


_erf = np.vectorize(math.erf, otypes=[float])


def _softmax(x, *, axis=-1):
    raised = np.exp(x - np.max(x, axis=_whole(axis), keepdims=True))
    return raised / raised.sum(axis=_whole(axis), keepdims=True)


def _layernorm(x, gamma=1, beta=0, *, eps=0):
    _room(prod(np.broadcast_shapes(np.shape(x), np.shape(gamma), np.shape(beta))))
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * gamma + beta


def _concat(*parts, axis=-1):
    return np.concatenate(parts, axis=_whole(axis))


def _stack(*parts, axis=0):
    return np.stack(parts, axis=_whole(axis))


def _reshape(x, *shape):
    return np.reshape(x, _sizes(shape))


def _transpose(x, *axes):
    return np.transpose(x, _sizes(axes) or None)


def _fold(picture, patch):
    *outer, height, width = picture.shape
    p = _whole(patch)
    if p < 1 or height % p or width % p:
        raise ValueError(f"{height}×{width} is not cut evenly by patches of {p}")
    return picture.reshape(*outer, height // p, p, width // p, p)


def _swap(folded):
    return np.swapaxes(folded, -3, -2)


def _glue(swapped):
    *outer, down, across, p, q = swapped.shape
    return swapped.reshape(*outer, down * across, p * q)


def _arange(start, stop=None, step=1):
    first, last = (0.0, float(start)) if stop is None else (float(start), float(stop))
    _room(math.ceil((last - first) / float(step)))
    return np.arange(first, last, float(step))


def _eye(n):
    _room(_whole(n) ** 2)
    return np.eye(_whole(n))


def _causal(n):
    _room(_whole(n) ** 2)
    return np.where(np.tri(_whole(n)) > 0, 0.0, -np.inf)


def _where(condition, yes, no):
    _room(prod(np.broadcast_shapes(np.shape(condition), np.shape(yes), np.shape(no))))
    return np.where(condition != 0, yes, no)


def _round(x, digits=0):
    return np.round(x, _whole(digits))


FUNCTIONS: dict[str, Callable] = {
    **{name: _each(getattr(np, name)) for name in ("sqrt", "exp", "log", "log2", "sin", "cos", "tanh", "abs")},
    **{name: _each(getattr(np, name)) for name in ("floor", "ceil", "shape", "ravel")},
    **{name: _along(getattr(np, name)) for name in ("sum", "mean", "var", "std", "max", "min", "prod", "argmax")},
    "erf": _each(_erf),
    "relu": _each(lambda x: np.maximum(x, 0)),
    "sigmoid": _each(lambda x: 1 / (1 + np.exp(-x))),
    "silu": _each(lambda x: x / (1 + np.exp(-x))),
    "gelu": _each(lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2)))),
    "softmax": _softmax,
    "layernorm": _layernorm,
    "concat": _concat,
    "stack": _stack,
    "reshape": _reshape,
    "transpose": _transpose,
    "fold": _fold,
    "swap": _swap,
    "glue": _glue,
    "arange": _arange,
    "zeros": _filled(0.0),
    "ones": _filled(1.0),
    "eye": _eye,
    "causal": _causal,
    "where": _where,
    "round": _round,
}
