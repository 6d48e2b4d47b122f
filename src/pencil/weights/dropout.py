"""Dropout of another library's configs: it changes no output. Import reports it, export writes ours."""

from collections.abc import Mapping
from typing import Any

from .maps import Architecture


def dropout_fields(architecture: Architecture, config: Any) -> dict[str, float]:
    """Their fields of dropout at our settings, so that a library's default does not take their place."""
    if not architecture.dropout:
        return {}
    attention = config.dropout if config.attention_dropout is None else config.attention_dropout
    own = {"dropout": config.dropout, "attention_dropout": attention}
    return {theirs: own[ours] for theirs, (ours, _) in architecture.dropout.items()}


def about_dropout(architecture: Architecture, theirs: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence about dropout that the original has: ours is 0 until it is set."""
    usual = {name: default for name, (_, default) in architecture.dropout.items()}
    rates = {name: default if theirs.get(name) is None else theirs[name] for name, default in usual.items()}
    used = ", ".join(f"{name} {rate}" for name, rate in rates.items() if rate)
    return (
        (f"its dropout ({used}) is not taken over: training from it has none unless --model.dropout sets it",)
        if used
        else ()
    )
