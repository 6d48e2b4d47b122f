"""A walk in a terminal or over a pipe, no wider than the screen."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.text import Text

from ...learn.check.check import Number
from ...learn.katas.exercise import Table
from ...learn.walks import Compared, Section, Shown, Walk
from ...learn.walks.sections import written
from .exercise import Quit, Screen, ShowWorking, joined, laid_out

KEYS = "Enter goes on, b back, w unfolds, q leaves"
MARKS = {"right": "", "rounded along the way": "~", "wrong": "✗"}
UNBROKEN = 30
CLAIMS = {"shown": "green", "not shown": "yellow", "wrong": "red"}


def everything(walk: Walk, screen: Screen) -> None:
    """All sections in their order, with the arithmetic unfolded."""
    _title(walk, screen)
    for number, sections in enumerate(steps(walk), 1):
        _draw(walk, number, sections, screen)
        _unfold(sections, screen)


def stroll(walk: Walk, screen: Screen) -> None:
    """One step at a time, by keys."""
    _title(walk, screen)
    at_each_step, at = steps(walk), 0
    while at < len(at_each_step):
        _draw(walk, at + 1, at_each_step[at], screen)
        turn = None
        while turn is None:
            try:
                key = screen.read(f"{KEYS}: ").lower()
            except ShowWorking:
                key = "w"
            except Quit:
                screen.write(f"Left at {at + 1} of {len(at_each_step)}.", "dim")
                return
            if key == "w":
                _unfold(at_each_step[at], screen)
            elif key in ("", "b"):
                turn = 1 if not key else -1
            else:
                screen.write(f"{key[:20]} is no key here: {KEYS}.")
        if at + turn < 0:
            screen.write("This is the first section.", "dim")
        at = max(0, at + turn)
    screen.write(f"The end of {walk.number}.", "bold")


def steps(walk: Walk) -> list[list[Section]]:
    """A step for each section; sections that are not about transformers are one step where they follow one another."""
    grouped: list[list[Section]] = []
    for section in walk.sections:
        if section.skipped and grouped and grouped[-1][0].skipped == section.skipped:
            grouped[-1].append(section)
        else:
            grouped.append([section])
    return grouped


def _title(walk: Walk, screen: Screen) -> None:
    screen.write(f"{walk.number}  {walk.title}", "bold")
    if walk.run:
        screen.write(f"with the numbers of {walk.run}", "dim")
    screen.write()


def _draw(walk: Walk, number: int, sections: Sequence[Section], screen: Screen) -> None:
    """One step without its arithmetic."""
    screen.write("─" * screen.width, "dim")
    first, last = sections[0], sections[-1]
    where = f"line {first.lines[0]}" if first.lines[0] == last.lines[1] else f"lines {first.lines[0]}–{last.lines[1]}"
    screen.write(f"{number} of {len(steps(walk))} · {where}", "dim")
    for section in sections:
        screen.write(section.title + (f" ({section.about})" if section.about else ""), "bold")
    if first.skipped:
        screen.write(f"Left out: {first.skipped}.")
    for section in sections:
        _section(section, screen)
    screen.write()


def _section(section: Section, screen: Screen) -> None:
    if section.text:
        screen.write(section.text)
    if section.lacking:
        screen.write(section.lacking, "yellow")
    for source, tensors in groupby(section.shown, key=lambda shown: shown.source):
        screen.write()
        screen.write(f"Tensors of {source}", "dim")
        for shown in tensors:
            _tensor(shown, screen)
    if section.missing:
        screen.write(f"Not in this model: {', '.join(section.missing)}", "dim")
    if section.compared:
        screen.write()
        screen.write("Printed against right (✗ wrong, ~ rounded along the way)", "dim")
    for compared in section.compared:
        _compared(compared, screen)
    if section.claims:
        screen.write()
        screen.write("Claims", "dim")
    for claim in section.claims:
        screen.write(f"line {claim.line}:  {claim.text}", indent=2)
        screen.write(f"{claim.verdict}{': ' if claim.evidence else ''}{claim.evidence}", CLAIMS[claim.verdict], 4)
        if claim.command:
            screen.write(claim.command, "cyan", 4)
    if section.corrections:
        screen.write()
        screen.write("Corrections", "dim")
    for number, words in section.corrections:
        screen.write(f"{number}. {words}", indent=2)
    _links(section, screen)


def _links(section: Section, screen: Screen) -> None:
    """The commands that belong to a section."""
    links = [
        *(("practise", f"pencil kata {name}") for name in section.katas),
        *(("measure", f"pencil lab {name}") for name in section.labs),
        *(("figure", figure.command) for figure in section.figures),
        *(("see", command) for command in section.commands),
    ]
    if links:
        screen.write()
    for word, command in links:
        screen.write(f"{word:9} {command}", "cyan", 2)


def _unfold(sections: Iterable[Section], screen: Screen) -> None:
    """The arithmetic of a step."""
    receipts = [receipt for section in sections for receipt in section.unfolded]
    if not receipts:
        return
    for receipt in receipts:
        screen.write(receipt.command, "bold")
        for line in receipt.lines:
            screen.write(line, indent=2)
        screen.write()


def _tensor(shown: Shown, screen: Screen) -> None:
    """A tensor: the document's symbol, our name and formula, and its numbers."""
    sizes = " ".join(f"{axis} {size}" for axis, size in zip(shown.axes, shown.shape, strict=False))
    sizes = sizes or "×".join(map(str, shown.shape))
    about = joined((shown.name, sizes), "   ") + "   " + _whole(shown.meaning)
    screen.write(f"{shown.symbol}:  {about}".rstrip(), indent=2)
    tables = []
    for grid in shown.grids:
        down = list(grid.down) if any(grid.down) else None
        across = list(grid.across) if any(grid.across) else None
        tables.append(Table(grid.where, written(grid.rows), across, down))
    _lines(laid_out(tables, screen.width - 4), screen)
    if shown.cut:
        screen.write(f"(cut: {shown.cut})", "dim", 4)


