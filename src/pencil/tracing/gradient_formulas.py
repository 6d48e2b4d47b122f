"""The formula of a gradient, composed from the operations that were recorded between it and other names.

A gradient's arithmetic is followed back to what has a symbol, as receipts do, but for all of its cells at once: every
index is a variable, and what only moves values gives each variable another place. A sum of products over a variable
that is a column of one factor and a row of the other is written as the product of matrices, X̃ᵀ ∂L/∂Q; letters say
which other axes a sum runs over, and a Σ without any is over all cells. What is 0 but for some tokens is written
`… at T 0, else 0`. Where two operands lie to each other as no such form can say, there is no formula.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.notation import SUPERSCRIPTS
from .graph import Graph, Node, Plan, leaves
from .receipt_text import format_number
from .rules import row_major

LONGEST = 300  # letters; a longer formula is not printed


class Unclear(Exception):
    """There is no formula for this."""


# ---- indices: variables, each with a stride into memory


class Var:
    """A variable index from 0 to n − 1; it may turn out to be two, an outer and an inner one."""

    def __init__(self, n: int):
        self.n, self.letter = n, ""
        self.parts: tuple[Var, Var] | None = None

    def atoms(self) -> list["Var"]:
        if self.parts:
            return self.parts[0].atoms() + self.parts[1].atoms()
        return [self] if self.n > 1 else []


Terms = list[tuple[Var, int]]
Place = tuple[int, Terms]  # an index along one axis: a constant, and variables with their steps
Axis = tuple[Var, ...]  # the variables along an axis


def expanded(terms: Terms) -> Terms:
    """Terms of variables that are not split, none without effect."""
    out: Terms = []
    for var, stride in terms:
        if var.parts:
            outer, inner = var.parts
            out += expanded([(outer, stride * inner.n), (inner, stride)])
        elif var.n > 1 and stride:
            out.append((var, stride))
    return out


def located(shape: Sequence[int], offset: int, terms: Terms) -> list[Place]:
    """The index along each axis of the cell at this place among the row-major values."""
    strides = row_major(shape)
    found: list[Place] = [(offset // stride % max(n, 1), []) for n, stride in zip(shape, strides, strict=True)]
    todo = expanded(terms)
    while todo:
        var, step = todo.pop(0)
        axis = next((d for d, s in enumerate(strides) if shape[d] > 1 and s <= step and step % s == 0), None)
        if axis is None:
            raise Unclear
        by, n = step // strides[axis], shape[axis]
        if by * (var.n - 1) < n:
            found[axis][1].append((var, by))
            continue
        inner = n // by
        if n % by or inner == 1 or var.n % inner:
            raise Unclear
        var.parts = Var(var.n // inner), Var(inner)
        todo = expanded([(var, step)]) + todo
    found = [(start, sorted(expanded(inside), key=lambda one: -one[1])) for start, inside in found]
    if any(
        start + sum(by * (v.n - 1) for v, by in inside) >= n for n, (start, inside) in zip(shape, found, strict=True)
    ):
        raise Unclear
    return found


def added(over: Sequence[Var], steps: Sequence[Sequence[int]]) -> Terms:
    """The variables of a sum as one of its operands reads them, which may have merged some of its axes."""
    terms, todo = [], list(over)
    for by, count in reversed(steps):
        while count > 1:
            if not todo or count % todo[-1].n:
                raise Unclear
            terms.append((var := todo.pop(), by))
            by, count = by * var.n, count // var.n
    if steps and any(var.n > 1 for var in todo):
        raise Unclear
    return terms


# ---- expressions


@dataclass(frozen=True)
class Leaf:
    """A tensor with a symbol; the variables along each of its axes."""

    text: str
    places: tuple[tuple[tuple[Var, int], ...], ...] = ()

    def dims(self) -> list[Axis]:
        """The variables of each axis that has several cells."""
        return [atoms for place in self.places if (atoms := tuple(v for v, _ in expanded(list(place))))]


Expr = Any  # Leaf, a number, or (head, Expr, …); ("sum", variables, Expr)
WRITTEN = {"add", "sub", "mul", "div", "neg", "square", "sqrt", "erf", "exp", "lesser"}


class Composer:
    """Composes the formulas of one graph. `spoken` is the symbol of a node in the formula of a name, or nothing."""

    def __init__(self, graph: Graph, spoken: Callable[[int, str], str | None]):
        self.graph, self.spoken = graph, spoken
        self.name, self.node = "", -1
        self.definitions: dict[str, str] = {}  # what a formula defines after its first part: σ = …
        # values that another with a name equals: a softmax before a mask of rows that hides nothing
        self.same: dict[int, int] = {}
        for i, n in enumerate(graph.nodes):
            match n.plan:
                case ("if", ("ref", mask, *_), 0, ("ref", source, 0, strides, [])) if (
                    n.named and in_order(strides, n.shape) and not graph.value(mask).any()
                ):
                    self.same[source] = i

    def formula(self, node: int) -> str:
        """The formula of a named node; nothing where there is none."""
        n = self.graph.nodes[node]
        self.name, self.node, self.definitions = n.name, node, {}
        index = [Var(size) for size in n.shape]
        for var, letter in zip(index, letters(n), strict=True):
            var.letter = letter
        try:
            found = self.made(n, [(0, [(var, 1)]) for var in index])
            text = self._repeated(found, [atoms for var in index if (atoms := tuple(var.atoms()))])
        except Unclear:
            return ""
        if text == n.symbol:  # a matrix as it is stored, and as it multiplies
            text = f"({text.removesuffix('ᵀ')})ᵀ"
        text = ", ".join([text, *(f"{word} = {what}" for word, what in self.definitions.items())])
        return text if len(text) <= LONGEST else ""

    def _repeated(self, e: Expr, order: list[Axis]) -> str:
        """An expression as text; one that lacks an axis between others is the same `at each` place along it."""
        used = {atom for leaf in leaves_in(e) for dim in leaf.dims() for atom in dim}
        lacking = [] if {"sum", "placed"} & {*heads_in(e)} else [dim for dim in order if not used & set(dim)]
        if len(lacking) != 1 or lacking[0] == order[0] or not all(atom.letter for atom in lacking[0]):
            return self._text(e, order)[0]
        letter = "·".join(atom.letter for atom in lacking[0])
        return f"{self._text(e, [dim for dim in order if dim != lacking[0]])[0]} at each {letter}"

    # ---- reading the graph

    def _cell(self, node: int, offset: int, terms: Terms) -> Expr:
        """The expression of a cell."""
        node = node if self.same.get(node) == self.node else self.same.get(node, node)
        n = self.graph.nodes[node]
        places = located(n.shape, offset, terms)
        if n.name == "grad:loss" and float(self.graph.value(node)) == 1:
            return 1
        if not n.named and n.plan is not None and n.kind != "block":
            return self.made(n, places)
        if symbol := self.spoken(node, self.name):
            return self._whole(symbol, n, places)
        raise Unclear

    def _whole(self, symbol: str, n: Node, places: list[Place]) -> Leaf:
        """All of a tensor, each axis run through by its variables in their order; of tokens it may be some."""
        part = ""
        for axis, (size, letter, (start, inside)) in enumerate(zip(n.shape, letters(n), places, strict=True)):
            counts = [var.n for var, _ in inside]
            end = start + math.prod(counts)
            if [by for _, by in inside] != row_major(counts):
                raise Unclear
            if end - start < size:
                if axis != 1 or len(n.shape) != 3:
                    raise Unclear
                part = f"[{start}:{end}]" if counts else f"[{start}]"
            parts = letter.split("·") if len(inside) > 1 else [letter]
            for one, (var, _) in zip(parts, inside, strict=False) if len(parts) == len(inside) else ():
                var.letter = var.letter or one
        return Leaf(f"{symbol}{part}", tuple(tuple(inside) for _, inside in places))

    def made(self, n: Node, places: list[Place]) -> Expr:
        """What a node is computed by, at these places."""
        if (special := SPECIAL.get(n.op)) and (found := special(self, n, places)) is not None:
            return found
        if isinstance(n.plan, list | tuple) and n.plan[0] == "cat":
            return self._placed(n, places) or self._joined(n, places)
        return self.planned(n.plan, places)

    def _placed(self, n: Node, places: list[Place]) -> Expr | None:
        """The gradient of a part, with 0 around it; only as a whole, for no product has such a factor."""
        _, axis, parts = n.plan
        around = [i for i, (_, ref) in enumerate(parts) if self.graph.nodes[ref[1]].op == "zero"]
        start, inside = places[axis]
        whole = not start and len(inside) == 1 and inside[0][0].n == n.shape[axis] and not inside[0][0].parts
        if not around or not whole or len(parts) - len(around) != 1 or n is not self.graph.nodes[self.node]:
            return None
        at = next(i for i in range(len(parts)) if i not in around)
        begin, ref = parts[at]
        end = parts[at + 1][0] if at + 1 < len(parts) else n.shape[axis]
        part, all_of_it = Var(end - begin), inside[0][0]
        part.letter = all_of_it.letter
        if not all_of_it.letter:
            raise Unclear
        where = f"{all_of_it.letter} {begin}" if end - begin == 1 else f"{all_of_it.letter} {begin}:{end}"
        inner = self.planned(ref, [(begin, [(part, 1)]) if d == axis else place for d, place in enumerate(places)])
        return "placed", where, all_of_it, part, inner

    def _joined(self, n: Node, places: list[Place]) -> Expr:
        _, axis, parts = n.plan
        start, inside = places[axis]
        last = start + sum(by * (var.n - 1) for var, by in inside)
        ends = [begin for begin, _ in parts[1:]] + [n.shape[axis]]
        shown: list[tuple[Leaf, list[Axis | None]]] = []
        for (begin, ref), end in zip(parts, ends, strict=True):
            if begin <= start and last < end:
                return self.planned(ref, places)
        for (begin, ref), end in zip(parts, ends, strict=True):
            part = Var(end - begin)
            here = [(begin, [(part, 1)]) if d == axis else place for d, place in enumerate(places)]
            one = self.planned(ref, here)
            if not isinstance(one, Leaf):
                raise Unclear
            # the axes that it is joined along are the last of these, if it has several
            own = [dim for dim in one.dims() if set(dim) & set(part.atoms())]
            if not own or [atom for dim in own for atom in dim] != part.atoms():
                raise Unclear
            shown.append((one, [None if dim == own[-1] else dim for dim in one.dims() if dim not in own[:-1]]))
        if start or last + 1 != n.shape[axis] or any(dims != shown[0][1] for _, dims in shown):
            raise Unclear
        run = tuple(var for var, _ in inside)
        dims = [run if dim is None else dim for dim in shown[0][1]]
        text = " ".join(one.text for one, _ in shown)
        return Leaf(f"[{text}]", tuple(tuple((var, 1) for var in dim) for dim in dims))

    def planned(self, plan: Plan, places: list[Place], over: Sequence[Var] = ()) -> Expr:
        """The expression of a plan at these places of its node, inside a sum over variables."""
        match plan:
            case int() | float():
                return plan
            case "is", "clip", _:
                return Leaf("clip")
            case "is", _, part:
                return self.planned(part, places, over)
            case "ref", source, offset, strides, steps:
                terms: Terms = added(over, steps)
                for (start, inside), stride in zip(places, strides, strict=True):
                    offset += start * stride
                    terms += [(var, by * stride) for var, by in inside]
                return self._cell(source, offset, terms)
            case "if", ("ref", mask, *_), first, second:
                chosen = self.graph.value(mask)
                if chosen.any() != chosen.all():
                    raise Unclear
                return self.planned(first if chosen.any() else second, places, over)
            case "sum", part if not over:
                over = summed_over(part)
                return "sum", over, self.planned(part, places, over)
            case (str() as head, *parts) if head in WRITTEN:
                return head, *(self.planned(part, places, over) for part in parts)
        raise Unclear

    # ---- writing

    def define(self, word: str, text: str) -> str:
        if self.definitions.setdefault(word, text) != text:
            raise Unclear  # two norms in one formula
        return word

    def _text(self, e: Expr, order: list[Axis]) -> tuple[str, int]:
        """An expression whose axes are in this order, and how tightly it binds: 0 a sum, 1 a product, 3 a word."""
        match e:
            case Leaf():
                return self._oriented(e, order), 3
            case int() | float():
                return format_number(e, 6), 3
            case "add", left, right:
                before, after = self._text(left, order)[0], self._text(right, order)[0]
                return f"{before} − {after[1:]}" if after.startswith("−") else f"{before} + {after}", 0
            case "sub", left, right:
                return f"{self._text(left, order)[0]} − {self._tight(right, order, 1)}", 0
            case "neg", part:
                return f"−{self._tight(part, order, 1)}", 1
            case "square", part:
                return squared(self._tight(part, order, 3)), 2
            case "sqrt", part:
                return f"√({self._text(part, order)[0]})", 3
            case "placed", where, whole, part, inner:
                inside = [tuple(part.atoms()) if dim == tuple(whole.atoms()) else dim for dim in order]
                return f"{self._text(inner, [dim for dim in inside if dim])[0]} at {where}, else 0", 0
            case (("mul" | "div"), _, _):
                return self._product(e, order), 1
            case "sum", over, part:
                return self._sum([atom for var in over for atom in var.atoms()], part, order), 1
            case "lesser", left, right:
                return f"min({self._text(left, order)[0]}, {self._text(right, order)[0]})", 3
            case "norm", g, x, eps:
                self.define("ĝ", self._text(g, order)[0])
                return f"(ĝ − mean(ĝ) − x̂·mean(ĝ·x̂))/{self._centred(x, eps, order)}", 1
            case "centred", x, eps:
                self._centred(x, eps, order)
                return "x̂", 3
            case "rms", x, over, eps:
                # all of the line, of which the rest of the formula may have one cell
                square = squared(self._tight(x, [*order[:-1], tuple(over.atoms())], 3))
                return self.define("rms", f"√(mean({square}) + {format_number(eps)})"), 3
            case "hat", x, rms:
                return self.define("x̂", f"{self._tight(x, order, 3)}/{self._text(rms, order)[0]}"), 3
            case "mean", over, part:
                return f"mean({self._text(part, self._line(over.atoms(), part, order))[0]})", 3
        raise Unclear

    def _centred(self, x: Expr, eps: float, order: list[Axis]) -> str:
        text = self._tight(x, order, 3)
        self.define("x̂", f"({text} − mean({text}))/σ")
        return self.define("σ", f"√(var({text}) + {format_number(eps)})")

    def _tight(self, e: Expr, order: list[Axis], tight: int) -> str:
        text, binds = self._text(e, order)
        return f"({text})" if binds < tight or text.startswith("−") else text

    def _product(self, e: Expr, order: list[Axis]) -> str:
        factors, below = factors_of(e)
        roots: list[str] = []
        for one in [one for one in factors if isinstance(one, float) and one > 0]:
            root = 1 / one**2
            if 1 < root < 1e5 and abs(root - round(root)) < 1e-9 * root:  # scores are divided by √d
                whole = math.isqrt(round(root))
                roots.append(f"/{whole}" if whole**2 == round(root) else f"/√{round(root)}")
                factors.remove(one)
        factors = [one for one in factors if one != 1]
        text = "·".join(self._factor(one, order, len(factors) > 1) for one in factors) or "1"
        return text + "".join(roots) + "".join(f"/{self._tight(one, order, 2)}" for one in below if one != 1)

    def _factor(self, e: Expr, order: list[Axis], several: bool) -> str:
        text, binds = self._text(e, order)
        # a product of matrices or a sum over an axis among other factors
        loose = binds < 1 or (several and (" " in text or text.startswith(("−", "Σ"))) and binds < 3)
        return f"({text})" if loose else text

    def _sum(self, summed: list[Var], part: Expr, order: list[Axis]) -> str:
        while isinstance(part, tuple) and part[0] == "sum":
            summed, part = [*summed, *(atom for var in part[1] for atom in var.atoms())], part[2]
        if not summed:
            return self._of_one_row(part, order)
        for form in (self._matrices, self._over_last, self._over_first, self._over_all):
            try:
                return form(summed, part, order)
            except Unclear:
                continue
        raise Unclear

    def _of_one_row(self, part: Expr, order: list[Axis]) -> str:
        """A sum with one term, as over a batch of one example: that term, of two rows their outer product."""
        match factors_of(part):
            case [Leaf() as left, Leaf() as right], []:
                rows = min(len(left.places), len(right.places)) > 1
                for row, column in ((left, right), (right, left)):
                    if rows and len(order) == 2 and [*row.dims(), *column.dims()] == order:
                        # of a matrix with one row, or with one column
                        first = _turned(row.text) if row.places[-1] else row.text
                        return f"{first} {column.text if column.places[-1] else _turned(column.text)}"
        if any(leaf.dims() != order for leaf in leaves_in(part)):
            raise Unclear
        return self._tight(part, order, 1)

    def _matrices(self, summed: list[Var], part: Expr, order: list[Axis]) -> str:
        """Σ_k L[i,k]·R[k,j] as L R."""
        factors, below = factors_of(part)
        factors = self._two_factors(factors) if len(factors) > 2 else factors
        if len(factors) != 2 or below or len(order) < 2 or not all(isinstance(one, Leaf) for one in factors):
            raise Unclear
        for left, right in (factors, factors[::-1]):
            a, b = left.dims(), right.dims()
            if len(a) < 2 or len(b) < 2:
                continue
            (row, k), (other, column) = a[-2:], b[-2:]
            first = left.text
            if row != order[-2]:
                first, row, k = _turned(first), k, row
            second = right.text
            if column != order[-1]:
                second, other, column = _turned(second), column, other
            if row == order[-2] and column == order[-1] and k == other and set(k) <= set(summed):
                return f"{self._leading(a[:-2], b[:-2], order[:-2], set(summed) - set(k))}{first} {second}"
        raise Unclear

    def _two_factors(self, factors: list[Expr]) -> list[Expr]:
        """Factors cell by cell, of which some have the same axes: a factor of the product of matrices each."""
        of_axes: dict[tuple[Axis, ...], list[Expr]] = {}
        for one in factors:
            of_axes.setdefault(tuple(max((leaf.dims() for leaf in leaves_in(one)), key=len, default=[])), []).append(
                one
            )
        joined: list[Expr] = []
        for dims, alike in of_axes.items():
            text = "·".join(self._factor(one, list(dims), len(alike) > 1) for one in alike)
            places = tuple(tuple((atom, 1) for atom in dim) for dim in dims)
            joined.append(alike[0] if len(alike) == 1 else Leaf(f"({text})", places))
        return joined

    def _over_all(self, summed: list[Var], part: Expr, order: list[Axis]) -> str:
        """Over all cells."""
        dims = max((leaf.dims() for leaf in leaves_in(part)), key=len, default=[])
        if order or {atom for dim in dims for atom in dim} != set(summed):
            raise Unclear
        return f"Σ {self._tight(part, dims, 1)}"

    def _leading(self, a: list[Axis], b: list[Axis], order: list[Axis], summed: set[Var]) -> str:
        """The sum sign over the axes before those of the matrices."""
        dims = list(dict.fromkeys([*(a if len(a) >= len(b) else b), *a, *b]))
        over = [dim for dim in dims if set(dim) <= summed]
        if {v for dim in over for v in dim} != summed or [dim for dim in dims if dim not in over] != order:
            raise Unclear
        return f"Σ_{self._letters_of(over, [*a, *b])} " if over else ""

    def _over_last(self, summed: list[Var], part: Expr, order: list[Axis]) -> str:
        return f"Σ_j {self._tight(part, self._line(summed, part, order), 1)}"

    def _line(self, summed: list[Var], part: Expr, order: list[Axis]) -> list[Axis]:
        """The axes of what a sum along the last axis adds; what the sum is a part of goes on along its own last one."""
        if not order or set(order[-1]) & {atom for leaf in leaves_in(part) for dim in leaf.dims() for atom in dim}:
            raise Unclear
        return [*order[:-1], tuple(summed)]

    def _over_first(self, summed: list[Var], part: Expr, order: list[Axis]) -> str:
        """Over axes that come before those of the result, as the tensors have them."""
        dims = max((leaf.dims() for leaf in leaves_in(part)), key=len, default=[])
        over = [dim for dim in dims if set(dim) <= set(summed)]
        if {v for dim in over for v in dim} != set(summed) or [dim for dim in dims if dim not in over] != order:
            raise Unclear
        return f"Σ_{self._letters_of(over, dims)} {self._tight(part, dims, 1)}"

    def _letters_of(self, over: Sequence[Axis], dims: Sequence[Axis]) -> str:
        """The letters of the axes that are summed over; each must mean one axis."""
        known = {dim: "·".join(atom.letter for atom in dim) for dim in dims}
        if any(not all(v.letter for v in dim) or [*known.values()].count(known[dim]) > 1 for dim in over):
            raise Unclear
        return ",".join(known[dim] for dim in over)

    def _oriented(self, leaf: Leaf, order: list[Axis]) -> str:
        """The symbol, turned if its last two axes come in the other order; those it lacks are broadcast."""
        dims = leaf.dims()
        if not dims or order[-len(dims) :] == dims:
            return leaf.text
        if len(dims) > 1 and order[-len(dims) :] == [*dims[:-2], dims[-1], dims[-2]]:
            return _turned(leaf.text)
        if len(leaf.places) == len(order) and [dim for dim in order if dim in dims] == dims:
            return leaf.text  # its other axes have one cell
        if len(order) > 2 and [*order[:-3], order[-2], (*order[-3], *order[-1])] == dims:
            return f"heads({leaf.text})"  # whose rows have all heads beside one another
        if [v for dim in dims for v in dim] == [v for dim in order for v in dim]:
            return leaf.text  # in another shape
        raise Unclear


def in_order(strides: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether a tensor of this shape is read from its beginning to its end."""
    return all(n == 1 or a == b for a, b, n in zip(strides, row_major(shape), shape, strict=True))


