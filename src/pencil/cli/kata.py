"""The commands kata and kata grade: exercises, worksheets for a class, and their grading."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from cyclopts import App, Parameter

from ..config import UserError, check_output, expand_path, refuse
from ..console import note
from ..files import write_aside
from ..learn.katas import KATAS, class_grading, kata, sheet_html, sheets
from ..learn.katas import page as sections
from ..learn.katas.class_grading import BadLines, Marked, QuestionSummary, Total, runs
from ..learn.katas.progress import Record
from ..learn.katas.sheet_html import Paper
from ..learn.katas.sheets import Sheet
from .screens.exercise import Screen, ask, joined

app = App(name="kata", version_flags=())
now: Callable[[], datetime] = datetime.now
Flag = Annotated[bool, Parameter(negative=())]


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
    words
        field: query, key, value (Q, K, V); document: those of document 000 (WANT, HAVE, GIVE).
    """

    count: Annotated[int | None, Parameter(name="--print")] = None
    out: str | None = None
    key: str | None = None
    csv: str | None = None
    students: str | None = None
    different: Annotated[bool, Parameter(negative=())] = False
    words: Literal["field", "document"] = "field"

    def options(self) -> dict[str, object]:
        """The options by their names on the command line."""
        files = {"--out": self.out, "--key": self.key, "--csv": self.csv, "--students": self.students}
        words = None if self.words == "field" else self.words
        return {"--print": self.count, **files, "--different": self.different, "--words": words}


PLAIN = Printing()
SHEET = ("--out", "--key", "--csv", "--students", "--different", "--words")
MOST_EXERCISES = 5000  # exercises of a class together


@app.default
def exercise(
    *names: str,
    new: Flag = False,
    seed: int | None = None,
    page: str | None = None,
    every: Annotated[bool, Parameter(name="--list", negative=())] = False,
    topic: Annotated[str | None, Parameter(name=("--topic", "--of"))] = None,
    printing: Printing = PLAIN,
) -> int:
    """Exercises to work by hand: shows the next one, and its working after your answer.

    Type one number a line, or all on one line; ? shows the working (counted as seen, not solved), q quits.

    Parameters
    ----------
    names
        The exercise, with the numbers of its document; several with --print. Without a name: one that is due, else the
        next new one.
    new
        Use fresh numbers.
    seed
        Use the fresh numbers of this seed again.
    page
        All exercises of a document in its order: 000 to 004. With --out they are written as a page to print.
    every
        List all exercises and your progress.
    topic
        Only exercises of this topic; --list shows the topics.
    """
    options = {"a name": names or None, "--page": page, "--list": every, "--new": new, "--seed": seed, "--topic": topic}
    _fit_together(options | printing.options())
    for name in names:
        kata(name)
    if seed is not None and seed < 0:
        raise UserError(f"--seed is 0 or more, not {seed}")
    if printing.count is not None:
        return printed(names, topic, seed, printing)
    if page is not None and any(printing.options().values()):
        return printed_page(page, seed, new, printing)
    if len(names) > 1:
        raise UserError(f"several exercises ({', '.join(names)}) make a worksheet: add --print and their number")
    record = Record(note, lambda: now())
    if every:
        return _list(topic, record)
    if page is not None:
        return _page(page, random.SystemRandom().randrange(10_000) if new else seed, record)
    next_name = names[0] if names else _next(topic, record)
    if next_name is None:
        return 0
    if seed is None and (new or (not names and next_name in record.standings)):
        seed = random.SystemRandom().randrange(10_000)  # an exercise that comes back has fresh numbers
    screen = Screen()
    outcome, _ = ask(kata(next_name).make(seed), screen)
    record.add(next_name, outcome)
    if outcome is not None:
        when = "today, with fresh numbers" if record.when(next_name) == "due" else record.when(next_name)
        screen.write(f"{next_name} comes back {when}. Next: pencil kata", "dim")
    return 0


# the options that each task allows
ALLOWED = {
    "--page": ("--new", "--seed", *SHEET),
    "--list": ("--topic",),
    "--print": ("a name", "--topic", "--seed", *SHEET),
    "": ("a name", "--topic", "--new", "--seed"),
}


def _fit_together(values: dict[str, object]) -> None:
    """Refuse options that cannot be combined."""
    options = [word for word, value in values.items() if value is not None and value is not False]
    task = next((word for word in ALLOWED if word in options), "")
    for word in options:
        if word != task and word not in ALLOWED[task]:
            if not task:
                raise UserError(f"{word} is for a worksheet: add --print and the number of exercises")
            raise UserError(f"{task} and {word} do not go together")
    for one, other in (("a name", "--topic"), ("--new", "--seed")):
        if one in options and other in options:
            raise UserError(f"{one} and {other} do not go together")
    if "--seed" in options and not task and "a name" not in options:
        raise UserError("--seed repeats the numbers of one exercise: name it, as in pencil kata softmax --seed 7")


