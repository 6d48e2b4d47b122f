"""Trees of arithmetic evaluated and written: a plan with its values put in, what it gives, and its text.

A tree is ("num", value), ("cell", node, place, value), ("is", word, tree), ("made", node, tree) for what has no name,
("picked", why, tree) for a choice, or (function, tree, …), and for a reducer (function, [tree, …], tree, …).
"""

from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Context, Decimal
from heapq import nsmallest
from math import isfinite, isqrt
from typing import Any

import numpy as np

from .graph import Node, apply, slack
from .plan_functions import FUNCTIONS

# ---- arithmetic as a person would write it: the same value, with fewer signs
# What was recorded stays what it was: receipts are evaluated as recorded, and only written in this form. The page's
# twin is web/src/lib/evaluate/simplify.ts.


Tree = Any

ONE = ("num", 1)
OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
TRUTH = {*OPPOSITE, "and", "or", "xor", "not"}


def simplified(tree: Tree, n: Node) -> Tree:
    """A tree of node `n` in the form it is written in; terms of a list stay as they are until they are written."""
    match tree:
        case "num" | "cell" | "is", *_:
            return tree
        case "made", node, part:
            return simplified(part, node)
        case ("picked", _, part) | ("rounded" | "multiplied" | "double", part):
            return simplified(part, n)
        case (head, terms, *rest) if FUNCTIONS[head].reduces:
            return (head, [("made", n, part) for part in terms], *rest)
    return _rewritten(tree[0], [simplified(part, n) for part in tree[1:]], n)


def _rewritten(head: str, parts: list[Tree], n: Node) -> Tree:
    """One operation on operands that are in their written form already."""
    match head, *parts:
        case "add", left, right if _index(parts, n, head):
            return ("num", left[1] + right[1])
        case "mul", left, right if _index(parts, n, head):
            return ("num", left[1] * right[1])
        case "add", left, ("num", 0):
            return left
        case "neg", part:
            return _negative(part) or ("neg", part)
        case "sub", left, ("neg", right):
            return ("add", left, right)
        case "pow", ("num", _) as base, power if opposite := _negative(power):
            return ("div", ONE, ("pow", base, opposite))
        case "mul", inverse, part if _is_inverse(inverse):
            return _over(inverse, part)
        case "mul", part, inverse if _is_inverse(inverse):
            return _over(inverse, part)
        case "mul", ("neg", left), right:
            return ("neg", _rewritten("mul", [left, right], n))
        case "mul", left, ("neg", right):
            return ("neg", _rewritten("mul", [left, right], n))
        case "mul", ("num", 1), right if not _of_indices(right):
            return right
        case "mul", left, ("cell", *_) as right if left[0] != "num" and _of_indices(left):
            return ("mul", right, left)
        case "div", ("neg", left), right:
            return ("neg", ("div", left, right))
        case "not", (compared, ("num", _), ("num", _)) if compared in OPPOSITE:
            return (OPPOSITE[compared], *parts[0][1:])
        case "ne", (truth, *_) as part, ("num", 0) if truth in TRUTH:
            return part
    return (head, *parts)


def _index(parts: list[Tree], n: Node, head: str) -> bool:
    """Whether this is arithmetic with indices: whole numbers that no tensor holds, in a tensor of whole numbers.

    The step of a range is kept, because it means something: 2·i.
    """
    if not all(part[0] == "num" and _whole(part[1]) for part in parts):
        return False
    return head == "add" if n.op == "arange" else "int" in n.dtype


def _of_indices(tree: Tree) -> bool:
    """Whether a tree holds no tensor's value: a distance, a mask."""
    return tree[0] == "num" or (
        tree[0] in FUNCTIONS and not FUNCTIONS[tree[0]].reduces and all(_of_indices(part) for part in tree[1:])
    )


def _whole(value: complex) -> bool:
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def _is(tree: Tree, value: float) -> bool:
    return tree[0] == "num" and tree[1] == value


def _negative(tree: Tree) -> Tree | None:
    """What a tree is the negative of, if it is written with a minus."""
    if tree[0] == "neg":
        return tree[1]
    if tree[0] == "num" and not isinstance(tree[1], complex) and tree[1] < 0:
        return ("num", -tree[1])
    if tree[0] in ("mul", "div") and (first := _negative(tree[1])):
        return (tree[0], first, tree[2])
    return None


def _is_inverse(tree: Tree) -> bool:
    """Whether a tree is one over something: 1/x, 1/x/y."""
    return tree[0] == "div" and (_is(tree[1], 1) or _is_inverse(tree[1]))


def _over(inverse: Tree, numerator: Tree) -> Tree:
    """One over something, times a numerator."""
    top = numerator if _is(inverse[1], 1) else _over(inverse[1], numerator)
    return ("div", top, inverse[2])


# ---- values and text


SHOWN = 16  # terms of a sum written out; of more, the eight largest

