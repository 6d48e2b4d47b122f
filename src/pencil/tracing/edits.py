"""Edits as they are written: 'blocks.0.attn.pattern[:,2]=0' sets values during the forward pass."""

from collections.abc import Iterable
from typing import Any

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
