"""Cells of traces as plain data: slices, receipts, contributions, and what differs between two traces."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..config import UserError
from ..tracing.address import address
from ..tracing.contributions import Contributions, Part
from ..tracing.lens import LENS
from ..tracing.live_trace import LiveTrace
from ..tracing.receipt import Term
from ..tracing.receipt import label as label_of
from ..tracing.show import differences, only_in
from ..tracing.trace import Trace
from .answers import one_thread
from .edits import with_edits
from .json_values import number, packed
from .requests import State
from .session import Session

MOST_SLICE_CELLS = 2_000_000
MOST_LISTED = 12  # tensors of different shapes that a note names


def tensor_slice(
    session: Session,
    key: str,
    name: str,
    index: str | Sequence[int | None] | None = None,
    minus: Trace | None = None,
) -> dict[str, Any]:
    """One or two axes of a tensor, the others at an index; with `minus` less the same cells of that trace."""
    trace = session.any_trace(key)
    node = trace.graph.nodes[trace.find(name)]
    at = _index(index, node.shape)
    shown = [axis for axis, i in enumerate(at) if i is None]
    if prod(node.shape[axis] for axis in shown) > MOST_SLICE_CELLS:
        raise UserError(f"{name} has too many cells to show at once: choose an index along one more axis")
    part = tuple(slice(None) if i is None else i for i in at)
    values = _real(trace.view(trace.find(name))[part].value if part else trace.view(trace.find(name)).value)
    if minus is not None:
        if minus.graph.nodes[minus.find(name)].shape != node.shape:
            raise UserError(f"{name} has another shape in the other trace, so there is no difference to show")
        with np.errstate(invalid="ignore"):
            values = values - _real(minus.view(minus.find(name))[part].value)
    finite = values[np.isfinite(values)]
    labels = [trace.axis_words(node, axis) for axis in shown]
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


def receipt(session: Session, key: str, cell: str, digits: int = 4) -> dict[str, Any]:
    """How one number was computed."""
    trace = session.any_trace(key)
    if not 1 <= digits <= 17:
        raise UserError(f"digits must be from 1 to 17, not {digits}")
    why = trace[cell].why(digits)
    places = {term: i for i, term in enumerate(why.terms)}
    nodes = trace.graph.nodes

    def called(term: Term) -> str:
        return (
            label_of(nodes[trace.graph.names[term.name]], term.index) if term.name in trace.graph.names else term.where
        )

    return {
        "cell": why.where,
        "label": why.label,
        "name": why.name,
        "index": list(why.index),
        "kind": why.kind,
        "op": why.op,
        "formula": why.formula,
        "meaning": why.meaning,
        "lines": list(why.lines()),
        "steps": [{"word": s.word, "formula": s.formula, "value": number(s.value)} for s in why.steps],
        "terms": [{"cell": t.where, "label": called(t), "value": number(t.value)} for t in why.terms],
        "leading": [places[term] for term in why.leading],
        "reworked": None if why.reworked is None else number(why.reworked),
        "recorded": number(why.recorded),
        "allowed": number(why.allowed),
        "agrees": why.agrees,
        "masked": why.masked,
        "ends": list(why.ends),
    }


def contributions(
    session: Session, key: str, cell: str, against: str | None = None, part: str | None = None
) -> dict[str, Any]:
    """What each part of the model added to one number; with `part` the parts of that one."""
    with one_thread(session.live):
        whole = find_contributions(session, key, cell, against)
        return contribution_table(whole, cell, against or None, whole.part(part) if part else None)


def find_contributions(session: Session, key: str, cell: str, against: str | None = None) -> Contributions:
    """The contributions to one number; the last few are kept, since the page asks for their parts one by one."""
    against = against or None
    return session.contributions.get_or_make(
        (key, cell, against), lambda: session.trace(key).contributions(cell, against)
    )


def contribution_table(
    whole: Contributions, cell: str, against: str | None = None, part: Part | None = None
) -> dict[str, Any]:
    """What each part added to a cell, or to its difference from another; or what one of these parts is made of."""
    parent = whole if part is None else part
    parts = list(parent.parts)
    return {
        "cell": cell,
        "against": against,
        "value": number(parent.value),
        "total": number(whole.total if part is None else sum(inner.value for inner in parts)),
        "allowed": number(whole.allowed),
        "held": list(whole.held),
        "parts": [_part(inner) for inner in parts],
    }


def _part(part: Part) -> dict[str, Any]:
    return {
        "id": part.id,
        "label": part.label,
        "kind": part.kind,
        "value": number(part.value),
        "share": number(part.share),
        "cell": part.cell,
        "parts": part.count,
    }


def _index(index: str | Sequence[int | None] | None, shape: Sequence[int]) -> list[int | None]:
    """An index for each axis, None for those that are shown: the last two, unless given."""
    if index is None or index == "":
        return [0] * max(0, len(shape) - 2) + [None] * min(2, len(shape))
    parts: list[Any] = [part.strip() for part in index.split(",")] if isinstance(index, str) else list(index)
    try:
        indices = [None if part in (":", None) else int(part) for part in parts]
    except (TypeError, ValueError):
        raise UserError(f"{index} is not an index such as 0,2,:,:") from None
    sizes = "×".join(map(str, shape)) or "a single number"
    if len(indices) != len(shape) or not all(i is None or 0 <= i < n for i, n in zip(indices, shape, strict=True)):
        raise UserError(f"[{','.join(map(str, parts))}] is no index of a tensor of shape {sizes}")
    if sum(i is None for i in indices) > 2:
        raise UserError(f"at most two axes are shown at once: give an index for the others of {sizes}")
    return indices


def _real(values: ArrayLike) -> np.ndarray:
    values = np.asarray(values)
    return (np.abs(values) if np.iscomplexobj(values) else values).astype(np.float64)


# ---- two traces, or a state before and after an edit


def compare(a: LiveTrace, b: LiveTrace) -> dict[str, Any]:
    """The tensors both have that differ: by how much at most, by how much of the largest value, and where.

    Of those that are `counted` (ids, masks): how many of them differ, and the share of these.
    """
    tensors, notes, shapes = [], [], []
    for differing in differences(a, b):
        if differing.shapes:
            shapes.append((differing.name, *("×".join(map(str, shape)) or "1" for shape in differing.shapes)))
            continue
        values = np.asarray(a.array(differing.name))
        counted = values.dtype.kind in "iub"  # of ids and masks: by how much they differ says nothing
        if counted:
            most = int(np.sum(values != np.asarray(b.array(differing.name))))
            relative = most / values.size
        else:
            most, sizes = differing.most, np.abs(values)
            largest = float(np.max(sizes[np.isfinite(sizes)], initial=0.0))
            relative = differing.most / largest if largest else np.inf
        tensors.append(
            {
                "name": differing.name,
                "shape": list(values.shape),
                "most": number(most),
                "relative": number(relative),
                "cell": address(differing.name, differing.index),
                "counted": counted,
            }
        )
    if shapes:
        listed = ", ".join(f"{name} ({x} and {y})" for name, x, y in shapes[:MOST_LISTED])
        more = f" and {len(shapes) - MOST_LISTED} more" if len(shapes) > MOST_LISTED else ""
        notes.append(f"Not compared, since their shapes differ: {listed}{more}.")
    if a.graph.blocks or b.graph.blocks:
        notes.append("The inside of blocks that were not opened is not compared, only what they give.")
    return {
        "tensors": tensors,
        "first": tensors[0]["name"] if tensors else None,
        # what was looked at through the lens is no difference
        "only_a": [name for name in only_in(a, b) if not LENS.match(name)],
        "only_b": [name for name in only_in(b, a) if not LENS.match(name)],
        "notes": notes,
    }


def compare_edit(session: Session, raw: State | Mapping[str, Any], edit: str) -> dict[str, Any]:
    """A state before and after one more edit: both answers, and the tensors that changed."""
    state = session.state(raw)
    more = state.with_edits((*state.edits, edit))
    before, after = session.compute_answer(state), session.compute_answer(more)
    trace, same = session.record(state), before.written == after.written
    if same:
        changed = session.record(more)
    else:
        # on the tokens of the answer before, so that only the edit makes a difference
        changed = with_edits(trace, session.located_edits(more)[-1:])
    difference = compare(trace, changed)
    if not same:
        difference["notes"].append("The answers differ in their tokens; the tensors are compared on those before.")
    return {**difference, "before": before.shown, "after": after.shown}
