"""cost."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..config import UserError
from ..console import Console, visible
from .cost_report import CostReport, as_json, show
from .presets import Model, find_model, model_settings, titled
from .train import Settings

if TYPE_CHECKING:
    from ..families.record import Family

DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32"}


def cost(
    what: Model,
    /,
    *settings: Settings,
    context: int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    device: str | None = None,
    measure: Annotated[bool, Parameter(negative=())] = False,
    json_output: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Show what a model costs: parameters, FLOPs, memory, and the least time on a device.

    Any setting of a preset can be changed: pencil cost gpt2 --model.kv_heads 4. pencil train FAMILY --settings lists
    those of a family.

    Parameters
    ----------
    what
        A preset (gpt2-xl, llama2-70b, or family:preset where families share a name), or the folder of a run.
    context
        Number of tokens of a text. The model's full context unless given.
    batch
        Batch size: the number of sequences or images.
    dtype
        bf16 (training: bf16 autocast over float32 weights) or fp32. The default is bf16, with --measure on a CPU fp32.
    device
        Show one device only, by its vendor's peak figures: h200, h100, a100, mi300x, l4, rtx4090, rtx3090 or m1-max.
    measure
        Measure this machine's rates, and time the model on it where it fits.
    json_output
        Print the report as JSON, in bytes, FLOPs and seconds.
    """
    what, changes = model_settings("cost", (what, *settings))
    if batch < 1:
        raise UserError(f"--batch must be at least 1, not {batch}")
    if context is not None and context < 1:
        raise UserError(f"--context must be at least 1, not {context}")
    if dtype is not None and dtype.lower() not in DTYPES:
        raise UserError(f"--dtype must be bf16 or fp32, not {dtype}")
    from ..cost.devices import DEVICES
    from ..cost.devices import device as find_device

    devices = [find_device(device)] if device else list(DEVICES.values())
    place = None
    if measure:
        from ..train.loop import pick_device

        place = pick_device("auto")
    usual = "fp32" if place is not None and place.type != "cuda" else "bf16"
    record, config, training = find_model(what, changes)
    chosen = DTYPES[dtype.lower()] if dtype else usual
    report = make_report(titled(what, config, changes), record, config, training, context, batch, chosen)
    measured = None
    if place is not None:
        from ..cost import measure as measuring

        local = measuring.local_device(place, chosen)
        measured = measuring.measure(
            record.create, report.profile, report.config, batch, context, chosen, place, local, report.memory,
            report.workloads,
        )  # fmt: skip
        devices = [local, *([find_device(device)] if device else [])]
    if json_output:
        print(visible(json.dumps(as_json(report, devices, measured), ensure_ascii=False)))
    else:
        show(Console(soft_wrap=True, highlight=False), report, devices, measured)
    return 0


def make_report(
    name: str, record: "Family", config: Any, settings: Mapping[str, Any], context: int | None, batch: int, dtype: str
) -> CostReport:
    """What the model costs with this text length, batch size and precision."""
    from ..cost.count import count
    from ..cost.devices import workloads
    from ..cost.memory import kv_cache, kv_sharing, train_memory

    profile, notes = record.cost, []
    if profile.takes_length and context is not None and context > config.context:
        notes.append(f"the model was made for {config.context:,} tokens" + (
            "; its position table is counted with a row for each token" if config.positions == "learned" else ""
        ))  # fmt: skip
        config = replace(config, **{key: context for key in ("context", "source_context") if hasattr(config, key)})
    freeze, recompute = settings.get("freeze"), settings.get("recompute") == "blocks"
    if freeze:
        from ..train.frozen import frozen_model

        counts = count(frozen_model(record.create, freeze), profile, config, context, short=False)
    else:
        counts = count(record.create, profile, config, context)
    tokens, optimizer = profile.tokens(config, context), settings.get("optimizer", "muon")
    memory = train_memory(profile, config, counts, batch, context, dtype)
    shared = kv_sharing(config) if profile.decodes else {}
    caches = {kind: (heads, kv_cache(config, batch, tokens, dtype, heads)) for kind, heads in shared.items()}
    works = workloads(profile, config, counts, memory, batch, context, dtype, optimizer, recompute)
    ema = bool(settings.get("ema"))
    return CostReport(
        name, record.name, config, batch, dtype, optimizer, ema, recompute, profile, counts, batch * tokens, memory,
        caches, works, notes,
    )  # fmt: skip
