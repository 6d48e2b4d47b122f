"""What `pencil cost` prints: sections of rows, each a name, a value and its formula; the same as JSON.

With `--gpus` it is the memory and the communication of one device among several, and a table up to 1,024.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.text import Text

from ...console import Console, visible
from ...cost.count import Counts, count
from ...cost.devices import Device, Workload, workloads
from ...cost.memory import (
    ActivationMemory,
    SmallerCache,
    TrainMemory,
    kv_cache,
    kv_sharing,
    smaller_kv_caches,
    train_memory,
)
from ...cost.parallel import Plan, sent, units_of
from ...cost.profile import on_meta
from ...cost.scaling import COMPUTE, MACHINE_DEVICES, NETWORK_BYTES_PER_SECOND, Scale, table
from ...device import sync_of
from ...families.family import Family
from ...progress import duration
from ...train.freezing import frozen_model

Row = tuple[str, str, str]
NO_ACTIVATIONS = "activation memory is not estimated for this family"
NAMES = {"train_step": "train step", "forward": "forward", "prefill": "prefill", "decode": "decode step"}
TITLES = {"ddp": "DDP", "fsdp": "FSDP2"}
OPTIMIZERS = {"muon": "Muon and AdamW", "adamw": "AdamW"}
WIDTHS = (6, 10, 12, 12, 11, 9, 9, 11)  # of the columns of the table of devices


@dataclass(frozen=True)
class CostReport:
    """What a model costs at one size."""

    name: str
    record: Family
    build: Callable[[Any], Any]  # the model of a config, with what is frozen in it
    config: Any
    batch: int
    dtype: str
    optimizer: str
    ema: bool
    recompute: bool  # whether a train step recomputes the activations of blocks
    counts: Counts
    tokens: int  # of the whole batch
    memory: TrainMemory
    kv_caches: Mapping[str, tuple[int, int]]  # by how query heads share them: KV heads, and bytes
    smaller_kv_caches: Sequence[SmallerCache]
    workloads: Mapping[str, Workload]
    train_steps: int = 0  # of the whole training of a run, each of such a batch; 0 of a preset
    notes: Sequence[str] = ()

    @property
    def parameters(self) -> int:
        return self.counts.total_parameters

    @property
    def forward(self) -> int:
        return self.batch * self.counts.forward.flops

    @property
    def backward(self) -> int:
        return self.batch * self.counts.backward

    @property
    def recomputed(self) -> int:
        """FLOPs of a train step that runs the blocks a second time."""
        return self.forward + self.backward + self.batch * self.counts.recomputed

    @property
    def by_group(self) -> dict[str, int]:
        return {group: self.batch * flops for group, flops in self.counts.forward.by_group.items()}

    @property
    def kv_heads(self) -> int:
        """KV heads; 0 of a family without attention."""
        return getattr(self.config, "kv_heads", None) or getattr(self.config, "heads", 0)

    @property
    def bytes_each(self) -> int:
        """Bytes of a value at inference."""
        return 2 if self.dtype == "bf16" else 4

    @property
    def trained(self) -> int:
        """The number of parameters that are trained."""
        return self.counts.trained.parameters

    def memory_of(self, workload: str, recompute: bool | None = None) -> int:
        """Bytes that a workload needs at once; a train step with its own setting of recompute unless one is given."""
        if workload == "train_step":
            how = self.recompute if recompute is None else recompute
            return self.memory.total(self.optimizer, how) + self.memory.gradients * self.ema
        cache = sum(size for heads, size in self.kv_caches.values() if heads == self.kv_heads)
        return self.bytes_each * self.parameters + cache


def make_report(
    name: str,
    record: Family,
    config: Any,
    settings: Mapping[str, Any],
    context: int | None,
    batch: int,
    dtype: str,
    cuda: bool = True,
    sharded: bool = False,
    train_steps: int = 0,
) -> CostReport:
    """What the model costs with this text length, batch size and precision."""
    profile, notes = record.cost, []
    if profile.takes_length and context is not None and context > config.context:
        notes.append(
            f"the model was made for {config.context:,} tokens"
            + ("; its position table is counted with a row for each token" if config.positions == "learned" else "")
        )
        config = replace(config, **{key: context for key in ("context", "source_context") if hasattr(config, key)})
    freeze, recompute = settings.get("freeze"), settings.get("recompute") == "blocks"
    build = frozen_model(record.create, freeze) if freeze else record.create
    counts = count(build, profile, config, context, short=not freeze)
    tokens, optimizer = profile.tokens(config, context), settings.get("optimizer", "muon")
    memory = train_memory(profile, config, counts, batch, context, dtype, cuda, sharded)
    shared = kv_sharing(config) if profile.decodes else {}
    caches = {kind: (heads, kv_cache(config, batch, tokens, dtype, heads)) for kind, heads in shared.items()}
    works = workloads(profile, config, counts, memory, batch, context, dtype, optimizer, recompute)
    ema = bool(settings.get("ema"))
    return CostReport(
        name,
        record,
        build,
        config,
        batch,
        dtype,
        optimizer,
        ema,
        recompute,
        counts,
        batch * tokens,
        memory,
        caches,
        smaller_kv_caches(config, batch, tokens, dtype) if profile.decodes else [],
        works,
        train_steps,
        notes,
    )


def print_report(
    report: CostReport, devices: Sequence[Device], measured: Mapping[str, float | str] | None, as_json: bool
) -> None:
    """Print the report; with more than two devices, a table of them."""
    if as_json:
        print(visible(json.dumps(report_as_json(report, devices, measured), ensure_ascii=False)))
        return
    console = Console(soft_wrap=True, highlight=False)
    title = f": {report.record.name}, {report.parameters:,} parameters, {report.dtype}"
    console.print(Text.assemble((visible(report.name, one_line=True), "bold"), title))
    for line in _symbols(report):
        console.print(Text(line, "dim"))
    for note in report.notes:
        console.print(Text(f"note: {note}", "yellow"))
    formulas = report.record.cost.parameter_formulas(report.config)
    rows = [(name, f"{count:,}", formulas.get(name, "")) for name, count in report.counts.parameters.items()]
    trained = [("trained: P_trained", f"{report.trained:,}", "the others are frozen")]
    frozen = report.trained < report.parameters
    section(console, "Parameters", [*rows, ("total: P", f"{report.parameters:,}", ""), *trained * frozen])
    section(console, "FLOPs per token, forward (a multiplication and an addition are two)", _flops(report))
    section(console, f"Memory of a train step: {precision(report)}", _train_memory(report))
    if report.memory.activations is None:
        console.print(Text(f"  {NO_ACTIVATIONS}", "yellow"))
    if report.kv_caches:
        section(console, f"Memory to decode: all in {report.dtype}", _decode_memory(report))
    section(console, "Arithmetic intensity (FLOP/byte), with the fewest bytes", _intensity(report))
    if len(devices) > 2:
        _compare(console, report, devices)
    else:
        for i, on in enumerate(devices):
            # this machine is the first
            _show_device(console, report, on, None if i else measured)
    if report.train_steps:
        title = f"The whole training: {plural(report.train_steps, 'train step')}, without evaluations"
        section(console, title, _whole_training(report, devices, measured))
        remark = (
            "  small models take longer: launching kernels and reading data are not counted; --measure times them here"
        )
        console.print(Text(remark, "dim"))


def training_seconds(report: CostReport, on: Device, share: float = 1) -> float:
    """The seconds of a run's whole training with this share of a device's peak FLOP/s."""
    work = report.workloads["train_step"]
    return report.train_steps * max(work.seconds(on, report.dtype), work.flops / (share * on.rate(report.dtype)))


def _whole_training(
    report: CostReport, devices: Sequence[Device], measured: Mapping[str, float | str] | None
) -> list[Row]:
    rows = [
        (
            on.name,
            duration(training_seconds(report, on, COMPUTE)),
            f"at {100 * COMPUTE:g} % of its peak; at least {duration(training_seconds(report, on))}",
        )
        for on in devices
    ]
    if measured is not None and isinstance(step := measured["train_step"], float):
        rows.append(("measured here", duration(report.train_steps * step), ""))
    return rows


def section(console: Console, title: str, rows: list[Row]) -> None:
    """A title, and rows in three columns: name, value, formula."""
    wide = max((len(value) for _, value, _ in rows), default=0)
    console.print(Text(f"\n{title}", "bold"))
    for name, value, formula in rows:
        line = Text.assemble(f"  {name:26} {value:>{wide}}  ", (formula, "dim"))
        line.rstrip()
        console.print(line)


def _symbols(report: CostReport) -> list[str]:
    """The sizes that the formulas name."""

    def of(name: str, words: str) -> str:
        """A size of the config, where its family has it."""
        size = getattr(report.config, name, None)
        return words.format(size, "s" * (size != 1)) if size else ""

    heads = of("heads", "h {:,} head{}"), f"g {plural(report.kv_heads, 'KV head')}" if report.kv_heads else ""
    sizes = [of("depth", "L {:,} block{}"), of("width", "D {:,} width"), *heads, of("head_width", "d {} head width")]
    rest = [
        of("mlp_width", "F {:,} MLP width"),
        of("vocab", "V {:,} vocabulary"),
        f"n {plural(report.tokens // report.batch, 'token')}",
        f"B {report.batch:,} batch size",
    ]
    return [" · ".join(filter(None, line)) for line in (sizes, rest)]


def _flops(report: CostReport) -> list[Row]:
    formulas, tokens = report.record.cost.flop_formulas(report.config), report.tokens
    both = report.forward + report.backward
    rows = [(name, f"{si(n / tokens)}FLOP", formulas.get(name, "")) for name, n in report.by_group.items()]
    again = [("train step, recomputed", f"{si(report.recomputed)}FLOP", "blocks forward twice")] * report.recompute
    return [
        *rows,
        ("forward, per token", f"{si(report.forward / tokens)}FLOP", "all n² scores, masked or not"),
        ("and backward, per token", f"{si(both / tokens)}FLOP", f"{both / report.forward:.2f} × forward"),
        ("train step, the batch", f"{si(both)}FLOP", plural(tokens, "token")),
        *again,
    ]


def precision(report: CostReport) -> str:
    """The precision of a train step, and the loss that is counted where there are logits of a vocabulary."""
    computed_in = "float32 weights, bf16 autocast" if report.dtype == "bf16" else "all in float32"
    saved = report.memory.activations
    if saved is None or not saved.loss:
        return computed_in
    return f"{computed_in}, {'fused' if saved.fused else 'plain'} loss"


def loss_formula(activations: ActivationMemory) -> str:
    """Where the bytes of the loss come from."""
    return "some logits at a time" if activations.fused else "12 bytes a logit"


def _train_memory(report: CostReport) -> list[Row]:
    m, activations = report.memory, report.memory.activations
    trained = "P" if report.trained == report.parameters else "P_trained"
    state = ("AdamW", m.adamw, f"8·{trained}")
    if report.optimizer == "muon":
        state = ("Muon and AdamW", m.muon, f"4·{trained} in blocks, else 8·{trained}")
    average = [("EMA of the weights", m.gradients, f"4·{trained}")] if report.ema else []
    rows = [("weights", m.weights, "4·P"), ("gradients", m.gradients, f"4·{trained}"), state, *average]
    if activations is None:
        rows.append(("total without activations", report.memory_of("train_step"), ""))
    else:
        as_is = [
            ("activations, at the peak", activations.peak, f"{si(activations.saved)}B saved"),
            *(
                [("  of them logits and loss", activations.loss, loss_formula(activations))]
                * (activations.peak > activations.in_blocks)
            ),
            ("total", report.memory_of("train_step", False), ""),
        ]
        again = [
            ("activations, recomputed", activations.peak_recomputed, "inputs of blocks saved"),
            ("total, recompute blocks", report.memory_of("train_step", True), "train.recompute"),
        ]
        rows += again if report.recompute else [*as_is, *again]
    return [(name, show_bytes(size), formula) for name, size, formula in rows]


def _decode_memory(report: CostReport) -> list[Row]:
    each, layers = report.bytes_each, getattr(report.config, "decoder_depth", None) or "L"
    rows = [("weights", show_bytes(each * report.parameters), f"{each}·P")]
    for name, (heads, size) in report.kv_caches.items():
        mark = ", this model" if heads == report.kv_heads else ""
        rows.append((f"KV cache, {name}: g {heads}", show_bytes(size), f"2·B·n·{layers}·g·d·{each}{mark}"))
    own = f"g {report.kv_heads}, " if len(report.kv_caches) > 1 else ""
    rows += [(f"  {own}{one.name}", show_bytes(one.bytes), one.formula) for one in report.smaller_kv_caches]
    return rows


def _intensity(report: CostReport) -> list[Row]:
    each, works = "40·P (Muon: 32)" if report.optimizer == "muon" else "40·P", report.workloads
    if report.trained < report.parameters:
        each = "8·P, 32·P_trained"
    saved = ", 2 × activations" if report.memory.activations else ", without activations"
    same = "decode" in works and works["prefill"].bytes == works["decode"].bytes
    rows = []
    for name, formula in (
        ("train_step", f"bytes: {each}{saved}"),
        ("forward", "bytes: every matrix"),
        ("prefill", "bytes: every matrix, the KV cache"),
        ("decode", f"{'the same' if same else 'fewer'} bytes, for one token a sequence"),
    ):
        if name in works:
            rows.append((NAMES[name], f"{works[name].intensity:,.1f}", formula))
        if name == "prefill" and name in works:
            rows.append(("", "", "its head: for the last token only"))
    return rows


def _compare(console: Console, report: CostReport, devices: Sequence[Device]) -> None:
    """A line for each device."""
    title = f"\nLeast time for a batch of {report.batch:,}: roofline of vendor peak figures"
    console.print(Text(title, "bold"))
    columns = "".join(f"{NAMES[name]:>17}" for name in report.workloads)
    console.print(Text(f"  {'':8}{'TFLOP/s':>8}{'GB/s':>6}{'GB':>5}{columns}", "dim"))
    for on in devices:
        line = f"  {on.name:8}{on.rate(report.dtype) / 1e12:8.4g}{on.bandwidth / 1e9:6.0f}{on.memory / 1e9:5.0f}"
        for name, work in report.workloads.items():
            fits = report.memory_of(name) <= on.memory
            marks = ("m" if work.bound(on, report.dtype) == "memory" else "") + ("" if fits else "*")
            line += f"{show_time(work.seconds(on, report.dtype)):>14} {marks:2}"
        console.print(Text(line.rstrip()))
    console.print(Text("  m: memory-bound, otherwise compute-bound   *: does not fit into the memory", "dim"))


def _show_device(console: Console, report: CostReport, on: Device, measured: Mapping[str, float | str] | None) -> None:
    """One device: each workload's least time and what bounds it, and the time measured."""
    rates = f"{on.rate(report.dtype) / 1e12:.4g} TFLOP/s, {on.bandwidth / 1e9:.4g} GB/s"
    local, rows = measured is not None, []
    for name, work in report.workloads.items():
        least = work.seconds(on, report.dtype)
        bound = f"{show_time(least / work.tokens)} per token; {work.bound(on, report.dtype)}-bound"
        rows.append((NAMES[name], show_time(least), bound))
        if report.memory_of(name) > on.memory:
            rows.append(("", "", f"does not fit: {si(report.memory_of(name))}B into {si(on.memory)}B"))
        got = None if measured is None else measured[name]
        if isinstance(got, float):
            how = "  measured, with AdamW" if name == "train_step" and report.optimizer == "muon" else "  measured"
            rows.append(
                (how, show_time(got), f"{show_time(got / work.tokens)} per token; {got / least:.1f} × the least")
            )
        elif got is not None:
            rows.append(("  measured", "–", got))
    section(console, f"Least time on {'this machine' if local else on.name}: {rates}", rows)
    edge = on.rate(report.dtype) / on.bandwidth
    source = "rates measured just now" if local else "vendor peak figures, which no program reaches"
    console.print(Text(f"  {source}\n  memory-bound below {edge:,.3g} FLOP/byte", "dim"))


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + "s" * (count != 1)


