"""Tracing a model: one run recorded whole, or block by block; its values edited, and the model run on."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..config import UserError
from .block_trace import BlockTrace
from .contributions import Contributions, LinearizedModel
from .lens import LENS, Lens
from .loss import logits_of
from .recording import TracedModel
from .replacements import WORDS, Mean, Noise, Patch, Replacement, read_replacement, resolved
from .tape import BUDGET, Tape, TooMuch
from .trace import Trace, View

# ---- edits as they are written: 'blocks.0.attn.pattern[:,2]=0' sets values during the forward pass


EXAMPLE = f"such as 'blocks.0.attn.pattern[:,2]=0'; after = stands {WORDS}"


def parse_edit(text: str) -> tuple[str, float | Replacement]:
    """The address that an edit changes, and the number or what else it is set to."""
    where, equals, value = text.rpartition("=")
    if equals and (replacement := read_replacement(value)) is not None:
        return where, replacement
    try:
        if not equals:
            raise ValueError
        return where, float(value)
    except ValueError:
        raise UserError(f"{text!r} is not an edit, {EXAMPLE}") from None


def edited(trace: Any, edits: Iterable[str], other: Any = None) -> Any:
    """The same run with all these edits; `other` is the trace that those with `patch` take their values from."""
    for edit in edits:
        where, value = parse_edit(edit)
        if isinstance(value, Patch):
            value = resolved(trace, trace.locate(where)[0], value, other)
        trace = trace.edit(where, value)
    return trace


def cannot_set(where: str, value: Any, old: torch.Tensor, error: Exception) -> UserError:
    """Why values cannot be set so, and the mend."""
    why, kind = str(error).splitlines()[0], str(old.dtype).removeprefix("torch.")
    if "overflow" not in why or not isinstance(value, int | float):
        return UserError(f"{where} cannot be changed so: {why}; its shape is {'×'.join(map(str, old.shape))}")
    if old.is_floating_point():
        most = f"{torch.finfo(old.dtype).max:.2g}"
        return UserError(f"{where} cannot be {value:g}: as {kind} it is at most {most}; give a smaller number, or inf")
    return UserError(f"{where} cannot be {value:g}: it is {kind}; give a whole number that fits into it")


def cannot_run(where: str, error: Exception) -> UserError:
    """Why the model does not run on from there, and the mend."""
    why = str(error).splitlines()[0]
    if "out of range" in why or "out of bounds" in why:
        return UserError(
            f"the model cannot run on from {where}: it chooses a row of a table that has no such row; "
            "set it to a smaller whole number, not below 0"
        )
    return UserError(f"the model cannot run on from {where}: {why}; take this edit back, or set another value")


Value = float | int | str | Replacement | Tensor | np.ndarray | Trace | View | Callable[[Tensor], Tensor]


def trace(
    model: nn.Module | Callable[..., Any],
    *inputs: Any,
    words: Mapping[str, list[str]] | None = None,
    facts: Mapping[str, Any] | None = None,
    keep: str = "auto",
    opaque: bool = False,
    **given: Any,
) -> "LiveTrace":
    """Run a model once and record every operation; any cell of any tensor then unfolds into its arithmetic.

    Any nn.Module (or function of tensors) will do: names come from the probe where the model has one, else from the
    modules' paths. `words` (the trace's labels) and `facts` are kept with it (see `Trace`). `keep` is "all", "blocks"
    (only their inputs, each run again when it is opened) or "auto" (all, unless that is more than a gigabyte).

    `targets`, unless the model itself takes an argument of that name, are the right index for each row of its logits,
    −100 where there is none: then `probabilities`, `losses` and `loss` are recorded after the logits.

    An operation that is not described is refused. With `opaque` it is a leaf: its values are recorded, and a receipt
    that reads them says that the proof ends there; `t.graph.undescribed` has the names of all.
    """
    if keep not in ("auto", "all", "blocks"):
        raise UserError(f"keep must be auto, all or blocks, not {keep}")
    traced_model = TracedModel(model, inputs, given, {}, opaque)
    if keep != "blocks":
        try:
            return LiveTrace(traced_model, traced_model.run(BUDGET if keep == "auto" else None), words, facts)
        except TooMuch:
            pass
    return LiveTrace(traced_model, traced_model.run(lazy=True), words, facts)


class LiveTrace(BlockTrace):
    """A trace that still has its model: blocks can be opened, values edited, and the model run on from there."""

    graph: Tape

    def __init__(self, traced_model: TracedModel, tape: Tape, labels: Any = None, facts: Any = None):
        super().__init__(tape, labels, facts)
        self.traced_model = traced_model
        self.linearized: Callable[[], LinearizedModel | None] | None = None  # for contributions, while it is alive
        self.edits: tuple[str, ...] = ()  # as the command line writes them
        self.loss: Callable[..., Tensor] | None = None  # of (model, *inputs), where it is not that of targets

    def open_block(self, path: str) -> None:
        self.traced_model.open_block(self.graph, path)

    @cached_property
    def lens(self) -> Lens:
        """What the model would say after each of its blocks; refused where it has no readout of a residual stream."""
        return Lens(self.traced_model, self.graph)

    def find(self, name: str) -> int:
        path = LENS.match(name)
        if path is not None and name not in self.graph.names and path[0] not in self.graph.opened:
            self.lens.record(path[0])
        return super().find(name)

    def edit(self, where: str, value: Value) -> "LiveTrace":
        """The same run with one value changed: to a number, a tensor, a function of it, or another trace's.

        Or to a word of the command line: "mean" over the positions that each may attend to, or "noise:DEVIATION:SEED",
        Gaussian noise that is added.
        """
        name, index = self.locate(where)
        value = value.value if isinstance(value, View) else value
        if isinstance(value, str):
            if (replacement := read_replacement(value)) is None:
                raise UserError(f"{where} can be changed by {WORDS}, an array, a function or a trace, not by {value!r}")
            value = replacement
        if isinstance(value, Replacement) and not (isinstance(value, Patch) and value.values is not None):
            value = resolved(self, name, value)
        node = self.find(name)
        name = next((n for n in (name, self.graph.nodes[node].name) if n in self.graph.names), name)

        def change(old: Tensor) -> Tensor:
            new: Any = value
            try:
                if isinstance(value, Trace):
                    new = torch.as_tensor(value.array(name)).to(old)[index]
                elif isinstance(value, np.ndarray):
                    new = torch.as_tensor(value).to(old)
                elif isinstance(value, Replacement):
                    new = value.of(old)[index]
                elif callable(value):
                    new = value(old[index])
                old[index] = new
            except (IndexError, RuntimeError, TypeError, ValueError, OverflowError) as error:
                raise cannot_set(where, value, old, error) from None
            return old

        before = self.traced_model.edits
        edits = {**before, name: (lambda old: change(before[name](old))) if name in before else change}
        again = self.traced_model.edited(edits)
        try:
            tape = again.run(lazy=bool(self.graph.blocks))
        except (IndexError, RuntimeError) as error:
            raise cannot_run(where, error) from None
        changed = LiveTrace(again, tape, self.labels, self.facts)
        if isinstance(value, int | float | Mean | Noise):
            changed.shared, changed.alone = self.shared, self.alone
            text = repr(value).removesuffix(".0") if isinstance(value, int | float) else str(value)
            changed.edits = (*self.edits, f"{where}={text}")
        else:
            changed.alone = "they need edits that can be written, and this trace was changed by more than those"
        return changed

    def contributions(self, cell: str, against: str | int | None = None) -> Contributions:
        """What each part of the model added to one number: `contributions("logits[0,a,seven]", against="eight")`.

        `against` is another label or index along the last axis: then to the difference of the two.
        """
        return Contributions(self, cell, against)

    @property
    def output(self) -> Any:
        return self.traced_model.output

    @property
    def logits(self) -> Tensor:
        """The model's logits, as it gave them."""
        return logits_of(self.output)
