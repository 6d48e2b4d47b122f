"""cost."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..config import UserError
from ..console import Console, visible
from .presets import Model, find_model, settings_of, titled
from .screens.cost_report import CostReport, as_json, show
from .train import Settings

if TYPE_CHECKING:
    from ..families.family import Family

# the training settings that a cost depends on
TRAINING = ("accumulate", "optimizer", "recompute", "sync", "ema", "freeze")
DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32"}


def cost(
    what: Model,
    /,
    *settings: Settings,
    context: int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    device: str | None = None,
    gpus: int | None = None,
    parallel: str | None = None,
    bandwidth: float | None = None,
    measure: Annotated[bool, Parameter(negative=())] = False,
    json_output: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Show what a model costs: parameters, FLOPs, memory, and the least time on a device.

    Any setting of a preset can be changed: pencil cost gpt2 --model.kv_heads 4. pencil train FAMILY --settings lists
    those of a family. Of training: --train.accumulate, optimizer, recompute, sync, ema and freeze.

    Parameters
    ----------
    what
        A preset (gpt2-xl, llama2-70b, or family:preset where families share a name), or the folder of a run.
    context
        Number of tokens of a text. The model's full context unless given.
    batch
        Batch size: the number of sequences or images that one device takes at once.
    dtype
        bf16 (training: bf16 autocast over float32 weights) or fp32. The default is bf16, with --measure on a CPU fp32.
    device
        Show one device only, by its vendor's peak figures: h200, h100, a100, mi300x, l4, rtx4090, rtx3090 or m1-max.
    gpus
        Train on so many devices: the memory of each, the bytes it sends, and a table for 1 to 1,024. Those of
        --device, h200 unless given.
    parallel
        With --gpus: ddp (every device has the whole model; the default) or fsdp (each has a piece).
    bandwidth
        With --gpus: GB/s that each device sends to others. Unless given, that of the device's link within a machine of
        8, and 50 to other machines.
    measure
        Measure this machine's rates, and time the model on it where it fits.
    json_output
        Print the report as JSON, in bytes, FLOPs and seconds.
    """
    what, found = settings_of("cost", (what, *settings), ("model", "train"))
    changes = found["model"]
    if batch < 1:
        raise UserError(f"--batch must be at least 1, not {batch}")
    if context is not None and context < 1:
        raise UserError(f"--context must be at least 1, not {context}")
    if dtype is not None and dtype.lower() not in DTYPES:
        raise UserError(f"--dtype must be bf16 or fp32, not {dtype}")
    _check_several(gpus, parallel, bandwidth, measure)
    record, config, training = find_model(what, changes)
    from ..cost.devices import DEVICES
    from ..cost.devices import device as find_device

    devices = [find_device(device)] if device else list(DEVICES.values())
    place = None
    if measure:
        from ..train.loop.trainer import pick_device

        place = pick_device("auto")
    usual = "fp32" if place is not None and place.type != "cuda" else "bf16"
    chosen_training = _training(found["train"], parallel or "auto")
    training = {**training, **chosen_training}
    chosen = DTYPES[dtype.lower()] if dtype else usual
    # what is measured has the plain loss
    cuda = not measure and (find_device(device).cuda if device else True)
    name, sharded = titled(what, config, changes), parallel == "fsdp"
    report = make_report(name, record, config, training, context, batch, chosen, cuda, sharded)
    if gpus is not None:
        from .screens.cost_scaling import scaling_json, show_scaling, up_to

        on = find_device(device or "h200")
        speed = bandwidth and 1e9 * bandwidth
        scales = up_to(gpus, parallel or "ddp", chosen_training, report, record, training.get("freeze"), on, speed)
        if json_output:
            print(visible(json.dumps(scaling_json(report, scales, on), ensure_ascii=False)))
        else:
            show_scaling(Console(soft_wrap=True, highlight=False), report, scales, gpus, on, bandwidth)
        return 0
    measured = None
    if place is not None:
        from ..cost import measure as measuring

        local = measuring.local_device(place, chosen)
        measured = measuring.measure(
            record.create,
            report.profile,
            report.config,
            batch,
            context,
            chosen,
            place,
            local,
            report.memory,
            report.workloads,
        )
        devices = [local, *([find_device(device)] if device else [])]
    if json_output:
        print(visible(json.dumps(as_json(report, devices, measured), ensure_ascii=False)))
    else:
        show(Console(soft_wrap=True, highlight=False), report, devices, measured)
    return 0