def show_bytes(size: float) -> str:
    """In powers of 1000 and of 1024, each with its own unit."""
    names = ("", "k", "M", "G", "T", "P", "E")
    power = min(len(names) - 1, (len(str(int(size))) - 1) // 3)
    one = f"{size / 1000**power:,.2f} {names[power]}B"
    return f"{one} = {size / 1024**power:7,.2f} {'Ki' if power == 1 else names[power] + 'i' * (power > 1)}B"


def si(value: float) -> str:
    for letter, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:,.2f} {letter}"
    return f"{value:.0f} "


def show_time(seconds: float) -> str:
    for word, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {word}" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e9:.3g} ns"


def report_as_json(
    report: CostReport, devices: Sequence[Device], measured: Mapping[str, float | str] | None
) -> dict[str, Any]:
    """What JSON can hold: whole numbers of bytes and FLOPs, and seconds."""
    m, activations = report.memory, report.memory.activations
    return {
        "model": report.name,
        "family": report.record.name,
        "batch": report.batch,
        "tokens": report.tokens,
        "dtype": report.dtype,
        "config": asdict(report.config),
        "notes": list(report.notes),
        "parameters": {**report.counts.parameters, "total": report.parameters, "trained": report.trained},
        "flops": {"forward": report.forward, "backward": report.backward, "forward_by_group": report.by_group},
        "train_step_bytes": {
            "weights": m.weights,
            "gradients": m.gradients,
            "adamw": m.adamw,
            "muon": m.muon,
            "activations": None if activations is None else asdict(activations),
            "optimizer": report.optimizer,
            "recompute": "blocks" if report.recompute else "none",
            "total": report.memory_of("train_step"),
            "total_recomputed": None if activations is None else report.memory_of("train_step", True),
        },
        "kv_cache_bytes": {
            name: {"kv_heads": heads, "bytes": size} for name, (heads, size) in report.kv_caches.items()
        },
        "smaller_kv_cache_bytes": {re.split("[: ]", one.name)[0]: one.bytes for one in report.smaller_kv_caches},
        "workloads": {
            name: {**asdict(work), "arithmetic_intensity": work.intensity} for name, work in report.workloads.items()
        },
        "least_seconds": {
            on.name: {
                name: {"seconds": work.seconds(on, report.dtype), "bound": work.bound(on, report.dtype)}
                for name, work in report.workloads.items()
            }
            for on in devices
        },
        "measured_seconds": measured,
        "training": {
            "train_steps": report.train_steps,
            "least_seconds": {on.name: training_seconds(report, on) for on in devices},
            "seconds": {on.name: training_seconds(report, on, COMPUTE) for on in devices},
            "assumed_share_of_peak": COMPUTE,
        }
        if report.train_steps
        else None,
    }


