"""What to say where a training does not fit into memory: settings that would, by what `pencil cost` counts."""

import os
from dataclasses import replace
from typing import Any

from ..collectives.processes import RankError, world
from ..config import UserError
from ..cost.fitting import fitting
from ..device import pick_device, total_memory
from ..families.family import Family
from ..train.settings import TrainConfig, slots_of


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
        found = fitting(
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
    return "" if found is None else found.words(train, parallel)
