"""The logit lens: what a model would say, had it stopped after one of its blocks.

Between the residual stream and the output of a model stands its `readout` (`models/gpt.py`). Here it is run on the
stream after an earlier block, with all else that it was given in the recorded pass: what each block has added to the
answer is then seen in the answer's own words. Its values are called lens.0.norm, lens.0.logits, …, after the block that
was the last to run; those of the stream before the first block lens.input.norm, …. They are recorded when one is first
read, so each has its receipt like any other number.
"""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..config import UserError
from ..core.layers import evaluating
from ..core.notation import SUPERSCRIPTS
from ..core.probe import Name, Probe, branches, renamed
from .graph import Node
from .recording import EveryValue, TracedModel
from .tape import Tape

LENS = re.compile(r"lens\.(input|\d+)(?=\.|:|$)")  # how the names begin


class Readout(nn.Module):
    """The readout of a model as a module of its own, so that it can be called with other weights."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, **given: Any) -> Tensor:
        return self.model.readout(**given)  # pyright: ignore[reportCallIssue]


class Lens:
    """The readout of a recorded model, on the residual stream after any of its blocks."""

    def __init__(self, traced: TracedModel, tape: Tape):
        self.traced, self.tape = traced, tape
        if tape.readout is None:
            raise UserError("there is no logit lens: this model has no readout of a residual stream")
        self.given = dict(tape.readout)
        x: Tensor = self.given.pop("x")
        self.given.pop("probe", None)
        if "last" in self.given:
            self.given["last"] = False
        node = tape.node_of(x)
        nodes, at = tape.resolve(node, np.arange(x.numel()), stop=lambda n: n.named)
        ends = {branch.block: branch.stream for branch in branches(traced.model)}
        last = next((block for block in ends if self._node(block, ends[block]) == nodes[0]), None)
        stream = tape.nodes[nodes[0]].shape
        self.tokens = x.shape[1]  # of those in the stream the last ones are read
        cells = np.arange(tape.nodes[nodes[0]].size).reshape(stream)
        if last is None or not np.array_equal(at, cells[:, stream[1] - self.tokens :].reshape(-1)):
            raise UserError(
                "there is no logit lens: the output is not read from the residual stream as its last block leaves it, "
                "which attention in groups reorders"
            )
        within = last.rpartition(".")[0]
        owner = within.rpartition(".")[0]
        self.blocks = [block for block in ends if block.rpartition(".")[0] == within]
        self.streams = {f"lens.{i}": (block, ends[block]) for i, block in enumerate(self.blocks)}
        first = f"{owner}.input" if owner else "input"
        if first in tape.names:
            self.streams = {"lens.input": (first, first), **self.streams}

    def _node(self, block: str, stream: str) -> int | None:
        """The node of the stream after a block, which has the name of the block while that is closed."""
        return self.tape.names.get(stream, self.tape.names.get(block))

    def _stream(self, path: str) -> Tensor:
        """The recorded stream that a lens reads, known to the tape as its node."""
        if path not in self.streams:
            raise UserError(f"there is no {path}: the lenses are {', '.join(self.streams)}")
        node = self._node(*self.streams[path])
        assert node is not None
        return self.tape.copy_of(node)

    def _run(self, x: Tensor, probe: Probe) -> None:
        changed = {f"model.{name}": value for name, value in self.tape.changed.items()}
        functional_call(Readout(self.traced.model), changed, (), {**self.given, "x": x, "probe": probe})

    def record(self, path: str) -> None:
        """Record what the model would say there, every operation of it."""
        tape = self.tape
        begun, x = (len(tape.nodes), len(tape.alive)), self._stream(path)
        budget, tape.budget = tape.budget, None
        with self.traced.taped(tape, lazy=False):
            tape.path = path
            x = x[:, x.shape[1] - self.tokens :] if x.shape[1] != self.tokens else x
            self._run(x, EveryValue(tape.fire) / path)
        tape.budget = budget
        tape.results[path], tape.opened[path] = [], (begun[0], len(tape.nodes), begun[1], len(tape.alive))
        for described in self.described(path):
            lens = tape.nodes[tape.names[described.name]]
            lens.axes, lens.symbol, lens.formula = described.axes, described.symbol, described.formula

    def described(self, path: str) -> list[Node]:
        """The values of a lens, known before it is recorded: each symbol with the number of the block it is after."""
        # a value that only has one name more, as the norm of a post-norm model, is the stream itself
        nodes, names = self.tape.nodes, self.tape.names
        own = [nodes[names[name]] for name in self.tape.read_out if name in names and nodes[names[name]].name == name]
        after = 0 if path == "lens.input" else int(path.removeprefix("lens.")) + 1
        count = str(after).translate(SUPERSCRIPTS)
        words = {n.symbol: f"{n.symbol}⁽{count}⁾" for n in own if n.symbol}
        words[f"X{str(len(self.blocks)).translate(SUPERSCRIPTS)}"] = f"X{count}"
        entries = (renamed(Name(n.axes, n.symbol, n.formula), words) for n in own)
        return [
            replace(n, name=f"{path}.{n.name}", plan=None, also=(), symbol=entry.symbol, formula=entry.formula)
            for n, entry in zip(own, entries, strict=True)
        ]

    def read(self, path: str, name: str, row: int | None = None) -> np.ndarray:
        """A value of the readout there, without recording it: whole, or of one token alone."""
        found: dict[str, Tensor] = {}

        def keep(name: str, value: Tensor) -> Tensor:
            found[name] = value
            return value

        model, x = self.traced.model, self._stream(path)
        x = x[:, x.shape[1] - self.tokens :]
        with evaluating(model.modules()), torch.no_grad():
            self._run(x if row is None else x[:, row : row + 1], EveryValue(keep))
        if name not in found:
            raise UserError(f"{name} is not read from the residual stream; that is {', '.join(found)}")
        value = found[name].detach().double().cpu().numpy()
        return value if row is None else value[:, 0]