def _check_several(gpus: int | None, parallel: str | None, bandwidth: float | None, measure: bool) -> None:
    if gpus is None:
        given = "--parallel" if parallel is not None else "--bandwidth" if bandwidth is not None else None
        if given:
            raise UserError(f"{given} is of several devices: give their number with --gpus")
        return
    if not 1 <= gpus <= 1 << 16:
        raise UserError(f"--gpus must be from 1 to 65,536, not {gpus}")
    if parallel not in (None, "ddp", "fsdp"):
        raise UserError(f"--parallel must be ddp or fsdp, not {parallel}")
    if bandwidth is not None and not 0 < bandwidth < 1e9:
        raise UserError(f"--bandwidth is in GB/s and above 0, not {bandwidth:g}")
    if measure:
        raise UserError("--measure is of this machine: leave it or --gpus out")


def _training(given: Mapping[str, str], parallel: str) -> dict[str, Any]:
    """The training settings of the command line, as their types; those that cost nothing are refused."""
    from ..config import fitted
    from ..train.settings import TrainConfig

    values = fitted(TrainConfig, given, "train.")
    for name in values:
        if name == "batch":
            raise UserError("train.batch is of all devices together: --batch says how many rows one device takes")
        if name in ("exact", "slots"):
            raise UserError(f"train.{name}: what exact mode holds besides is not counted: leave it out")
        if name not in TRAINING:
            raise UserError(f"train.{name} does not change a cost: leave it out")
    TrainConfig(**{**values, "parallel": parallel})  # refuses values out of range
    return values


def make_report(
    name: str,
    record: "Family",
    config: Any,
    settings: Mapping[str, Any],
    context: int | None,
    batch: int,
    dtype: str,
    cuda: bool = True,
    sharded: bool = False,
) -> CostReport:
    """What the model costs with this text length, batch size and precision."""
    from ..cost.count import count
    from ..cost.devices import workloads
    from ..cost.memory import kv_cache, kv_sharing, train_memory

    profile, notes = record.cost, []
    if profile.takes_length and context is not None and context > config.context:
        notes.append(
            f"the model was made for {config.context:,} tokens"
            + ("; its position table is counted with a row for each token" if config.positions == "learned" else "")
        )
        config = replace(config, **{key: context for key in ("context", "source_context") if hasattr(config, key)})
    freeze, recompute = settings.get("freeze"), settings.get("recompute") == "blocks"
    if freeze:
        from ..train.frozen import frozen_model

        counts = count(frozen_model(record.create, freeze), profile, config, context, short=False)
    else:
        counts = count(record.create, profile, config, context)
    tokens, optimizer = profile.tokens(config, context), settings.get("optimizer", "muon")
    memory = train_memory(profile, config, counts, batch, context, dtype, cuda, sharded)
    shared = kv_sharing(config) if profile.decodes else {}
    caches = {kind: (heads, kv_cache(config, batch, tokens, dtype, heads)) for kind, heads in shared.items()}
    works = workloads(profile, config, counts, memory, batch, context, dtype, optimizer, recompute)
    ema = bool(settings.get("ema"))
    return CostReport(
        name,
        record.name,
        config,
        batch,
        dtype,
        optimizer,
        ema,
        recompute,
        profile,
        counts,
        batch * tokens,
        memory,
        caches,
        works,
        notes,
    )
