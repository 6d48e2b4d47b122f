"""A training that would take hours here: which preset of the family would take less, by counted FLOPs."""

from dataclasses import asdict, fields
from typing import Any

from ..config import UserError, build
from ..cost.count import count
from ..families.family import Family
from ..progress import duration
from ..train.settings import TrainConfig

SOON = 3600  # seconds


def propose_shorter(record: Family, preset: str, model: Any, config: TrainConfig, seconds: float) -> str:
    """What the training takes here, and what would take less: another preset, or a time budget."""
    line = f"the preset {preset} takes about {duration(seconds)} here"
    faster = {name: time for name, time in _times(record, preset, model, config, seconds).items() if time < seconds / 2}
    soon = {name: time for name, time in faster.items() if time <= SOON}
    if faster:
        # the largest of those that end soon, or the fastest
        name = max(soon, key=lambda one: soon[one]) if soon else min(faster, key=lambda one: faster[one])
        line += f"; --preset {name} about {duration(faster[name])}"
    return f"{line}; --train.minutes 30 stops after half an hour, with a schedule that fits"


def _times(record: Family, preset: str, model: Any, config: TrainConfig, seconds: float) -> dict[str, float]:
    """For each other preset the seconds that its FLOPs would take at this pace, on the same data."""
    # the vocabulary, the classes, the image size: what the preset leaves to the data
    from_data = {one.name: getattr(model, one.name) for one in fields(model) if one.name not in record.presets[preset]}
    usual = asdict(build(TrainConfig, record.training.get(preset, {})))
    chosen = {name: value for name, value in asdict(config).items() if value != usual[name]}
    found, here = {}, _flops(record, model, config)
    for other in record.presets:
        if other == preset:
            continue
        try:
            training = build(TrainConfig, {**record.training.get(other, {}), **chosen})
            sizes = record.configure(other, **{**from_data, **record.presets[other]})
            if sizes.depth * sizes.width**2 <= model.depth * model.width**2:  # a larger model is not counted
                found[other] = seconds * _flops(record, sizes, training) / here
        except (UserError, RuntimeError):  # sizes that do not fit the data
            continue
    return found


def _flops(record: Family, model: Any, config: TrainConfig) -> float:
    counted = count(record.create, record.cost, model)
    return (counted.forward.flops + counted.backward) * config.batch * config.accumulate * config.steps
