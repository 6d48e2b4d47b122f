"""Every head switched off in turn: how one number of the answer changes, on the tokens of the answer as it was."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..config import UserError
from ..tracing.live_trace import LiveTrace
from ..tracing.replacements import Mean, Replacement, resolved
from .answers import NOBODY, Listener, one_thread, softmax
from .attention_views import group_of, layer_of
from .edits import Edit, EditedModel
from .json_values import number
from .outline import tensors
from .requests import State
from .session import Session

LOGITS = "logits"
TO = {"0": 0.0, "mean": Mean()}  # what the values of a head become, as an edit says it


def head_values(trace: LiveTrace) -> list[tuple[str, int]]:
    """The values of the heads in each attention of a trace, and how many heads it has."""
    nodes = [n for n in tensors(trace) if n.named and n.name.endswith(".z") and len(n.shape) == 4]
    return [(n.name, n.shape[1]) for n in nodes if n.letter(1) == "h"]


def ablations(
    session: Session, raw: State | Mapping[str, Any], cell: str, to: str = "0", listener: Listener = NOBODY
) -> dict[str, Any]:
    """For each head, with its values 0 or their mean over the positions: the number in a cell, and its probability."""
    if to not in TO:
        raise UserError(f"a head is set to 0 or to its mean, not to {to}")
    state = session.state(raw)
    trace, edits = session.record(state, listener), session.located_edits(state)
    name, index = trace.locate(cell)
    node = trace.graph.nodes[trace.find(name)]
    if len(index) != len(node.shape) or not all(isinstance(i, int) for i in index):
        raise UserError(f"{cell} is not one number: give an index for each axis")
    if not node.named:
        raise UserError(f"{name} is known to a trace alone: choose a number that has a name in the model")
    labels, heads = trace.axis_words(node, len(node.shape) - 1), head_values(trace)
    rows, total = [], sum(count for _, count in heads)

    def measured(*more: Edit) -> dict[str, Any]:
        return logit_of(name, *run_of(trace, [*edits, *more], name, index), index, labels)

    with one_thread(session.live), torch.no_grad():
        before = measured()
        for z, count in heads:
            replacement = TO[to]
            if isinstance(replacement, Replacement):
                replacement = resolved(trace, z, replacement)
            for head in range(count):
                listener.step(len(rows), total, "switching one head off after another")
                after = measured(Edit(z, (slice(None), head), replacement))
                change = number(after["value"] - before["value"])
                where = {"name": z, "group": group_of(z), "layer": layer_of(z), "head": head}
                rows.append({**where, "edit": f"{z}[:,{head}]={to}", "change": change, **after})
    return {"cell": cell, "to": to, **before, "heads": rows}


def logit_of(name: str, value: float, row: np.ndarray, index: Sequence[Any], labels: Sequence[str]) -> dict[str, Any]:
    """A number; of a logit also its probability, and the likeliest there."""
    if name != LOGITS:
        return {"value": number(value)}
    return {
        "value": number(value),
        "probability": number(softmax(row)[index[-1]]),
        "top": labels[int(np.argmax(row))],
    }


def run_of(
    trace: LiveTrace, edits: Sequence[Edit], name: str, index: Sequence[Any], model: Any = None
) -> tuple[float, np.ndarray]:
    """A cell and its row along the last axis, of a run on the tokens of the trace that is not recorded.

    `model` is another one in the place of the trace's own.
    """
    traced, index = trace.traced_model, tuple(index)
    model = EditedModel(traced.model if model is None else model, edits, [name])
    model(*traced.inputs, **traced.keywords)
    model.check()
    row = model.seen[name][index[:-1]].detach().double().cpu().numpy()
    return float(row[index[-1]]), row
