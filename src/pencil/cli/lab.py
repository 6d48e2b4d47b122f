"""lab: claims about parts of a transformer, measured over several seeds."""

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.markup import escape
from rich.text import Text

from ..config import UserError, expand_path
from ..console import Console
from .screens.lab_results import announce, list_claims, result_line, result_table

if TYPE_CHECKING:
    from ..learn.lab.claim import Claim
    from ..learn.lab.run import Plan, Result, Row


def lab(
    name: str | None = None,
    /,
    *,
    quick: Annotated[bool, Parameter(negative=())] = False,
    seeds: int = 5,
    out: str | None = None,
    force: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Remove one part of a transformer and measure what breaks, with and without it over the same seeds.

    After an interruption the same command goes on: what was measured is kept.

    Parameters
    ----------
    name
        The claim to test, or `all`. Without a name: list the claims.
    quick
        Run the small size of each experiment.
    seeds
        Number of runs, each with different weights and data; at least 3.
    out
        Folder for the figure and the report; lab/NAME by default.
    force
        Start anew, and overwrite the results in that folder.
    """
    from ..learn.lab import claim_of, claims
    from ..learn.lab.kept import writing
    from ..learn.lab.run import Plan

    console = Console(highlight=False)
    if name is None:
        list_claims(console, list(claims().values()))
        return 0
    if seeds < 3:
        raise UserError(f"--seeds must be at least 3, not {seeds}: a confidence interval needs several runs")
    every = name == "all"
    tested = list(claims().values()) if every else [claim_of(name)]
    words = ["pencil", "lab", name, *(["--quick"] if quick else []), *(["--seeds", str(seeds)] if seeds != 5 else [])]
    folder = _folder(expand_path(out) if out is not None else Path("lab") / name)
    plan, command = Plan(tested, seeds, quick), shlex.join(words)
    with writing(folder):
        _take_over(console, plan, folder, command, force)
        return _run(console, plan, folder, command, every)


def _folder(folder: Path) -> Path:
    """The folder for the results: a new or an empty one, or one that the lab wrote."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder; choose another with --out")
    ours = any((folder / name).is_file() for name in ("results.jsonl", "plan.json"))
    if folder.is_dir() and any(path.name != ".lock" for path in folder.iterdir()) and not ours:
        raise UserError(
            f"{folder} is not empty and was not written by pencil lab (it has no results.jsonl); choose another with "
            f"--out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _take_over(console: Console, plan: "Plan", folder: Path, command: str, force: bool) -> None:
    """Keep what an interrupted run of the same command measured; refuse what is finished, or of another command."""
    from ..learn.lab import kept

    if force:
        kept.start_anew(folder)
    plan.kept = kept.take_over(folder, plan, command)
    whole = kept.finished(plan, plan.kept)
    if len(whole) == len(plan.claims) and (folder / "results.json").is_file():
        raise UserError(f"{folder} has the results of this command already; --force measures anew")
    if plan.kept:
        total = plan.seeds * sum(len(claim.arms) for claim in plan.claims)
        claims = f", {len(whole)} of {len(plan.claims)} claims finished" if len(plan.claims) > 1 else ""
        line = f"Going on: {len(plan.kept)} of {total} measurements in {folder} are kept{claims}; --force starts anew."
        console.print(line, markup=False, soft_wrap=True)


def _measure(console: Console, plan: "Plan", folder: Path, every: bool) -> "tuple[list[Result], list[str]]":
    """Make the measurements that are missing; the results, and the claims that could not be measured."""
    from ..learn.lab.run import append, run

    total, begun = plan.seeds * sum(len(claim.arms) for claim in plan.claims), time.monotonic()
    count, results, lost = len(plan.kept), [], []
    with console.status(f"{count} of {total} measured") as status:

        def measured(row: "Row") -> None:
            nonlocal count
            count += 1
            append(folder / "results.jsonl", row)
            line = f"{count} of {total} measured: {row.claim}, {row.arm}, seed {row.seed}, {row.seconds:.1f} s"
            status.update(escape(line))
            if not every and not console.is_terminal:
                console.print(f"  {line}", markup=False)

        def failed(claim: "Claim", error: Exception) -> None:
            message = f"{claim.name} could not be measured: {' '.join(str(error).split()) or type(error).__name__}"
            if not every:
                raise UserError(message) from error
            lost.append(claim.name)
            console.print(message, style="bold red", markup=False)

        try:
            for result in run(plan, measured, failed):
                results.append(result)
                if every:
                    console.print(result_line(result, time.monotonic() - begun))
        except KeyboardInterrupt:
            line = f"Interrupted: {count} of {total} measurements are kept in {folder}; the same command goes on."
            console.print(line, markup=False, soft_wrap=True)
            raise
    order = [claim.name for claim in plan.claims]
    return sorted(results, key=lambda result: order.index(result.claim.name)), lost


def _run(console: Console, plan: "Plan", folder: Path, command: str, every: bool) -> int:
    """Measure the claims, show the results and write them; the exit status."""
    from ..learn.lab.report import write_all, write_claim

    begun = time.monotonic()
    if not every:
        announce(console, plan.claims[0], plan.quick)
    results, lost = _measure(console, plan, folder, every)
    if not results:
        raise UserError("no claim could be measured")
    console.print(result_table(results))
    seconds = time.monotonic() - begun
    took = f"{seconds:.0f} seconds" + (f" after {len(plan.kept)} measurements from before" if plan.kept else "")
    paths = write_all(folder, results, command, took) if every else write_claim(folder, results[0], command)
    if not every and results[0].claim.caveat:
        console.print(Text(results[0].claim.caveat, "dim"))
    shown = [path for path in paths if path.suffix in (".html", ".md") or path.name == "figure.png"]
    console.print(f"{seconds:.0f} s; {', '.join(map(str, shown))}", markup=False, soft_wrap=True)
    if lost:
        console.print(f"Not measured: {', '.join(lost)}.", markup=False, soft_wrap=True)
    return 1 if lost else 0
