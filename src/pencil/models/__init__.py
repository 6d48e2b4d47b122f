"""The families: one frozen config, a table of presets, and a module each."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from ..config import UserError, build, nearest
from . import captioner, dit, gpt, reader, seq2seq, vit
from .parts import parameters as count_parameters


class Family(NamedTuple):
    """What builds the models of one kind."""

    config: type
    model: type[nn.Module]
    presets: dict[str, dict]
    default: str


FAMILIES = {
    "gpt": Family(gpt.GPTConfig, gpt.GPT, gpt.PRESETS, "nano"),
    "vit": Family(vit.ViTConfig, vit.ViT, vit.PRESETS, "nano"),
    "captioner": Family(captioner.CaptionerConfig, captioner.Captioner, captioner.PRESETS, "nano"),
    "dit": Family(dit.DiTConfig, dit.DiT, dit.PRESETS, "nano"),
    "reader": Family(reader.ReaderConfig, reader.Reader, reader.PRESETS, "nano"),
    "seq2seq": Family(seq2seq.Seq2SeqConfig, seq2seq.Seq2Seq, seq2seq.PRESETS, "nano"),
}


def family(name: str) -> Family:
    if name not in FAMILIES:
        raise UserError(f"{name} is not a family of models; {nearest(name, FAMILIES)}")
    return FAMILIES[name]


def preset_of(name: str, preset: str | None) -> dict:
    """The values of a family's preset, by default its first choice."""
    kind = family(name)
    preset = preset or kind.default
    if preset not in kind.presets:
        raise UserError(f"{preset} is not a preset of {name}; {nearest(preset, kind.presets)}")
    return kind.presets[preset]


def configure(name: str, preset: str | None = None, **values: Any) -> Any:
    """The config of a family: a preset, with these values over it."""
    return build(family(name).config, preset_of(name, preset) | values, "model.")


def create(name: str, config: Mapping[str, Any] | Any) -> Any:
    """The model of a family from its config, or from a table of its values."""
    kind = family(name)
    return kind.model(build(kind.config, config, "model.") if isinstance(config, Mapping) else config)


def parameters(name: str, config: Any) -> int:
    """How many numbers a model learns, without allocating it."""
    return count_parameters(lambda: create(name, config))
