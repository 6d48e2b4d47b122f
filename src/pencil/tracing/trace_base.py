"""A recorded trace: its tensors by name, and parts of them. Needs numpy alone."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..config import UserError, nearest
from .address import Label, address, located, occurrence, parse, written_index
from .graph import Array, Graph, Node

LISTED = "pencil show WHAT lists the names, of the same run, file or example; in Python t.names does"
COUNTING = "An index counts from 0; a name such as head 1 or patch 1 counts from 1."


class TraceBase:
    """What a run computed: `t[name]` is a tensor, `t[name][index]` a cell or a part.

    `labels` are the labels of the indices along an axis, by its letter; with a prefix of names before the letter
    ("next.T") they are those of that part of the trace alone. `facts` holds what else is known:
    "first_patch", the index of the first token that is a patch of an image; "grid", the number of patches down and
    across (of a video, along time first); "text", a text the model generated; "first_word", the index of its first
    token. `shared` makes the page with all views of the explorer, where the trace is of a model that it opens: from the
    edits, a title, the cell to open, and what hears of the progress; else `alone` says why the page has numbers alone.
    """

    shared: "Callable[[Sequence[str], str, str, Callable[[float], object]], str] | None" = None
    alone: str = "they need a run, and this is the trace of a module"

    def __init__(
        self,
        graph: Graph,
        labels: Mapping[str, list[str]] | None = None,
        facts: Mapping[str, Any] | None = None,
    ):
        self.graph, self.labels, self.facts = graph, dict(labels or {}), dict(facts or {})
        self.elsewhere = ""  # where names are that this trace does not have, as the end of a sentence

    @property
    def names(self) -> list[str]:
        """The names of values, in the order they were recorded."""
        named = [n for n in self.graph.nodes if n.named or n.kind in ("input", "weight")]
        return [name for n in named for name in (n.name, *n.also)]

    def matching(self, pattern: str) -> list[str]:
        """The names that fit a pattern, in which * stands for any letters and ? for one."""
        return [name for name in self.names if fnmatchcase(name, pattern)]

    def find(self, name: str) -> int:
        """The node of a name; one that does not exist is refused, with the nearest."""
        if name in self.graph.names:
            return self.graph.names[name]
        if hint := self._in_its_weight(name, ()):
            raise UserError(hint)
        whole = f"a name is written whole, without * or ?; {LISTED}"
        help_ = whole if set("*?") & set(name) else near(name, self.graph.names)
        raise UserError(f"nothing in the trace is called {name}; {help_}{self.elsewhere}")

    def _in_its_weight(self, name: str, parts: Sequence[Any]) -> str:
        """For a new or clipped view of a weight, such as new:blocks.0.attn.w_q: which cell of the weight to ask for.

        After a step a weight has one tensor, as it is stored; of a range or without an index the first cell is named.
        """
        prefix, _, of = name.partition(":")
        if prefix not in ("new", "clipped") or name in self.graph.names:
            return ""
        try:
            flat = self.view(node := self.find(of))[self.indices(self.graph.nodes[node], parts)].flat.reshape(-1)[:1]
        except UserError:  # that name, or its cell, does not exist either
            return ""
        if not flat.size:
            return ""
        (at,), (place,) = self.graph.resolve(node, flat)
        weight = self.graph.nodes[int(at)]
        whole = next((one for one in (weight.name, *weight.also) if f"{prefix}:{one}" in self.graph.names), "")
        if weight.kind != "weight" or not whole:
            return ""
        cell = address("", self.graph.nodes[node].index(int(flat[0])))
        stored = address(f"{prefix}:{whole}", weight.index(int(place)))
        return f"there is no {name}: {of} is a view of {whole}, and its cell {cell} there is {stored}"

    def words(self, letter: str, count: int, name: str = "") -> list[str]:
        """A label for each index along an axis of the tensor of this name, or the index itself."""
        return self.labels_along(letter, count, name) or [str(i) for i in range(count)]

    def labels_along(self, letter: str, count: int, name: str = "") -> list[str] | None:
        """The labels along an axis, if it has any; keys are labelled as tokens are."""
        path = name.rpartition(":")[2].split(".")  # a gradient has the labels of what it belongs to
        for axis in (letter, "T" if letter == "S" else ""):
            for end in range(len(path) - 1, -1, -1):
                labels = self.labels.get(".".join((*path[:end], axis)), ())
                if axis and len(labels) == count:
                    return list(labels)
        return None

    def called(self, n: Node, axis: int, index: int) -> str | None:
        """The label of an index along an axis, if it has one; of equal labels with its number."""
        labels = self.labels_along(n.letter(axis), n.shape[axis], n.name)
        return None if labels is None else labels[index] + occurrence(labels, index)

    def axis_words(self, n: Node, axis: int) -> list[str]:
        """A label, or the index itself, for each index along an axis of a tensor."""
        return self.words(n.letter(axis), n.shape[axis], n.name)

    def locate(self, where: str) -> tuple[str, tuple[int | slice, ...]]:
        """The name and the index of an address, with its labels looked up."""
        name, parts = parse(where)
        if hint := self._in_its_weight(name, parts):
            raise UserError(hint)
        return name, self.indices(self.graph.nodes[self.find(name)], parts)

    def indices(self, n: Node, parts: Sequence[Any]) -> tuple[Any, ...]:
        """An index whose labels are looked up along the axes they stand for."""
        out, left = [], list(parts)
        while left:
            part, axis = left.pop(0), len(out)
            if not isinstance(part, Label):
                out.append(part)
                continue
            if axis >= len(n.shape):
                raise UserError(f"{n.name} has {len(n.shape)} axes, and {part} stands for one more")
            letter = n.letter(axis)
            # heads have names that no model has to give; names count from 1
            heads = [f"head {i + 1}" for i in range(n.shape[axis])] if letter in ("h", "g") else []
            labels = self.labels_along(letter, n.shape[axis], n.name) or heads
            what = f"{letter} of {n.name}" if letter else f"axis {axis} of {n.name}"
            if not labels:
                same = (at for at, words in self.labels.items() if len(words) == n.shape[axis] and part.text in words)
                hint = "".join(f"; along {at} it is {list(self.labels[at]).index(part.text)}" for at in same)
                last = n.shape[axis] - 1
                raise UserError(f"{what} has no labels: give an index from 0 to {last} instead of {part}{hint}")
            if part.text not in labels and not part.quoted:
                # a label with commas, such as patch 1,2, may stand without quotes
                for more in range(1, len(left) + 1):
                    joined = ",".join(map(str, (part, *left[:more])))
                    if joined in labels:
                        part, left = Label(joined, True), left[more:]
                        break
            out.append(located(part, labels, what))
        return tuple(out)

    def open(self, node: int) -> None:
        """Make sure that how a node was computed is known."""

    def array(self, name: str) -> Array:
        return self.graph.value(self.find(name))

    def view(self, node: int) -> "ViewBase":
        """A tensor as a whole."""
        return ViewBase(self, node)

    def __getitem__(self, where: str) -> Any:
        if not isinstance(where, str):
            raise UserError(f"a trace has names, not {where!r}: t.names lists them, and t[name] is the tensor of one")
        name, index = self.locate(where)
        view = self.view(self.find(name))
        return view[index] if index else view

    @property
    def size(self) -> str:
        """How many names it has, and how many operations they stand among."""
        return f"{len(self.names)} named tensors, of {len(self.graph.nodes)} that were computed or read"

    def __repr__(self) -> str:
        return f"<a trace with {self.size}: t.names, t[name][index].why()>"

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __bool__(self) -> bool:
        return True

    def __contains__(self, name: str) -> bool:
        return name in self.graph.names


def near(name: str, names: Iterable[str]) -> str:
    """The nearest of these names, or how to see them."""
    nearby = nearest(name, set(names))
    return nearby if nearby.startswith("did you mean") else LISTED


class ViewBase:
    """A tensor of a trace, or a part of it."""

    def __init__(self, trace: TraceBase, node: int, flat: Array | None = None):
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
        if any(isinstance(i, str) for i in index):
            if self._flat is not None:
                raise UserError(f"labels are looked up in a whole tensor: index {self.node.name} once, with all")
            index = self.trace.indices(self.node, [Label(i) if isinstance(i, str) else i for i in index])
        try:
            if self._flat is None and len(index) == len(self.node.shape) and all(isinstance(i, int) for i in index):
                # one cell of a large tensor, without an index for all the others
                at = [i + n if i < 0 else i for i, n in zip(index, self.node.shape, strict=True)]
                place = np.ravel_multi_index(at, self.node.shape) if at else 0
                return type(self)(self.trace, self.id, np.asarray(place))
            return type(self)(self.trace, self.id, np.asarray(self.flat[index]))
        except (IndexError, ValueError):
            written = ", ".join(map(written_index, index))
            axes = f" ({self.node.axes})" if self.node.axes else ""
            shape = "×".join(map(str, self.node.shape)) or "a single number"
            raise UserError(f"{self.node.name} has no cell [{written}]: its shape is {shape}{axes}") from None

    def __iter__(self) -> "Iterator[ViewBase]":
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        if not self.shape:
            raise UserError(f"{self.node.name} is one number here, float(…) of it; it has no parts to go through")
        return self.shape[0]

    def __bool__(self) -> bool:
        return True

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
