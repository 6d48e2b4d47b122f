"""The bytes that collectives are handed, counted where torch dispatches them."""

from collections import Counter

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

KINDS = {"allreduce": "all-reduce", "all_reduce": "all-reduce", "allgather": "all-gather", "all_gather": "all-gather",
         "reduce_scatter": "reduce-scatter", "alltoall": "all-to-all", "all_to_all": "all-to-all"}  # fmt: skip
FEW = 1024  # bytes of an all-reduce: the loss, the norm of the gradient, targets and flags are a few numbers


class CountedBytes(TorchDispatchMode):
    """Inside it, `found` counts the bytes of every collective: what is gathered, is to be reduced, or goes to others."""

    def __init__(self):
        super().__init__()
        self.found, self.few = Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it is asked again for the tensors inside
        kind = next((kind for word, kind in KINDS.items() if word in func.name()), None)
        if func.namespace in ("c10d", "_c10d_functional") and kind is not None:
            sizes = [t.nbytes for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            size = sizes[1] if kind == "all-to-all" else max(sizes)
            (self.few if kind == "all-reduce" and size <= FEW else self.found)[kind] += size
        return func(*args, **(kwargs or {}))