def _compared(compared: Compared, screen: Screen) -> None:
    """Printed numbers and the right ones; where all are right, once."""
    numbers = [number for row in compared.rows for number in row]
    named = "" if compared.name == compared.formula else f"{compared.name} = "
    same = f"   as {compared.where}" if compared.where else ""
    head = f"line {compared.line}:  {named}{compared.formula}{same}"
    if len(numbers) == 1:
        screen.write(f"{head}   {_whole(_one(numbers[0]))}", indent=2)
        return
    counted = joined((f"{n} {verdict}" for verdict, n in compared.counts.items() if n), ", ")
    screen.write(f"{head}   {counted}", indent=2)
    wrong = compared.counts["right"] < len(numbers)
    printed = [[number.printed + MARKS[number.verdict] for number in row] for row in compared.rows]
    tables = [Table("printed" if wrong else "", printed)]
    if wrong:
        tables.append(Table("right", [[number.true for number in row] for row in compared.rows]))
    _lines(laid_out(tables, screen.width - 4), screen)
    for words in sorted({number.note for number in numbers if number.note}):
        screen.write(f"({words})", "dim", 4)


def _one(number: Number) -> str:
    """A single number on its line."""
    note = f" ({number.note})" if number.note else ""
    right = "right" if number.verdict == "right" else f"should be {number.true}, {number.verdict}"
    return f"printed {number.printed}{MARKS[number.verdict]}: {right}{note}"


def _whole(text: str) -> str:
    """Short text is not broken at the end of a line."""
    return joined([text], "") if len(text) <= UNBROKEN else text


def _lines(lines: Iterable[str], screen: Screen) -> None:
    for line in lines:
        shown = Text(f"    {line}" if line else "")
        shown.highlight_regex(r"\S+✗", "red")
        shown.highlight_regex(r"\S+~", "yellow")
        screen.console.print(shown, soft_wrap=True)