def letters(n: Node) -> list[str]:
    """The letter of each axis of a node."""
    found = n.axes.split()
    return found if len(found) == len(n.shape) else [""] * len(n.shape)


def summed_over(part: Plan) -> list[Var]:
    """The variables of a sum: of the operand that tells most of them apart."""
    return [Var(count) for _, count in max((leaf[4] for leaf in leaves(part) if leaf[0] == "ref"), key=len, default=())]


def squared(text: str) -> str:
    """The square of a factor; what is a quotient or ends in a sign above the line is in brackets."""
    plain = text.startswith("(") or not ("/" in text or " " in text or text[-1] in "ᵀ⁰¹²³⁴⁵⁶⁷⁸⁹⁾")
    return f"{text}²" if plain else f"({text})²"


def heads_in(e: Expr) -> Iterator[str]:
    if isinstance(e, tuple):
        yield e[0]
        for part in e[1:]:
            yield from heads_in(part)


def _turned(text: str) -> str:
    """A symbol with its axes turned."""
    return text[:-1] if text.endswith("ᵀ") else f"{text}ᵀ"


def factors_of(e: Expr) -> tuple[list[Expr], list[Expr]]:
    """What an expression multiplies, and what it divides by."""
    match e:
        case "mul", left, right:
            (a, b), (c, d) = factors_of(left), factors_of(right)
            return a + c, b + d
        case "div", left, right:
            a, b = factors_of(left)
            return a, [*b, right]
    return [e], []


