"""A part of a trace: chosen tensors, or parts of them, with the values that they read from outside.

A part of a trace is a smaller graph: the chosen nodes and all unnamed steps between them; a named node outside becomes
a value. For a spreadsheet the cells that the chosen ones need are followed back, so that one head has only its own rows
and columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..config import UserError
from .address import Label, parse
from .graph import Array, Graph, Node, leaves
from .trace_base import TraceBase, near

AT_ONCE = 1 << 20  # places that are looked at together


class Cut(Graph):
    """A graph of chosen nodes alone: the named nodes they read are values, and how those were computed is left out."""

    def __init__(self, graph: Graph, cells: Mapping[int, Array]):
        super().__init__((), graph.names)
        self.tables, self.whole = graph.tables, graph
        self.outside = {i for i, n in enumerate(graph.nodes) if n.named and n.plan is not None and i not in cells}
        self.nodes = [replace(n, plan=None) if i in self.outside else n for i, n in enumerate(graph.nodes)]
        inside = self.behind(node for node, mask in cells.items() if mask.any())
        self.outside &= inside
        absent = dict(plan=None, named=False, kind="")
        self.nodes = [n if i in inside else replace(n, **absent) for i, n in enumerate(self.nodes)]
        self.names = {name: i for name, i in graph.names.items() if i in inside}

    def stored(self, node: int) -> Array:
        return self.whole.value(node)


def extract(trace: TraceBase, addresses: Sequence[str]) -> tuple[TraceBase, dict[int, Array]]:
    """The trace of these tensors alone, and which of their cells were chosen."""
    cells = selected(trace, addresses)
    return TraceBase(Cut(trace.graph, cells), trace.labels, trace.facts), cells


def selected(trace: TraceBase, addresses: Sequence[str]) -> dict[int, Array]:
    """The nodes of addresses, in which * and ? of a name stand for any letters, with a mask of the chosen cells.

    An index after such a name chooses among the tensors that it fits: *[0,head 2] those that have heads. Of the others
    no cell is chosen, but where one is read, how it is computed belongs to the part.
    """
    masks: dict[int, Array] = {}
    for address in addresses:
        name, index = parse(address)
        wild = "*" in name or "?" in name
        names = trace.matching(name) if wild else [name]
        if not names:
            raise UserError(f"no tensor of the trace is called {name}; {_near(name, trace.names)}")
        refused: dict[int, UserError] = {}  # by the number of axes
        fits = False
        nodes = [trace.find(name) for name in names]
        tensors = [trace.graph.nodes[node] for node in nodes]
        heads = {size for n in tensors for axis, size in enumerate(n.shape) if n.letter(axis) == "h"}
        for node in nodes:
            trace.open(node)
            view = trace.view(node)
            mask = masks.setdefault(node, np.zeros(view.node.size, bool))
            if wild and _shared(view.node, index, heads):
                continue
            try:
                view = view[trace.indices(view.node, index)] if index else view
            except UserError as error:
                if not wild:
                    raise
                refused.setdefault(len(view.node.shape), error)
                continue
            mask[view.flat.reshape(-1)] = fits = True
        if not fits:
            raise UserError(f"no tensor called {name} has such a part: {refused[max(refused)]}")
    return masks


def _shared(n: Node, index: Sequence[Any], heads: set[int]) -> bool:
    """Whether a head is asked for of keys or values that several heads share, which are numbered otherwise."""
    axes = zip(n.shape, index, strict=False)
    labelled = [size for axis, (size, i) in enumerate(axes) if n.letter(axis) == "g" and isinstance(i, Label)]
    return bool(heads) and any(size not in heads for size in labelled)


def _near(name: str, names: Sequence[str]) -> str:
    """The nearest name, or the nearest beginning of names with a *."""
    split = [full.split(".") for full in names]
    beginnings = {".".join((*words[:end], "*")) for words in split for end in range(1, len(words))}
    return near(name, beginnings | set(names))


def needed(graph: Graph, cells: Mapping[int, Array], is_value: Callable[[int], bool], most: int) -> dict[int, Array]:
    """The cells that chosen ones are computed from, of every node on the way, as masks; whole rows and columns of them.

    It stops at what is a value or follows from constants (`is_value`), and when there are more than `most`.
    """
    masks: dict[int, Array] = {}
    todo: list[tuple[int, Array]] = []
    sizes: dict[int, int] = {}

    def need(node: int, flat: Array) -> None:
        n, old = graph.nodes[node], masks.get(node)
        if is_value(node) or (old is not None and old[flat].all()):
            return
        new = np.zeros(n.size, bool) if old is None else old.copy()
        new[flat] = True
        if n.shape and not new.all():
            grid = np.zeros(n.shape, bool)
            grid[np.ix_(*used(new.reshape(n.shape)))] = True
            new = grid.reshape(-1)
        masks[node], sizes[node] = new, int(new.sum())
        if not n.moves and (total := sum(sizes[m] for m in sizes if not graph.nodes[m].moves)) > most:
            raise TooMany(total)
        todo.append((node, np.flatnonzero(new if old is None else new & ~old)))

    for node, mask in cells.items():
        if mask.any():
            need(node, np.flatnonzero(mask))
    while todo:
        node, flat = todo.pop()
        for source, at in _read(graph, node, flat):
            need(source, at)
    return masks


class TooMany(Exception):
    """More cells than a workbook holds."""


def _read(graph: Graph, node: int, flat: Array) -> Iterator[tuple[int, Array]]:
    """The cells that cells of a node are computed from, each node's with the places there."""
    n = graph.nodes[node]
    if n.plan is None:
        return
    if n.moves:
        nodes, at = graph.step(node, flat)
        yield from ((int(m), at[nodes == m]) for m in np.unique(nodes))
        return
    for ref in (leaf for leaf in leaves(n.plan) if leaf[0] in ("ref", "list")):
        count = ref[3] if ref[0] == "list" else int(np.prod([count for _, count in ref[4]]))
        step = max(1, AT_ONCE // max(1, count))
        for first in range(0, len(flat), step):
            yield ref[1], graph.operands(ref, n, flat[first : first + step]).reshape(-1)


class Region:
    """The part of a tensor that is shown: along each axis the indices of its rows and columns."""

    def __init__(self, whole: tuple[int, ...], mask: Array | None = None):
        self.whole, self.full = whole, mask is None or bool(mask.all())
        if self.full:
            self.indices = [np.arange(size) for size in whole]
        else:
            self.indices = used(np.asarray(mask).reshape(whole))
        self.shape = tuple(len(along) for along in self.indices)
        self.size = int(np.prod(self.shape))

    @property
    def flat(self) -> Array:
        """The places of its cells among those of the whole tensor."""
        if self.full:
            return np.arange(self.size)
        return np.ravel_multi_index(np.ix_(*self.indices), self.whole).reshape(-1)

    def position(self, flat: Array) -> Array:
        """Where cells of the whole tensor are in this part."""
        if self.full:
            return flat
        index = np.unravel_index(flat, self.whole)
        inside = [np.searchsorted(indices, at) for indices, at in zip(self.indices, index, strict=True)]
        return np.ravel_multi_index(inside, self.shape)

    def __str__(self) -> str:
        """The part as an address writes it; … where indices are no range."""
        if self.full:
            return ""
        words = [_range(indices, size) for indices, size in zip(self.indices, self.whole, strict=True)]
        last = max(axis for axis, size in enumerate(self.whole) if self.shape[axis] < size)
        return f"[{','.join(words[: last + 1])}]"


def _range(indices: Array, size: int) -> str:
    first, last = int(indices[0]), int(indices[-1])
    if len(indices) == 1:
        return str(first)
    if len(indices) == size:
        return ":"
    return f"{first}:{last + 1}" if last - first == len(indices) - 1 else "…"


def used(mask: Array) -> list[Array]:
    """Along each axis the indices at which anything is set."""
    axes = range(mask.ndim)
    return [np.flatnonzero(mask.any(tuple(other for other in axes if other != axis))) for axis in axes]
