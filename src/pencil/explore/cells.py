"""Cells of a trace as plain data: slices of a tensor, and the receipt of one number."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..config import UserError
from ..tracing.live_trace import LiveTrace
from ..tracing.receipt import label as label_of
from ..tracing.trace_base import letter_of
from .plain import number, packed

LARGEST_SLICE = 2_000_000  # cells of a slice


def sliced(
    trace: LiveTrace, name: str, index: str | Sequence[int | None] | None = None, minus: LiveTrace | None = None
) -> dict[str, Any]:
    """One or two axes of a tensor, the others held at an index; with `minus` less the same cells of that trace."""
    node = trace.graph.nodes[trace.find(name)]
    at = _index(index, node.shape)
    shown = [axis for axis, i in enumerate(at) if i is None]
    if prod(node.shape[axis] for axis in shown) > LARGEST_SLICE:
        raise UserError(f"{name} has too many cells to show at once: choose an index along one more axis")
    part = tuple(slice(None) if i is None else i for i in at)
    values = _real(trace.view(trace.find(name))[part].value if part else trace.view(trace.find(name)).value)
    if minus is not None:
        if minus.graph.nodes[minus.find(name)].shape != node.shape:
            raise UserError(f"{name} has another shape in the other trace, so there is no difference to show")
        with np.errstate(invalid="ignore"):
            values = values - _real(minus.view(minus.find(name))[part].value)
    finite = values[np.isfinite(values)]
    labels = [trace.words(letter_of(node, axis), node.shape[axis], name) for axis in shown]
    return {
        "name": name,
        "index": at,
        "shape": [node.shape[axis] for axis in shown],
        "values": packed(values, "f8"),
        "rows": labels[0] if len(labels) == 2 else [""],
        "columns": labels[-1] if labels else [""],
        "low": float(finite.min(initial=np.inf)) if finite.size else 0.0,
        "high": float(finite.max(initial=-np.inf)) if finite.size else 0.0,
    }


def receipt(trace: LiveTrace, cell: str, digits: int = 4) -> dict[str, Any]:
    """How one number was computed."""
    if not 1 <= digits <= 17:
        raise UserError(f"digits must be from 1 to 17, not {digits}")
    found = trace[cell].why(digits)
    places = {term: i for i, term in enumerate(found.terms)}
    nodes = trace.graph.nodes

    def called(term: Any) -> str:
        return (
            label_of(nodes[trace.graph.names[term.name]], term.index) if term.name in trace.graph.names else term.where
        )

    return {
        "cell": found.where,
        "label": found.label,
        "name": found.name,
        "index": list(found.index),
        "kind": found.kind,
        "op": found.op,
        "formula": found.formula,
        "meaning": found.meaning,
        "lines": list(found.lines()),
        "steps": [{"word": s.word, "formula": s.formula, "value": number(s.value)} for s in found.steps],
        "terms": [{"cell": t.where, "label": called(t), "value": number(t.value)} for t in found.terms],
        "leading": [places[term] for term in found.leading],
        "reworked": None if found.reworked is None else number(found.reworked),
        "recorded": number(found.recorded),
        "allowed": number(found.allowed),
        "agrees": found.agrees,
        "masked": found.masked,
    }


def _index(index: str | Sequence[int | None] | None, shape: Sequence[int]) -> list[int | None]:
    """An index for each axis, None for those that are shown: the last two, unless given."""
    if index is None or index == "":
        return [0] * max(0, len(shape) - 2) + [None] * min(2, len(shape))
    parts: list[Any] = [part.strip() for part in index.split(",")] if isinstance(index, str) else list(index)
    try:
        found = [None if part in (":", None) else int(part) for part in parts]
    except (TypeError, ValueError):
        raise UserError(f"{index} is not an index such as 0,2,:,:") from None
    sizes = "×".join(map(str, shape)) or "a single number"
    if len(found) != len(shape) or not all(i is None or 0 <= i < n for i, n in zip(found, shape, strict=True)):
        raise UserError(f"[{','.join(map(str, parts))}] is no index of a tensor of shape {sizes}")
    if sum(i is None for i in found) > 2:
        raise UserError(f"at most two axes are shown at once: give an index for the others of {sizes}")
    return found


def _real(values: Any) -> np.ndarray:
    values = np.asarray(values)
    return (np.abs(values) if np.iscomplexobj(values) else values).astype(np.float64)
