"""Worksheets for a class, and their grading: the parts of kata that teachers use."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..config import UserError, can_be_written, in_full
from ..files import write_aside
from .asking import Screen, joined

if TYPE_CHECKING:
    from ..learn.katas.marking import Asked, Marked


@Parameter(name="*")
@dataclass(frozen=True)
class Printing:
    """A worksheet.

    Parameters
    ----------
    count
        Print a worksheet of so many exercises with fresh numbers.
    out
        The worksheet's file, such as sheet.html; its answers come last, on a page of their own.
    key
        Write the answers to this file instead.
    csv
        Write a table to type a class's answers into, for pencil kata grade.
    """

    count: Annotated[int | None, Parameter(name="--print")] = None
    out: str | None = None
    key: str | None = None
    csv: str | None = None

    def words(self) -> dict[str, object]:
        """What was given, as it was typed."""
        return {"--print": self.count, "--out": self.out, "--key": self.key, "--csv": self.csv}


PLAIN = Printing()
SHEET = ("--out", "--key", "--csv")


def printed(name: str | None, topic: str | None, seed: int | None, printing: Printing) -> int:
    """Write a worksheet, and what goes with it."""
    from ..learn.katas import marking, sheets

    if printing.out is None:
        raise UserError("say where the worksheet shall go: --out sheet.html")
    named = [path for path in (printing.out, printing.key, printing.csv) if path is not None]
    if len({in_full(path).resolve() for path in named}) < len(named):
        raise UserError("--out, --key and --csv must be different files")
    for word, path, *endings in (
        ("--out", printing.out, ".html", ".htm"),
        ("--key", printing.key, ".html", ".htm"),
        ("--csv", printing.csv, ".csv"),
    ):
        can_be_written(word, None if path is None else in_full(path), *endings)
    if printing.csv is not None and in_full(printing.csv).exists():
        raise UserError(f"{printing.csv} is already there, and answers may stand in it: give --csv another name")
    drawn = random.SystemRandom().randrange(10_000) if seed is None else seed
    sheet = sheets.make(sheets.scope(name, topic), printing.count or 0, drawn)
    write_aside(in_full(printing.out), sheets.page(sheet, answers=printing.key is None).encode())
    if printing.key is not None:
        write_aside(in_full(printing.key), sheets.key_page(sheet).encode())
    if printing.csv is not None:
        write_aside(in_full(printing.csv), marking.template(sheet).encode())
    screen = Screen()
    screen.say(f"Sheet {sheet.code}: {len(sheet.questions)} exercises in {printing.out}")
    where = f"in {printing.key}" if printing.key else "at its end, on a page of their own"
    screen.say(f"The answers are {where}.")
    if printing.csv:
        screen.say(f"Type the class's answers into {printing.csv}, then: pencil kata grade {printing.csv}")
    return 0


def grade(file: str, /, *, out: str | None = None) -> int:
    """Grade a class: a CSV file with the columns student, sheet, question and answer.

    Parameters
    ----------
    file
        The answers; several numbers of one answer are separated by blanks or semicolons.
    out
        Write every answer with its marks to this CSV file.
    """
    from ..learn.katas import marking

    path = in_full(file)
    if out is not None and in_full(out).resolve() == path.resolve():
        raise UserError(f"--out would replace the answers in {file}: give it another name")
    can_be_written("--out", None if out is None else in_full(out), ".csv")
    marked = marking.mark(marking.read(path), path)
    _report(marked)
    if out is not None:
        write_aside(in_full(out), marking.graded(marked).encode())
        Screen().say(f"\nEvery answer with its marks is in {out}.")
    return 0


def _report(marked: "list[Marked]") -> None:
    """Who has what right, then what to teach again."""
    from ..learn.katas import marking

    screen = Screen()
    students = marking.by_student(marked)
    wide = min(24, max(len(student.name) for student in students))
    screen.say("Students", "bold")
    for student in students:
        screen.say(f"{student.name[:wide]:{wide}}  {student.solved:3} of {student.total}  {student.sheet}", indent=2)
        for one in student.wrong:
            screen.say(f"{one.row.number}. {one.question.kata}: {one.said}", "dim", indent=6)
        if student.missing:
            screen.say(f"{_runs(student.missing)}: {marking.NOTHING}", "dim", indent=6)
    screen.say("\nQuestions", "bold")
    asked = marking.by_question(marked)
    for code in dict.fromkeys(one.sheet for one in asked):
        own = [one for one in asked if one.sheet == code]
        screen.say(code, indent=2)
        for one in own:
            if one.answered:
                _tell(one, screen)
        skipped = [one.number for one in own if not one.answered]
        if skipped:
            screen.say(f"{_runs(skipped)}: nobody answered", "dim", indent=4)
    often = marking.commonest(marked)[:3]
    if often:
        screen.say(f"\nMost often: {joined((f'{name} ({times})' for name, times in often), ', ')}.", "bold")


def _tell(asked: "Asked", screen: Screen) -> None:
    """One question: how many have it right, and what the others did."""
    screen.say(f"{asked.number:3}. {asked.question.kata}: {asked.solved} of {asked.total} right", indent=2)
    for mistake, times in asked.mistakes:
        hint = asked.hints.get(mistake)
        screen.say(f"{times} × {mistake}{': ' + hint if hint else ''}", "yellow" if hint else "dim", indent=8)


def _runs(numbers: Iterable[int]) -> str:
    """Numbers in order, those that follow one another as one: 2, 6–12."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
