"""What `pencil lab` shows: the claims, the measurements as they come, and what was predicted beside what came out."""

import time
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ...config import UserError
from ...console import Console
from ...learn.lab import resume
from ...learn.lab.claim import Claim
from ...learn.lab.report import write_all, write_claim
from ...learn.lab.runner import Plan, Result, Row, append, run, sizes_in_words
from ...learn.lab.verdict import Finding, effect, number

STYLE = {"shown": "green", "partly shown": "yellow", "not shown at this size": "yellow", "the opposite": "bold red"}


def list_claims(console: Console, claims: list[Claim]) -> None:
    """Print the name and the hypothesis of every claim."""
    wide = max(len(claim.name) for claim in claims)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(width=wide, no_wrap=True)
    table.add_column(overflow="fold")
    for claim in claims:
        table.add_row(Text(claim.name, "bold"), Text(claim.hypothesis))
    console.print("Claims about parts of a transformer, each tested without the part", style="bold")
    console.print(table)
    console.print(f"\npencil lab NAME runs one, pencil lab all --quick runs all {len(claims)}.", markup=False)


def announce(console: Console, claim: Claim, quick: bool) -> None:
    """Print what a claim is before it is measured."""
    lines = {
        "claim": claim.hypothesis,
        "from": claim.source,
        "removed": claim.removed,
        "sizes": sizes_in_words(claim.size(quick)),
        "by hand": claim.by_hand,
    }
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(width=7)
    table.add_column(overflow="fold")
    for name, text in lines.items():
        if text:
            table.add_row(Text(name, "dim"), Text(text))
    console.print(Text(claim.title, "bold"))
    console.print(table)


def result_line(result: Result, seconds: float) -> Text:
    return Text.assemble(
        (f"{seconds:4.0f} s  ", "dim"), (f"{result.claim.name:18}", "bold"), (result.verdict, STYLE[result.verdict])
    )


def result_table(results: list[Result]) -> Table:
    """Predicted beside measured; for one claim with the mean of every arm, for many with the effect only."""
    several = len(results) > 1
    table: Any = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for column in (["claim"] if several else []) + ["predicted", "measured", "verdict"]:
        table.add_column(column, overflow="fold", ratio=None if column in ("claim", "verdict") else 1)
    for result in results:
        for i, finding in enumerate(result.findings):
            measured = Text(effect(finding)) if several else _measured(result, finding)
            cells = [Text(finding.prediction.symptom), measured, Text(finding.verdict, STYLE[finding.verdict])]
            table.add_row(*([Text(result.claim.name if i == 0 else "", "bold")] if several else []), *cells)
    return table


def _measured(result: Result, finding: Finding) -> Text:
    p = finding.prediction
    text = Text(f"{p.label}\n", "dim")
    if p.near is None:
        arms = [arm for arm in result.claim.arms if arm in finding.values]
        text.append(", ".join(f"{arm} {number(finding.average(arm))}" for arm in arms) + "\n", "not dim")
    return text.append(effect(finding), "not dim")


def take_over(console: Console, plan: Plan, folder: Path, command: str, force: bool) -> None:
    """Keep what an interrupted run of the same command measured; refuse what is finished, or of another command."""
    if force:
        resume.start_anew(folder)
    plan.earlier = resume.take_over(folder, plan, command)
    whole = resume.finished(plan, plan.earlier)
    if len(whole) == len(plan.claims) and (folder / "results.json").is_file():
        raise UserError(f"{folder} has the results of this command already; --force measures anew")
    if plan.earlier:
        total = plan.seeds * sum(len(claim.arms) for claim in plan.claims)
        claims = f", {len(whole)} of {len(plan.claims)} claims finished" if len(plan.claims) > 1 else ""
        line = (
            f"Going on: {len(plan.earlier)} of {total} measurements in {folder} are kept{claims}; --force starts anew."
        )
        console.print(line, markup=False, soft_wrap=True)


def _measure(console: Console, plan: Plan, folder: Path, every: bool) -> tuple[list[Result], list[str]]:
    """Make the measurements that are missing; the results, and the claims that could not be measured."""
    total, begun = plan.seeds * sum(len(claim.arms) for claim in plan.claims), time.monotonic()
    count, results, lost = len(plan.earlier), [], []
    with console.status(f"{count} of {total} measured") as status:

        def measured(row: Row) -> None:
            nonlocal count
            count += 1
            append(folder / "results.jsonl", row)
            line = f"{count} of {total} measured: {row.claim}, {row.arm}, seed {row.seed}, {row.seconds:.1f} s"
            status.update(escape(line))
            if not every and not console.is_terminal:
                console.print(f"  {line}", markup=False)

        def failed(claim: Claim, error: Exception) -> None:
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


def run_plan(console: Console, plan: Plan, folder: Path, command: str, every: bool) -> int:
    """Measure the claims, show the results and write them; the exit status."""
    begun = time.monotonic()
    if not every:
        announce(console, plan.claims[0], plan.quick)
    results, lost = _measure(console, plan, folder, every)
    if not results:
        raise UserError("no claim could be measured")
    console.print(result_table(results))
    seconds = time.monotonic() - begun
    took = f"{seconds:.0f} seconds" + (f" after {len(plan.earlier)} measurements from before" if plan.earlier else "")
    paths = write_all(folder, results, command, took) if every else write_claim(folder, results[0], command)
    if not every and results[0].claim.caveat:
        console.print(Text(results[0].claim.caveat, "dim"))
    shown = [path for path in paths if path.suffix in (".html", ".md") or path.name == "figure.png"]
    console.print(f"{seconds:.0f} s; {', '.join(map(str, shown))}", markup=False, soft_wrap=True)
    if lost:
        console.print(f"Not measured: {', '.join(lost)}.", markup=False, soft_wrap=True)
    return 1 if lost else 0
