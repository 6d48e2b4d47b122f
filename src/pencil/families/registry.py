"""The registry: a family's record by its name."""

from collections.abc import Mapping
from typing import Any

from ..config import UserError, nearest
from .family import Family

FAMILIES: dict[str, Family] = {}


def register(record: Family) -> None:
    """Add a family: from then on every verb knows it."""
    FAMILIES[record.name] = record


def family(name: str) -> Family:
    """The record of that name."""
    if name not in FAMILIES:
        raise UserError(f"{name} is not a family of models; {nearest(name, FAMILIES)}")
    return FAMILIES[name]


def configure(name: str, preset: str | None = None, **values: Any) -> Any:
    """The config of a family's model: a preset, with these values over it."""
    return family(name).configure(preset, **values)


def create(name: str, config: Mapping[str, Any] | Any) -> Any:
    """The model of a family from its config, or from a table of settings."""
    return family(name).create(config)


def parameters(name: str, config: Any) -> int:
    """The number of parameters of a family's model, without allocating them."""
    return family(name).parameters(config)