def leaves_in(e: Expr) -> Iterator[Leaf]:
    if isinstance(e, Leaf):
        yield e
    elif isinstance(e, tuple):
        for part in e[1:]:
            yield from leaves_in(part)


# ---- operations that have a form of their own


Special = Callable[[Composer, Node, list[Place]], Expr]
SPECIAL: dict[str, Special] = {}


def special(*ops: str) -> Callable[[Special], Special]:
    def keep(function: Special) -> Special:
        SPECIAL.update(dict.fromkeys(ops, function))
        return function

    return keep


def _refs(plan: Plan) -> list[Plan]:
    return [leaf for leaf in leaves(plan) if leaf[0] == "ref"]


@special("native_layer_norm_backward")
def _layer_norm(c: Composer, n: Node, places: list[Place]) -> Expr:
    """∂x, ∂γ and ∂β of (x − mean)/σ·γ + β."""
    match n.plan:
        case ("mul", ("sub", ("sub", (_, ("is", "ĝ", g)), _), (_, ("mul", ("is", "x̂", own), _))), _):
            _, (_, (_, x), _), (_, _, (_, inverse, *_)) = own
            return "norm", c.planned(g, places), c.planned(x, places), _epsilon(c, inverse)
        case "sum", ("mul", g, ("sub", ("mul", ("ref", inverse, *_), x), _)):
            rows = summed_over(g)
            slope = c.planned(g, places, rows)  # first, for its letters say what is summed over
            return "sum", rows, ("mul", slope, ("centred", c.planned(x, places, rows), _epsilon(c, inverse)))
    return None


