"""What `pencil lab` shows: the claims, the one that is measured, and what was predicted beside what was measured."""

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from ...console import Console

if TYPE_CHECKING:
    from ...learn.lab.claim import Claim
    from ...learn.lab.finding import Finding
    from ...learn.lab.run import Result

STYLE = {"shown": "green", "partly shown": "yellow", "not shown at this size": "yellow", "the opposite": "bold red"}


def list_claims(console: Console, claims: "list[Claim]") -> None:
    """Print the name and the hypothesis of every claim."""
    wide = max(len(claim.name) for claim in claims)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(width=wide, no_wrap=True)
    table.add_column(overflow="fold")
    for claim in claims:
        table.add_row(Text(claim.name, "bold"), Text(claim.hypothesis))
    console.print(table)
    console.print(f"\npencil lab NAME runs one, pencil lab all --quick runs all {len(claims)}.", markup=False)


def announce(console: Console, claim: "Claim", quick: bool) -> None:
    """Print what a claim is before it is measured."""
    from ...learn.lab.run import sizes_in_words

    lines = {
        "claim": claim.hypothesis,
        "from": claim.source,
        "removed": claim.removed,
        "sizes": sizes_in_words(claim.size(quick)),
    }
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(width=7)
    table.add_column(overflow="fold")
    for name, text in lines.items():
        if text:
            table.add_row(Text(name, "dim"), Text(text))
    console.print(Text(claim.title, "bold"))
    console.print(table)


def result_line(result: "Result", seconds: float) -> Text:
    return Text.assemble(
        (f"{seconds:4.0f} s  ", "dim"), (f"{result.claim.name:18}", "bold"), (result.verdict, STYLE[result.verdict])
    )


def result_table(results: "list[Result]") -> Table:
    """Predicted beside measured; for one claim with the mean of every arm, for many with the effect only."""
    from ...learn.lab.finding import effect

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


def _measured(result: "Result", finding: "Finding") -> Text:
    from ...learn.lab.finding import effect, number

    p = finding.prediction
    text = Text(f"{p.label}\n", "dim")
    if p.near is None:
        arms = [arm for arm in result.claim.arms if arm in finding.values]
        text.append(", ".join(f"{arm} {number(finding.average(arm))}" for arm in arms) + "\n", "not dim")
    return text.append(effect(finding), "not dim")
