"""What `pencil bench` shows: the machine, and each contender's rate with what it is compared with."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from ...bench.page import percent, spread, threads_of
from ...console import Console, visible

Row = Mapping[str, Any]  # as in bench.plan

SHOWN_STARTUP_SECONDS = 0.05  # a shorter start-up is not shown
SHARES = {"mfu": "MFU", "bandwidth_share": "bandwidth"}


def show_machine(console: Console, where: Mapping[str, Any]) -> None:
    threads = "" if where["kind"] == "cuda" else f", {threads_of(where)}"
    console.print(Text(f"{visible(where['device'])}{threads}, {where['dtype']}, torch {where['torch']}", "bold"))
    rates = f"{where['matmul_flops'] / 1e12:,.3g} TFLOP/s, {where['copy_bytes'] / 1e9:,.4g} GB/s"
    console.print(Text(f"{rates}: a matrix product and a copy", "dim"))


def show_row(console: Console, row: Row, first: bool) -> None:
    """One contender of a case: its rate, and below it what it is compared with."""
    if first:
        console.print(Text(f"\n{row['job']}: {row['case']}", "bold"))
    console.print(f"  {row['who']}: {spread(row)}", markup=False)
    ours = [f"{name} {percent(key)(row)}" for key, name in SHARES.items() if key in row]
    if row.get("startup_seconds", 0) >= SHOWN_STARTUP_SECONDS:
        ours.append(f"start-up {row['startup_seconds']:.1f} s")
    if "peak_bytes" in row:
        ours.append(f"{row['peak_bytes'] / 1e9:.3g} GB")
    if "memory_bytes" in row:
        ours += [f"{1e3 * row['seconds']:.3g} ms a step", f"{row['memory_bytes'] / 1e6:,.4g} MB {row['memory']}"]
    if "times_causal" in row:
        ours.append(f"route {row['route']}, {row['times_causal']:.2f} of the time of torch's causal kernel")
    lines = [", ".join(ours), _verdict(row), _exponents(row)]
    for line in filter(None, lines):
        console.print(Text(f"    {line}", "dim" if row.get("equal") is not False else "bold red"))


def _verdict(row: Row) -> str:
    """Whether the outputs are equal to ours, and how much faster ours is."""
    if "errors" not in row:
        return ""
    worst = ", ".join(f"{f'{error:.0e}' if error else '0'} in {dtype}" for dtype, error in row["errors"].items())
    if not row["equal"]:
        allowed = ", ".join(f"{bound:.0e}" for bound in row["bounds"].values())
        return f"outputs differ by {worst}; rounding explains {allowed}: not compared"
    same = f"; {row['same_tokens']:,} of {row['of_tokens']:,} tokens the same" if "same_tokens" in row else ""
    faster = f"pencil is {row['ratio']:.2f} × as fast; " if "ratio" in row else ""
    return f"{faster}outputs equal ({worst}){same}"


def _exponents(row: Row) -> str:
    """How time and memory grow with the size that was scanned."""
    names = {"seconds": "time", "memory_bytes": "memory"}
    exponents = row.get("exponents", {})
    return ", ".join(f"{names[name]} grows as {row['scan']}^{p:.2f}" for name, p in exponents.items())
