"""The view Learn: one training step, as plain data. Its numbers are those of the step's trace."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import nn

from ..core.attention import Attention
from ..tracing.address import address
from ..tracing.receipt import label
from ..tracing.step import StepTrace
from ..tracing.step_tape import GRADIENT, NEW, PROBABILITIES
from .attention_views import MOST_THUMBNAIL_CELLS
from .json_values import number, packed
from .requests import Refused
from .session import Session

MOST_TARGETS = 200  # that are listed
MOST_CHANGES = 12  # weights of those that change most
Array = np.ndarray


def learning(session: Session, key: str) -> dict[str, Any]:
    """A training step: its loss, its targets, how large gradients are in each part, and what changes most."""
    trace = session.any_trace(key)
    if not isinstance(trace, StepTrace):
        raise Refused("this trace is of an answer: open the view Learn for a training step")
    return {
        "loss": number(trace.loss),
        "targets": _targets(trace),
        "norm": number(float(trace.array("grad_norm"))) if "grad_norm" in trace else None,
        "clip": trace.facts["clip"],
        "rates": trace.facts["rates"],
        "parts": list(_parts(trace, session.loaded.model)),
        "changes": _changes(trace),
        "history": trace.facts["history"],
        "undescribed": list(trace.graph.undescribed),
        "note": trace.facts["note"],
    }


def _targets(trace: StepTrace) -> list[dict[str, Any]]:
    """Each target: what stands before it, its name, and how likely the model says it is."""
    targets = [(row, right) for row, right in enumerate(trace.facts["targets"]) if right >= 0]
    if not targets:  # the loss is not of probabilities
        return []
    probabilities, logits = trace.array(PROBABILITIES), trace.graph.nodes[trace.find("logits")]
    after = trace.axis_words(logits, len(logits.shape) - 2) if len(logits.shape) > 2 else []
    names = trace.axis_words(logits, len(logits.shape) - 1)
    return [
        {
            "after": after[row] if after else "",
            "label": names[right],
            "probability": number(probabilities[row, right]),
            "cell": address(PROBABILITIES, (row, right)),
        }
        for row, right in targets[:MOST_TARGETS]
    ]


def _weights(trace: StepTrace) -> list[str]:
    """The weights that have a gradient, by the names of the step."""
    return [name for name in trace.graph.parameters.values() if GRADIENT + name in trace]


def _size(values: Array) -> float:
    """The norm of numbers, as one vector."""
    return float(np.linalg.norm(np.asarray(values, np.float64)))


def _parts(trace: StepTrace, model: nn.Module) -> Iterator[dict[str, Any]]:
    """The parts of the model in the order of computing: blocks, and what stands before and after them."""
    parts: dict[str, list[str]] = {}
    for name in _weights(trace):
        parts.setdefault(_part_of(name), []).append(name)
    for part, names in parts.items():
        yield {
            "id": part,
            "norm": number(_size(np.array([_size(trace.grad[name].value) for name in names]))),
            "heads": list(_head_sizes(trace, part, model)),
            "pairs": [_pair(trace, name) for name in _shown(trace, names)],
        }


def _part_of(name: str) -> str:
    """The block that a weight is in, or the first part of the model."""
    path = name.split(".")
    block = next((i for i, part in enumerate(path) if part.isdigit()), None)
    return path[0] if block is None else ".".join(path[: block + 1])


def _shown(trace: StepTrace, names: Sequence[str]) -> Iterator[str]:
    """The weights of a part as the formulas have them: a joined matrix as the matrices it is made of."""
    divided = set()
    for name in names:
        module = name.rpartition(".")[0].rpartition(".")[0]
        inside = [
            one for one in trace.grad if one.startswith(f"{module}.w_") and one.count(".") == module.count(".") + 1
        ]
        if module in divided:
            continue
        if inside:
            divided.add(module)
            yield from reversed(inside)  # the backward pass meets them in the opposite order
        else:
            yield name


def _head_sizes(trace: StepTrace, part: str, model: nn.Module) -> Iterator[dict[str, Any]]:
    """Of each attention in a part, how large the gradient of each head's W_Q, W_K and W_V is, as one vector."""
    for path, module in model.named_modules():
        name = f"{path}.qkv.weight"
        if not isinstance(module, Attention) or not path.startswith(f"{part}.") or GRADIENT + name not in trace:
            continue
        squares = np.zeros(module.heads)
        gradient = np.asarray(trace.grad[name].value, np.float64)
        for one in np.split(gradient, np.cumsum(module.sizes)[:-1]):
            each = (one.reshape(len(one) // module.head_width, -1) ** 2).sum(1)
            squares += np.repeat(each, module.heads // len(each))  # a group of heads may share its keys and values
        yield {"name": path.rpartition(".")[2], "norms": [number(one) for one in np.sqrt(squares).tolist()]}


def _pair(trace: StepTrace, name: str) -> dict[str, Any]:
    """A weight and its gradient as two small pictures."""
    value, gradient = trace.array(name), trace.grad[name].value
    node = trace.graph.nodes[trace.find(name)]
    small = [_matrix(one) for one in (value, gradient)]
    return {
        "name": name,
        "symbol": node.symbol.split(" = ")[0],
        "shape": list(node.shape),
        "norm": number(_size(gradient)),
        "thumb": list(small[0].shape),
        "value": packed(small[0], "f4"),
        "gradient": packed(small[1], "f4"),
    }


def _matrix(values: Array) -> Array:
    """Values as one small matrix: heads stand side by side, and a cell is the strongest of those it stands for."""
    values = np.asarray(values, np.float64)
    values = values.reshape(1, -1) if values.ndim < 2 else values
    while values.ndim > 2:
        values = np.concatenate(list(values), -1)
    for axis, count in enumerate(values.shape):
        begins = np.linspace(0, count, min(count, MOST_THUMBNAIL_CELLS), endpoint=False).astype(int)
        low, high = np.minimum.reduceat(values, begins, axis), np.maximum.reduceat(values, begins, axis)
        values = np.where(-low > high, low, high)
    return values


def _changes(trace: StepTrace) -> list[dict[str, Any]]:
    """Of each weight tensor the number that the step changes most; the largest changes first."""
    rows = []
    for name in _weights(trace):
        before, after = (np.asarray(trace.array(one), np.float64) for one in (name, NEW + name))
        change = np.abs(after - before)
        at = np.unravel_index(int(change.argmax()), change.shape)
        index = tuple(int(i) for i in at)
        size = _size(before)
        rows.append(
            {
                "cell": address(name, index),
                "label": label(trace.graph.nodes[trace.find(name)], index),
                "before": number(before[at]),
                "after": number(after[at]),
                "gradient": number(trace.grad[name].value[at]),
                "change": number(after[at] - before[at]),
                "relative": number(_size(after - before) / size) if size else None,
            }
        )
    return sorted(rows, key=lambda row: -abs(row["change"]))[:MOST_CHANGES]