# ---- several devices


def up_to(
    gpus: int, parallel: str, training: Mapping[str, Any], report: CostReport, on: Device, bandwidth: float | None
) -> list[Scale]:
    """The costs for 1 to 1,024 devices, and for as many as were asked for, with these settings of training."""
    sync = sync_of(training.get("sync", "auto"), report.trained, on.memory)
    plan = Plan(parallel, gpus, training.get("accumulate", 1), report.optimizer, report.ema, report.dtype, sync)
    units, activations = units_of(on_meta(report.build, report.config)), report.memory.activations
    return table(units, plan, report.counts, activations, report.batch, on, report.recompute, bandwidth)


def print_scaling(
    report: CostReport,
    gpus: int,
    parallel: str,
    training: Mapping[str, Any],
    on: Device,
    bandwidth: float | None,
    as_json: bool,
) -> None:
    """Print the parts of one number of devices, and a line for each number; `bandwidth` is in GB/s."""
    scales = up_to(gpus, parallel, training, report, on, bandwidth and 1e9 * bandwidth)
    if as_json:
        print(visible(json.dumps(scaling_as_json(report, scales, on), ensure_ascii=False)))
        return
    console = Console(soft_wrap=True, highlight=False)
    one = next(scale for scale in scales if scale.plan.devices == gpus)
    plan, rows = one.plan, gpus * report.batch
    title = f": {report.record.name}, {report.parameters:,} parameters"
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
        console.print(Text.assemble(f"  {name:28}{_short(sent({name: size}, gpus)):>12}  ", (remark, "dim")))
    console.print(Text(f"  {'together':28}{_short(one.sent):>12}"))
    title = f"From 1 to {max(s.plan.devices for s in scales):,} devices, {plural(report.batch, 'row')} each"
    console.print(Text(f"\n{title}", "bold"))
    heads = ("GPUs", "batch", "memory", "recomputed", "sent", "compute", "sending", "efficiency")
    console.print(Text("".join(f"{head:>{wide}}" for head, wide in zip(heads, WIDTHS, strict=True)), "dim"))
    for scale in scales:
        console.print(Text(_line(scale, report.batch, on)))
    network = min(on.link, NETWORK_BYTES_PER_SECOND) / 1e9
    speed = (
        f"{bandwidth:g} GB/s"
        if bandwidth
        else f"{on.link / 1e9:g} GB/s in a machine of {MACHINE_DEVICES}, else {network:g}"
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


def _memory(report: CostReport, one: Scale) -> list[tuple[str, int, int, str]]:
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
    activations = report.memory.activations
    if activations is not None:
        rows.append(("activations, at the peak", memory.activations, again.activations, ""))
        # logits are held at the loss; the peak may be in a block instead
        loss = activations.loss * (activations.peak > activations.in_blocks)
        loss_again = activations.loss * (activations.peak_recomputed > activations.in_blocks_recomputed)
        if loss or loss_again:
            remark = f"{'≤ ' * (not activations.fused)}{loss_formula(activations)}"
            rows.append(("  of them logits and loss", loss, loss_again, remark))
        if activations.copies:
            rows.append(("  of them bf16 matrices", activations.copies, activations.copies, "autocast's copies"))
    summed = sum(size for name, size, *_ in rows if name[0] != " ")
    rows.append(("most in a step", memory.total, again.total, "less than the sum" * (memory.total < summed)))
    return rows


def _line(scale: Scale, batch: int, on: Device) -> str:
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


def _short(size: int) -> str:
    return f"{si(size)}B"


def scaling_as_json(report: CostReport, scales: Sequence[Scale], on: Device) -> dict[str, Any]:
    """What JSON can hold: whole numbers of bytes, and seconds."""

    def memory_of(scale: Scale) -> dict[str, Any]:
        by_recompute = {"none": scale.memory, "blocks": scale.recomputed}
        return {name: asdict(memory) for name, memory in by_recompute.items()}

    return {
        "model": report.name,
        "family": report.record.name,
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
                "fits": {name: memory["total"] <= on.memory for name, memory in memory_of(scale).items()},
            }
            for scale in scales
        ],
    }
