"""Trees of arithmetic evaluated and written: a plan with its values put in, what it gives, and its text.

A tree is ("num", value), ("cell", node, place, value), ("is", word, tree), ("made", node, tree) for what has no name,
("picked", why, tree) for a choice, or (function, tree, …), and for a reducer (function, [tree, …], tree, …).
"""

from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Context, Decimal
from math import isfinite, isqrt
from typing import Any

import numpy as np

from .functions import FUNCTIONS
from .graph import Node, apply, slack

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
        case ("picked", _, part) | ("rounded", part):
            return simplified(part, n)
        case (head, terms, *rest) if FUNCTIONS[head].reduces:
            return (head, [("made", n, part) for part in terms], *rest)
    return _rewritten(tree[0], [simplified(part, n) for part in tree[1:]], n)


def _rewritten(head: str, parts: list[Tree], n: Node) -> Tree:
    """One operation on operands that are in their written form already."""
    if head in ("add", "mul") and _index(parts, n, head):
        return ("num", parts[0][1] + parts[1][1] if head == "add" else parts[0][1] * parts[1][1])
    if head == "add" and _is(parts[1], 0):
        return parts[0]
    if head == "neg":
        return _negative(parts[0]) or ("neg", parts[0])
    if head == "sub" and parts[1][0] == "neg":
        return ("add", parts[0], parts[1][1])
    if head == "pow" and parts[0][0] == "num" and (power := _negative(parts[1])):
        return ("div", ONE, ("pow", parts[0], power))
    if head == "mul":
        for one, other in (parts, parts[::-1]):
            if _is_inverse(one):
                return _over(one, other)
        for i in (0, 1):
            if parts[i][0] == "neg":
                return ("neg", _rewritten("mul", [*parts[:i], parts[i][1], *parts[i + 1 :]], n))
        if _is(parts[0], 1) and not _of_indices(parts[1]):
            return parts[1]
        if parts[1][0] == "cell" and parts[0][0] != "num" and _of_indices(parts[0]):
            return ("mul", parts[1], parts[0])
    if head == "div" and parts[0][0] == "neg":
        return ("neg", ("div", parts[0][1], parts[1]))
    if head == "not" and parts[0][0] in OPPOSITE and all(part[0] == "num" for part in parts[0][1:]):
        return (OPPOSITE[parts[0][0]], *parts[0][1:])
    if head == "ne" and _is(parts[1], 0) and parts[0][0] in TRUTH:
        return parts[0]
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
    head = tree[0]
    if head in ("num", "cell"):
        value = np.asarray(tree[-1])
        exact = head == "cell" or value.dtype == int or not np.isfinite(value)
        return value, np.asarray(0.0) if exact else np.abs(value) * n.inner
    if head == "is":
        if id(tree) not in evaluated:
            evaluated[id(tree)] = weigh(tree[2], n, evaluated)
        return evaluated[id(tree)]
    if head == "picked":
        return weigh(tree[2], n, evaluated)
    if head == "made":
        value, error = weigh(tree[2], tree[1], evaluated)
        return value, error + slack(tree[1], value)
    if FUNCTIONS[head].reduces:
        each = [weigh(part, n, evaluated) for part in tree[1]]
        values = [(np.asarray([v for v, _ in each]), np.asarray([float(e) for _, e in each]))]
        values += [(np.asarray([w[0]]), np.asarray([0.0])) for w in (weigh(part, n, evaluated) for part in tree[2:])]
        value, error = apply(head, values, n.inner, n.outer)
        return value[..., 0], np.broadcast_to(error, (1,))[..., 0]
    value, error = apply(head, [weigh(part, n, evaluated) for part in tree[1:]], n.inner, n.outer)
    return np.asarray(value).reshape(()), np.asarray(error).reshape(-1)[0]


def walk(tree: Tree, seen: set[int]) -> Iterator[Tree]:
    """Every part of a tree once, what is inside first."""
    if id(tree) in seen:
        return
    seen.add(id(tree))
    # a condition is not what the value was made of, unless that is a constant
    parts = tree[2:] if tree[0] == "picked" and tree[2][0] != "num" else tree[1:]
    for part in parts:
        for one in part if isinstance(part, list) else [part]:
            if isinstance(one, tuple):
                yield from walk(one, seen)
    yield tree


def text(tree: Tree, digits: int, evaluated: Evaluated, n: Node = EXACT) -> str:
    """A tree of node `n` as text, in its simplest form."""
    return _text(simplified(tree, n), digits, evaluated)[0]


