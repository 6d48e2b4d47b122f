"""Worksheets for a class and their grading: kata --print and kata grade."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..config import UserError, check_output, expand_path
from ..files import write_aside
from .exercise_screen import Screen, joined

if TYPE_CHECKING:
    from ..learn.katas.class_grading import Marked, QuestionSummary


@Parameter(name="*")
@dataclass(frozen=True)
class Printing:
    """A worksheet.

    Parameters
    ----------
    count
        Write a worksheet of this many exercises with fresh numbers.
    out
        The worksheet's file, such as sheet.html; the answers are on its last pages.
    key
        Write the answers to this file instead.
    csv
        Write an empty table for a class's answers, which pencil kata grade reads.
    """

    count: Annotated[int | None, Parameter(name="--print")] = None
    out: str | None = None
    key: str | None = None
    csv: str | None = None

    def options(self) -> dict[str, object]:
        """The options by their names on the command line."""
        return {"--print": self.count, "--out": self.out, "--key": self.key, "--csv": self.csv}


PLAIN = Printing()
SHEET = ("--out", "--key", "--csv")


def printed(name: str | None, topic: str | None, seed: int | None, printing: Printing) -> int:
    """Write a worksheet, and its answers and its table if they have files."""
    from ..learn.katas import class_grading, sheets

    if printing.out is None:
        raise UserError("--print needs a file for the worksheet: --out sheet.html")
    named = [path for path in (printing.out, printing.key, printing.csv) if path is not None]
    if len({expand_path(path).resolve() for path in named}) < len(named):
        raise UserError("--out, --key and --csv must be different files")
    for word, path, *endings in (
        ("--out", printing.out, ".html", ".htm"),
        ("--key", printing.key, ".html", ".htm"),
        ("--csv", printing.csv, ".csv"),
    ):
        check_output(word, None if path is None else expand_path(path), *endings)
    if printing.csv is not None and expand_path(printing.csv).exists():
        raise UserError(f"{printing.csv} already exists and may hold answers: give --csv another name")
    drawn = random.SystemRandom().randrange(10_000) if seed is None else seed
    sheet = sheets.make(sheets.scope(name, topic), printing.count or 0, drawn)
    write_aside(expand_path(printing.out), sheets.page(sheet, answers=printing.key is None).encode())
    if printing.key is not None:
        write_aside(expand_path(printing.key), sheets.key_page(sheet).encode())
    if printing.csv is not None:
        write_aside(expand_path(printing.csv), class_grading.template(sheet).encode())
    screen = Screen()
    screen.write(f"Sheet {sheet.code}: {len(sheet.questions)} exercises in {printing.out}")
    where = f"in {printing.key}" if printing.key else "at its end, on a separate page"
    screen.write(f"The answers are {where}.")
    if printing.csv:
        screen.write(f"Type the class's answers into {printing.csv}, then: pencil kata grade {printing.csv}")
    return 0


def grade(file: str, /, *, out: str | None = None) -> int:
    """Grade a class: a CSV file with the columns student, sheet, question and answer.

    Parameters
    ----------
    file
        The file with the answers; several numbers of one answer are separated by spaces or semicolons.
    out
        Write every answer with its marks to this CSV file.
    """
    from ..learn.katas import class_grading

    path = expand_path(file)
    if out is not None and expand_path(out).resolve() == path.resolve():
        raise UserError(f"--out would replace the answers in {file}: give it another name")
    check_output("--out", None if out is None else expand_path(out), ".csv")
    marked = class_grading.mark(class_grading.read(path), path)
    _report(marked)
    if out is not None:
        write_aside(expand_path(out), class_grading.graded(marked).encode())
        Screen().write(f"\nEvery answer with its marks is in {out}.")
    return 0


def _report(marked: "list[Marked]") -> None:
    """Each student's result, then each question with its mistakes."""
    from ..learn.katas import class_grading

    screen = Screen()
    students = class_grading.by_student(marked)
    wide = min(24, max(len(student.name) for student in students))
    screen.write("Students", "bold")
    for student in students:
        screen.write(f"{student.name[:wide]:{wide}}  {student.solved:3} of {student.total}  {student.sheet}", indent=2)
        for one in student.wrong:
            screen.write(f"{one.row.number}. {one.question.kata}: {one.summary}", "dim", indent=6)
        if student.missing:
            screen.write(f"{_runs(student.missing)}: {class_grading.NOTHING}", "dim", indent=6)
    screen.write("\nQuestions", "bold")
    questions = class_grading.by_question(marked)
    for code in dict.fromkeys(one.sheet for one in questions):
        own = [one for one in questions if one.sheet == code]
        screen.write(code, indent=2)
        for one in own:
            if one.answered:
                _show_question(one, screen)
        skipped = [one.number for one in own if not one.answered]
        if skipped:
            screen.write(f"{_runs(skipped)}: nobody answered", "dim", indent=4)
    often = class_grading.commonest(marked)[:3]
    if often:
        screen.write(f"\nMost often: {joined((f'{name} ({times})' for name, times in often), ', ')}.", "bold")


def _show_question(summary: "QuestionSummary", screen: Screen) -> None:
    """One question: how many have it right, and the mistakes of the others."""
    screen.write(f"{summary.number:3}. {summary.question.kata}: {summary.solved} of {summary.total} right", indent=2)
    for mistake, times in summary.mistakes:
        hint = summary.hints.get(mistake)
        screen.write(f"{times} × {mistake}{': ' + hint if hint else ''}", "yellow" if hint else "dim", indent=8)


def _runs(numbers: Iterable[int]) -> str:
    """Numbers in order, consecutive ones as a range: 2, 6–12."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
