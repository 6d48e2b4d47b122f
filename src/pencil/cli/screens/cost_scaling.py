"""What `pencil cost --gpus` shows: memory and communication of one device among several, and a table up to 1,024."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ...console import Console, visible
from .cost_report import NO_ACTIVATIONS, CostReport, loss_formula, plural, precision, show_time, si

if TYPE_CHECKING:
    from ...cost.devices import Device
    from ...cost.scaling import Scale
    from ...families.family import Family

TITLES = {"ddp": "DDP", "fsdp": "FSDP2"}
OPTIMIZERS = {"muon": "Muon and AdamW", "adamw": "AdamW"}


def up_to(
    gpus: int,
    parallel: str,
    training: Mapping[str, Any],
    report: CostReport,
    record: "Family",
    freeze: str | None,
    on: "Device",
    bandwidth: float | None,
) -> "list[Scale]":
    """The costs for 1 to 1,024 devices, and for as many as were asked for, with these settings of training."""
    from ...cost.parallel import Plan, units_of
    from ...cost.profile import on_meta
    from ...cost.scaling import table
    from ...device import sync_of

    build = record.create
    if freeze:
        from ...train.frozen import frozen_model

        build = frozen_model(build, freeze)
    sync = sync_of(training.get("sync", "auto"), report.trained, on.memory)
    plan = Plan(parallel, gpus, training.get("accumulate", 1), report.optimizer, report.ema, report.dtype, sync)
    units, held = units_of(on_meta(build, report.config)), report.memory.activations
    return table(units, plan, report.counts, held, report.batch, on, report.recompute, bandwidth)


def show_scaling(
    console: Console, report: CostReport, scales: "Sequence[Scale]", gpus: int, on: "Device", bandwidth: float | None
) -> None:
    """Print the parts of one number of devices, and a line for each number."""
    from ...cost.scaling import COMPUTE, MACHINE, NETWORK

    one = next(scale for scale in scales if scale.plan.devices == gpus)
    plan, rows = one.plan, gpus * report.batch
    title = f": {report.family}, {report.parameters:,} parameters"
    console.print(Text.assemble((visible(report.name, one_line=True), "bold"), title))
    console.print(Text(f"{TITLES[plan.parallel]} on {gpus:,} × {on.name}, {precision(report)}", "dim"))
    tokens = plural(plan.accumulate * gpus * report.tokens, "token")
    again = f", accumulate {plan.accumulate}" * (plan.accumulate > 1)
    console.print(Text(f"--train.batch {rows:,} ({report.batch:,} a device){again}: {tokens} an update", "dim"))
    for note in report.notes:
        console.print(Text(f"note: {note}", "yellow"))
    console.print(Text(f"\n{'Memory of each device: recompute':32}{'none':>10}{'blocks':>12}", "bold"))
    for name, size, again, remark in _memory(report, one):
        line = Text.assemble(f"  {name:28}{_short(size):>12}{_short(again):>12}  ", (remark, "dim"))
        line.rstrip()
        console.print(line)
    if report.memory.activations is None:
        console.print(Text(f"  {NO_ACTIVATIONS}", "yellow"))
    console.print(Text("\nSent by each device in an update", "bold"))
    for name, size in one.handed.items():
        turns = f"2·{gpus - 1}/{gpus}" if name == "all-reduce" else f"{gpus - 1}/{gpus}"
        remark = f"{turns} of {_short(size)}"
        console.print(Text.assemble(f"  {name:28}{_short(_part(name, size, gpus)):>12}  ", (remark, "dim")))
    console.print(Text(f"  {'together':28}{_short(one.sent):>12}"))
    title = f"From 1 to {max(s.plan.devices for s in scales):,} devices, {plural(report.batch, 'row')} each"
    console.print(Text(f"\n{title}", "bold"))
    heads = ("GPUs", "batch", "memory", "recomputed", "sent", "compute", "sending", "efficiency")
    console.print(Text("".join(f"{head:>{wide}}" for head, wide in zip(heads, WIDTHS, strict=True)), "dim"))
    for scale in scales:
        console.print(Text(_line(scale, report.batch, on)))
    speed = (
        f"{bandwidth:g} GB/s"
        if bandwidth
        else (f"{on.link / 1e9:g} GB/s in a machine of {MACHINE}, else {min(on.link, NETWORK) / 1e9:g}")
    )
    for remark in (
        *[f"* does not fit into {on.memory / 1e9:g} GB"]
        * any(m.total > on.memory for scale in scales for m in (scale.memory, scale.recomputed)),
        "efficiency: from nothing sent while computing, to as much as can be",
        f"assumed: {100 * COMPUTE:g} % of {on.rate(plan.dtype) / 1e12:g} TFLOP/s, and no latency;",
        f"each device sends {speed}",
        *["compute: with the second forward pass of the blocks, which are recomputed"] * report.recompute,
        "bytes are checked on 2 and 4 processes, times on none",
    ):
        console.print(Text(f"  {remark}", "dim"))


WIDTHS = (6, 10, 12, 12, 11, 9, 9, 11)


def _memory(report: CostReport, one: "Scale") -> list[tuple[str, int, int, str]]:
    """Name, bytes without and with recomputation, and where they come from."""
    memory, again, plan = one.memory, one.recomputed, one.plan
    share = f" / {plan.pieces:,}" if plan.pieces > 1 else ""
    held_whole = ", whole while they accumulate" * plan.holds_whole
    trained = "P" if report.trained == report.parameters else "P_trained"
    state = f"8·{trained}" if plan.optimizer == "adamw" else f"4·{trained} in blocks, else 8"
    rows = [
        ("weights", memory.weights, again.weights, f"4·P{share}"),
        ("gradients", memory.gradients, again.gradients, f"4·{trained}{held_whole or share}"),
        (OPTIMIZERS[plan.optimizer], memory.optimizer, again.optimizer, f"{state}{share}"),
    ]
    if plan.ema:
        rows.append(("EMA of the weights", memory.average, again.average, f"4·{trained}{share}"))
    if plan.parallel == "fsdp":
        rows.append(("gathered, and gradients sent", memory.gathered, again.gathered, "whole"))
    held = report.memory.activations
    if held is not None:
        rows.append(("activations, at the peak", memory.activations, again.activations, ""))
        # logits are held at the loss; the peak may be in a block instead
        loss = held.loss * (held.peak > held.in_blocks)
        loss_again = held.loss * (held.peak_recomputed > held.in_blocks_recomputed)
        if loss or loss_again:
            remark = f"{'≤ ' * (not held.fused)}{loss_formula(held)}"
            rows.append(("  of them logits and loss", loss, loss_again, remark))
        if held.copies:
            rows.append(("  of them bf16 matrices", held.copies, held.copies, "autocast's copies"))
    summed = sum(size for name, size, *_ in rows if name[0] != " ")
    rows.append(("most in a step", memory.total, again.total, "less than the sum" * (memory.total < summed)))
    return rows


def _line(scale: "Scale", batch: int, on: "Device") -> str:
    least, most = scale.efficiency
    sizes = [f"{_short(m.total)}{' ' if m.total <= on.memory else '*'}" for m in (scale.memory, scale.recomputed)]
    share = f"{100 * least:.0f}–{100 * most:.0f} %" if scale.sent else "–"
    devices = scale.plan.devices
    cells = (
        f"{devices:,}",
        f"{devices * batch:,}",
        *sizes,
        _short(scale.sent) if scale.sent else "–",
        show_time(scale.compute),
        show_time(scale.communication) if scale.sent else "–",
        share,
    )
    return "".join(f"{cell:>{wide}}" for cell, wide in zip(cells, WIDTHS, strict=True))


def _part(name: str, size: int, devices: int) -> int:
    from ...cost.parallel import sent

    return sent({name: size}, devices)


def _short(size: int) -> str:
    return f"{si(size)}B"


def scaling_json(report: CostReport, scales: "Sequence[Scale]", on: "Device") -> dict[str, Any]:
    """What JSON can hold: whole numbers of bytes, and seconds."""
    from ...cost.scaling import COMPUTE

    def memory_of(scale: "Scale") -> dict[str, Any]:
        found = {"none": scale.memory, "blocks": scale.recomputed}
        return {name: asdict(memory) for name, memory in found.items()}

    return {
        "model": report.name,
        "family": report.family,
        "rows_of_a_device": report.batch,
        "device": on.name,
        "assumed": {"share_of_peak": COMPUTE, "peak": on.rate(report.dtype)},
        "notes": list(report.notes),
        "devices": [
            {
                **asdict(scale.plan),
                "batch": scale.plan.devices * report.batch,
                "memory_bytes": memory_of(scale),
                "handed_bytes": scale.handed,
                "sent_bytes": scale.sent,
                "compute_seconds": scale.compute,
                "sending_seconds": scale.communication,
                "efficiency": list(scale.efficiency),
                "fits": {name: found["total"] <= on.memory for name, found in memory_of(scale).items()},
            }
            for scale in scales
        ],
    }
