"""A cell's arithmetic: the plan of its node with the values put in, reworked, and compared with what was recorded.

A receipt stops at names. Operands that nobody named are unfolded into the formula until named ones are reached, but not
inside a sum of several terms: there they stay links. So scores read (q·k)/√d and not a chain of reshapes.

The tolerance follows from the arithmetic. Rounding is propagated through a plan as a bound; a receipt that differs by
more is wrong. There is no tolerance to widen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config import UserError
from .functions import FUNCTIONS
from .graph import Graph, Node, Plan, places, slack
from .trace_base import RecordedTrace
from .writing import EXACT, SHOWN, Known, Tree, format_number, largest, plain, text, walk, weigh

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
        return f"{self.name}[{','.join(map(str, self.index))}]" if self.index else self.name


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

    @property
    def where(self) -> str:
        return f"{self.name}[{','.join(map(str, self.index))}]" if self.index else self.name

    @property
    def agrees(self) -> bool:
        """Whether the arithmetic gives what was recorded, but for rounding."""
        if self.reworked is None:
            return True
        return agree(self.reworked, self.recorded, self.allowed)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """The receipt as lines of text."""
        recorded = format_number(self.recorded, self.digits)
        if self.reworked is None:
            yield f"{self.label} = {recorded}   {self.formula}"
            return
        worked = format_number(self.reworked, self.digits)
        tail = "" if worked == self.formula else f" = {worked}"
        yield f"{self.label} = {self.formula}{tail}{'   (masked: it may not be seen)' if self.masked else ''}"
        for step in self.steps:
            yield f"  where {step.word} = {step.formula} = {format_number(step.value, self.digits)}"
        off = f"off by {format_number(abs(self.reworked - self.recorded), 3)}, {format_number(self.allowed, 2)} allowed"
        yield f"recorded {recorded} {'✓' if self.agrees else f'✗ ({off})'}"

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


def receipt(trace: RecordedTrace, node: int, place: int, digits: int = 4) -> Receipt:
    """The receipt of one cell of a trace."""
    trace.open(node)
    graph = trace.graph
    n = graph.nodes[node]
    index = tuple(int(i) for i in np.unravel_index(place, n.shape)) if n.shape else ()
    recorded = plain(graph.cells(node, np.asarray([place]))[0])
    tree = unfolded(trace, node, place)
    about: dict[str, Any] = dict(name=n.name, index=index, label=label(n, index), kind=n.kind, op=n.op)
    about |= dict(meaning=n.formula, recorded=recorded, digits=digits)
    if tree is None:
        origin = ORIGINS.get("edited" if n.op == "edit" else n.kind, "(not recorded)")
        return Receipt(**about, formula=origin, steps=(), terms=(), leading=(), reworked=None, allowed=0.0)
    steps: dict[str, Step] = {}
    terms: dict[tuple[int, int], Term] = {}

    def term(part: Tree) -> Term:
        m = graph.nodes[part[1]]
        at = tuple(int(i) for i in np.unravel_index(part[2], m.shape)) if m.shape else ()
        return Term(m.name, at, part[3])

    with np.errstate(all="ignore"):
        value, error = weigh(tree, n, {})
        known: Known = {}
        for part in walk(tree, set()):
            if part[0] == "is" and part[1] not in steps:
                steps[part[1]] = Step(part[1], text(part[2], digits, known, n), plain(weigh(part[2], EXACT, known)[0]))
            if part[0] == "cell" and (part[1], part[2]) not in terms:
                terms[part[1], part[2]] = term(part)
        leading = {term(part): None for one in largest(tree, known) for part in walk(one, set()) if part[0] == "cell"}
        written = next(iter(terms.values())).where if tree[0] == "cell" else text(tree, digits, known, n)
    return Receipt(
        **about,
        formula=written,
        steps=tuple(steps.values()),
        terms=tuple(terms.values()),
        leading=tuple(leading),
        reworked=plain(value),
        allowed=float(error + slack(n, np.asarray(value))),
        masked=plain(value) == -np.inf and (n.kind == "mask" or any(_hides(graph, part) for part in walk(tree, set()))),
    )


ORIGINS = {
    "input": "(given to the model)",
    "weight": "(learned)",
    "constant": "(a constant)",
    "noise": "(drawn at random)",
    "edited": "(changed by an edit)",
}


def label(n: Node, index: Sequence[int]) -> str:
    """What a cell is called in the mathematics: its symbol, and its index without batch and head."""
    letters = n.axes.split()
    if not n.symbol or n.kind in ("weight", "input") or len(letters) != len(index):
        return f"{n.name}[{','.join(map(str, index))}]" if index else n.name
    kept = [i for i, letter in zip(index, letters, strict=True) if letter not in ("B", "h", "g", "1")]
    symbol = n.symbol.split(" = ")[0]  # a tensor with two names has two symbols
    return f"{symbol}[{','.join(map(str, kept))}]"


class Room:
    """How many parts a receipt may still have: unnamed operands of unnamed operands can double at every level."""

    def __init__(self):
        self.left = LONGEST

    def take(self, n: Node) -> None:
        self.left -= 1
        if self.left < 0:
            raise UserError(f"this receipt has more than {LONGEST:,} parts (at {n.name}); ask for one of its operands")


def unfolded(trace: RecordedTrace, node: int, place: int) -> Tree | None:
    """The tree of a cell; None where it was given, not computed."""
    graph, n = trace.graph, trace.graph.nodes[node]
    if n.plan is None:
        return None
    if n.moves:
        nodes, at = graph.step(node, np.asarray([place]))
        if graph.nodes[int(nodes[0])].kind == "edited":
            return None
        return _leaf(trace, int(nodes[0]), int(at[0]), 0, True, Room())
    room = Room()
    tree = _unfold(trace, n.plan, n, place, 0, not _reduces(n.plan), room)[0]
    if not n.named:
        return tree
    found = _only_sum(graph, tree)
    return tree if found is None else _with(tree, found, _worked(trace, found, room))


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
    return cells[0] if n.kind != "block" and _reduces(n.plan) else None


def _worked(trace: RecordedTrace, found: Tree, room: Room) -> Tree:
    """A named cell that is a sum, as that sum."""
    nodes, at = trace.graph.resolve(found[1], np.asarray([found[2]]))
    n = trace.graph.nodes[int(nodes[0])]
    return ("made", n, _unfold(trace, n.plan, n, int(at[0]), 1, False, room)[0])


def _with(tree: Tree, old: Tree, new: Tree) -> Tree:
    """A tree with one part replaced."""
    if tree is old:
        return new
    return tuple(_with(part, old, new) if isinstance(part, tuple) else part for part in tree)


def _unfold(trace: RecordedTrace, plan: Plan, n: Node, place: int, depth: int, whole: bool, room: Room) -> list[Tree]:
    """A plan at one cell: the list of its trees, one unless it is a list of terms.

    With `whole` an unnamed operand that is itself a sum is unfolded too; inside a sum that would be too much to read.
    """
    room.take(n)
    if isinstance(plan, int | float):
        return [("num", plan)]
    head, graph = plan[0], trace.graph
    if head == "num":
        return [("num", complex(plan[1]) if "j" in plan[1] else float(plan[1]))]
    if head == "axis":
        return [("num", int(np.unravel_index(place, n.shape)[plan[1]]))]
    if head == "is":
        return [("is", plan[1], one) for one in _unfold(trace, plan[2], n, place, depth, whole, room)]
    if head in ("ref", "list"):
        if head == "ref":
            at = places(plan, n.shape, np.asarray([place]))[0]
        else:
            at = graph.tables[plan[2]].reshape(-1, plan[3])[place]
        at = np.clip(at, 0, graph.nodes[plan[1]].size - 1)
        nodes, at = graph.resolve(plan[1], at, lambda m: m.named)
        if len(at) > WIDE:
            found = zip(nodes, at, _values(graph, nodes, at), strict=True)
            return [("cell", int(m), int(a), plain(v)) for m, a, v in found]
        alone = whole and len(at) == 1
        return [_leaf(trace, int(m), int(a), depth, alone, room) for m, a in zip(nodes, at, strict=True)]
    if head == "if":
        why = _unfold(trace, plan[1], n, place, DEPTH, False, room)
        chosen = [_unfold(trace, part, n, place, depth, whole, room) for part in plan[2:]]
        count = max(len(why), *map(len, chosen))
        out = []
        for i in range(count):
            reason = why[i % len(why)]
            taken = chosen[0 if weigh(reason, n, {})[0] != 0 else 1]
            out.append(("picked", reason, taken[i % len(taken)]))
        return out
    parts = [_unfold(trace, part, n, place, depth, whole, room) for part in plan[1:]]
    if FUNCTIONS[head].reduces:
        return [(head, parts[0], *(part[0] for part in parts[1:]))]
    count = max(map(len, parts))
    return [(head, *(part[i % len(part)] for part in parts)) for i in range(count)]


def _values(graph: Graph, nodes: Any, at: Any) -> Any:
    """Recorded values of cells of several nodes."""
    out: list[Any] = [None] * len(at)
    for m in np.unique(nodes):
        mine = np.flatnonzero(nodes == m)
        for i, value in zip(mine, graph.cells(int(m), at[mine]), strict=True):
            out[i] = value
    return out


def _leaf(trace: RecordedTrace, node: int, place: int, depth: int, whole: bool, room: Room) -> Tree:
    """A cell as a value, or, where it has no name, as its own arithmetic: sums too, if it is to be `whole`."""
    graph = trace.graph
    room.take(graph.nodes[node])
    nodes, at = graph.resolve(node, np.asarray([place]), lambda m: m.named)
    node, place = int(nodes[0]), int(at[0])
    n = graph.nodes[node]
    worked = n.plan is not None and n.kind != "block" and depth < DEPTH
    if worked and not n.named and (whole or not _reduces(n.plan)):
        return ("made", n, _unfold(trace, n.plan, n, place, depth + 1, whole and not _reduces(n.plan), room)[0])
    return ("cell", node, place, plain(graph.cells(node, np.asarray([place]))[0]))


def _reduces(plan: Plan) -> bool:
    """Whether a plan sums or compares a list of cells."""
    if not isinstance(plan, list | tuple) or plan[0] not in (*FUNCTIONS, "is"):
        return False
    return (plan[0] != "is" and FUNCTIONS[plan[0]].reduces) or any(_reduces(part) for part in plan[1:])
