"""Grades a class: what each student has right, and which mistakes are common."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...config import UserError
from .answer_text import choices, parts, understood
from .class_table import COLUMNS, LONGEST, Problems, Row, as_csv, read
from .exercise import Mistake, Question
from .grader import grade
from .sheets import Sheet, again

GRADED = (*COLUMNS, "exercise", "boxes right", "boxes", "solved", "mistake", "hint", "should be")
TOTALS = ("student", "sheets", "solved", "questions", "boxes right", "boxes")
NOTHING = "no answer"


@dataclass(frozen=True)
class Marked:
    """One graded answer: how many boxes are right, the mistake that explains the others, and a note."""

    row: Row
    question: Question
    right: int
    solved: bool
    mistake: Mistake | None
    note: str

    @property
    def summary(self) -> str:
        """What was wrong, in a few words; empty when all is right."""
        return "" if self.solved else self.mistake.name if self.mistake else self.note


def graded_class(path: Path) -> list[Marked]:
    """Every answer in a CSV file, graded; if some lines cannot be, an error names them all."""
    rows, problems = read(path)
    marked = mark(rows, problems)
    problems.refuse()
    return marked


def mark(rows: Iterable[Row], problems: Problems) -> list[Marked]:
    """Every answer, graded; lines of unknown sheets and questions are added to the problems."""
    sheets: dict[str, Sheet | str] = {}
    marked = []
    for row in rows:
        sheet = sheets[row.sheet] = sheets.get(row.sheet) or _sheet(row.sheet)
        if isinstance(sheet, str):
            problems.add(row.line, sheet)
        elif not 1 <= row.number <= len(sheet.questions):
            known = f"{row.sheet} has 1 to {len(sheet.questions)}"
            problems.add(row.line, f"there is no question {row.number}: {known}")
        else:
            marked.append(_mark(row, sheet.questions[row.number - 1]))
    return marked


def _sheet(code: str) -> Sheet | str:
    """The sheet with this code, or why there is none."""
    try:
        return again(code)
    except UserError as error:
        return str(error)


def _mark(row: Row, question: Question) -> Marked:
    blanks = question.blanks
    found = parts(row.answer, blanks)
    if len(found) > len(blanks):
        boxes = "1 box" if len(blanks) == 1 else f"{len(blanks)} boxes"
        return Marked(row, question, 0, False, None, f"{len(found)} answers for {boxes}")
    graded = grade(question, found)
    words = choices(question)
    unread = [part for part, blank in zip(found, blanks, strict=False) if not understood(part, blank, words)]
    if not found:
        note = NOTHING
    elif unread:
        note = f"{unread[0][:LONGEST]} cannot be read"
    elif len(found) < len(blanks):
        note = f"{len(found)} of {len(blanks)} boxes filled"
    else:
        note = "" if graded.solved else "not a known mistake"
    return Marked(row, question, sum(graded.right), graded.solved, graded.hint, note)


@dataclass(frozen=True)
class Student:
    """What one student has right on one sheet, what is wrong, and which questions have no answer."""

    name: str
    sheet: str
    solved: int
    total: int
    wrong: tuple[Marked, ...]
    missing: tuple[int, ...]


def by_student(marked: Iterable[Marked]) -> list[Student]:
    """Students in the order of the file; a question without a line counts as not answered."""
    groups: dict[tuple[str, str], list[Marked]] = {}
    for one in marked:
        groups.setdefault((one.row.student, one.row.sheet), []).append(one)
    found = []
    for (name, code), own in groups.items():
        wrong = tuple(one for one in own if not one.solved and one.summary != NOTHING)
        answered = {one.row.number for one in own if one.summary != NOTHING}
        total = int(code.split("-")[-3])
        missing = tuple(i for i in range(1, total + 1) if i not in answered)
        found.append(Student(name, code, len(answered) - len(wrong), total, wrong, missing))
    return found


@dataclass(frozen=True)
class Total:
    """What one student has right on all sheets together, in questions and in boxes."""

    name: str
    sheets: int
    solved: int
    questions: int
    right: int
    boxes: int


def by_name(marked: Iterable[Marked]) -> list[Total]:
    """The total of each student, in the order of the file; a question without a line counts as not answered."""
    groups: dict[str, list[Marked]] = {}
    for one in marked:
        groups.setdefault(one.row.student, []).append(one)
    found = []
    for name, own in groups.items():
        asked = [question for code in {one.row.sheet for one in own} for question in again(code).questions]
        sheets, boxes = len({one.row.sheet for one in own}), sum(len(question.blanks) for question in asked)
        solved, right = sum(one.solved for one in own), sum(one.right for one in own)
        found.append(Total(name, sheets, solved, len(asked), right, boxes))
    return found


def totals(marked: Iterable[Marked]) -> str:
    """The total of each student, as CSV."""
    return as_csv(TOTALS, (tuple(vars(total).values()) for total in by_name(marked)))


@dataclass(frozen=True)
class QuestionSummary:
    """How a class did on one question of a sheet: how many have it right, and which mistakes were made."""

    sheet: str
    number: int
    question: Question
    solved: int
    total: int
    mistakes: tuple[tuple[str, int], ...]
    hints: dict[str, str]

    @property
    def answered(self) -> bool:
        """Whether anyone answered it."""
        return self.mistakes != ((NOTHING, self.total),)


def by_question(marked: Iterable[Marked]) -> list[QuestionSummary]:
    """The questions of each sheet in order, with the mistakes that were made, most common first.

    A student who answered one question of a sheet counts for all of them.
    """
    sheets: dict[str, dict[int, list[Marked]]] = {}
    for one in marked:
        sheets.setdefault(one.row.sheet, {}).setdefault(one.row.number, []).append(one)
    found = []
    for code, answers in sorted(sheets.items()):
        total = len({one.row.student for own in answers.values() for one in own})
        for number, question in enumerate(again(code).questions, 1):
            own = answers.get(number, [])
            made = Counter(one.summary for one in own if not one.solved)
            made += Counter({NOTHING: total - len(own)})
            hints = {one.mistake.name: one.mistake.hint for one in own if one.mistake}
            solved = sum(one.solved for one in own)
            found.append(QuestionSummary(code, number, question, solved, total, tuple(made.most_common()), hints))
    return found


def commonest(marked: Iterable[Marked]) -> list[tuple[str, int]]:
    """The mistakes by name, most common first; a name with different meanings is counted by exercise.

    A mistake without values, such as too few decimals, belongs to no exercise and is the same in all.
    """
    made = [(one.mistake, one.question.kata) for one in marked if one.mistake]
    where: dict[str, set[str]] = {}
    hints: dict[str, set[str]] = {}
    for mistake, kata in made:
        where.setdefault(mistake.name, set()).add(kata)
        hints.setdefault(mistake.name, set()).add(mistake.hint if mistake.values else "")
    ambiguous = {name for name in where if len(where[name]) > 1 and len(hints[name]) > 1}
    return Counter(f"{m.name} in {kata}" if m.name in ambiguous else m.name for m, kata in made).most_common()


def graded(marked: Iterable[Marked]) -> str:
    """Every answer with its marks, as CSV."""
    rows = (
        (
            one.row.student,
            one.row.sheet,
            one.row.number,
            one.row.answer,
            one.question.kata,
            one.right,
            len(one.question.blanks),
            "yes" if one.solved else "no",
            one.summary,
            one.mistake.hint if one.mistake else "",
            " ".join(blank.written for blank in one.question.blanks),
        )
        for one in marked
    )
    return as_csv(GRADED, rows)
