"""What a training from weights, or with frozen parts, trains: how many parameters, which, and in how much memory."""

from dataclasses import replace
from typing import Any

from ..cost.count import count, count_trained
from ..cost.memory import train_memory
from ..cost.profile import on_meta
from ..device import pick_device
from ..families.family import Family
from ..train.frozen import blocks_with, describe_parts, freeze_parameters
from ..train.settings import TrainConfig


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
