"""bench: how fast Pencil is here, beside other libraries and beside what the machine can do."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.text import Text

from .. import files
from ..bench import JOBS, TAKES
from ..bench.page import percent, spread, threads_of
from ..config import UserError, check_output, nearest
from ..console import Console, note, visible

if TYPE_CHECKING:
    from ..bench.plan import Plan

Row = Mapping[str, Any]  # as in bench.plan
SHOWN_STARTUP_SECONDS = 0.05  # a shorter start-up is not shown
SHARES = {"mfu": "MFU", "bandwidth_share": "bandwidth"}


def bench(
    job: str | None = None,
    /,
    *,
    peers: Annotated[bool, Parameter(negative=())] = False,
    peer_path: Annotated[list[Path] | None, Parameter(negative=())] = None,
    quick: Annotated[bool, Parameter(negative=())] = False,
    preset: str | None = None,
    batch: int | None = None,
    tokens: int | None = None,
    scan: Literal["context", "batch", "depth", "width"] | None = None,
    compiled: Annotated[bool, Parameter(name="--compile", negative=())] = False,
    repeat: int | None = None,
    out: Annotated[Path | None, Parameter(name="--json")] = None,
    device: str = "auto",
    write_page: Path | None = None,
) -> int:
    """Measure speed: train, decode, vit, dit, sample, attention or serve; without a job, all of them.

    Other libraries get the same weights and inputs in the same process. Their outputs are compared with ours first; a
    ratio is shown only where they are equal within rounding. A rate is the median of warm repeats, taken in turn, with
    the least and the most. MFU and the share of the bandwidth refer to a matrix product and a copy timed in the same
    run.

    Parameters
    ----------
    job
        What to measure: train, decode, vit, dit, sample, attention or serve.
    peers
        Measure the libraries that are installed too: transformers, timm, diffusers.
    peer_path
        A folder with nanoGPT (for train) or gpt-fast (for decode); its model.py is run. May be repeated.
    quick
        Small sizes, for a laptop: about a minute for all jobs.
    preset
        Another size of the model: gpt2-xl, b/16, xl/2.
    batch
        Batch size; with serve, the number of clients.
    tokens
        With decode and serve, the number of new tokens.
    scan
        With decode, measure a decode step at several values of one size, and fit the exponents of time and memory.
    compiled
        With decode, compile our decode step.
    repeat
        Number of timed repeats. [default: 5, with --quick 3]
    out
        Write the results to this .json file too.
    device
        auto, cpu, cuda or mps.
    write_page
        Measure nothing: write the tables of this Markdown page from the JSON files that its markers name.
    """
    if write_page is not None:
        return _write_page(write_page)
    jobs = _jobs(
        job, {"--preset": preset, "--batch": batch, "--tokens": tokens, "--scan": scan, "--compile": compiled or None}
    )
    _check_sizes({"--batch": batch, "--tokens": tokens, "--repeat": repeat}, peer_path or ())
    check_output("--json", out, ".json")

    from ..bench.peers import Peers
    from ..bench.plan import Plan
    from ..device import pick_device

    place = pick_device(device)
    libraries = Peers(peers, tuple(peer_path or ()), note)
    _check_used(libraries.modules, jobs, scan)
    sizes: dict[str, Any] = dict(
        quick=quick,
        repeat=repeat or (3 if quick else 5),
        preset=preset,
        batch=batch,
        tokens=tokens,
        compile=compiled,
    )
    plan = Plan(place, libraries, **sizes, notify=note)
    _measure(plan, jobs, scan, out, {"command": _command(job, peers, peer_path, scan, sizes), "job": job or "all"})
    return 0


def _measure(plan: "Plan", jobs: Sequence[str], scan: str | None, out: Path | None, facts: Mapping[str, str]) -> None:
    """Show each row as it is measured, and write all so far into a file, so that an interrupted run keeps them."""
    from ..bench.run import machine, rows_of

    console, rows = Console(highlight=False, soft_wrap=True), []
    for job in jobs:
        for row in rows_of(job, plan, scan):
            if not rows:
                show_machine(console, machine(plan))
            show_row(console, row, first=not rows or rows[-1]["case"] != row["case"])
            rows.append(row)
            if out is not None:
                result = {"machine": machine(plan), **facts, "rows": rows}
                files.write_aside(out, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    if out is not None:
        note(f"Results are in {out}")


def _write_page(path: Path) -> int:
    from ..bench.page import write_page

    if not path.is_file():
        raise UserError(f"there is no file {path} to write tables into")
    for name in write_page(path):
        note(f"{name} is not there: its section is empty")
    return 0


def _jobs(job: str | None, options: Mapping[str, object]) -> Sequence[str]:
    """The jobs to run; an option that they do not take is refused."""
    if job is not None and job not in JOBS:
        raise UserError(f"{job} is not a job; {nearest(job, JOBS)}")
    for option, value in options.items():
        fits = [one for one in JOBS if one in TAKES[option]]
        if value is not None and job is None:
            raise UserError(f"{option} is for one job: name {' or '.join(fits)} before it")
        if value is not None and job not in fits:
            raise UserError(f"{job} takes no {option}: it is for {' or '.join(fits)}")
    if options["--scan"] is not None:
        for option in ("--preset", "--tokens"):
            if options[option] is not None:
                raise UserError(f"--scan has sizes of its own: leave {option} out")
        if options["--scan"] == "batch" and options["--batch"] is not None:
            raise UserError("--scan batch tries several batch sizes: leave --batch out")
    return JOBS if job is None else [job]


def _check_sizes(sizes: Mapping[str, int | None], folders: Sequence[Path]) -> None:
    """Refuse sizes below 1, and folders of libraries without a model."""
    for name, value in sizes.items():
        if value is not None and value < 1:
            raise UserError(f"{name} must be at least 1, not {value}")
    for folder in folders:
        if not (folder / "model.py").is_file():
            raise UserError(f"{folder} has no model.py; --peer-path is a folder with nanoGPT or gpt-fast")


def _check_used(libraries: Iterable[str], jobs: Sequence[str], scan: str | None) -> None:
    """Refuse a library of a folder that no job is compared with."""
    for library in libraries:
        wanted = {"nanoGPT": "train", "gpt-fast": "decode"}[library]
        if wanted not in jobs or scan is not None:
            raise UserError(f"{library} is compared with in {wanted} only: leave --peer-path out")


def _command(
    job: str | None, peers: bool, folders: Sequence[Path] | None, scan: str | None, sizes: Mapping[str, Any]
) -> str:
    """The command without paths of this machine."""
    words = ["pencil", "bench", *([job] if job else []), *(["--peers"] if peers else [])]
    words += [word for folder in folders or () for word in ("--peer-path", folder.resolve().name)]
    words += ["--scan", scan] if scan else []
    usual = {"quick": False, "compile": False, "repeat": 3 if sizes["quick"] else 5}
    for name, value in sizes.items():
        if value is not None and value != usual.get(name):
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)


# ---- what is shown: the machine, and each contender's rate with what it is compared with


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
    lines = [", ".join(ours), _latencies(row), _verdict(row), _exponents(row)]
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


def _latencies(row: Row) -> str:
    """How long a client of a server waits: the median and the 99th percentile."""
    words = {"first_seconds": "first token after", "between_seconds": "then the next piece after"}
    waits = {name: [f"{1e3 * value:.3g}" for value in row[name]] for name in words if name in row}
    return ", ".join(f"{words[name]} {median} ms (p99 {last} ms)" for name, (median, last) in waits.items())


def _exponents(row: Row) -> str:
    """How time and memory grow with the size that was scanned."""
    names = {"seconds": "time", "memory_bytes": "memory"}
    exponents = row.get("exponents", {})
    return ", ".join(f"{names[name]} grows as {row['scan']}^{p:.2f}" for name, p in exponents.items())
