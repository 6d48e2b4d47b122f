"""Two traces compared, or a state before and after an edit: the tensors that differ, in the order of computing."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..tracing.live_trace import LiveTrace, edited
from ..tracing.show import differences, only_in
from .edits import locate_edit
from .json_values import address, number
from .requests import State
from .session import Session

MOST_LISTED = 12  # tensors of different shapes that a note names


def compare(a: LiveTrace, b: LiveTrace) -> dict[str, Any]:
    """The tensors both have that differ: by how much at most, by how much of the largest value, and where.

    Of those that are `counted` (ids, masks): how many of them differ, and the share of these.
    """
    tensors, notes, shapes = [], [], []
    for one in differences(a, b):
        if one.shapes:
            shapes.append((one.name, *("×".join(map(str, shape)) or "1" for shape in one.shapes)))
            continue
        values = np.asarray(a.array(one.name))
        counted = values.dtype.kind in "iub"  # of ids and masks: by how much they differ says nothing
        if counted:
            most = int(np.sum(values != np.asarray(b.array(one.name))))
            relative = most / values.size
        else:
            most, sizes = one.most, np.abs(values)
            largest = float(np.max(sizes[np.isfinite(sizes)], initial=0.0))
            relative = one.most / largest if largest else np.inf
        tensors.append(
            {
                "name": one.name,
                "shape": list(values.shape),
                "most": number(most),
                "relative": number(relative),
                "cell": address(one.name, one.index),
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
        "only_a": list(only_in(a, b)),
        "only_b": list(only_in(b, a)),
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
        changed = edited(trace, [str(locate_edit(session.record(state.with_edits(())), edit))])
    difference = compare(trace, changed)
    if not same:
        difference["notes"].append("The answers differ in their tokens; the tensors are compared on those before.")
    return {**difference, "before": before.shown, "after": after.shown}