def _epsilon(c: Composer, inverse: int) -> float:
    """The ε of the norm whose 1/√(variance + ε) a node is; it must be a norm over the last axis alone."""
    node = int(c.graph.resolve(inverse, np.asarray([0]))[0][0])
    match c.graph.nodes[node].plan:
        case ("div", 1, root):
            return _epsilon_of(root)
    raise Unclear


def _epsilon_of(root: Plan) -> float:
    match root:
        case ("is", _, ("sqrt", ("add", ("is", _, ("div", ("sum", terms), _)), float() as eps))):
            if all(len(ref[4]) == 1 for ref in _refs(terms)):
                return eps
    raise Unclear


@special("native_layer_norm")
def _normed(c: Composer, n: Node, places: list[Place]) -> Expr:
    """x̂, of a norm without weights, which a condition shifts and scales."""
    match n.plan:
        case "div", ("sub", x, _), root:
            return "centred", c.planned(x, places), _epsilon_of(root)
    return None


@special("rsqrt")
def _rms(c: Composer, n: Node, places: list[Place]) -> Expr:
    return "div", 1, _root(c, n.plan[2][1], places)


def _root(c: Composer, under: Plan, places: list[Place]) -> Expr:
    """√(mean of squares + ε): rms, if that is what is under the root."""
    match c.planned(under, places):
        case ("add", ("div", ("sum", [var], ("square", x)), count), float() as eps) if count == var.n:
            return "rms", x, var, eps
    raise Unclear