Evaluated = dict[int, tuple[Any, Any]]


EXACT = Node("", "", "", (), "float64")


def weigh(tree: Tree, n: Node, evaluated: Evaluated) -> tuple[Any, Any]:
    """The value of a tree, and how far rounding may have moved what was recorded.

    A step that is in many terms is one object, and evaluated once: `evaluated` has what it gave.
    """
    match tree:
        case "cell", _, _, value:
            return np.asarray(value), np.asarray(0.0)
        case "num", number:
            value = np.asarray(number)
            exact = value.dtype == int or not np.isfinite(value)
            return value, np.asarray(0.0) if exact else np.abs(value) * n.inner
        case "is", _, part:
            if id(tree) not in evaluated:
                evaluated[id(tree)] = weigh(part, n, evaluated)
            return evaluated[id(tree)]
        case "picked", _, part:
            return weigh(part, n, evaluated)
        case "made", node, part:
            value, error = weigh(part, node, evaluated)
            return value, error + slack(node, value)
        case (head, terms, *rest) if FUNCTIONS[head].reduces:
            if all(part[0] == "cell" for part in terms):
                values = [(np.asarray([part[3] for part in terms]), np.zeros(len(terms)))]
            else:
                each = [weigh(part, n, evaluated) for part in terms]
                values = [(np.asarray([v for v, _ in each]), np.asarray([float(e) for _, e in each]))]
            values += [(np.asarray([weigh(part, n, evaluated)[0]]), np.asarray([0.0])) for part in rest]
            value, error = apply(head, values, n.inner, n.outer)
            return value[..., 0], np.broadcast_to(error, (1,))[..., 0]
    value, error = apply(tree[0], [weigh(part, n, evaluated) for part in tree[1:]], n.inner, n.outer)
    return np.asarray(value).reshape(()), np.asarray(error).reshape(-1)[0]


def walk(tree: Tree, seen: set[int]) -> Iterator[Tree]:
    """Every part of a tree once, what is inside first."""
    if id(tree) in seen:
        return
    seen.add(id(tree))
    # a condition is not what the value was made of, unless that is a constant
    parts = tree[2:] if tree[0] == "picked" and tree[2][0] != "num" else tree[1:]
    for part in parts:
        for inner in part if isinstance(part, list) else [part]:
            if isinstance(inner, tuple):
                yield from walk(inner, seen)
    yield tree


def text(tree: Tree, digits: int, evaluated: Evaluated, n: Node = EXACT) -> str:
    """A tree of node `n` as text, in its simplest form."""
    return _text(simplified(tree, n), digits, evaluated)[0]


def _text(tree: Tree, digits: int, evaluated: Evaluated) -> tuple[str, int]:
    """A simplified tree as text, and how tightly that binds (see `Function.binds`)."""
    match tree:
        case "num", number if root := _surd(number):
            return root, 2
        case ("num", number) | ("cell", _, _, number):
            return _number(number, digits)
        case "is", *_:
            return _number(plain(weigh(tree, EXACT, evaluated)[0]), digits)
        case "sum", terms, *_:
            return _sum(terms, digits, evaluated), 0
        case (head, terms, *rest) if FUNCTIONS[head].reduces:
            written = [text(part, digits, evaluated) for part in terms[:8]]
            inside = ", ".join(written) + (f", … {len(terms)} in all" if len(terms) > 8 else "")
            return FUNCTIONS[head].text.format(inside, *(text(part, digits, evaluated) for part in rest)), 3
        case "neg", ("num", 0):
            return "0", 3
        case "mul", part, number if root := _root(number):
            return f"{_bracketed(part, 1, digits, evaluated)}/{root}", 1
        case "mul", number, part if root := _root(number):
            return f"{_bracketed(part, 1, digits, evaluated)}/{root}", 1
        case "add", *parts:
            return _joined([_text(part, digits, evaluated)[0] for part in parts]), 0
        case "sub", left, right:
            subtracted, binds = _text(right, digits, evaluated)
            subtracted = f"({subtracted})" if binds == 0 or subtracted.startswith("−") else subtracted
            return f"{_text(left, digits, evaluated)[0]} − {subtracted}", 0
    head, *parts = tree
    function = FUNCTIONS[head]
    if function.binds == 3:
        return function.text.format(*(_text(part, digits, evaluated)[0] for part in parts)), 3
    if function.binds == 0:
        each = (_text(part, digits, evaluated) for part in parts)
        return function.text.format(*(written if binds else f"({written})" for written, binds in each)), 0
    # what is right of / must bind more tightly than it does
    strict = {"div": (1, 2), "mul": (1, 1), "pow": (3, 3), "neg": (1,)}
    tight = strict.get(head, (3 if function.binds == 2 else 1,) * len(parts))
    return function.text.format(*(_bracketed(p, t, digits, evaluated) for p, t in zip(parts, tight, strict=True))), (
        function.binds
    )


