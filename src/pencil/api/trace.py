"""`pencil.trace`: of a run with what it reads, labelled as the command line labels it; of any other module as it is."""

from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from ..config import UserError, nearest
from ..families.family import family
from ..inference.int8 import refuse_int8
from ..runs.run import Loaded
from ..tracing import live_trace
from .loading import load


def trace(what: Any, *inputs: Any, **options: Any) -> live_trace.LiveTrace:
    """Run a model once and record every operation; any cell of any tensor then unfolds into its arithmetic.

    `what` is a run (its folder, or what `pencil.load` gives), and then the input and the options are those of `pencil
    trace`: `trace("runs/notes-gpt", "the cat sat")`, `trace("runs/digits-dit", label="7", step=1)`; `double=True` is
    double precision. The axes have the labels of the command line. Or it is any nn.Module or function of tensors,
    and the inputs are its own (see `tracing.live_trace.trace`).
    """
    if isinstance(what, str | Path | Loaded):
        return trace_loaded(*prepare_trace(what, inputs, options))
    if isinstance(what, torch.nn.Module):
        refuse_int8(what, "traced")
    return live_trace.trace(what, *inputs, **options)


def trace_loaded(loaded: Loaded, options: Any, double: bool = False) -> live_trace.LiveTrace:
    """The trace of an opened run with its family's options."""
    kind = family(loaded.run.family)
    assert kind.trace is not None
    return kind.trace(loaded, options, double)


def prepare_trace(what: Any, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Loaded, Any, bool]:
    """A run opened, the options of its trace, and whether it is in double precision."""
    loaded = what if isinstance(what, Loaded) else load(what, dtype="auto")
    refuse_int8(loaded.model, "traced")
    kind = family(loaded.run.family)
    if kind.trace is None:
        raise UserError(f"a {kind.name} is traced as a module: pencil.trace(loaded.model, …)")
    double = keywords.pop("double", False)
    options = _options(kind.trace_options, inputs, keywords)
    options.check()
    half = next(loaded.model.parameters()).dtype in (torch.bfloat16, torch.float16)
    if isinstance(what, Loaded) and (double or half or loaded.device.type != "cpu"):
        copy = deepcopy(loaded.model).cpu()  # the caller's stays as it is
        loaded = loaded._replace(model=copy.float() if half else copy)
    return loaded, options, double


def _options(kind: type, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The options of a family's trace, by the names they have on the command line."""
    names = {"input" if one.name == "given" else one.name: one.name for one in fields(kind)}
    if len(inputs) > 1 or (inputs and ("input" not in names or "input" in keywords)):
        raise UserError(f"a run is traced with {', '.join(f'{name}=…' for name in names)}; it takes no further input")
    values = {**({"input": inputs[0]} if inputs else {}), **keywords}
    for name, value in values.items():
        if name not in names:
            raise UserError(f"{name} is not an option of this run's trace; {nearest(name, [*names, 'double'])}")
        if name == "input" and not isinstance(value, str | Path):
            raise UserError("the input of a run is a text or the path of an image; tensors: pencil.trace(model, …)")
    return kind(**{names[name]: str(value) if name == "input" else value for name, value in values.items()})
