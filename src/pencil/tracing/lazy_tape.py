"""A tape that leaves blocks closed: it keeps their inputs, and runs one again when it is opened."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from .memory import off
from .tape import Edit, Tape


class BlockTape(Tape):
    """Records everything, or of some blocks only their inputs and outputs."""

    def __init__(self, budget: int | None = None, edits: Mapping[str, Edit] | None = None):
        super().__init__(budget, edits)
        self.blocks: dict[str, tuple[Any, Any, Any]] = {}  # path -> module and arguments, of closed blocks
        self.begun: tuple[int, int] = (0, 0)  # nodes and objects held, when the block now being opened began
        self.results: dict[str, list[int]] = {}  # path -> the nodes of its outputs
        self.opened: dict[str, tuple[int, int, int, int]] = {}  # path -> its nodes, and objects held, from and to

    def copied(self, value: Tensor) -> Tensor:
        """A copy of the tensor in its own memory, known as the same node."""
        node = self.node_of(value)
        with off():
            new = value.detach().clone()
        self._own(new, node)
        return new

    def close(self, path: str, module: Any, args: Any, kwargs: Any) -> None:
        """Record nothing until the block is left; keep its inputs."""
        self.blocks[path] = (module, args, kwargs)
        self.paused = True

    def block_outputs(self, path: str, outs: list[Tensor]) -> None:
        """Record the outputs of a block, without its inside."""
        self.results[path] = []
        for i, out in enumerate(outs):
            if id(out) not in self.of:
                node = self._add(out, "block", "block", ("block", path, i), path if not i else f"{path}.{i}")
                self.nodes[node].named = True
                self.results[path].append(node)
            else:
                self.results[path].append(self.of[id(out)][0])

    def block_opened(self, path: str, outs: list[Tensor]) -> None:
        """Its inside is now recorded: its outputs follow from it, if they are the same to the last bit."""
        for node, out in zip(self.results[path], outs, strict=True):
            before = self.kept[node]
            if before is None or not torch.equal(torch.nan_to_num(before), torch.nan_to_num(out)):
                raise UserError(f"{path} gave other values when it was run again, so its inside cannot be shown")
            inner = self.of[id(out)][0]
            if inner != node:
                made, n = self.nodes[inner], self.nodes[node]
                n.plan, n.op, n.kind = made.plan, made.op, made.kind
                made.named, made.also = False, ()
                self.names = {name: node if i == inner else i for name, i in self.names.items() if name != f"{path}#2"}
        begun, held = self.begun
        self.opened[path] = (begun, len(self.nodes), held, len(self.held))

    def forget(self, path: str) -> None:
        """Drop the inside of an opened block; it can be opened again."""
        begun, end, first, last = self.opened.pop(path)
        for i, node in enumerate(self.results[path]):
            n = self.nodes[node]
            n.plan, n.op, n.kind = ("block", path, i), "block", "block"
        inside = set(range(begun, end))
        for node in inside:
            self.kept[node], self.nodes[node].named = None, False
            self._arrays.pop(node, None)
        for value in self.held[first:last]:
            self.of.pop(id(value), None)
        self.held[first:last] = [torch.empty(0)] * (last - first)
        results = self.results[path]
        kept = {k: v for k, v in self.names.items() if v not in inside}
        self.names = {k: v for k, v in kept.items() if v not in results or not k.startswith(f"{path}.")}
