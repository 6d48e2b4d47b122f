"""The residual streams of a traced model: stacks of lines, one line for each token, and what hangs from them.

The blocks of a model say what hangs from their stream and what it is called after each of it (`core/probe.py`:
`branches`); the blocks of one list are a stack. Which line an input begins on, and from which lines a number is read,
is known by no name: the model with its nonlinear parts held is affine (`contributions.py`), and its gradients say both
exactly.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..config import UserError
from ..core.probe import Branch, branches
from ..core.token_groups import Grouping
from .contributions import Contributions, Leaf, LinearizedModel, linearized
from .graph import Node, refs
from .live_trace import LiveTrace

CONDITION = "condition"  # the value that sets the norms, and the stack of what it is the sum of
Row = tuple[int, ...]


@dataclass
class Stack:
    """Lines that attend to one another: the name of the stream before the first block, and a label for each line.

    What sets the norms has no stream; its lines are the `parts` that it is the sum of.
    """

    id: str
    title: str
    stream: str
    labels: list[str]
    parts: tuple[str, ...] = ()


@dataclass
class Column:
    """What hangs from the lines of a stack at one place: one head after another, or an MLP without a pattern."""

    branch: Branch
    kind: str  # attn, cross or mlp
    stack: Stack
    keys: Stack  # that it reads
    block: int
    heads: int
    pattern: str
    group: Grouping | None  # of tokens that attend only to one another


class Place(NamedTuple):
    """A line of a stack."""

    stack: str
    line: int


class ResidualStreams:
    """The stacks and the columns of one trace; `groups` are those of the stack read out, in the rotation of blocks."""

    def __init__(self, trace: LiveTrace, groups: Sequence[Grouping | None] = (None,)):
        self.trace, self.graph, self.groups = trace, trace.graph, groups
        self.branches = branches(trace.traced_model.model)
        if not self.branches:
            raise UserError("the blocks of this model do not say what hangs from their residual stream")
        paths = list(dict.fromkeys(map(_list_of, self.branches)))
        self.read_out = paths[-1]  # the stack that the output is read from
        self.stacks = {path: self._stack(path, len(paths) > 1) for path in paths}
        if any(branch.modulation for branch in self.branches):
            parts = tuple(n.name for n in self._before(self.graph.names[CONDITION]))
            labels = [name.partition(".")[0] for name in parts]
            self.stacks[CONDITION] = Stack(CONDITION, CONDITION, "", labels, parts)
        self.columns = [self._column(branch) for branch in self.branches]

    def _stack(self, path: str, several: bool) -> Stack:
        owner = path.rpartition(".")[0]
        stream = f"{owner}.input" if owner else "input"
        if stream not in self.graph.names:
            raise UserError(f"the model does not name what goes into {path}: {stream} is missing")
        title = owner.rpartition(".")[2].replace("_", " ") or ("decoder" if self._crosses(path) else "")
        title = title if several else ""
        return Stack(path, title, stream, self.trace.axis_words(self.node(stream), 1))

    def _crosses(self, path: str) -> bool:
        return any(branch.path.endswith(".cross") for branch in self.branches if _list_of(branch) == path)

    def node(self, name: str) -> Node:
        return self.graph.nodes[self.trace.find(name)]

    def _before(self, node: int) -> Iterator[Node]:
        """The nearest values with names that a node was computed from, in their order; itself, if it has another."""
        todo, seen = [node], set[int]()
        while todo:
            i = todo.pop(0)
            n = self.graph.nodes[i]
            if i in seen or n.kind in ("weight", "constant"):
                continue
            seen.add(i)
            if n.named and (i != node or n.name != CONDITION):
                yield n
            else:
                todo += refs(n.plan)

    def _column(self, branch: Branch) -> Column:
        stack, pattern = self.stacks[_list_of(branch)], f"{branch.path}.pattern"
        number, what = int(branch.block.rpartition(".")[2]), branch.path.rpartition(".")[2]
        group = self.groups[number % len(self.groups)] if stack.id == self.read_out else None
        if pattern not in self.trace.traced_model.declared:
            return Column(branch, "mlp", stack, stack, number, 1, "", group)
        heads = self.node(pattern).shape[1]
        keys = self._read_by(branch) if what == "cross" else stack
        return Column(branch, "attn" if keys is stack else "cross", stack, keys, number, heads, pattern, group)

    def _read_by(self, branch: Branch) -> Stack:
        """The stack that cross-attention reads: the nearest whose stream its keys were computed from."""
        streams = {name: _list_of(one) for one in self.branches for name in (one.stream, one.block)}
        todo, seen = [self.trace.find(f"{branch.path}.k")], set[int]()
        while todo:
            i = todo.pop(0)
            n = self.graph.nodes[i]
            for name in (n.name, *n.also):
                if name in streams:
                    return self.stacks[streams[name]]
            seen.add(i)
            todo += [j for j in dict.fromkeys(refs(n.plan)) if j not in seen]
        return self.stacks[_list_of(branch)]

    # ---- gradients that say where

    @property
    def model(self) -> LinearizedModel:
        return linearized(self.trace)

    @cached_property
    @torch.inference_mode(False)
    def places(self) -> dict[tuple[str, Row], Place]:
        """The line that each row of a source begins on, where it is one line; of pixels each cell is a row.

        The lines of a stream are weighted once alike and once by their number: the second gradient of a row that feeds
        one line alone is the first times the number of that line.
        """
        found: dict[tuple[str, Row], Place] = {}
        for stack in self.stacks.values():
            values = [self.model.values[name] for name in stack.parts or [stack.stream]]
            of = torch.stack(values, 1) if stack.parts else values[0]
            if not of.requires_grad:
                continue
            numbers = torch.arange(1, of.shape[1] + 1, dtype=of.dtype)[:, None]
            ones = torch.randn(of.shape[-1], generator=torch.Generator().manual_seed(0), dtype=of.dtype).expand_as(of)
            numbered = dict(self.model.over_all_paths(of, ones * numbers))
            for leaf, grad in self.model.over_all_paths(of, ones):
                for row, line in _lines(leaf, grad, numbered[leaf]):
                    found.setdefault((leaf.name, row), Place(stack.id, line))
        return found

    @torch.inference_mode(False)
    def read_from(self, number: Contributions) -> tuple[str, list[int], int]:
        """The stack that a number is read from, its lines, and the row of the batch; "" where it is read from none."""
        ends = {column.branch.stream: column for column in reversed(self.columns)}
        for name, column in ends.items():
            value = self.model.values.get(name)
            if value is None or not value.requires_grad:
                continue
            (grad,) = torch.autograd.grad(number.of, [value], number.weights, retain_graph=True, allow_unused=True)
            if grad is None or not bool((grad != 0).any()):
                continue
            rows, lines = (grad != 0).any(-1).nonzero(as_tuple=True)
            if column.group is not None:
                lines = column.group.order.reshape(column.group.count, -1)[rows % column.group.count, lines]
                rows = rows // column.group.count
            return column.stack.id, sorted(set(lines.tolist())), int(rows[0])
        return "", [], 0


def _list_of(branch: Branch) -> str:
    """The path of the list that the block of a branch is in."""
    return branch.block.rpartition(".")[0]


def _lines(leaf: Leaf, grad: Tensor, numbered: Tensor) -> Iterator[tuple[Row, int]]:
    """The rows of a source that feed one line alone, each with that line."""
    rows = leaf.value.shape if leaf.kind == "pixel" else leaf.value.shape[:-1]
    a, b = grad.reshape(prod(rows), -1), numbered.reshape(prod(rows), -1)
    size = a.square().sum(1)
    number = ((a * b).sum(1) / size).round()
    alone = (size > 0) & ((b - a * number[:, None]).square().sum(1) <= EXACT_SQUARED * b.square().sum(1))
    for i in alone.nonzero()[:, 0].tolist():
        yield tuple(int(j) for j in np.unravel_index(i, rows)) if rows else (), int(number[i]) - 1


EXACT_SQUARED = 1e-20  # of a gradient: what double precision may leave between two ways to compute it
