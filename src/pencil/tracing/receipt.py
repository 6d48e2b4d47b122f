"""A cell's arithmetic: the plan of its node with the values put in, reworked, and compared with what was recorded.

A receipt stops at names. Operands that nobody named are unfolded into the formula until named ones are reached, but not
inside a sum of several terms: there they stay links. So scores read (q·k)/√d and not a chain of reshapes.

The tolerance follows from the arithmetic. Rounding is propagated through a plan as a bound; a receipt that differs by
more is wrong. There is no tolerance to widen.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config import UserError
from .address import address
from .graph import Graph, Node, Plan, number_in, reduces, slack
from .plan_functions import FUNCTIONS
from .receipt_text import EXACT, SHOWN, Evaluated, Tree, format_number, largest, plain, text, walk, weigh
from .trace_base import TraceBase

DEPTH = 8  # how deep unnamed values are unfolded
WIDE = 64  # terms of a list beyond which unnamed ones stay links
LONGEST = 20_000  # parts of one receipt; no model has more, a file can ask for any number


@dataclass(frozen=True)
class Term:
    """A value the cell was made of: a link to its own receipt."""

    name: str
    index: tuple[int, ...]
    value: complex | float

    @property
    def where(self) -> str:
        return address(self.name, self.index)


@dataclass(frozen=True)
class Step:
    """A named step of the working."""

    word: str
    formula: str
    value: complex | float


@dataclass(frozen=True)
class Receipt:
    """One cell: its arithmetic in numbers, what that gives, and what was recorded."""

    name: str
    index: tuple[int, ...]
    label: str
    kind: str
    op: str
    formula: str
    meaning: str
    steps: tuple[Step, ...]
    terms: tuple[Term, ...]
    leading: tuple[Term, ...]  # those of the largest terms of a long sum, which are the ones written out
    reworked: complex | float | None  # None where there is nothing to work: an input, a weight
    recorded: complex | float
    allowed: float  # the largest difference that rounding alone can make
    digits: int
    masked: bool = False  # it is −∞ because a mask is
    ends: tuple[str, ...] = ()  # where the proof ends: values that it reads of operations that are not described
    axes: str = ""  # where the cell is along each axis that has a letter: "T 'cat'  D 3"

    @property
    def where(self) -> str:
        return address(self.name, self.index)

    @property
    def agrees(self) -> bool:
        """Whether the arithmetic gives what was recorded, but for rounding."""
        return self.reworked is None or agree(self.reworked, self.recorded, self.allowed)

    def __str__(self) -> str:
        return "\n".join((*self.heading(), *self.lines()))

    def heading(self) -> Iterator[str]:
        """The address of the cell with the formula of its tensor, and where it is along its axes."""
        if self.meaning:
            yield f"{self.where}   {self.meaning}"
        if self.axes:
            yield self.axes

    def lines(self) -> Iterator[str]:
        """The receipt as lines of text."""
        recorded = format_number(self.recorded, self.digits)
        if self.reworked is None:
            yield f"{self.label} = {recorded}   {self.formula}"
            return
        worked = format_number(self.reworked, self.digits)
        tail = "" if worked == self.formula else f" = {worked}"
        yield f"{self.label} = {self.formula}{tail}{'   (masked: it may not be seen)' if self.masked else ''}"
        given: list[str] = []  # settings, such as η = 0.001, which are made of nothing
        for step in self.steps:
            value = format_number(step.value, self.digits)
            if value == step.formula:
                given.append(f"{step.word} = {value}")
            else:
                yield f"  where {step.word} = {step.formula} = {value}"
        if given:
            yield f"  where {', '.join(given)}"
        off = f"off by {format_number(abs(self.reworked - self.recorded), 3)}, {format_number(self.allowed, 2)} allowed"
        yield f"recorded {recorded} {'✓' if self.agrees else f'✗ ({off})'}"
        yield from self.ends

    def _repr_html_(self) -> str:
        """The receipt, and the values it was made of; of a long sum the later ones behind a fold."""
        from html import escape

        rows = [
            f"<tr><td><code>{escape(t.where)}</code></td><td>{format_number(t.value)}</td></tr>" for t in self.terms
        ]
        more = "".join(rows[SHOWN:])
        rest = f"<details><summary>{len(rows) - SHOWN} more</summary><table>{more}</table></details>" if more else ""
        return f"<pre>{escape(str(self))}</pre><table>{''.join(rows[:SHOWN])}</table>{rest}"


def agree(reworked: complex | float, recorded: complex | float, allowed: float) -> bool:
    if reworked == recorded or (reworked != reworked and recorded != recorded):
        return True
    return bool(abs(reworked - recorded) <= allowed)


def receipt(trace: TraceBase, node: int, place: int, digits: int = 4) -> Receipt:
    """The receipt of one cell of a trace."""
    trace.open(node)
    graph = trace.graph
    n = graph.nodes[node]
    index = n.index(place)
    recorded = plain(graph.cells(node, np.asarray([place]))[0])
    tree = Unfolding(trace).of(node, place)
    about: dict[str, Any] = dict(name=n.name, index=index, label=label(n, index), kind=n.kind, op=n.op)
    about |= dict(meaning=n.formula, axes=_along_axes(trace, n, index), recorded=recorded, digits=digits)
    if tree is None:
        origin = ORIGINS.get("edited" if n.op == "edit" else n.kind, "(not recorded)")
        return Receipt(**about, formula=origin, steps=(), terms=(), leading=(), reworked=None, allowed=0.0)
    steps: dict[str, Step] = {}
    terms: dict[tuple[int, int], Term] = {}

    def term(part: Tree) -> Term:
        m = graph.nodes[part[1]]
        return Term(m.name, m.index(part[2]), part[3])

    with np.errstate(all="ignore"):
        value, error = weigh(tree, n, {})
        evaluated: Evaluated = {}
        for part in walk(tree, set()):
            if part[0] == "is" and part[1] not in steps:
                steps[part[1]] = Step(
                    part[1], text(part[2], digits, evaluated, n), plain(weigh(part[2], EXACT, evaluated)[0])
                )
            if part[0] == "cell" and (part[1], part[2]) not in terms:
                terms[part[1], part[2]] = term(part)
        leading = {
            term(part): None for branch in largest(tree, evaluated) for part in walk(branch, set()) if part[0] == "cell"
        }
        written = next(iter(terms.values())).where if tree[0] == "cell" else text(tree, digits, evaluated, n)
    return Receipt(
        **about,
        formula=written,
        steps=tuple(steps.values()),
        terms=tuple(terms.values()),
        leading=tuple(leading),
        ends=tuple(_ends(graph, terms)),
        reworked=plain(value),
        allowed=float(error + slack(n, np.asarray(value))),
        masked=plain(value) == -np.inf and (n.kind == "mask" or any(_hides(graph, part) for part in walk(tree, set()))),
    )


def _along_axes(trace: TraceBase, n: Node, index: Sequence[int]) -> str:
    """Where a cell is along each axis that has a letter, by the labels of the axis."""
    indices = zip(n.axes.split(), index, strict=False)
    called = [(letter, i, trace.called(n, axis, i)) for axis, (letter, i) in enumerate(indices)]
    return "  ".join(f"{letter} {i}" if label is None else f"{letter} '{label}'" for letter, i, label in called)


def _ends(graph: Graph, cells: Iterable[tuple[int, int]]) -> Iterator[str]:
    """A sentence for each value among these cells that an operation without a description gave."""
    found = {int(graph.resolve(node, np.asarray([place]))[0][0]) for node, place in cells}
    for node in sorted(found):
        n = graph.nodes[node]
        if n.kind == "undescribed":
            yield f"the proof ends at {n.name}: the operation {n.op} is not described"


ORIGINS = {
    "input": "(given to the model)",
    "weight": "(learned)",
    "constant": "(a constant)",
    "noise": "(drawn at random)",
    "edited": "(changed by an edit)",
    "undescribed": "(recorded only: its operation is not described)",
}


def label(n: Node, index: Sequence[int]) -> str:
    """What a cell is called in the mathematics: its symbol, and its index without batch and head."""
    letters = n.axes.split()
    if not n.symbol or n.kind in ("weight", "input") or len(letters) != len(index):
        return address(n.name, index)
    shown = [i for i, letter in zip(index, letters, strict=True) if letter not in ("B", "h", "g", "1")]
    symbol = n.symbol.split(" = ")[0]  # a tensor with two names has two symbols
    if not index:
        return symbol
    return f"{symbol}[{','.join(map(str, shown))}]"


class Unfolding:
    """Unfolds a cell into the tree of its arithmetic.

    Unnamed operands of unnamed operands can double at every level, so the parts are counted.
    """

    def __init__(self, trace: TraceBase):
        self.trace, self.graph, self.parts = trace, trace.graph, 0

    def of(self, node: int, place: int) -> Tree | None:
        """The tree of a cell; None where it was given, not computed."""
        graph, n = self.graph, self.graph.nodes[node]
        if n.plan is None:
            return None
        if n.moves:
            nodes, at = graph.step(node, np.asarray([place]))
            if graph.nodes[int(nodes[0])].kind == "edited":
                return None
            return self._leaf(int(nodes[0]), int(at[0]), 0, True)
        tree = self._unfold(n.plan, n, place, 0, not reduces(n.plan))[0]
        total = _only_sum(graph, tree) if n.named else None
        if total is None:
            return tree
        # that named cell as the sum that it is
        nodes, at = graph.resolve(total[1], np.asarray([total[2]]))
        m = graph.nodes[int(nodes[0])]
        return _with(tree, total, ("made", m, self._unfold(m.plan, m, int(at[0]), 1, False)[0]))

    def _count(self, n: Node) -> None:
        self.parts += 1
        if self.parts > LONGEST:
            raise UserError(f"this receipt has more than {LONGEST:,} parts (at {n.name}); ask for one of its operands")

    def _unfold(self, plan: Plan, n: Node, place: int, depth: int, whole: bool) -> list[Tree]:
        """A plan at one cell: the list of its trees, one unless it is a list of terms.

        With `whole` an unnamed operand that is itself a sum is unfolded too; inside a sum that would be too much to
        read.
        """
        self._count(n)
        graph = self.graph
        match plan:
            case int() | float():
                return [("num", plan)]
            case "num", *_:
                return [("num", number_in(plan))]
            case "axis", axis:
                return [("num", n.index(place)[axis])]
            case "is", name, part:
                return [("is", name, tree) for tree in self._unfold(part, n, place, depth, whole)]
            case "ref" | "list", source, *_:
                operands = graph.operands(plan, n, np.asarray([place]))[0]
                nodes, at = graph.resolve(source, operands, lambda m: m.named)
                if len(at) > WIDE:
                    values = graph.cells(source, operands)
                    return [("cell", int(m), int(a), plain(v)) for m, a, v in zip(nodes, at, values, strict=True)]
                alone = whole and len(at) == 1
                return [self._leaf(int(m), int(a), depth, alone) for m, a in zip(nodes, at, strict=True)]
            case "if", condition, *parts:
                conditions = self._unfold(condition, n, place, DEPTH, False)
                sides = [self._unfold(part, n, place, depth, whole) for part in parts]
                out = []
                for i in range(max(len(conditions), *map(len, sides))):
                    reason = conditions[i % len(conditions)]
                    side = sides[0 if weigh(reason, n, {})[0] != 0 else 1]
                    out.append(("picked", reason, side[i % len(side)]))
                return out
        head = plan[0]
        parts = [self._unfold(part, n, place, depth, whole) for part in plan[1:]]
        if FUNCTIONS[head].reduces:
            return [(head, parts[0], *(part[0] for part in parts[1:]))]
        return [(head, *(part[i % len(part)] for part in parts)) for i in range(max(map(len, parts)))]

    def _leaf(self, node: int, place: int, depth: int, whole: bool) -> Tree:
        """A cell as a value, or, where it has no name, as its own arithmetic: sums too, if it is to be `whole`."""
        self._count(self.graph.nodes[node])
        nodes, at = self.graph.resolve(node, np.asarray([place]), lambda m: m.named)
        node, place = int(nodes[0]), int(at[0])
        n = self.graph.nodes[node]
        worked = n.plan is not None and n.kind != "block" and depth < DEPTH
        if worked and not n.named and (whole or not reduces(n.plan)):
            return ("made", n, self._unfold(n.plan, n, place, depth + 1, whole and not reduces(n.plan))[0])
        return ("cell", node, place, plain(self.graph.cells(node, np.asarray([place]))[0]))


LINEAR = ("add", "sub", "mul", "div", "neg", "num", "cell", "made", "picked")


def _hides(graph: Graph, part: Tree) -> bool:
    """Whether a part is a cell of a mask that hides something."""
    return part[0] == "cell" and graph.nodes[part[1]].kind == "mask" and part[3] == -np.inf


def _only_sum(graph: Graph, tree: Tree) -> Tree | None:
    """The one cell that a tree only scales or shifts, if it is a sum: scores are written (q·k)/√d, from q and k."""
    parts = list(walk(tree, set()))
    cells = [part for part in parts if part[0] == "cell" and graph.nodes[part[1]].kind != "mask"]
    if tree[0] == "cell" or len(cells) != 1 or any(part[0] not in LINEAR or _hides(graph, part) for part in parts):
        return None
    nodes, _ = graph.resolve(cells[0][1], np.asarray([cells[0][2]]))
    n = graph.nodes[int(nodes[0])]
    return cells[0] if n.kind != "block" and reduces(n.plan) else None


def _with(tree: Tree, old: Tree, new: Tree) -> Tree:
    """A tree with one part replaced."""
    if tree is old:
        return new
    return tuple(_with(part, old, new) if isinstance(part, tuple) else part for part in tree)
