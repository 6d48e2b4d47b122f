"""What each part of a model added to one number of its output: terms that sum to it, each divided further on demand.

Some values are held as they were recorded (`held.py`), so that the model is affine. An output is then a sum over what
was added to it directly: by each head, by each MLP, by embeddings, positions and biases. A head divides into the tokens
it read, a token into what had written it, an embedding of a patch into its pixels.
"""

import weakref
from collections import deque
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from html import escape
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import UserError
from .address import Label, parse
from .contribution_labels import Index, Labels, block_of
from .contribution_parts import SHOWN, BlockPart, Part, Row, html_table, lines, rows, shared
from .graph import ROUNDING
from .linearized import HeldModel, Leaf
from .receipt import format_number
from .trace_base import RecordedTrace

EXACT = 1e-12  # of the sum of sizes: what double precision may leave between a number and the sum of its parts

# models are kept for the next cell of the same trace; a large one only as long as it is among the last
_kept: deque[HeldModel] = deque(maxlen=2)


def held_model(trace: Any) -> HeldModel:
    """The model of a trace with its nonlinear parts held: made once, and again when it was dropped."""
    found = trace.held_model() if trace.held_model is not None else None
    if found is None:
        found = HeldModel(trace.recording)
        _kept.append(found)
        trace.held_model = weakref.ref(found)
    return found


class LeafPart(Part):
    """The part of a leaf: its `weights` are how much the output changes with each of its cells."""

    def __init__(
        self,
        tree: "Tree",
        leaf: Leaf,
        index: Index,
        weights: Tensor,
        parent: "LeafPart | None",
        value: float,
        size: float,
        most: int,
    ):
        self.tree, self.leaf, self.index, self.weights, self.parent = tree, leaf, index, weights, parent
        self.size = size
        given = dict(zip(tree.labels.groups(leaf), index, strict=True))
        self.at = tuple(given.get(axis, slice(None)) for axis in range(leaf.value.ndim))
        key = f"{leaf.name}:{','.join(map(str, index))}" if index else leaf.name
        labels = tree.labels
        super().__init__(
            f"{parent.id}/{key}" if parent else key,
            labels.label(leaf, index),
            labels.kind(leaf, index),
            value,
            self._pattern() or labels.cell(leaf, self._where(most)),
        )

    def _where(self, most: int) -> Index:
        """The index of the cell that adds most; `most` counts the cells along the axes that are summed."""
        found: list[int] = []
        for axis in reversed(range(len(self.at))):
            one = self.at[axis]
            if isinstance(one, slice):
                most, one = divmod(most, self.leaf.value.shape[axis])
            found.append(one)
        return tuple(reversed(found))

    def _pattern(self) -> str | None:
        """Of a token that a head read: the weight of attention, at the query that matters most."""
        head = self.parent
        if self.leaf.kind != "value" or head is None or head.leaf.kind != "head":
            return None
        name = f"{self.leaf.name.split('#')[0].rpartition('.')[0]}.pattern"
        pattern, row, key = self.tree.model.held.get(name), *self.index
        if pattern is None or pattern.shape[-1] != self.leaf.value.shape[2] or head.index[0] >= pattern.shape[1]:
            return None
        felt = (head.weights[row, head.index[0]].abs().sum(-1) * pattern[row, head.index[0], :, key]).argmax()
        return f"{name}[{row},{head.index[0]},{int(felt)},{key}]"

    @cached_property
    @torch.inference_mode(False)
    def _divided(self) -> list[Part]:
        if self.leaf.before is None:
            return []
        only = torch.zeros_like(self.weights)
        only[self.at] = self.weights[self.at]
        return self.tree.divide(self.leaf.before, only, self.value, self.label, self)

    @property
    def parts(self) -> list[Part]:
        return self._divided

    @property
    def count(self) -> int:
        if self.leaf.before is None:
            return 0
        if "_divided" in self.__dict__:
            return len(self._divided)
        if self.leaf.kind == "head":
            name = f"{self.leaf.name.split('#')[0].rpartition('.')[0]}.pattern"
            pattern = self.tree.model.held.get(name)
            return self.leaf.value.shape[2] if pattern is None else pattern.shape[-1]
        if self.leaf.kind == "patch":
            fold = next((one.value for one in self.tree.model.leaves if one.kind == "pixel"), self.leaf.value)
            return fold.numel() // self.leaf.value.shape[:-1].numel() + 1
        return self.tree.model.leaves.index(self.leaf)


class Tree:
    """Divides numbers of a held model into parts."""

    def __init__(self, trace: Any, model: HeldModel):
        self.model, self.labels = model, Labels(trace, trace.recording, model)

    def divide(
        self, of: Tensor, weights: Tensor, value: float, label: str, parent: LeafPart | None = None
    ) -> list[Part]:
        """The parts of Σ of·weights, largest first. They sum to it, or an error says that they do not."""
        found: list[LeafPart] = []
        for leaf, grad in self.model.gradients(of, weights):
            axes = self.labels.groups(leaf)
            others = [axis for axis in range(grad.ndim) if axis not in axes]
            rows = [grad.shape[axis] for axis in axes]
            # a row for each part, its cells along it
            weighed = grad.permute(*axes, *others).reshape(prod(rows), -1)
            products = weighed * leaf.value.detach().permute(*axes, *others).reshape(prod(rows), -1)
            values, sizes = products.sum(1).tolist(), products.abs()
            most, sizes = sizes.argmax(1).tolist(), sizes.sum(1).tolist()
            for row in (weighed != 0).any(1).nonzero()[:, 0].tolist():
                index = tuple(int(one) for one in np.unravel_index(row, rows)) if rows else ()
                found.append(LeafPart(self, leaf, index, grad, parent, values[row], sizes[row], most[row]))
        total, size = sum(one.value for one in found), sum(one.size for one in found)
        if not abs(total - value) <= EXACT * max(size, abs(value)):
            raise UserError(
                f"the parts of {label} sum to {total:.6g}, and it is {value:.6g}: this model has a nonlinear part that "
                "contributions do not know how to hold"
            )
        return shared(found)


