"""The command check."""

import json
import math
import textwrap
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text

from ..config import UserError
from ..console import Console, visible

if TYPE_CHECKING:
    from ..learn.check.check import Number, Report
    from ..learn.check.claims import Claim

STYLE = {
    "right": "green", "rounded along the way": "yellow", "wrong": "bold red", "shown": "green", "not shown": "yellow"
}  # fmt: skip
NARROWEST = 40


def check(
    *files: str,
    every: Annotated[bool, Parameter(name="--all", negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Check published worked examples: each number is right, rounded along the way or wrong, each claim shown or wrong.

    A claim that arithmetic cannot decide is not shown. Each has the command that shows it. The exit status is 1 when
    anything is wrong.

    Parameters
    ----------
    files
        Example files (see docs/teach/check-an-example.md), or the documents that come with pencil: 000 to 004.
    every
        Check all examples that come with pencil.
    as_json
        Print the verdicts as JSON.
    """
    from ..learn.check.check import check, count, shipped
    from ..learn.check.claims import count_claims

    examples = shipped()
    if not files and not every:
        raise UserError(f"name a file to check, or --all for those that come with pencil: {', '.join(examples)}")
    paths = [Path(word) if Path(word).exists() else _find_shipped(word, examples) or Path(word) for word in files]
    reports = [check(path) for path in [*paths, *(examples.values() if every else ())]]
    total = count([step for report in reports for step in report.steps])
    claims = count_claims([claim for report in reports for claim in report.claims])
    if as_json:
        table = {"counts": total, "claim_counts": claims, "files": [_plain(report) for report in reports]}
        print(visible(json.dumps(table, ensure_ascii=False)))
    else:
        console = Console(soft_wrap=True, highlight=False)
        for report in reports:
            _show(console, report)
        of_both = sum(total.values()) and sum(claims.values())
        if sum(total.values()) or not sum(claims.values()):
            console.print(Text("numbers: " if of_both else "") + _count_line(total, always=True))
        if sum(claims.values()):
            console.print(Text("claims: ") + _count_line(claims, always=True))
    return 1 if total["wrong"] or claims["wrong"] else 0


def _find_shipped(word: str, examples: dict[str, Path]) -> Path | None:
    """The example with this name, or the only one whose name starts with it."""
    alike = [path for name, path in examples.items() if word and name.startswith(word)]
    if word.isdecimal() and len(alike) != 1:
        listed = ", ".join(examples)
        raise UserError(f"there is no file {word}, nor an example of that name; the examples are {listed}")
    return examples.get(word) or (alike[0] if len(alike) == 1 else None)


def _show(console: Console, report: "Report") -> None:
    from ..learn.check.check import count

    console.print(Text.assemble((report.title, "bold"), (f"  {report.file}", "dim")))
    wide = min(24, max((len(step.name) for step in report.steps), default=0))
    for step in report.steps:
        name = step.name if len(step.name) <= wide else step.name[: wide - 1] + "…"
        where = f"line {step.line}" if step.line else ""
        head = Text.assemble("  ", (f"{where:10}", "dim"), f"{name:{wide}}  ")
        odd = [number for number in step.numbers if number.verdict != "right"]
        details = _details(odd)
        if len(step.numbers) == len(details) == 1:
            console.print(head + details[0])
            continue
        notes = {number.note for number in step.numbers if number.verdict == "right" and number.note}
        console.print(head + _count_line(count([step])).append("".join(f", {note}" for note in notes), "dim"))
        for detail in details:
            console.print(Text(" " * 14) + detail)
    if report.steps and report.claims:
        console.print()
    for claim in report.claims:
        _show_claim(console, claim)
    console.print()


def _show_claim(console: Console, claim: "Claim") -> None:
    """The claim beside its verdict; under it what is right or why it is not shown, the values, and the command."""
    where = f"line {claim.line}" if claim.line else ""
    head = Text.assemble("  ", (f"{where:10}", "dim"), (f"{claim.verdict:11}", STYLE[claim.verdict]))
    note = f"Right: {claim.note}" if claim.note and claim.verdict == "wrong" else claim.note
    lines = [(claim.text, ""), (note, ""), (claim.values, "dim"), (claim.command, "cyan")]
    width = max(NARROWEST, console.width) - len(head)
    for text, style in lines:
        for line in textwrap.wrap(text, width, break_on_hyphens=False) if text else ():
            console.print(head + Text(line, style))
            head = Text(" " * len(head))


def _details(numbers: "list[Number]") -> list[Text]:
    """A line for each number that is not right, in columns."""
    columns = (
        [f"{list(number.index)}  " if number.index else "" for number in numbers],
        [number.printed for number in numbers],
        [number.true for number in numbers],
    )
    place, printed, true = (max(map(len, column), default=0) for column in columns)
    return [
        Text.assemble(
            (where.ljust(place), "dim"),
            f"{was:{printed}}  should be {exact:{true}}  ",
            (number.verdict, STYLE[number.verdict]),
            (f", {number.note}" if number.note else "", "dim"),
        )
        for number, where, was, exact in zip(numbers, *columns, strict=True)
    ]


def _count_line(counts: dict[str, int], always: bool = False) -> Text:
    parts = [Text(f"{n} {verdict}", STYLE[verdict]) for verdict, n in counts.items() if n or always]
    return Text(", ").join(parts)


def _plain(report: "Report") -> dict:
    """The report as JSON can hold it: an infinite value becomes text."""
    from ..learn.check.check import count
    from ..learn.check.claims import count_claims

    table = asdict(replace(report, values={}))
    del table["values"]
    for step in table["steps"]:
        for number in step["numbers"]:
            if not math.isfinite(number["exact"]):
                number["exact"] = str(number["exact"])
    return {"counts": count(report.steps), "claim_counts": count_claims(report.claims), **table}
