"""A model's bill, as `pencil cost` prints it: sections of rows, each a name, a number and the formula it comes from."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from ..cost.count import Flops
    from ..cost.devices import Device, Work
    from ..cost.memory import Training

Row = tuple[str, str, str]


@dataclass(frozen=True)
class Bill:
    """Everything that a model costs at one size."""

    name: str
    family: str
    config: Any
    batch: int
    length: int | None
    dtype: str
    optimizer: str
    ema: bool
    parameters: dict[str, int]
    tokens: int
    flops: "Flops"
    by_group: dict[str, int]
    memory: "Training"
    caches: dict[str, tuple[int, int]]  # by how keys and values are shared: their heads, and bytes
    works: dict[str, "Work"]

    @property
    def total(self) -> int:
        return sum(self.parameters.values())

    @property
    def half(self) -> int:
        """Bytes of a number where there is no training."""
        return 2 if self.dtype == "bf16" else 4

    def needs(self, work: str, checkpointed: bool = False) -> int:
        """Bytes that a work needs at once."""
        if work == "training":
            return self.memory.total(self.optimizer, checkpointed) + self.memory.weights * self.ema
        own = getattr(self.config, "kv_heads", None) or self.config.heads
        return self.half * self.total + sum(size for heads, size in self.caches.values() if heads == own)


def show(console: Console, bill: Bill, notes: list[str], devices: "list[Device]", measured: Any) -> None:
    console.print(Text.assemble((bill.name, "bold"), f": {bill.family}, {bill.total:,} parameters, {bill.dtype}"))
    for line in _letters(bill):
        console.print(Text(line, "dim"))
    for note in notes:
        console.print(Text(f"note: {note}", "yellow"))
    said = _formulas(bill)
    _section(console, "Parameters", [
        (name, f"{count:,}", said.get(name, "")) for name, count in bill.parameters.items()
    ] + [("all: P", f"{bill.total:,}", "")])  # fmt: skip
    _section(console, "FLOPs of a token, forward (a multiplication and an addition are two)", _flops(bill))
    how = "float32 weights, bf16 autocast" if bill.dtype == "bf16" else "all in float32"
    _section(console, f"Memory to train: {how}", _training(bill))
    if bill.caches:
        _section(console, f"Memory to write: all in {bill.dtype}", _writing(bill))
    _section(console, "FLOPs for each byte moved, at the fewest bytes", _moved(bill))
    if len(devices) > 2:
        _compared(console, bill, devices)
        return
    for on in devices:
        _on(console, bill, on, measured if on.name == "here" else None)


def _section(console: Console, title: str, rows: list[Row]) -> None:
    """A title, and rows in three columns: what, how much, by which formula."""
    wide = max((len(number) for _, number, _ in rows), default=0)
    console.print(Text(f"\n{title}", "bold"))
    for name, number, formula in rows:
        line = Text.assemble(f"  {name:25} {number:>{wide}}  ", (formula, "dim"))
        line.rstrip()
        console.print(line)


def _letters(bill: Bill) -> list[str]:
    """The sizes that the formulas speak of."""
    c = bill.config
    heads = f"h {_many(c.heads, 'head')} · g {getattr(c, 'kv_heads', None) or c.heads} of keys and values"
    sizes = [f"L {_many(c.depth, 'block')}", f"D {c.width:,} wide", heads, f"d {c.head_width} a head"]
    words = f"V {_many(c.vocab, 'word')}" if getattr(c, "vocab", None) else ""
    rest = [
        f"F {c.mlp_width:,} in the MLP",
        words,
        f"n {_many(bill.tokens // bill.batch, 'token')}",
        f"B {bill.batch:,} at once",
    ]
    return [" · ".join(filter(None, line)) for line in (sizes, rest)]


def _formulas(bill: Bill) -> dict[str, str]:
    """Where the numbers of each kind come from, if it is short to say."""
    c = bill.config
    both = 2 if bill.family == "seq2seq" else 1
    blocks = "2·L" if both == 2 else "L"
    mlp = "3" if getattr(c, "activation", "") == "swiglu" else "2"
    biases = " + biases" if getattr(c, "bias", True) else ""
    found = {
        "attention": f"{blocks}·D·(2·h + 2·g)·d{biases}", "cross-attention": f"L·D·(2·h + 2·g)·d{biases}",
        "MLP": f"{mlp}·{blocks}·D·F{biases}",
    }  # fmt: skip
    if bill.family == "gpt":
        found |= {"embeddings": "V·D", "positions": "a row a seat: its context · D", "head": "V·D"}
        found["norms"] = f"(2·L + 1)·{'2·' if c.norm == 'layer' and c.bias else ''}D"
    return found


def _flops(bill: Bill) -> list[Row]:
    formulas = {}
    if bill.family in ("gpt", "vit", "reader"):
        formulas = {"attention: Q Kᵀ, A V": "4·L·n·h·d", "attention": "2 × its matrices", "MLP": "2 × its matrices"}
    if bill.family == "gpt":
        formulas["head"] = "2·V·D"
    each, both = bill.flops.forward / bill.tokens, bill.flops.both / bill.tokens
    rows = [(name, f"{_si(n / bill.tokens)}FLOP", formulas.get(name, "")) for name, n in bill.by_group.items()]
    return [
        *rows,
        ("forward, a token", f"{_si(each)}FLOP", "n² whole, masked or not"),
        ("and backward, a token", f"{_si(both)}FLOP", f"{both / each:.2f} × forward"),
        ("both, the batch", f"{_si(bill.flops.both)}FLOP", _many(bill.tokens, "token")),
    ]


def _training(bill: Bill) -> list[Row]:
    m, muon = bill.memory, bill.optimizer == "muon"
    state = ("Muon and AdamW", m.muon, "4 in blocks, else 8") if muon else ("AdamW", m.adamw, "8·P")
    average = [("average of the weights", m.weights, "4·P")] if bill.ema else []
    rows = [
        ("weights", m.weights, "4·P"), ("gradients", m.gradients, "4·P"), state, *average,
        ("activations, at the peak", m.peak, f"{_si(m.kept)}B of it kept"),
        ("all", bill.needs("training"), ""),
        ("activations, checkpointed", m.checkpointed, "blocks run again"),
        ("all, checkpointed", bill.needs("training", True), ""),
    ]  # fmt: skip
    return [(name, _bytes(size), formula) for name, size, formula in rows]


def _writing(bill: Bill) -> list[Row]:
    own, each = getattr(bill.config, "kv_heads", None) or bill.config.heads, bill.half
    rows = [("weights", _bytes(each * bill.total), f"{each}·P")]
    for name, (heads, size) in bill.caches.items():
        mark = ", this model" if heads == own else ""
        rows.append((f"cache, {name}: g {heads}", _bytes(size), f"2·B·n·L·g·d·{each}{mark}"))
    return rows


def _moved(bill: Bill) -> list[Row]:
    each = "40·P (Muon: 32)" if bill.optimizer == "muon" else "40·P"
    same = bill.caches and bill.works["reading"].bytes == bill.works["writing"].bytes
    said = {
        "training": f"bytes: {each}, 2 × what is kept",
        "reading": "bytes: every matrix once" + ", and the cache" * bool(bill.caches),
        "writing": f"{'the same' if same else 'fewer'} bytes, for one token a sequence",
    }
    rows = []
    for name, work in bill.works.items():
        rows.append((name, f"{work.intensity:,.1f}", said[name]))
        if name == "reading" and bill.caches:
            rows.append(("", "", "its head: for the last token only"))
    return rows


NAMES = {"training": "a training step", "reading": "reading", "writing": "a new token"}


def _compared(console: Console, bill: Bill, devices: "list[Device]") -> None:
    """A line for each device."""
    console.print(
        Text(f"\nThe least time for a batch of {bill.batch:,}, by makers' figures no program reaches", "bold")
    )
    columns = "".join(f"{NAMES[name]:>17}" for name in bill.works)
    console.print(Text(f"  {'':8}{'TFLOP/s':>8}{'GB/s':>6}{'GB':>5}{columns}", "dim"))
    for on in devices:
        line = f"  {on.name:8}{on.rate(bill.dtype) / 1e12:8.4g}{on.bandwidth / 1e9:6.0f}{on.memory / 1e9:5.0f}"
        for name, work in bill.works.items():
            marks = ("m" if work.bound(on, bill.dtype) == "memory" else "") + "*" * (bill.needs(name) > on.memory)
            line += f"{_time(work.seconds(on, bill.dtype)):>14} {marks:2}"
        console.print(Text(line.rstrip()))
    console.print(Text("  m: waits for its memory, not for arithmetic   *: does not fit into its memory", "dim"))


def _on(console: Console, bill: Bill, on: "Device", measured: dict[str, Any] | None) -> None:
    """One device: each work's least time, what it waits for, and the time it really took."""
    rates = f"{on.rate(bill.dtype) / 1e12:.4g} TFLOP/s, {on.bandwidth / 1e9:.4g} GB/s"
    whose = "rates measured just now" if on.name == "here" else "makers' figures, which no program reaches"
    rows = []
    for name, work in bill.works.items():
        least = work.seconds(on, bill.dtype)
        waits = f"{_time(least / work.tokens)} a token; {work.bound(on, bill.dtype)}"
        rows.append((NAMES[name], _time(least), waits))
        if bill.needs(name) > on.memory:
            rows.append(("", "", f"does not fit: {_si(bill.needs(name))}B into {_si(on.memory)}B"))
        got = None if measured is None else measured[name]
        if isinstance(got, float):
            how = "  measured, with AdamW" if name == "training" and bill.optimizer == "muon" else "  measured"
            rows.append((how, _time(got), f"{_time(got / work.tokens)} a token; {got / least:.1f} × that"))
        elif got is not None:
            rows.append(("  measured", "–", got))
    where = "here" if on.name == "here" else f"on {on.name}"
    _section(console, f"The least time {where}: {rates}", rows)
    edge = on.rate(bill.dtype) / on.bandwidth
    console.print(Text(f"  {whose}\n  under {edge:,.3g} FLOPs a byte it waits for its memory", "dim"))


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}" + "s" * (count != 1)