@special("mul")
def _folded(c: Composer, n: Node, places: list[Place]) -> Expr:
    """What `folding` has written in one."""
    match n.plan:
        case ("div", ("neg", ("mul", ("is", "x̂", ("div", x, ("is", "rms", ("sqrt", under)))), ("is", _, mean))), _):
            _, (_, (_, g, (_, line, _))), count = mean
            rms, over = _root(c, under, places), Var(count)
            inside = "mul", c.planned(g, places, [over]), ("hat", c.planned(line, places, [over]), rms)
            return "neg", ("div", ("mul", ("hat", c.planned(x, places), rms), ("mean", over, inside)), rms)
    return None


FUNCTIONS = {"silu": "SiLU", "relu": "ReLU", "threshold": "ReLU", "gelu": "GELU", "tanh": "tanh"}


def called(n: Node, x: Expr, prime: str = "") -> Leaf:
    """A function of each cell of a tensor with a symbol."""
    if not isinstance(x, Leaf):
        raise Unclear
    word = FUNCTIONS.get(n.op.removesuffix("_backward"), "GELU")
    approximate = "_tanh" if word == "GELU" and "'tanh'" in str(n.plan) else ""
    return Leaf(f"{word}{approximate}{prime}({x.text})", x.places)


@special("silu", "relu", "gelu", "tanh")
def _activation(c: Composer, n: Node, places: list[Place]) -> Expr:
    return called(n, c.planned(_refs(n.plan)[0], places))