def _text(tree: Tree, digits: int, evaluated: Evaluated) -> tuple[str, int]:
    """A simplified tree as text, and how tightly that binds (see `Function.binds`)."""
    head = tree[0]
    if head == "num" and (root := _surd(tree[1])):
        return root, 2
    if head in ("num", "cell"):
        return _number(tree[-1], digits)
    if head == "is":
        return _number(plain(weigh(tree, EXACT, evaluated)[0]), digits)
    function = FUNCTIONS[head]
    if head == "sum":
        return _sum(tree[1], digits, evaluated), 0
    if function.reduces:
        written = [text(part, digits, evaluated) for part in tree[1][:8]]
        inside = ", ".join(written) + (f", … {len(tree[1])} in all" if len(tree[1]) > 8 else "")
        return function.text.format(inside, *(text(part, digits, evaluated) for part in tree[2:])), 3
    if head == "neg" and tree[1] == ("num", 0):
        return "0", 3
    if head == "mul" and (root := _root(tree[2])):
        return f"{_bracketed(tree[1], 1, digits, evaluated)}/{root}", 1
    if head == "mul" and (root := _root(tree[1])):
        return f"{_bracketed(tree[2], 1, digits, evaluated)}/{root}", 1
    if function.binds == 3:
        return function.text.format(*(_text(part, digits, evaluated)[0] for part in tree[1:])), 3
    if head == "add":
        return _joined([_text(part, digits, evaluated)[0] for part in tree[1:]]), 0
    if head == "sub":
        right, binds = _text(tree[2], digits, evaluated)
        right = f"({right})" if binds == 0 or right.startswith("−") else right
        return f"{_text(tree[1], digits, evaluated)[0]} − {right}", 0
    # what is right of / must bind more tightly than it does
    strict = {"div": (1, 2), "mul": (1, 1), "pow": (3, 3), "neg": (1,)}
    tight = strict.get(head, (3,) * len(tree) if function.binds == 2 else (1,) * len(tree))
    if function.binds == 0:
        each = (_text(part, digits, evaluated) for part in tree[1:])
        return function.text.format(*(written if binds else f"({written})" for written, binds in each)), 0
    parts = (_bracketed(part, t, digits, evaluated) for part, t in zip(tree[1:], tight, strict=False))
    return function.text.format(*parts), function.binds


def _bracketed(tree: Tree, tight: int, digits: int, evaluated: Evaluated) -> str:
    written, binds = _text(tree, digits, evaluated)
    return f"({written})" if binds < tight or (tight and written.startswith("−")) else written


def _number(value: Any, digits: int) -> tuple[str, int]:
    return format_number(value, digits), 0 if isinstance(value, complex) else 3


def _sum(parts: list[Tree], digits: int, evaluated: Evaluated) -> str:
    if len(parts) <= SHOWN:
        return _joined([_term(part, digits, evaluated) for part in parts]) if parts else "0"
    values = [plain(weigh(part, EXACT, evaluated)[0]) for part in parts]
    largest_terms = _eight_largest(values)
    rest = sum(value for i, value in enumerate(values) if i not in largest_terms)
    shown = _joined([_term(parts[i], digits, evaluated) for i in largest_terms])
    return f"{shown} + … ({len(parts) - 8} more sum to {format_number(rest, digits)})"


def _eight_largest(values: list[Any]) -> list[int]:
    """Of a long sum the eight largest terms, in their order."""
    return sorted(sorted(range(len(values)), key=lambda i: -abs(values[i]))[:8])


def largest(tree: Tree, evaluated: Evaluated) -> list[Tree]:
    """The terms that are written out of the outermost sum that is too long to be written whole."""
    sums = [part for part in walk(tree, set()) if part[0] == "sum" and len(part[1]) > SHOWN]
    if not sums:
        return []
    parts = sums[-1][1]
    return [parts[i] for i in _eight_largest([plain(weigh(part, EXACT, evaluated)[0]) for part in parts])]


def _term(tree: Tree, digits: int, evaluated: Evaluated) -> str:
    """A term of a sum: what is compared or chosen is in brackets."""
    tree = simplified(tree, EXACT)
    written, binds = _text(tree, digits, evaluated)
    loose = binds == 0 and tree[0] in FUNCTIONS and tree[0] not in ("add", "sub", "sum") and " " in written
    return f"({written})" if loose else written


def _joined(written: list[str]) -> str:
    """Terms of a sum in a row; a negative one is subtracted."""
    return written[0] + "".join(f" − {one[1:]}" if one.startswith("−") else f" + {one}" for one in written[1:])


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
