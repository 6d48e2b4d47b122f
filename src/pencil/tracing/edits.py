"""Edits as they are written: 'blocks.0.attn.pattern[:,2]=0' sets values during the forward pass."""

from collections.abc import Iterable
from typing import Any

import torch

from ..config import UserError

EXAMPLE = "such as 'blocks.0.attn.pattern[:,2]=0'"


def parse_edit(text: str) -> tuple[str, float]:
    """The address that an edit changes, and the number it is set to."""
    where, equals, value = text.rpartition("=")
    try:
        if not equals:
            raise ValueError
        return where, float(value)
    except ValueError:
        raise UserError(f"{text!r} is not an edit, {EXAMPLE}") from None


def edited(trace: Any, edits: Iterable[str]) -> Any:
    """The same run with all these edits."""
    for one in edits:
        trace = trace.edit(*parse_edit(one))
    return trace


def cannot_set(where: str, value: Any, old: torch.Tensor, error: Exception) -> UserError:
    """Why values cannot be set so, and the mend."""
    why, kind = str(error).splitlines()[0], str(old.dtype).removeprefix("torch.")
    if "overflow" not in why or not isinstance(value, int | float):
        return UserError(f"{where} cannot be changed so: {why}; its shape is {'×'.join(map(str, old.shape))}")
    if old.is_floating_point():
        most = f"{torch.finfo(old.dtype).max:.2g}"
        return UserError(f"{where} cannot be {value:g}: as {kind} it is at most {most}; give a smaller number, or inf")
    return UserError(f"{where} cannot be {value:g}: it is {kind}; give a whole number that fits into it")


def cannot_run(where: str, error: Exception) -> UserError:
    """Why the model does not run on from there, and the mend."""
    why = str(error).splitlines()[0]
    if "out of range" in why or "out of bounds" in why:
        return UserError(
            f"the model cannot run on from {where}: it chooses a row of a table that has no such row; "
            "set it to a smaller whole number, not below 0"
        )
    return UserError(f"the model cannot run on from {where}: {why}; take this edit back, or set another value")
