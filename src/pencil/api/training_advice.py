"""What to say of a training's size: what it trains, which preset is shorter, which settings fit into memory.

All of it follows from what `pencil cost` counts.
"""

import os
from dataclasses import asdict, fields, replace
from typing import Any

from ..collectives.processes import RankError, world
from ..config import UserError, build
from ..cost.count import count, count_trained
from ..cost.fitting import fitting
from ..cost.memory import train_memory
from ..cost.profile import on_meta
from ..device import pick_device, total_memory
from ..families.family import Family
from ..progress import duration
from ..train.frozen import blocks_with, describe_parts, freeze_parameters
from ..train.settings import TrainConfig, slots_of

SOON_SECONDS = 3600  # seconds


def what_trains(record: Family, model: Any, config: TrainConfig) -> str:
    """The sentence: "12.3 M of 124 M parameters train (blocks 6–11 and head); about 2.1 GB of memory"."""
    counts, whole = count(record.create, record.cost, model), on_meta(record.create, model)
    sizes = {name: p.numel() for name, p in whole.named_parameters()}
    what, note = f"all {_short(sum(sizes.values()))} parameters train", ""
    if frozen := freeze_parameters(whole, config.freeze):
        trained = [name for name in sizes if name not in frozen]
        some, total = (_short(sum(sizes[name] for name in names)) for names in (trained, sizes))
        what = f"{some} of {total} parameters train ({describe_parts(trained, sizes)})"
        counts = replace(counts, trained=count_trained(whole, record.cost))
        if counts.trained.blocks > len(blocks_with(trained)):
            note = "; the backward pass goes through frozen blocks too, since parts before them train"
    cuda = pick_device(config.device).type == "cuda"
    half = config.dtype == "bfloat16" or (config.dtype == "auto" and cuda)
    memory = train_memory(record.cost, model, counts, config.batch, dtype="bf16" if half else "fp32", cuda=cuda)
    needed = memory.total(config.optimizer, config.recompute == "blocks") + memory.gradients * bool(config.ema)
    unknown = "" if memory.activations else ", without activations"
    return f"{what}; about {_short(needed, 'B')} of memory{unknown}{note}"


def _short(number: float, unit: str = "") -> str:
    """Three digits and a letter: 12.3 M, 2.10 GB."""
    for letter, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            value = number / size
            digits = f"{value:.0f}" if value >= 99.5 else f"{value:.1f}"
            return f"{digits} {letter if unit or letter != 'G' else 'billion'}{unit}"
    return f"{number:.0f}{f' {unit}' if unit else ''}"


def propose_shorter(record: Family, preset: str, model: Any, config: TrainConfig, seconds: float) -> str:
    """What the training takes here, and what would take less: another preset, or a time budget."""
    line = f"the preset {preset} takes about {duration(seconds)} here"
    faster = {name: time for name, time in _times(record, preset, model, config, seconds).items() if time < seconds / 2}
    soon = {name: time for name, time in faster.items() if time <= SOON_SECONDS}
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
    changed = {name: value for name, value in asdict(config).items() if value != usual[name]}
    times, flops = {}, _flops(record, model, config)
    for other in record.presets:
        if other == preset:
            continue
        try:
            training = build(TrainConfig, {**record.training.get(other, {}), **changed})
            sizes = record.configure(other, **{**from_data, **record.presets[other]})
            if sizes.depth * sizes.width**2 <= model.depth * model.width**2:  # a larger model is not counted
                times[other] = seconds * _flops(record, sizes, training) / flops
        except (UserError, RuntimeError):  # sizes that do not fit the data
            continue
    return times


def _flops(record: Family, model: Any, config: TrainConfig) -> float:
    counted = count(record.create, record.cost, model)
    return (counted.forward.flops + counted.backward) * config.batch * config.accumulate * config.steps


def out_of_memory(record: Family, model: Any, train: TrainConfig) -> UserError:
    """The error, with the batch, accumulation and recomputation of the same update that would fit."""
    size = "--model.image_size" if hasattr(model, "image_size") else "--model.context"
    mend = f"try a smaller --train.batch, --model.width or {size}"
    if fit := _fit(record, model, train):
        mend = f"{fit} would fit, by pencil cost, with as many rows in an update"
    sentence = f"out of memory with --train.batch {train.batch}; {mend}"
    here = world()
    return RankError(here.rank, sentence) if here.size > 1 else UserError(sentence)


def _fit(record: Family, model: Any, train: TrainConfig) -> str:
    """The settings that would fit, as on the command line; nothing where none would, or none can be counted."""
    device, here = pick_device(train.device), world()
    half = train.dtype == "bfloat16" or (train.dtype == "auto" and device.type == "cuda")
    memory = total_memory(device)
    if device.type != "cuda":  # the processes of a machine share it
        memory //= int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    parallel = "ddp" if train.parallel == "auto" else train.parallel

    def slots(batch: int) -> int:
        try:
            return slots_of(replace(train, batch=batch))
        except UserError:
            return 0

    try:
        fit = fitting(
            record.create,
            record.cost,
            model,
            train,
            memory,
            here.size,
            parallel,
            "bf16" if half else "fp32",
            device.type == "cuda",
            slots if train.exact else None,
        )
    except (RuntimeError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError):
        return ""  # a family of one's own may have a profile that cannot be counted
    return "" if fit is None else fit.words(train, parallel)
