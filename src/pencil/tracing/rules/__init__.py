"""How each ATen operation computes a cell: one description a kind of operation, as a plan (see `graph`)."""

from ..graph import Plan
from . import cells, lines, made, moves, sums
from .words import RULES, Call, In

__all__ = ["RULES", "Call", "In", "cells", "describe", "lines", "made", "moves", "sums"]


def describe(call: Call) -> tuple[str, Plan]:
    """The kind and the plan of an operation's output."""
    kind, made_by = RULES[call.op]
    return kind, made_by(call)
