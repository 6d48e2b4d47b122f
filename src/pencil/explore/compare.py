"""Two traces compared: the tensors that differ, in the order of computing."""

from typing import Any

import numpy as np

from ..tracing.live_trace import LiveTrace
from ..tracing.show import differences, only_in
from .plain import address, number

LISTED = 12  # tensors of different shapes that a note names


def compare(a: LiveTrace, b: LiveTrace) -> dict[str, Any]:
    """The tensors both have that differ: by how much at most, by how much of the largest value, and where.

    Of those that are `counted` (ids, masks): how many of them differ, and the share of these.
    """
    found, notes, shapes = [], [], []
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
        found.append(
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
        listed = ", ".join(f"{name} ({x} and {y})" for name, x, y in shapes[:LISTED])
        more = f" and {len(shapes) - LISTED} more" if len(shapes) > LISTED else ""
        notes.append(f"Not compared, since their shapes differ: {listed}{more}.")
    if a.graph.blocks or b.graph.blocks:
        notes.append("The inside of blocks that were not opened is not compared, only what they give.")
    return {
        "tensors": found,
        "first": found[0]["name"] if found else None,
        "only_a": list(only_in(a, b)),
        "only_b": list(only_in(b, a)),
        "notes": notes,
    }