class Contributions:
    """One number of a model's output, or the difference of two, as a sum of what each part of the model added.

    `value` is the recorded number and `total` the sum of the parts; they differ by no more than `allowed`, the rounding
    of the recorded pass. `held` says what was held. `parts` is every head, MLP, embedding and bias, largest first;
    `blocks` is the same by block. `part(id)` finds a part again.
    """

    @torch.inference_mode(False)
    def __init__(self, trace: Any, cell: str, against: str | int | None = None):
        name, index = _located(trace, cell)
        self.cell, self.against = cell, None if against is None else str(against)
        model = held_model(trace)
        if name in model.held:
            raise UserError(f"{name} is held as it was recorded, so it has no parts; ask for a value computed from it")
        if name not in model.values:
            known = ", ".join(one for one in ("logits", "patches_out", "output") if one in model.values)
            raise UserError(f"contributions are of what the model computes and names, such as {known}, not of {name}")
        of, recorded = model.values[name], trace.array(name)
        weights = torch.zeros_like(of)
        weights[index] = 1.0
        self.value = float(recorded[index])
        if against is not None:
            other = _other(trace, name, index, against)
            if other == index:
                raise UserError(f"{cell} is itself the cell of {against}: give another label along its last axis")
            weights[other] -= 1.0
            self.value -= float(recorded[other])
        if not of.requires_grad:
            raise UserError(f"{name} does not depend on the input or on a bias, so nothing contributes to it")
        beside = ",".join(map(str, (*parse(cell)[1][:-1], against)))
        self.name = cell if against is None else f"{cell} − {name}[{beside}]"
        self.tree = Tree(trace, model)
        exact = float((of.detach() * weights).sum())
        self.parts: list[Part] = self.tree.divide(of, weights, exact, self.name)
        self.total = sum(one.value for one in self.parts)
        rounding = ROUNDING.get(trace.graph.nodes[trace.find(name)].dtype, ROUNDING["float32"]) + ROUNDING["float64"]
        self.allowed = rounding * model.size_of_rounding(of, weights)
        self.held = list(model.sentences)
        if not abs(self.total - self.value) <= self.allowed:
            raise UserError(
                f"the parts of {self.name} sum to {self.total:.6g} and {self.value:.6g} was recorded: more than the "
                f"rounding of {self.allowed:.2g} allows, so the model ran otherwise than it was recorded"
            )

    @cached_property
    def blocks(self) -> list[Part]:
        """The parts by block, largest first; what belongs to no block is by itself."""
        found: dict[str, list[Part]] = {}
        for one in self.parts:
            found.setdefault(block_of(one.id.split(":")[0]) or one.id, []).append(one)
        place = self.tree.labels.place
        grouped = [BlockPart(key, place(key), some) if block_of(key) else copy(some[0]) for key, some in found.items()]
        return shared(grouped)

    def part(self, id: str) -> Part:
        """The part of this id, at any depth."""
        block = next((one for one in self.blocks if one.kind == "block" and one.id == id), None)
        if block is not None:
            return block
        among: Sequence[Part] = self.parts
        keys = id.split("/")
        for depth in range(len(keys)):
            wanted = "/".join(keys[: depth + 1])
            found = next((one for one in among if one.id == wanted), None)
            if found is None:
                raise UserError(f"{self.name} has no part {id}; t.contributions({self.cell!r}).parts lists them")
            if depth == len(keys) - 1:
                return found
            among = found.parts
        raise UserError(f"{self.name} has no part {id}")

    def largest(self, count: int = SHOWN) -> list[Part]:
        """The parts that added or took away most."""
        return self.parts[:count]

    def title(self, digits: int = 4) -> str:
        """The number, and what its parts sum to."""
        value, total = format_number(self.value, digits), format_number(self.total, digits)
        return f"{self.name} = {value}: {len(self.parts)} parts, which sum to {total}, within {self.allowed:.1g}"

    def rows(self, count: int = SHOWN, digits: int = 4) -> list[Row]:
        """Value, share, label and cell of the largest parts, and of the others together."""
        return rows(self.parts, count, digits)

    def __repr__(self) -> str:
        return "\n".join([self.title(), *lines(self.parts), *self.held])

    def _repr_html_(self) -> str:
        return html_table(self.title(), self.parts) + "".join(f"<p>{escape(line)}</p>" for line in self.held)


def _located(trace: RecordedTrace, cell: str) -> tuple[str, Index]:
    name, index = trace.locate(cell)
    shape = trace.graph.nodes[trace.find(name)].shape
    given = [one for one in index if isinstance(one, int)]
    if len(index) != len(shape) or len(given) != len(index):
        raise UserError(
            f"contributions are to one number, and {cell} is more: give an index or a label for each of its "
            f"{len(shape)} axes"
        )
    trace[cell]  # refuses an index that is outside
    return name, tuple(one % size for one, size in zip(given, shape, strict=True))


def _other(trace: RecordedTrace, name: str, index: Index, against: str | int) -> Index:
    """The cell beside this one along the last axis."""
    node = trace.graph.nodes[trace.find(name)]
    last = parse(f"{name}[{against}]")[1] if isinstance(against, str) else (against,)
    if len(last) != 1 or isinstance(last[0], slice):
        last = (Label(str(against), True),)
    found = trace.indices(node, (*index[:-1], last[0]))
    trace.view(trace.find(name))[found]  # refuses an index that is outside
    return (*index[:-1], found[-1] % node.shape[-1])
