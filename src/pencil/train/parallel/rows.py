"""The rows of a batch that one process has."""

import inspect
from typing import Any

from ...collectives.processes import World
from ...config import UserError
from ..task import Batch


def own_rows(batch: int, here: World) -> slice:
    """The rows of a micro-batch that this process has."""
    each = batch // here.size
    return slice(here.rank * each, (here.rank + 1) * each)


def own_batch(task: Any, step: int, micro: int, here: World) -> Batch:
    """What this process has of a micro-batch; a task that can make some rows alone makes only those."""
    if here.size == 1:
        return task.batch(step, micro)
    rows = own_rows(task.train.batch, here)
    if "rows" in inspect.signature(task.batch).parameters:
        return task.batch(step, micro, rows)
    return cut(task.batch(step, micro), rows, task.train.batch)


def cut(batch: Batch, rows: slice, size: int) -> Batch:
    """Some rows of a batch; a single number belongs to all of them."""
    for tensor in batch:
        if tensor.ndim and len(tensor) != size:
            raise UserError(
                f"a tensor of the batch has {len(tensor)} rows, not the {size} of train.batch, so it cannot be divided "
                "among processes: give every tensor one row for each example"
            )
    return tuple(tensor[rows] if tensor.ndim else tensor for tensor in batch)
