"""Whether the graph of a trace file can be followed: checked before anything is computed from it.

Every plan has a known form, reads nodes and places that exist, and no chain of nodes leads back to itself; what it
would compute is bounded by what the file holds.
"""

from collections.abc import Mapping, Sequence
from math import prod
from string import Formatter
from typing import Any

from .functions import FUNCTIONS
from .graph import Array, Node

MOST_NODES, MOST_AXES, DEEPEST = 100_000, 16, 48
SMALL = 1 << 22  # cells that any file may describe, however little it holds
TERMS = 1 << 18  # of one sum, likewise
WIDER, MORE = 4, 32  # how much larger a tensor that only moves values may be than what is stored; and all of them
FAR = 1 << 40


def _arguments(form: str) -> int:
    """How many arguments a function takes, counted in its written form."""
    fields = [field for _, field, _, _ in Formatter().parse(form) if field is not None]
    return len(set(fields)) if fields[0] else len(fields)


ARGUMENTS = {name: _arguments(function.text) for name, function in FUNCTIONS.items()}


def check_entries(entries: Any) -> None:
    """Refuse nodes whose fields are not what they should be."""
    if not isinstance(entries, list) or len(entries) > MOST_NODES:
        raise ValueError(f"its nodes are no list of at most {MOST_NODES:,}")
    for entry in entries:
        texts = [entry["name"], entry["op"], entry["kind"], entry["dtype"]]
        texts += [entry.get(key, "") for key in ("axes", "symbol", "formula")] + list(entry.get("also", ()))
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a node has no name")
        shape = entry["shape"]
        if not isinstance(shape, list) or len(shape) > MOST_AXES or not all(_whole(n, 0) for n in shape):
            raise ValueError(f"{entry['name']} has an impossible shape")
        if not isinstance(entry.get("key"), str | None):
            raise ValueError(f"{entry['name']} has no values")


def _whole(value: Any, least: int = -FAR) -> bool:
    return type(value) is int and least <= value < FAR


