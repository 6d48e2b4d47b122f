"""What an operation that only moves values did: found by sending the places of its inputs through it."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .graph import Array, Plan
from .memory import laid_like, off
from .rules import In

# those that only view memory
VIEWS = set(
    "view _unsafe_view reshape _reshape_alias permute transpose t expand squeeze unsqueeze slice select split "
    "unsafe_split split_with_sizes unbind diagonal unfold".split()
)
DATA = ("self", "input", "tensors", "src", "source", "values", "value")  # arguments whose values are moved


def moved(
    func: Any,
    inputs: dict[str, Any],
    given: dict[str, Any],
    which: int,
    table: Callable[[Array], str],
    constant: Callable[[float, torch.dtype], int],
) -> Plan:
    """The plan of one output: strides where it is a view, else a table of places in the inputs laid end to end."""
    if func is None:
        raise NotImplementedError("a form of it that only writes in place")
    if func._schema.overload_name == "dtype":
        raise NotImplementedError("the same bits read as another dtype")
    if given.get("accumulate") or given.get("reduce"):
        raise NotImplementedError("places that are added to")
    data = [name for name in DATA if any(True for _ in _tensors(inputs.get(name)))]
    op = func._schema.name.split("::")[1]
    if op in VIEWS and data == ["self"]:
        x = inputs["self"]
        with off():
            out = func(**{**given, "self": torch.empty(x.shape, device="meta")})
        out = out[which] if isinstance(out, list | tuple) else out
        return ("ref", x.node, int(out.storage_offset()), list(out.stride()), [])
    sources: list[int] = []
    start = 0

    def numbered(x: Any) -> Any:
        nonlocal start
        if isinstance(x, list):
            return [numbered(one) for one in x]
        sources.append(x.node)
        begin, start = start, start + int(np.prod(x.shape, dtype=np.int64))
        places = torch.arange(begin, start).reshape(x.shape)
        return laid_like(places, given["self"]) if op == "as_strided" else places

    with off():
        args: dict[str, Any] = {name: _on_cpu(value) for name, value in given.items() if name != "out"}
        if op == "constant_pad_nd":
            args.setdefault("value", 0)
        args |= {name: numbered(inputs[name]) for name in data}
        for name in ("value", "fill_value"):
            if isinstance(args.get(name), int | float):
                sources.append(constant(float(args[name]), given["self"].dtype))
                args[name], start = start, start + 1
        out = func(**args)
    out = out[which] if isinstance(out, list | tuple) else out
    return ("table", table(out.numpy().reshape(-1)), sources)


def _tensors(x: Any) -> Iterator[In]:
    for one in x if isinstance(x, list) else [x]:
        if isinstance(one, In):
            yield one


def _on_cpu(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_on_cpu(one) for one in value]
    return value.cpu() if isinstance(value, Tensor) else value
