"""Worksheets for a class and their grading: kata --print and kata grade."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from ...config import UserError, check_output, expand_path, refuse
from ...console import note
from ...files import write_aside
from ...learn.katas import class_grading, sheet_html, sheets
from ...learn.katas.class_grading import BadLines, Marked, QuestionSummary, Total, runs
from ...learn.katas.sheet_html import Paper
from ...learn.katas.sheets import Sheet
from .exercise import Screen, joined


@Parameter(name="*")
@dataclass(frozen=True)
class Printing:
    """A worksheet.

    Parameters
    ----------
    count
        Write a worksheet of this many exercises with fresh numbers.
    out
        The file of the worksheet, or with --page of the document's page, such as sheet.html; the answers are on its
        last pages.
    key
        Write the answers to this file instead.
    csv
        Write an empty table for a class's answers, which pencil kata grade reads.
    students
        A text file with the names of a class, one a line: the table has lines for all of them.
    different
        Make a sheet with other numbers for each student, all in one file.
    """

    count: Annotated[int | None, Parameter(name="--print")] = None
    out: str | None = None
    key: str | None = None
    csv: str | None = None
    students: str | None = None
    different: Annotated[bool, Parameter(negative=())] = False

    def options(self) -> dict[str, object]:
        """The options by their names on the command line."""
        files = {"--out": self.out, "--key": self.key, "--csv": self.csv, "--students": self.students}
        return {"--print": self.count, **files, "--different": self.different}


PLAIN = Printing()
SHEET = ("--out", "--key", "--csv", "--students", "--different")
MOST = 5000  # exercises of a class together


def printed(names: Sequence[str], topic: str | None, seed: int | None, printing: Printing) -> int:
    """Write a worksheet, or one for each student; and the answers and the table if they have files."""
    _check_files(printing, "--print")
    what = sheets.scope(names, topic)
    count = printing.count or 0
    return _write(printing, seed, count, lambda drawn: sheets.make(what, count, drawn))


def printed_page(name: str, seed: int | None, new: bool, printing: Printing) -> int:
    """Write the page of a document: with its own numbers, unless there is a seed or fresh ones are wanted."""
    _check_files(printing, "--page")
    own = seed is None and not new and not printing.different
    count = len(sheets.of_document(name, None).questions) if printing.different else 0
    return _write(printing, seed, count, lambda drawn: sheets.of_document(name, None if own else drawn))


def _write(printing: Printing, seed: int | None, count: int, make: Callable[[int], Sheet]) -> int:
    """Write the sheets that `make` gives for a seed, each of `count` exercises."""
    students = [] if printing.students is None else class_grading.students(expand_path(printing.students))
    papers = _papers(make, count, printing.different, seed, students)
    out, key = expand_path(printing.out or ""), printing.key
    sheet = papers[0][1]
    copies = papers if printing.different else [("", sheet)]
    write_aside(out, sheet_html.page(copies, answers=key is None).encode())
    if key is not None:
        write_aside(expand_path(key), sheet_html.key_page(copies).encode())
    if printing.csv is not None:
        write_aside(expand_path(printing.csv), class_grading.template(papers).encode())
    screen = Screen()
    many = f"{len(sheet.questions)} exercises"
    if printing.different:
        screen.write(f"{len(papers)} sheets of {many} in {printing.out}, the first of them {sheet.code}")
    else:
        screen.write(f"Sheet {sheet.code}: {many} in {printing.out}")
    screen.write(f"The answers are {f'in {key}' if key else 'at its end, on a separate page'}.")
    if printing.csv:
        screen.write(f"Type the class's answers into {printing.csv}, then: pencil kata grade {printing.csv}")
    return 0


def _check_files(printing: Printing, task: str) -> None:
    """Refuse files that cannot be read or written, before any work."""
    named = [path for path in (printing.out, printing.key, printing.csv, printing.students) if path is not None]
    students = printing.students is not None
    refuse(
        (printing.out is None, f"{task} needs a file for the worksheet: --out sheet.html"),
        (
            printing.different and not students,
            "--different makes a sheet for each student: add --students with a file of their names",
        ),
        (
            students and not (printing.csv or printing.different),
            "--students needs --csv, for a table of their answers, or --different, for a sheet each",
        ),
        (
            len({expand_path(path).resolve() for path in named}) < len(named),
            "--out, --key, --csv and --students must be different files",
        ),
    )
    for word, path, *endings in (
        ("--out", printing.out, ".html", ".htm"),
        ("--key", printing.key, ".html", ".htm"),
        ("--csv", printing.csv, ".csv"),
    ):
        check_output(word, None if path is None else expand_path(path), *endings)
    if printing.csv is not None and expand_path(printing.csv).exists():
        raise UserError(f"{printing.csv} already exists and may hold answers: give --csv another name")


def _papers(
    make: Callable[[int], Sheet], count: int, different: bool, seed: int | None, students: Sequence[str]
) -> list[Paper]:
    """A sheet for each student, the same or different ones; for nobody in particular if there are none."""
    drawn = random.SystemRandom().randrange(10_000) if seed is None else seed
    if not different:
        return [(student, sheet) for sheet in [make(drawn)] for student in students or [""]]
    if count * len(students) > MOST:
        raise UserError(f"{len(students)} sheets of {count} exercises are more than {MOST:,} exercises; print fewer")
    return [(one, make((drawn + i) % sheets.SHEET_SEEDS)) for i, one in enumerate(students)]


def grade(file: str, /, *, out: str | None = None, totals: str | None = None) -> int:
    """Grade a class: a CSV file with the columns student, sheet, question and answer.

    Parameters
    ----------
    file
        The file with the answers; several numbers of one answer are separated by spaces or semicolons.
    out
        Write every answer with its marks to this CSV file.
    totals
        Write the total of each student, over all sheets, to this CSV file.
    """
    path, files = expand_path(file), {"--out": out, "--totals": totals}
    for word, name in files.items():
        if name is not None and expand_path(name).resolve() == path.resolve():
            raise UserError(f"{word} would replace the answers in {file}: give it another name")
        check_output(word, None if name is None else expand_path(name), ".csv")
    if out is not None and totals is not None and expand_path(out).resolve() == expand_path(totals).resolve():
        raise UserError("--out and --totals must be different files")
    try:
        marked = class_grading.graded_class(path)
    except BadLines as error:
        for line in (f"pencil: {error.heading}", *(f"  {line}" for line in error.lines)):
            note(line)
        return 2
    _report(marked)
    if out is not None:
        write_aside(expand_path(out), class_grading.graded(marked).encode())
        Screen().write(f"\nEvery answer with its marks is in {out}.")
    if totals is not None:
        write_aside(expand_path(totals), class_grading.totals(marked).encode())
        Screen().write(f"{'' if out else chr(10)}The total of each student is in {totals}.")
    return 0


def _report(marked: list[Marked]) -> None:
    """Each student's result, then each question with its mistakes."""
    screen = Screen()
    students = class_grading.by_student(marked)
    wide = min(24, max(len(student.name) for student in students))
    screen.write("Students", "bold")
    for student in students:
        screen.write(f"{student.name[:wide]:{wide}}  {student.solved:3} of {student.total}  {student.sheet}", indent=2)
        for one in student.wrong:
            screen.write(f"{one.row.number}. {one.question.kata}: {one.summary}", "dim", indent=6)
        if student.missing:
            screen.write(f"{runs(student.missing)}: {class_grading.NOTHING}", "dim", indent=6)
    _show_totals(class_grading.by_name(marked), wide, screen)
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
            screen.write(f"{runs(skipped)}: nobody answered", "dim", indent=4)
    often = class_grading.commonest(marked)[:3]
    if often:
        screen.write(f"\nMost often: {joined((f'{name} ({times})' for name, times in often), ', ')}.", "bold")


def _show_totals(totals: list[Total], wide: int, screen: Screen) -> None:
    """The total of each student, where some have more than one sheet."""
    if all(total.sheets == 1 for total in totals):
        return
    screen.write("\nTotals", "bold")
    for total in totals:
        sheets = f"{total.sheets} sheet{'s' * (total.sheets > 1)}"
        screen.write(f"{total.name[:wide]:{wide}}  {total.solved:3} of {total.questions}  on {sheets}", indent=2)


def _show_question(summary: QuestionSummary, screen: Screen) -> None:
    """One question: how many have it right, and the mistakes of the others."""
    screen.write(f"{summary.number:3}. {summary.question.kata}: {summary.solved} of {summary.total} right", indent=2)
    for mistake, times in summary.mistakes:
        hint = summary.hints.get(mistake)
        screen.write(f"{times} × {mistake}{': ' + hint if hint else ''}", "yellow" if hint else "dim", indent=8)
