"""cost: what a model costs, on one device or on several."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..config import UserError, fitted, refuse
from .presets import Model, find_model, is_run, settings_of, title_of
from .train import Settings

if TYPE_CHECKING:
    import torch

    from ..cost.devices import Device
    from .screens.cost_report import CostReport

# the training settings that a cost depends on
TRAINING = ("accumulate", "optimizer", "recompute", "sync", "ema", "freeze")
DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32"}


def cost(
    what: Model,
    /,
    *settings: Settings,
    context: int | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    gpus: int | None = None,
    parallel: str | None = None,
    bandwidth: float | None = None,
    measure: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Show what a model costs: parameters, FLOPs, memory, and the least time on a device; of a run also its training.

    Any setting of a preset can be changed: pencil cost gpt2 --model.kv_heads 4. pencil train FAMILY --settings lists
    those of a family. Of training: --train.accumulate, optimizer, recompute, sync, ema and freeze.

    Parameters
    ----------
    what
        A preset (gpt2-xl, llama2-70b, or family:preset where families share a name), or the folder of a run.
    context
        Number of tokens of a text. The model's full context unless given.
    batch
        Batch size: the number of sequences or images that one device takes at once. That of a run (with --gpus, its
        share of it) unless given; of a preset 1.
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
    as_json
        Print the report as JSON, in bytes, FLOPs and seconds.
    """
    what, sections = settings_of("cost", (what, *settings), ("model", "train"))
    _check(batch, context, dtype, gpus, parallel, bandwidth, measure)
    record, config, usual_training = find_model(what, sections["model"])
    from ..cost.devices import DEVICES
    from ..cost.devices import device as find_device
    from ..device import pick_device
    from .screens import cost_report as screen

    own = usual_training if is_run(what) else {}
    if batch is None:
        batch = max(1, own.get("batch", 1) // (gpus or 1))
    named = find_device(device) if device else None
    place = pick_device("auto") if measure else None
    training = _training(sections["train"], parallel or "auto")
    usual_dtype = "fp32" if place is not None and place.type != "cuda" else "bf16"
    report = screen.make_report(
        title_of(what, config, sections["model"]),
        record,
        config,
        {**usual_training, **training},
        context,
        batch,
        DTYPES[dtype.lower()] if dtype else usual_dtype,
        cuda=place is None and (named is None or named.cuda),  # what is measured has the plain loss
        sharded=parallel == "fsdp",
        train_steps=own.get("steps", 0) * training.get("accumulate", own.get("accumulate", 1)),
    )
    if gpus is not None:
        screen.print_scaling(
            report, gpus, parallel or "ddp", training, named or find_device("h200"), bandwidth, as_json
        )
        return 0
    here, seconds = (None, None) if place is None else _measure(report, place, context)
    others = [named] if named else [] if here else list(DEVICES.values())
    screen.print_report(report, [*([here] if here else []), *others], seconds, as_json)
    return 0


def _measure(
    report: "CostReport", place: "torch.device", context: int | None
) -> "tuple[Device, dict[str, float | str]]":
    """This machine as a device, and the seconds of each workload on it."""
    from ..cost.measure import local_device, measure

    here = local_device(place, report.dtype)
    times = measure(
        report.record.create,
        report.record.cost,
        report.config,
        report.batch,
        context,
        report.dtype,
        place,
        here,
        report.memory,
        report.workloads,
    )
    return here, times


def _check(
    batch: int | None,
    context: int | None,
    dtype: str | None,
    gpus: int | None,
    parallel: str | None,
    bandwidth: float | None,
    measure: bool,
) -> None:
    """Refuse sizes that there are not, and options of several devices beside those of one."""
    several = "is of several devices: give their number with --gpus"
    refuse(
        (batch is not None and batch < 1, f"--batch must be at least 1, not {batch}"),
        (context is not None and context < 1, f"--context must be at least 1, not {context}"),
        (dtype is not None and dtype.lower() not in DTYPES, f"--dtype must be bf16 or fp32, not {dtype}"),
        (gpus is None and parallel is not None, f"--parallel {several}"),
        (gpus is None and bandwidth is not None, f"--bandwidth {several}"),
        (gpus is not None and not 1 <= gpus <= 1 << 16, f"--gpus must be from 1 to 65,536, not {gpus}"),
        (parallel not in (None, "ddp", "fsdp"), f"--parallel must be ddp or fsdp, not {parallel}"),
        (
            bandwidth is not None and not 0 < bandwidth < 1e9,
            f"--bandwidth is in GB/s and above 0, not {bandwidth or 0:g}",
        ),
        (gpus is not None and measure, "--measure is of this machine: leave it or --gpus out"),
    )


def _training(words: Mapping[str, str], parallel: str) -> dict[str, Any]:
    """The training settings of the command line, as their types; those that cost nothing are refused."""
    from ..train.settings import TrainConfig

    values = fitted(TrainConfig, words, "train.")
    for name in values:
        if name == "batch":
            raise UserError("train.batch is of all devices together: --batch says how many rows one device takes")
        if name in ("exact", "slots"):
            raise UserError(f"train.{name}: what exact mode holds besides is not counted: leave it out")
        if name not in TRAINING:
            raise UserError(f"train.{name} does not change a cost: leave it out")
    TrainConfig(**{**values, "parallel": parallel})  # refuses values out of range
    return values