class Soundness:
    """The checks of one graph; every failure is a ValueError that names the node."""

    def __init__(self, nodes: Sequence[Node], tables: Mapping[str, Array], arrays: Mapping[str, Array]):
        self.nodes, self.tables = nodes, tables
        sizes = [array.size for array in arrays.values()]
        self.most = max(SMALL, WIDER * max(sizes, default=0))
        self.most_terms = max(TERMS, WIDER * max(sizes, default=0))
        self.most_moved = SMALL + MORE * sum(sizes)
        self.reads: list[set[int]] = []

    def check(self) -> None:
        for me, n in enumerate(self.nodes):
            if n.size > self.most:
                raise ValueError(f"{n.name} has {n.size:,} cells, more than the values of the file could fill")
            self.reads.append(set())
            if n.plan is None:
                continue
            try:
                if self._moves(me, n) or self._terms(me, n, n.plan, 0) == 1:
                    continue
            except (TypeError, IndexError, KeyError, AttributeError):
                pass
            raise ValueError(f"the plan of {n.name} leads nowhere")
        if sum(n.size for n in self.nodes if n.moves) > self.most_moved:
            raise ValueError("it has more cells than the values of the file could fill")
        self._follow()

    def _source(self, me: int, node: Any) -> Node:
        if not _whole(node, 0) or node >= len(self.nodes):
            raise IndexError
        self.reads[me].add(node)
        return self.nodes[node]

    def _moves(self, me: int, n: Node) -> bool:
        """Whether a plan moves values, and only from cells that exist."""
        if not isinstance(n.plan, list):
            return False
        head = n.plan[0]
        if head == "cat":
            _, axis, parts = n.plan
            starts = [start for start, _ in parts]
            if not _whole(axis, 0) or starts[0] != 0 or starts != sorted(set(starts)) or not all(map(_whole, starts)):
                raise IndexError
            for (start, ref), end in zip(parts, [*starts[1:], n.shape[axis]], strict=True):
                slab = [(start, min(end, n.shape[axis])) if a == axis else (0, s) for a, s in enumerate(n.shape)]
                self._within(me, n, ref, slab)
            return True
        if head == "table":
            _, table, sources = n.plan
            size = sum(self._source(me, source).size for source in sources)
            self._in_table(table, n.size, size)
            return True
        if n.moves and head == "ref":
            self._within(me, n, n.plan, [(0, s) for s in n.shape])
            return True
        return False

    def _within(self, me: int, n: Node, ref: Any, ranges: Sequence[tuple[int, int]]) -> None:
        """A ref that moves: the cells it points to, over these ranges of indices, exist."""
        head, node, offset, strides, steps = ref
        if head != "ref" or steps or not self._ref(me, n, ref):
            raise IndexError
        if any(begin >= end for begin, end in ranges):
            return
        low = offset + sum(min(s * begin, s * (end - 1)) for s, (begin, end) in zip(strides, ranges, strict=False))
        high = offset + sum(max(s * begin, s * (end - 1)) for s, (begin, end) in zip(strides, ranges, strict=False))
        if low < 0 or high >= self.nodes[node].size:
            raise IndexError

    def _ref(self, me: int, n: Node, ref: Any) -> int:
        """How many cells a ref lists."""
        _, node, offset, strides, steps = ref
        source = self._source(me, node)
        numbers = [offset, *strides, *(number for step in steps for number in step)]
        if not all(map(_whole, numbers)) or (n.shape and len(strides) != len(n.shape)):
            raise IndexError
        if n.size and not source.size:
            raise IndexError
        if node == me:
            # a running sum reads the cell before; any other cell of its own would be a circle
            before = [prod(n.shape[axis + 1 :]) for axis in range(len(n.shape))]
            if list(strides) != before or offset >= 0 or steps:
                raise ValueError(f"{n.name} reads itself")
            self.reads[me].discard(me)
        count = prod(count for _, count in steps)
        if not all(count >= 1 for _, count in steps) or count > self.most_terms:
            raise IndexError
        return count

    def _in_table(self, table: Any, rows: int, size: int) -> None:
        places = self.tables[table]
        if places.size != rows or (rows and not (0 <= int(places.min()) <= int(places.max()) < size)):
            raise IndexError

    def _terms(self, me: int, n: Node, plan: Any, depth: int) -> int:
        """How many terms a plan lists, each part of it checked."""
        if isinstance(plan, int | float):
            return 1
        if depth > DEEPEST:
            raise ValueError(f"the plan of {n.name} is nested too deeply")
        head = plan[0]
        if head == "num":
            complex(plan[1][:64]) if "j" in plan[1] else float(plan[1][:64])
            return 1
        if head == "axis":
            if not _whole(plan[1], -len(n.shape)) or plan[1] >= len(n.shape):
                raise IndexError
            return 1
        if head == "is":
            if not isinstance(plan[1], str) or len(plan) != 3:
                raise IndexError
            return self._terms(me, n, plan[2], depth + 1)
        if head == "ref":
            return self._ref(me, n, plan)
        if head == "list":
            _, node, table, count = plan
            if not _whole(count, 1) or count > self.most_terms:
                raise IndexError
            self._in_table(table, n.size * count, self._source(me, node).size)
            return count
        counts = [self._terms(me, n, part, depth + 1) for part in plan[1:]]
        if ARGUMENTS.get(head) != len(counts):
            raise IndexError
        if FUNCTIONS[head].reduces:
            counts = counts[1:] or [1]
        if len({count for count in counts if count != 1}) > 1:
            raise IndexError
        return max(counts)

    def _follow(self) -> None:
        """Refuse a chain of nodes that leads back to where it began."""
        open_, done = 1, 2
        state = [0] * len(self.nodes)
        for first in range(len(self.nodes)):
            todo = [first]
            while todo:
                me = todo[-1]
                if state[me]:
                    todo.pop()
                    state[me] = done
                    continue
                state[me] = open_
                for source in self.reads[me]:
                    if state[source] == open_:
                        raise ValueError(f"{self.nodes[me].name} is computed from itself")
                    if not state[source]:
                        todo.append(source)