def _bracketed(tree: Tree, tight: int, digits: int, evaluated: Evaluated) -> str:
    written, binds = _text(tree, digits, evaluated)
    return f"({written})" if binds < tight or (tight and written.startswith("−")) else written


def _number(value: Any, digits: int) -> tuple[str, int]:
    return format_number(value, digits), 0 if isinstance(value, complex) else 3


def _sum(parts: list[Tree], digits: int, evaluated: Evaluated) -> str:
    if len(parts) <= SHOWN:
        written = [_term(part, digits, evaluated) for part in parts]
        shown = [term for term in written if term != "0"]
        zeros = len(written) - len(shown)
        if zeros < 2 or not shown:
            return _joined(written) if shown else "0"
        return f"{_joined(shown)} + … ({zeros} more are 0)"
    values = _values(parts, evaluated)
    largest_terms = [i for i in _eight_largest(values) if values[i] != 0]
    left = len(parts) - len(largest_terms)
    rest = sum(value for i, value in enumerate(values) if i not in largest_terms)
    shown = _joined([_term(parts[i], digits, evaluated) for i in largest_terms] or ["0"])
    more = f"sum to {format_number(rest, digits)}" if len(largest_terms) == 8 else "are 0"
    return f"{shown} + … ({left} more {more})"


def _values(parts: list[Tree], evaluated: Evaluated) -> list[Any]:
    inner = [part[2] if part[0] == "made" else part for part in parts]
    return [part[3] if part[0] == "cell" else plain(weigh(part, EXACT, evaluated)[0]) for part in inner]


def _eight_largest(values: list[Any]) -> list[int]:
    """Of a long sum the eight largest terms, in their order."""
    return sorted(nsmallest(8, range(len(values)), key=lambda i: -abs(values[i])))


def largest(tree: Tree, evaluated: Evaluated) -> list[Tree]:
    """The terms that are written out of the outermost sum that is too long to be written whole."""
    sums = [part for part in walk(tree, set()) if part[0] == "sum" and len(part[1]) > SHOWN]
    if not sums:
        return []
    parts = sums[-1][1]
    return [parts[i] for i in _eight_largest(_values(parts, evaluated))]


def _term(tree: Tree, digits: int, evaluated: Evaluated) -> str:
    """A term of a sum: what is compared or chosen is in brackets."""
    tree = simplified(tree, EXACT)
    written, binds = _text(tree, digits, evaluated)
    loose = binds == 0 and tree[0] in FUNCTIONS and tree[0] not in ("add", "sub", "sum") and " " in written
    return f"({written})" if loose else written


def _joined(written: list[str]) -> str:
    """Terms of a sum in a row; a negative one is subtracted."""
    return written[0] + "".join(f" − {term[1:]}" if term.startswith("−") else f" + {term}" for term in written[1:])


def _root(tree: Tree) -> str | None:
    """√n, if a number is one over it: how scores are scaled."""
    value = tree[1] if tree[0] == "num" else 0
    if not isinstance(value, float) or not 1e-3 < value < 1:
        return None
    n = round(1 / value**2)
    if abs(value * value * n - 1) > 1e-9 or n < 2:
        return None
    return str(isqrt(n)) if isqrt(n) ** 2 == n else f"√{n}"


def _surd(value: Any) -> str | None:
    """√n, if a number is one: how embeddings are scaled."""
    if not isinstance(value, float) or not 1 < value < 1e3 or value.is_integer():
        return None
    n = round(value * value)
    return f"√{n}" if abs(value * value - n) <= 1e-12 * n else None


def plain(value: Any) -> Any:
    """A numpy number as Python's own."""
    value = np.asarray(value).reshape(-1)[0]
    return complex(value) if np.iscomplexobj(value) else float(value)


def format_number(value: Any, digits: int = 4) -> str:
    """A number to this many significant digits, halves rounded up, as on the page."""
    if isinstance(value, complex):
        real, imag = format_number(value.real, digits), format_number(abs(value.imag), digits)
        return f"{real} {'−' if value.imag < 0 else '+'} {imag}i"
    if not isfinite(value):
        return "not a number" if value != value else "−∞" if value < 0 else "∞"
    if value == int(value) and abs(value) < 1e15:
        return str(int(value)).replace("-", "−")
    exact, power = Decimal(value), ""
    if -4 <= exact.adjusted() < 15:
        last = exact.adjusted() - digits + 1
        rounded = exact.quantize(Decimal(1).scaleb(min(last, 0)), ROUND_HALF_UP)
    else:
        rounded = Context(prec=digits, rounding=ROUND_HALF_UP).plus(exact)
        power = f"e{rounded.adjusted()}"
        rounded = rounded.scaleb(-rounded.adjusted())
    written = f"{rounded:f}"
    written = written.rstrip("0").rstrip(".") if "." in written else written
    return f"{written}{power}".replace("-", "−")
