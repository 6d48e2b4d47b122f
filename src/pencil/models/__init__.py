"""The families: one frozen config, a table of presets, and a module each."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from ..config import UserError, build, nearest
from .gpt import GPT, GPTConfig
from .gpt import PRESETS as GPT_PRESETS


class Family(NamedTuple):
    """What builds the models of one kind."""

    config: type
    model: type[nn.Module]
    presets: dict[str, dict]
    default: str


FAMILIES = {"gpt": Family(GPTConfig, GPT, GPT_PRESETS, "nano")}


def family(name: str) -> Family:
    if name not in FAMILIES:
        raise UserError(f"{name} is not a family of models; {nearest(name, FAMILIES)}")
    return FAMILIES[name]


def configure(name: str, preset: str | None = None, **values: Any) -> Any:
    """The config of a family: a preset, with these values over it."""
    kind = family(name)
    preset = preset or kind.default
    if preset not in kind.presets:
        raise UserError(f"{preset} is not a preset of {name}; {nearest(preset, kind.presets)}")
    return build(kind.config, kind.presets[preset] | values, "model.")


def create(name: str, config: Mapping[str, Any] | Any) -> Any:
    """The model of a family from its config, or from a table of its values."""
    kind = family(name)
    return kind.model(build(kind.config, config, "model.") if isinstance(config, Mapping) else config)