def _bytes(size: float) -> str:
    """Thousands and powers of two, each by its own name."""
    names = ("", "k", "M", "G", "T", "P", "E")
    power = min(len(names) - 1, (len(str(int(size))) - 1) // 3)
    one = f"{size / 1000**power:,.2f} {names[power]}B"
    return f"{one} = {size / 1024**power:7,.2f} {'Ki' if power == 1 else names[power] + 'i' * (power > 1)}B"


def _si(value: float) -> str:
    for letter, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:,.2f} {letter}"
    return f"{value:.0f} "


def _time(seconds: float) -> str:
    for word, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {word}" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e9:.3g} ns"


def plain(bill: Bill, devices: "list[Device]", measured: dict[str, Any] | None) -> dict[str, Any]:
    """What JSON can hold: whole numbers of bytes and FLOPs, and seconds."""
    m = bill.memory
    return {
        "model": bill.name, "family": bill.family, "batch": bill.batch, "tokens": bill.tokens, "dtype": bill.dtype,
        "config": asdict(bill.config),
        "parameters": {**bill.parameters, "all": bill.total},
        "flops": {"forward": bill.flops.forward, "backward": bill.flops.backward, "of forward": bill.by_group},
        "training_bytes": {**asdict(m), "optimizer": bill.optimizer,
                           "all": bill.needs("training"),
                           "all_checkpointed": bill.needs("training", True)},
        "cache_bytes": {name: {"kv_heads": heads, "bytes": size} for name, (heads, size) in bill.caches.items()},
        "works": {name: {**asdict(work), "intensity": work.intensity} for name, work in bill.works.items()},
        "least_seconds": {
            on.name: {name: {"seconds": work.seconds(on, bill.dtype), "bound": work.bound(on, bill.dtype)}
                      for name, work in bill.works.items()} for on in devices
        },
        "measured_seconds": measured,
    }  # fmt: skip