@special("gelu_backward", "silu_backward", "threshold_backward")
def _slope(c: Composer, n: Node, places: list[Place]) -> Expr:
    """∂L/∂y·f′(x), of which the plan has g first, but where it asks first whether x is above 0."""
    g, x, *_ = _refs(n.plan)
    if n.op == "threshold_backward":
        g, x = x, g
    return "mul", c.planned(g, places), called(n, c.planned(x, places), "′")


@special("add")
def _gelu(c: Composer, n: Node, places: list[Place]) -> Expr:
    """Φ(x) + x·φ(x), as PyTorch decomposes GELU's slope."""
    match found := c.planned(n.plan, places):
        case (
            "add",
            ("mul", 0.5, ("add", ("erf", ("mul", float() as scale, x)), 1)),
            ("mul", y, ("div", ("exp", ("mul", -0.5, ("mul", z, w))), float() as below)),
        ) if x == y == z == w and abs(2 * scale**2 - 1) < 1e-6 and abs(below**2 - 2 * math.pi) < 1e-6:
            return called(n, x, "′")
    return found


@special("_log_softmax_backward_data")
def _cross_entropy(c: Composer, n: Node, places: list[Place]) -> Expr:
    """(p − 1 at the right class)/n: softmax and the logarithm of its probability together."""
    match n.plan:
        case ("sub", ("ref", slope, *_) as ref, ("mul", ("exp", ("ref", log_p, *_)), _)):
            loss, source = c.graph.nodes[slope], int(c.graph.resolve(log_p, np.asarray([0]))[0][0])
        case _:
            return None
    likely = next((i for i, one in enumerate(c.graph.nodes) if one.plan == ("exp", ("ref", source, *ref[2:]))), None)
    match loss.plan if loss.op == "nll_loss_backward" else None:
        case "if", ("and", ("eq", right, _), ("ne", _, left_out)), ("neg", ("div", g, ("ref", count, *_))), 0:
            p = None if likely is None else c.planned(("ref", likely, *ref[2:]), places)
            if isinstance(p, Leaf) and c.planned(g, places) == 1:
                found = "sub", p, Leaf("onehot(targets)", p.places)
                if (c.graph.value(right[1]) == left_out).any():
                    found = "mul", Leaf(f"[targets ≠ {format_number(left_out)}]", p.places), found
                return "div", found, int(c.graph.value(count).item())
    raise Unclear


