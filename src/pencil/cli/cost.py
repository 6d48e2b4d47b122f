"""cost."""

import difflib
import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from ..config import UserError
from .bill import Bill, plain, show

DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32"}


def cost(
    what: str,
    /,
    *more: Annotated[str, Parameter(show=False)],
    context: int | None = None,
    batch: int = 1,
    dtype: str | None = None,
    device: str | None = None,
    measure: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """What a model costs: parameters, FLOPs, memory, and the least time a device could take.

    Parameters
    ----------
    what
        A preset (gpt2-xl, llama2-70b, or vit:nano where families share a name), or a run's folder.
    context
        Tokens of a text; all the model takes unless given.
    batch
        How many sequences or pictures at once.
    dtype
        bf16 (trained by autocast over float32 weights) or fp32; with --measure on a CPU fp32 unless given.
    device
        One of the devices whose makers' figures are known: h200, a100, rtx4090, …; all of them unless given.
    measure
        Measure this machine, and the model on it where it fits, beside what could be.
    as_json
        Print everything as JSON, in bytes, FLOPs and seconds.
    """
    if more:
        raise UserError(_too_many(what, more))
    if batch < 1:
        raise UserError(f"--batch must be at least 1, not {batch}")
    if context is not None and context < 1:
        raise UserError(f"--context must be at least 1, not {context}")
    if dtype is not None and dtype.lower() not in DTYPES:
        raise UserError(f"--dtype must be bf16 or fp32, not {dtype}")
    from ..cost.devices import DEVICES
    from ..cost.devices import device as find

    devices = [find(device)] if device else list(DEVICES.values())
    place = None
    if measure:
        from ..train.loop import pick_device

        place = pick_device("auto")
    usual = "fp32" if place is not None and place.type != "cuda" else "bf16"
    bill, notes = bill_of(what, context, batch, DTYPES[dtype.lower()] if dtype else usual)
    measured = None
    if place is not None:
        from ..cost import measure as measuring

        length = context or getattr(bill.config, "context", 0)
        machine = measuring.here(place, bill.dtype)
        real = measuring.model(
            bill.family, bill.config, batch, length, bill.dtype, place, machine, bill.memory, bill.works
        )
        devices, measured = [machine, *([find(device)] if device else [])], real
    if as_json:
        print(json.dumps(plain(bill, devices, measured), ensure_ascii=False))
        return 0
    show(Console(soft_wrap=True, highlight=False), bill, notes, devices, measured)
    return 0


def found(what: str) -> tuple[str, Any, dict[str, Any]]:
    """The family, the config and the training's settings of a preset or of a run."""
    from ..models import FAMILIES, configure
    from ..train.settings import PRESETS

    presets = {f"{name}:{preset}": (name, preset) for name, kind in FAMILIES.items() for preset in kind.presets}
    alike = [full for full in presets if full.endswith(f":{what}")]
    if len(alike) > 1:
        raise UserError(f"{what} is a preset of several families; say {', '.join(alike[:-1])} or {alike[-1]}")
    if what in presets or alike:
        family, preset = presets[alike[0] if alike else what]
        return family, configure(family, preset), PRESETS[family][preset]
    if Path(what).is_dir():
        from ..runs import Run

        run = Run.open(what)
        return run.family, configure(run.family, None, **run.config["model"]), run.config["train"]
    if what in FAMILIES:
        raise UserError(f"{what} is a family; say one of {', '.join(f for f in presets if presets[f][0] == what)}")
    close = difflib.get_close_matches(what, [*presets, *(preset for _, preset in presets.values())], 1, 0.6)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(presets))}"
    raise UserError(f"{what} is neither a preset nor a run's folder; {hint}")


def _too_many(what: str, more: tuple[str, ...]) -> str:
    from ..models import FAMILIES

    if what in FAMILIES and len(more) == 1 and more[0] in FAMILIES[what].presets:
        return f"a family and its preset are one word: say {what}:{more[0]}"
    return f"cost is of one preset or run at a time, not of {' and '.join((what, *more))}"


def bill_of(what: str, context: int | None, batch: int, dtype: str) -> tuple[Bill, list[str]]:
    """What it costs, and what the reader should know about the question."""
    from ..cost import count, devices, memory, parts

    family, c, train = found(what)
    notes = []
    if context is not None and context > getattr(c, "context", context):
        grown = {"context": context} | ({"source_context": context} if family == "seq2seq" else {})
        notes.append(f"it was made for {c.context:,} tokens" + (
            "; its table of positions is counted with as many rows as you ask for" if c.positions == "learned" else ""
        ))  # fmt: skip
        c = replace(c, **grown)
    every = parts.parts_of(family, c, batch, context)
    caches = {}
    if family in devices.WRITES:
        lengths = parts.lengths(family, c, context)
        held = sum(lengths) + getattr(c, "before", 0)
        caches = {name: (heads, memory.cache(c, batch, held, dtype, heads)) for name, heads in memory.shared(c).items()}
    return Bill(
        what, family, c, batch, context, dtype, train.get("optimizer", "muon"), bool(train.get("ema")),
        count.parameters(family, c), parts.count_tokens(family, c, batch, context), count.flops(every),
        count.by_group(every), memory.training(family, c, batch, context, dtype), caches,
        devices.works(family, c, batch, context, dtype, train.get("optimizer", "muon")),
    ), notes  # fmt: skip
