"""A recorded trace: its tensors by name, and parts of them. Needs numpy alone."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..config import UserError, nearest
from .graph import Array, Graph, Node


def parse(where: str) -> tuple[str, Any]:
    """A name and an index: "attn.pattern[0, 2, :, 3]"."""
    found = re.fullmatch(r"([^\[\]]+?)\s*(?:\[([-\d\s,:]*)\])?\s*", where.strip())
    if not found:
        raise UserError(f"{where!r} is not a name with an index, such as blocks.0.attn.scores[0,1,2,3]")
    name, inside = found[1], found[2]
    if inside is None or not inside.strip():
        return name, ()
    index: list[int | slice] = []
    for part in inside.split(","):
        bits = part.split(":")
        try:
            numbers = [int(bit) if bit.strip() else None for bit in bits]
        except ValueError:
            raise UserError(f"{part.strip()!r} in {where} is not a whole number or a range") from None
        if len(bits) == 1 and numbers[0] is None:
            raise UserError(f"an index is missing in {where}")
        index.append(slice(*numbers) if len(bits) > 1 else numbers[0])  # pyright: ignore[reportArgumentType]
    return name, tuple(index)


class RecordedTrace:
    """What a run computed: `t[name]` is a tensor, `t[name][index]` a cell or a part.

    `labels` are the labels of the indices along an axis, by its letter. `facts` holds what else is known:
    "first_patch", the index of the first token that is a patch of an image; "grid", the number of patches down and
    across (of a video, along time first); "text", a text the model generated; "first_word", the index of its first
    token.
    """

    def __init__(
        self,
        graph: Graph,
        labels: Mapping[str, list[str]] | None = None,
        facts: Mapping[str, Any] | None = None,
    ):
        self.graph, self.labels, self.facts = graph, dict(labels or {}), dict(facts or {})

    @property
    def names(self) -> list[str]:
        """The names of values, in the order they were recorded."""
        known = [n for n in self.graph.nodes if n.named or n.kind in ("input", "weight")]
        return [name for n in known for name in (n.name, *n.also)]

    def find(self, name: str) -> int:
        """The node of a name; one that does not exist is refused, with the nearest."""
        if name in self.graph.names:
            return self.graph.names[name]
        raise UserError(f"nothing in the trace is called {name}; {_near(name, set(self.graph.names))}")

    def words(self, letter: str, count: int) -> list[str]:
        """A label for each index along an axis, or the index itself; keys are labelled as tokens are."""
        for one in (letter, "T" if letter == "S" else ""):
            if len(self.labels.get(one, ())) == count:
                return list(self.labels[one])
        return [str(i) for i in range(count)]

    def open(self, node: int) -> None:
        """Make sure that how a node was computed is known."""

    def array(self, name: str) -> Array:
        return self.graph.value(self.find(name))

    def view(self, node: int) -> "RecordedView":
        """A tensor as a whole."""
        return RecordedView(self, node)

    def __getitem__(self, where: str) -> Any:
        name, index = parse(where)
        view = self.view(self.find(name))
        return view[index] if index else view

    def _repr_html_(self) -> str:
        """The names, for a notebook."""
        from html import escape

        nodes = [self.graph.nodes[self.graph.names[name]] for name in self.names]
        rows = ((n.symbol, n.name, "×".join(map(str, n.shape)), n.formula) for n in nodes)
        lines = ("<tr>" + "".join(f"<td>{escape(part)}</td>" for part in row) + "</tr>" for row in rows)
        return f"<table>{''.join(lines)}</table>"

    def __repr__(self) -> str:
        return f"<a trace of {len(self.graph.nodes)} tensors: t.names, t[name][index].why()>"

    def __contains__(self, name: str) -> bool:
        return name in self.graph.names


def _index(one: Any) -> str:
    if not isinstance(one, slice):
        return str(one)
    ends = ["" if end is None else str(end) for end in (one.start, one.stop, one.step)]
    return ":".join(ends[: 3 if ends[2] else 2])


def _near(name: str, known: set[str]) -> str:
    found = nearest(name, known)
    return found if found.startswith("did you mean") else "see the names with: pencil show"


class RecordedView:
    """A tensor of a trace, or a part of it."""

    def __init__(self, trace: RecordedTrace, node: int, flat: Array | None = None):
        self.trace, self.id, self._flat = trace, node, flat
        self.node: Node = trace.graph.nodes[node]

    @property
    def flat(self) -> Array:
        """The places of its cells among the row-major values of the whole tensor."""
        if self._flat is None:
            self._flat = np.arange(self.node.size).reshape(self.node.shape)
        return self._flat

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        try:
            if self._flat is None and len(index) == len(self.node.shape) and all(isinstance(i, int) for i in index):
                # one cell of a large tensor, without an index for all the others
                at = [i + n if i < 0 else i for i, n in zip(index, self.node.shape, strict=True)]
                place = np.ravel_multi_index(at, self.node.shape) if at else 0
                return type(self)(self.trace, self.id, np.asarray(place))
            return type(self)(self.trace, self.id, np.asarray(self.flat[index]))
        except (IndexError, ValueError):
            given = ", ".join(map(_index, index))
            axes = f" ({self.node.axes})" if self.node.axes else ""
            shape = "×".join(map(str, self.node.shape)) or "a single number"
            raise UserError(f"{self.node.name} has no cell [{given}]: its shape is {shape}{axes}") from None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape if self._flat is None else self._flat.shape

    @property
    def value(self) -> Array:
        """The recorded values."""
        if self._flat is None:
            return self.trace.graph.value(self.id)
        return self.trace.graph.cells(self.id, self.flat.reshape(-1)).reshape(self.flat.shape)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape)) or "one cell"
        return f"<{self.node.name}: {shape}; .value, .why()>"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self.value if dtype is None else self.value.astype(dtype)

    def __float__(self) -> float:
        return float(self.value)