@special("nll_loss_forward")
def _mean_of_logarithms(c: Composer, n: Node, places: list[Place]) -> Expr:
    """−Σ ln p of the right class/n; a target that is left out has no class, so that its row of onehot is 0."""
    match n.plan:
        case "div", ("neg", ("sum", ("list", log_p, *_))), int() as count:
            source = c.graph.nodes[int(c.graph.resolve(log_p, np.asarray([0]))[0][0])]
            if c.spoken(c.graph.names.get(source.name, -1), c.name) is None:
                raise Unclear
            cells = [(0, [(Var(size), 1)]) for size in source.shape]
            over = [var for _, inside in cells for var, _ in inside]
            rows = Leaf("onehot(targets)", tuple(tuple(inside) for _, inside in cells))
            log = Leaf(source.symbol, rows.places)
            return "neg", ("div", ("sum", over, ("mul", rows, log)), count)
    return None


@special("embedding_dense_backward")
def _embedding(c: Composer, n: Node, places: list[Place]) -> Expr:
    """Rows of a table that were read: a product with a matrix of which token is which row."""
    match n.plan:
        case "sum", ("if", ("eq", ids, _), g, 0):
            values = c.planned(g, places, rows := summed_over(ids))
            if not isinstance(values, Leaf):
                raise Unclear
            word = _rows_read(c.graph, ids[1])
            return "sum", rows, ("mul", Leaf(f"onehot({word})", (*values.places[:-1], tuple(places[0][1]))), values)
    return None


