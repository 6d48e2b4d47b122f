"""Contributions as plain data: the parts of an output number, and the parts of a part."""

from typing import Any

from ..tracing.contributions import Contributions
from .plain import number


def contributed(found: Contributions, cell: str, against: str | None = None, part: Any = None) -> dict[str, Any]:
    """What each part added to a cell, or to its difference from another; or what one of these parts is made of."""
    parent = found if part is None else part
    parts = list(parent.parts)
    return {
        "cell": cell,
        "against": against,
        "value": number(parent.value),
        "total": number(found.total if part is None else sum(one.value for one in parts)),
        "allowed": number(found.allowed),
        "held": list(found.held),
        "parts": [_part(one) for one in parts],
    }


def _part(part: Any) -> dict[str, Any]:
    return {
        "id": part.id,
        "label": part.label,
        "kind": part.kind,
        "value": number(part.value),
        "share": number(part.share),
        "cell": part.cell,
        "parts": part.count,
    }
