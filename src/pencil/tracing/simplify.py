"""Arithmetic as a person would write it: the same value, with fewer signs.

What was recorded stays what it was: receipts are evaluated as recorded, and only written in this form. The page's twin
is simplify.js.
"""

from typing import Any

from .functions import FUNCTIONS
from .graph import Node

Tree = Any

ONE = ("num", 1)
OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
TRUTH = {*OPPOSITE, "and", "or", "xor", "not"}


def simplified(tree: Tree, n: Node) -> Tree:
    """A tree of node `n` in the form it is written in; terms of a list stay as they are until they are written."""
    head = tree[0]
    if head in ("num", "cell", "is"):
        return tree
    if head == "made":
        return simplified(tree[2], tree[1])
    if head == "picked":
        return simplified(tree[2], n)
    if head == "rounded":
        return simplified(tree[1], n)
    if FUNCTIONS[head].reduces:
        return (head, [("made", n, part) for part in tree[1]], *tree[2:])
    return _rewritten(head, [simplified(part, n) for part in tree[1:]], n)


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