def _rows_read(graph: Graph, ids: int) -> str:
    """What the rows of a table that are read are called: by the symbol of their ids, or pos where they are 0, 1, 2…"""
    rows = graph.value(ids).reshape(-1)
    for node in {int(one) for one in graph.resolve(ids, np.arange(rows.size), lambda n: n.named)[0]}:
        symbol, whole = graph.nodes[node].symbol, graph.value(node)
        if symbol and whole.size == rows.size and np.array_equal(whole.reshape(-1), rows):
            return symbol
    if np.array_equal(rows, np.arange(rows.size)):
        return "pos"
    raise Unclear


# ---- symbols


def symbols_of(graph: Graph) -> Callable[[int, str], str | None]:
    """What the formula of a name calls a node: by its symbol, with the number of its block if it is in another.

    A symbol that could stand for two tensors is none.
    """
    named: dict[str, list[str]] = {}
    for name, node in graph.names.items():
        n = graph.nodes[node]
        if n.symbol and name in (n.name, *n.also) and "#" not in name:
            named.setdefault(_symbol(n), []).append(name)

    def means(node: int, names: Sequence[str], of: str) -> bool:
        """Whether it is this node that has the nearest of these names by path."""
        shared = [_shared(name, of) for name in names]
        return {graph.names[name] for name, n in zip(names, shared, strict=True) if n == max(shared)} == {node}

    def spoken(node: int, of: str) -> str | None:
        symbol = _symbol(graph.nodes[node])
        names = named.get(symbol, [])
        if means(node, names, of):
            return symbol
        block, own = (_BLOCK.search(name) for name in (graph.nodes[node].name, of))
        if block is None or (own and own[1] == block[1]):
            return None
        inside = [name for name in names if (found := _BLOCK.search(name)) and found[1] == block[1]]
        number = str(int(block[1]) + 1).translate(SUPERSCRIPTS)
        return f"{symbol}⁽{number}⁾" if means(node, inside, of) else None

    return spoken


_BLOCK = re.compile(r"(?:^|[.:])blocks\.(\d+)\.")


def _symbol(n: Node) -> str:
    """The symbol of a tensor in a formula; γ and β have the norm that they belong to as an index."""
    symbol = n.symbol.split(" = ")[0]
    if n.kind != "weight" or symbol not in ("γ", "β"):
        return symbol
    norm = n.name.rpartition(".")[0].rpartition(".")[2]
    return f"{symbol}_{'f' if norm == 'norm' else norm.removesuffix('_norm')}"


def _shared(name: str, other: str) -> int:
    """How long a path two names share."""
    paths = [one.rpartition(":")[2].split(".")[:-1] for one in (name, other)]
    return next((i for i, (a, b) in enumerate(zip(*paths, strict=False)) if a != b), min(map(len, paths)))