# ---- progress


def _names(topic: str | None) -> list[str]:
    wanted = None if topic is None else sheets.topic(topic)
    return [name for name, kata in KATAS.items() if wanted in (None, kata.topic)]


def _next(topic: str | None, record: Record) -> str | None:
    """The exercise that is due or new; if there is none, None, and a message about the next one."""
    names = _names(topic)
    name = record.following(names)
    if name is None:
        soonest = min(names, key=lambda name: record.of(name).due or now().date())
        when = record.when(soonest)
        screen = Screen()
        screen.write(f"Nothing is due today; {soonest} comes back {when}.")
        screen.write(f"To practise now: pencil kata {soonest} --new")
    return name


def _page(name: str, seed: int | None, record: Record) -> int:
    """All exercises of a page, one after the other."""
    screen, done = Screen(), Counter()
    page = [
        (section if not i else None, question)
        for section in sections(name, seed)
        for i, question in enumerate(section.questions)
    ]
    for i, (section, question) in enumerate(page, 1):
        if section is not None:
            screen.write(section.title, "bold")
            screen.write(f"{section.about}{chr(10) if section.about else ''}", "dim")
        screen.write(f"{i} of {len(page)}", "dim")
        outcome, left = ask(question, screen)
        if question.kata in KATAS:  # the others belong to the page alone
            record.add(question.kata, outcome)
        done[outcome] += 1
        if left:
            break
        screen.write()
    screen.write(f"{done['solved']} of {len(page)} right at once, {done['corrected']} after a wrong answer.", "bold")
    return 0


def _list(topic: str | None, record: Record) -> int:
    """All exercises by topic, with the learner's progress."""
    screen, last = Screen(), None
    names = _names(topic)
    wide = max(map(len, names))
    for name in sorted(names, key=lambda name: [kata.topic for kata in KATAS.values()].index(KATAS[name].topic)):
        kata, standing = KATAS[name], record.of(name)
        if kata.topic != last:
            screen.write(f"{chr(10) if last else ''}{kata.topic}", "bold")
        last = kata.topic
        score = f", {standing.solved} of {standing.attempts} solved" if standing.attempts else ""
        screen.write(f"{name:{wide}}  {kata.title}", indent=2)
        if standing.attempts:
            screen.write(f"{'':{wide}}  {record.when(name)}{score}", "dim", indent=2)
    tried = [name for name in names if record.of(name).attempts]
    due = [name for name in tried if record.when(name) == "due"]
    screen.write(f"\n{len(names)} exercises: {len(names) - len(tried)} new, {len(due)} due.")
    return 0


# ---- worksheets


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
    write_aside(out, sheet_html.page(copies, key is None, printing.words).encode())
    if key is not None:
        write_aside(expand_path(key), sheet_html.key_page(copies, printing.words).encode())
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
    if count * len(students) > MOST_EXERCISES:
        raise UserError(
            f"{len(students)} sheets of {count} exercises are more than {MOST_EXERCISES:,} exercises; print fewer"
        )
    return [(student, make((drawn + i) % sheets.SHEET_SEEDS)) for i, student in enumerate(students)]


# ---- grading


@app.command
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


def _report(answers: list[Marked]) -> None:
    """Each student's result, then each question with its mistakes."""
    screen = Screen()
    students = class_grading.by_student(answers)
    wide = min(24, max(len(student.name) for student in students))
    screen.write("Students", "bold")
    for student in students:
        screen.write(f"{student.name[:wide]:{wide}}  {student.solved:3} of {student.total}  {student.sheet}", indent=2)
        for marked in student.wrong:
            screen.write(f"{marked.row.number}. {marked.question.kata}: {marked.summary}", "dim", indent=6)
        if student.missing:
            screen.write(f"{runs(student.missing)}: {class_grading.NOTHING}", "dim", indent=6)
    _show_totals(class_grading.by_name(answers), wide, screen)
    screen.write("\nQuestions", "bold")
    questions = class_grading.by_question(answers)
    for code in dict.fromkeys(question.sheet for question in questions):
        own = [question for question in questions if question.sheet == code]
        screen.write(code, indent=2)
        for question in own:
            if question.answered:
                _show_question(question, screen)
        skipped = [question.number for question in own if not question.answered]
        if skipped:
            screen.write(f"{runs(skipped)}: nobody answered", "dim", indent=4)
    often = class_grading.commonest(answers)[:3]
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
