"""The tables of a page, written from the JSON files of `pencil bench` that its markers name."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import UserError
from ..files import write_aside

# <!-- bench: FILE --> … <!-- end -->; FILE is relative to the page
MARKED = re.compile(r"(<!-- bench: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
EMPTY = "Not measured yet.\n"
Result = Mapping[str, Any]
Cell = Callable[[Result], str]


def write_page(path: Path) -> list[str]:
    """Write the tables between the page's markers; the files that are not there."""
    text, missing = path.read_text(encoding="utf-8"), []
    if not MARKED.search(text):
        raise UserError(f"{path} has no markers <!-- bench: FILE --> … <!-- end --> to write tables between")

    def tables(match: re.Match[str]) -> str:
        file = path.parent / match[2]
        if not file.is_file():
            missing.append(match[2])
            return f"{match[1]}{EMPTY}{match[4]}"
        return f"{match[1]}{section(read(file))}{match[4]}"

    write_aside(path, MARKED.sub(tables, text).encode())
    return missing


def read(path: Path) -> Result:
    """A JSON file of `pencil bench`."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(result["rows"], list) and isinstance(result["machine"], dict):
            return result
    except (ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{path} was not written by pencil bench --json")


def section(result: Result) -> str:
    """Machine, command and a table of the rows."""
    m = result["machine"]
    threads = "" if m["kind"] == "cuda" else f", {threads_of(m)}"
    lines = [
        f"`{result['command']}` on {m['device']}{threads}, torch {m['torch']}, {m['dtype']}. In the same run: "
        f"{m['matmul_flops'] / 1e12:,.3g} TFLOP/s of a matrix product, {m['copy_bytes'] / 1e9:,.4g} GB/s of a copy.",
        "",
    ]
    rows = result["rows"]
    scans = [row for row in rows if "scan" in row]
    lines += table([row for row in rows if "scan" not in row], COLUMNS)
    lines += table(scans, {f"{scans[0]['scan']}": lambda row: f"{row['value']:,}", **SCAN_COLUMNS} if scans else {})
    fitted = [f"{name.split('_')[0]} ∝ size^{p:.2f}" for row in scans for name, p in row.get("exponents", {}).items()]
    if fitted:
        lines += ["", f"Fitted: {', '.join(fitted).replace('seconds', 'time')}."]
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Result], columns: Mapping[str, Cell]) -> list[str]:
    """A table in Markdown; a column in which every cell is empty is left out."""
    if not rows:
        return []
    cells = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    shown = {name: column for name, column in cells.items() if any(column)}
    head = [f"| {' | '.join(shown)} |", "|---" * len(shown) + "|"]
    return head + [f"| {' | '.join(row)} |" for row in zip(*shown.values(), strict=True)]


def spread(row: Result) -> str:
    return f"{number(row['rate'])} ({number(row['low'])}–{number(row['high'])}) {row['unit']}"


def number(value: float) -> str:
    """Four significant digits, without an exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def percent(name: str) -> Cell:
    return lambda row: f"{100 * row[name]:.3g} %" if name in row else ""


def gigabytes(name: str) -> Cell:
    return lambda row: f"{row[name] / 1e9:.3g} GB" if name in row else ""


def ratio(row: Result) -> str:
    if row.get("equal") is False:
        return "not compared: outputs differ"
    return f"{row['ratio']:.2f} ×" if "ratio" in row else ""


def error(row: Result) -> str:
    return ", ".join(f"{value:.0e}" if value else "0" for value in row.get("errors", {}).values())


def threads_of(machine: Result) -> str:
    return f"{machine['threads']} thread" + "s" * (machine["threads"] != 1)


def startup(row: Result) -> str:
    return f"{row['startup_seconds']:.1f} s" if row.get("startup_seconds", 0) >= 0.05 else ""


COLUMNS: dict[str, Cell] = {
    "case": lambda row: row["case"],
    "": lambda row: row["who"] + (f" ({row['route']})" if "route" in row else ""),
    "rate (least–most)": spread,
    "Pencil is": ratio,
    "MFU": percent("mfu"),
    "of the bandwidth": percent("bandwidth_share"),
    "peak memory": gigabytes("peak_bytes"),
    "start-up": startup,
    "difference of outputs": error,
    "of the causal kernel's time": lambda row: f"{row['times_causal']:.2f}" if "times_causal" in row else "",
}
SCAN_COLUMNS: dict[str, Cell] = {
    "a decode step": lambda row: f"{1e3 * row['seconds']:.3g} ms",
    "rate (least–most)": spread,
    "memory": lambda row: f"{row['memory_bytes'] / 1e6:,.4g} MB {row['memory']}",
}
