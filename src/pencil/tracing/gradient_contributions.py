"""Which tokens and which examples of a batch made a gradient.

A weight is used for every token of every example, and its gradient is the sum of what each use gives. Those sums are in
the receipts: here they are followed through what only moves, adds or scales, down to the products of one token each.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ..config import UserError
from .contributions import SHOWN, Part, Row, html_table, lines, rows, shared
from .graph import ROUNDING, Node, slack
from .receipt import Unfolding
from .receipt_text import EXACT, Tree, format_number, walk, weigh
from .trace_base import TraceBase

TOKENS, EXAMPLES = ("T", "N", "S", "s"), "B"  # letters of axes
Place = tuple[str, str]  # the example and the token, as they are written
NOWHERE: Place = ("", "")


class GradientContributions:
    """A gradient as a sum over the tokens of each example of the batch, largest first.

    `value` is the recorded gradient and `total` the sum of the parts; they differ by no more than `allowed`: what the
    receipts on the way allow, each in the precision of its own tensor.
    """

    held: Sequence[str] = ()

    def __init__(self, trace: TraceBase, cell: str):
        name, index = trace.locate(cell)
        if trace[cell].flat.size != 1:
            raise UserError(f"contributions are to one number, and {cell} is more: give an index for each of its axes")
        self.trace, self.name = trace, cell
        node = trace.find(name)
        n = trace.graph.nodes[node]
        at = tuple(i for i in index if isinstance(i, int))
        place = int(np.ravel_multi_index([i % size for i, size in zip(at, n.shape, strict=True)], n.shape)) if at else 0
        self.value = float(trace.graph.cells(node, np.asarray([place]))[0])
        self.allowed, self._size, self._terms = 0.0, 0.0, 0
        inputs = [one for one in trace.graph.nodes if one.kind == "input" and one.shape]
        self._batched = any(one.shape[0] > 1 for one in inputs)
        found: dict[Place, float] = {}
        with np.errstate(all="ignore"):
            for where, value in self._of_cell(node, place, 1.0):
                found[where] = found.get(where, 0.0) + value
        found = {where: value for where, value in found.items() if value != 0}
        if not set(found) - {NOWHERE}:
            raise UserError(f"{cell} is not a sum over tokens or examples, so none of them has a share in it")
        self.total = sum(found.values())
        self.allowed += (8 + self._terms) * ROUNDING["float64"] * self._size  # of the sum here
        if abs(self.total - self.value) > self.allowed:
            raise UserError(
                f"the parts of {cell} sum to {self.total:.6g} and {self.value:.6g} was recorded: more than the "
                f"rounding of {self.allowed:.2g} allows, so a receipt on the way is wrong; t[{cell!r}].why() is one"
            )
        self.parts = self._parts(found)

    def _parts(self, found: dict[Place, float]) -> list[Part]:
        """The examples with their tokens; the tokens alone, if there is one example."""
        examples: dict[str, list[Part]] = {}
        for (example, token), value in found.items():
            label = " · ".join(filter(None, (example, token))) or "what belongs to no token"
            examples.setdefault(example, []).append(Part(label, label, "token", value, None))
        if len(examples) == 1:
            return shared(next(iter(examples.values())))
        return shared(
            [
                Part(name, name or "what belongs to no example", "example", sum(p.value for p in inside), None, inside)
                for name, inside in ((name, shared(inside)) for name, inside in examples.items())
            ]
        )

    def _of_cell(self, node: int, place: int, factor: float) -> Iterator[tuple[Place, float]]:
        """What each token gives to a cell, times a factor."""
        self.trace.open(node)
        tree = Unfolding(self.trace).of(node, place)
        if tree is None:
            value = float(self.trace.graph.cells(node, np.asarray([place]))[0])
            yield self._where(node, place) or NOWHERE, factor * value
        else:
            n = self.trace.graph.nodes[node]
            worked, error = weigh(tree, n, {})
            self.allowed += abs(factor) * float(error + slack(n, worked))
            yield from self._of_tree(tree, factor, self._where(node, place))

    def _of_tree(self, tree: Tree, factor: float, known: Place | None) -> Iterator[tuple[Place, float]]:
        match tree:
            case ("is", _, part) | ("made", _, part) | ("picked", _, part) | ("rounded", part):
                yield from self._of_tree(part, factor, known)
            case "sum", terms, *_:
                for i, term in enumerate(terms):
                    value, where = factor * _value(term), self._of_term(term, i, len(terms)) or known
                    whole = where is not None and (where[0] or not self._batched)
                    if value and not whole and self._sums(term):
                        yield from self._of_tree(term, factor, where)
                    else:
                        yield where or NOWHERE, self._counted(value)
            case "add", left, right:
                yield from self._of_tree(left, factor, known)
                yield from self._of_tree(right, factor, known)
            case "sub", left, right:
                yield from self._of_tree(left, factor, known)
                yield from self._of_tree(right, -factor, known)
            case "neg", part:
                yield from self._of_tree(part, -factor, known)
            case ("mul", left, right) if self._sums(left) and not self._sums(right):
                yield from self._of_tree(left, factor * _value(right), known)
            case ("mul", left, right) if self._sums(right) and not self._sums(left):
                yield from self._of_tree(right, factor * _value(left), known)
            case ("div", left, right) if self._sums(left) and not self._sums(right):
                yield from self._of_tree(left, factor / _value(right), known)
            case "cell", node, place, _ if self._sums(tree):
                yield from self._of_cell(node, place, factor)
            case _:
                yield self._of_term(tree, 0, 0) or known or NOWHERE, self._counted(factor * _value(tree))

    def _counted(self, value: float) -> float:
        self._size, self._terms = self._size + abs(value), self._terms + 1
        return value

    def _sums(self, tree: Tree) -> bool:
        """Whether a sum over tokens or examples is inside; a gradient without those axes is one, in what made it."""
        for part in walk(tree, set()):
            if part[0] == "sum":
                return True
            if part[0] == "cell":
                n: Node = self.trace.graph.nodes[part[1]]
                sizes = dict(zip(n.axes.split(), n.shape, strict=False))
                each = set(sizes) & set(TOKENS) and (not self._batched or sizes.get(EXAMPLES, 1) > 1)
                if n.plan is not None and n.name.startswith("grad:") and not each:
                    return True
        return False

    def _of_term(self, tree: Tree, i: int, count: int) -> Place | None:
        """The token that a product is of: where the tensors that it reads say so, else by its number among the rows."""
        cells = [part for part in walk(tree, set()) if part[0] == "cell"]
        places = [where for part in cells if (where := self._where(part[1], part[2])) is not None]
        if places:
            return max(places, key=lambda where: sum(map(bool, where)))
        for name in self.trace.names:
            n = self.trace.graph.nodes[self.trace.graph.names[name]]
            rows, places_in_row = (*n.shape, 0, 0)[:2]
            if n.kind == "input" and places_in_row and count == rows * places_in_row:
                example, token = divmod(i, places_in_row)
                return (f"example {example + 1}" if rows > 1 else "", f"place {token + 1}")
            if n.kind == "input" and rows and count == rows:
                return f"example {i + 1}", ""
        return None

    def _where(self, node: int, place: int) -> Place | None:
        """The example and the token of a cell, if its tensor has such axes."""
        nodes, at = self.trace.graph.resolve(node, np.asarray([place]), lambda m: bool(m.axes))
        n = self.trace.graph.nodes[int(nodes[0])]
        index, letters = n.index(int(at[0])), n.axes.split()
        if len(letters) != len(n.shape):
            return None
        tokens = [axis for axis, letter in enumerate(letters) if letter in TOKENS]
        examples = [axis for axis, letter in enumerate(letters) if letter == EXAMPLES and n.shape[axis] > 1]
        if not tokens and not examples:
            return None
        token = [self.trace.called(n, axis, index[axis]) or f"place {index[axis] + 1}" for axis in tokens[:1]]
        return f"example {index[examples[0]] + 1}" if examples else "", "".join(token)

    def title(self, digits: int = 4) -> str:
        """The number, and what its parts sum to."""
        value, total = format_number(self.value, digits), format_number(self.total, digits)
        kind, count = self.parts[0].kind, len(self.parts)
        counted = f"{count} {kind}s, which sum" if count > 1 else f"1 {kind}, which comes"
        off = f"off by {abs(self.total - self.value):.1g}, and rounding allows {self.allowed:.1g}"
        return f"{self.name} = {value}: {counted} to {total}, {off}"

    def rows(self, count: int = SHOWN, digits: int = 4) -> list[Row]:
        """Value, share and label of the largest parts, and of the others together."""
        return rows(self.parts, count, digits)

    def __repr__(self) -> str:
        return "\n".join([self.title(), *lines(self.parts)])

    def _repr_html_(self) -> str:
        return html_table(self.title(), self.parts)


def _value(tree: Tree) -> float:
    return float(np.real(weigh(tree, EXACT, {})[0]))
