"""The formulas of worked examples: arithmetic on float64 arrays, and nothing else of Python."""

import ast
import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ...config import UserError, nearest
from .functions import CONSTANTS, COUNTED, FUNCTIONS
from .resource_limits import check_size, integer, spend

# limits, so that a formula neither fills the memory nor runs for long
LETTERS, DEPTH = 2_000, 80
CALL = 8  # a function of a cell takes as long as this many sums of two
EXTRA = {"**": CALL, "%": CALL, "//": CALL, "@": 0}
PRODUCTS = 16  # multiplications of a matrix product that take as long as one sum
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
    """A parsed formula; nothing is computed yet."""
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
    """The names of values in a formula, without those of functions."""
    found: set[str] = set()
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.BinOp):  # what long formulas are made of
            todo += (node.left, node.right)
        elif isinstance(node, ast.Call):
            todo += (*([] if isinstance(node.func, ast.Name) else [node.func]), *node.args, *node.keywords)
        elif not isinstance(node, ast.Constant):
            todo += ast.iter_child_nodes(node)
    return found


def work_out(tree: ast.expr, known: Mapping[str, np.ndarray]) -> np.ndarray:
    """The value of a formula, given the values of its names."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _value(tree, known, 0)
    except RecursionError:
        raise UserError("the formula is nested too deeply; name its parts in steps of their own") from None


def _value(node: ast.AST, known: Mapping[str, np.ndarray], depth: int) -> np.ndarray:
    # numpy returns a scalar for an array without axes
    value = np.asarray(_worked(node, known, depth), dtype=np.float64)
    spend(0 if isinstance(node, ast.Name) else value.size)
    return value


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
            check_size(sum(row.size for row in rows))
            if len({row.shape for row in rows}) > 1:
                raise UserError(f"the rows of {_source(node)} differ in shape")
            return np.stack(rows) if rows else np.zeros(0)
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return -inner(part)
        case ast.UnaryOp(op=ast.UAdd(), operand=part):
            return inner(part)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return _combined(node, *BINARY[type(op)], inner(left), inner(right))
        case ast.BinOp(op=ast.BitXor()):
            raise UserError(f"in {_source(node)} ^ is not a power; write **")
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
            raise UserError(f".{name} is not understood: only .T, the transpose, may follow a dot")
        case ast.Subscript(value=part, slice=place):
            return _picked(node, inner(part), place, inner)
        case ast.Call(func=ast.Name(id="printed"), args=[ast.Name(id=name)], keywords=[]):
            if (printed := f"printed({name})") not in known:
                raise UserError(
                    f"{_source(node)} is not known: printed(x) is for claims, x a step with printed numbers"
                )
            return known[printed]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            if name not in FUNCTIONS and name not in COUNTED:
                raise UserError(f"{name} is not a function of formulas; {nearest(name, FUNCTIONS)}")
            given: list[Any] = []
            if name in COUNTED:
                match args:
                    case [ast.Constant(value=str(model)), *args]:
                        given = [model]
                    case _:
                        raise UserError(f"{_source(node)} must begin with the name of a preset in quotes")
            sizes = [inner(part) for part in args]
            check_size(sum(part.size for part in sizes))
            spend(CALL * sum(part.size for part in sizes))
            return _called(node, name, given + sizes, {str(word.arg): inner(word.value) for word in keywords})
    raise UserError(f"{_source(node)} is not understood in a formula")


def _combined(node: ast.AST, symbol: str, function: Callable, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    try:
        if symbol == "@":
            shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *a.shape[-2:-1], *b.shape[-1:])
        else:
            shape = np.broadcast_shapes(a.shape, b.shape)
        check_size(prod(shape))
        if symbol in EXTRA:
            spend(prod(shape) * (a.shape[-1] // PRODUCTS if symbol == "@" else EXTRA[symbol]))
        return np.asarray(function(a, b), dtype=np.float64)
    except UserError:
        raise
    except (ValueError, IndexError):  # a product of a single number has no last axis
        raise UserError(f"in {_source(node)} the shapes {by(a.shape)} and {by(b.shape)} do not fit") from None


def _called(node: ast.AST, name: str, args: list[Any], keywords: dict[str, np.ndarray]) -> Any:
    function = FUNCTIONS.get(name) or COUNTED[name]
    try:
        inspect.signature(function).bind(*args, **keywords)
    except TypeError:
        raise UserError(f"{_source(node)} is not understood; write {name}{inspect.signature(function)}") from None
    try:
        return function(*args, **keywords)
    except UserError:
        raise
    except (ValueError, TypeError, IndexError, ArithmeticError) as error:
        raise UserError(f"{_source(node)} cannot be worked out: {str(error).splitlines()[0]}") from None


def _picked(node: ast.AST, whole: np.ndarray, place: ast.AST, inner: Callable) -> Any:
    def index(part: ast.AST) -> Any:
        match part:
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if end is None else integer(inner(end)) for end in (lower, upper, step)))
            case ast.Constant(value=None):
                return None
            case ast.Constant(value=value) if value is ...:
                return ...
        where = inner(part)
        if where.size > 1:
            check_size(where.size * max(1, prod(whole.shape[1:])))
        if not np.all(np.abs(where) < 2**31) or np.any(where != np.floor(where)):
            raise IndexError
        return where.astype(int)

    try:
        return whole[tuple(map(index, place.elts)) if isinstance(place, ast.Tuple) else index(place)]
    except UserError:
        raise
    except (IndexError, ValueError, TypeError):
        raise UserError(f"there is no {_source(node)}: the shape is {by(whole.shape)}") from None


def by(shape: tuple[int, ...]) -> str:
    """2×3, or “a single number” for no axes."""
    return "×".join(map(str, shape)) if shape else "a single number"


def _source(node: ast.AST) -> str:
    try:
        return _short(ast.unparse(node))
    except RecursionError:
        return "the formula"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
