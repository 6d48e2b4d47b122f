"""Grades a class: answers from a spreadsheet, what each student has right, and which mistakes are common."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...config import UserError
from .answer_text import choices, parts, understood
from .exercise import Mistake, Question
from .grader import grade
from .sheets import Sheet, again

COLUMNS = ("student", "sheet", "question", "answer")
GRADED = (*COLUMNS, "exercise", "boxes right", "boxes", "solved", "mistake", "hint", "should be")
BYTES = 10_000_000
NOTHING = "no answer"
LONGEST = 40  # characters of a cell that a message repeats


@dataclass(frozen=True)
class Row:
    """One line of the file: a student's answer to one question of a sheet."""

    line: int
    student: str
    sheet: str
    number: int
    answer: str


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


def template(sheet: Sheet) -> str:
    """A CSV file to type one student's answers into; its lines are copied for the next student."""
    return _csv(COLUMNS, (("", sheet.code, i, "") for i in range(1, len(sheet.questions) + 1)))


def read(path: Path) -> list[Row]:
    """The answers in a CSV file of any spreadsheet: in any encoding, with commas, semicolons or tabs."""
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a CSV file")
    if not path.exists():
        raise UserError(f"there is no file {path}")
    with path.open("rb") as file:
        content = file.read(BYTES + 1)
    if len(content) > BYTES:
        raise UserError(f"{path} is larger than the {BYTES:,} bytes that answers may have")
    lines = _table(_decoded(content, path), path)
    places = _columns(lines[0][1], path)
    rows: dict[tuple[str, str, int], Row] = {}
    above = None
    for line, cells in lines[1:]:
        if any(cells):
            above = row = _row(line, cells, places, above, path)
            whose = row.student, row.sheet, row.number
            if whose in rows:
                again = f"question {row.number} of {row.student} on {row.sheet} is already on line {rows[whose].line}"
                raise UserError(f"{path}, line {line}: {again}")
            rows[whose] = row
    if not rows:
        raise UserError(f"{path} has no answers below its first line")
    return list(rows.values())


def _decoded(content: bytes, path: Path) -> str:
    """The text of a file: UTF-8 or UTF-16 with a byte order mark, UTF-8 without, else Windows-1252."""
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    for encoding in ("utf-16",) if wide else ("utf-8-sig", "cp1252"):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            return text
    raise UserError(f"{path} is not a CSV file: save the spreadsheet as CSV first")


def _table(text: str, path: Path) -> list[tuple[int, list[str]]]:
    """The cells of each line with its number; the separator is the one that finds most of the columns."""
    first = text.lstrip().partition("\n")[0]
    mark = max(",;\t", key=lambda mark: len(set(COLUMNS) & {_plain(cell) for cell in first.split(mark)}))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark)
    try:
        lines = [(reader.line_num, [_clean(cell) for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not a CSV file: {error}") from None
    while lines and not any(lines[0][1]):
        del lines[0]
    if not lines:
        raise UserError(f"{path} is empty")
    return lines


def _clean(cell: str) -> str:
    """A cell on one line, without control characters."""
    return "".join(c if c.isprintable() else " " for c in cell).strip()


def _plain(cell: str) -> str:
    return cell.strip().strip('"').lower()


def _columns(head: Sequence[str], path: Path) -> dict[str, int]:
    names = [_plain(cell) for cell in head]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        several = "columns" if len(missing) > 1 else "column"
        raise UserError(f"{path} has no {several} {' and '.join(missing)}: its first line must be {','.join(COLUMNS)}")
    return {name: names.index(name) for name in COLUMNS}


def _row(line: int, cells: Sequence[str], places: dict[str, int], above: Row | None, path: Path) -> Row:
    """One line of the table; a student or a sheet that is left empty is the one above."""
    student, sheet, number, given = (cells[i] if (i := places[name]) < len(cells) else "" for name in COLUMNS)
    if places["answer"] == max(places.values()):
        given = " ".join((given, *cells[places["answer"] + 1 :]))  # numbers typed into separate cells
    student = student or (above.student if above else "")
    sheet = (sheet or (above.sheet if above else "")).lower()
    for name, value in (("student", student), ("sheet", sheet), ("question", number)):
        if not value:
            raise UserError(f"{path}, line {line}: the {name} is missing")
    # spreadsheets may write 3 as 3.0, and people as 3.
    if not re.fullmatch(r"\d{1,6}([.,]0*)?", number):
        raise UserError(f"{path}, line {line}: {number[:LONGEST]} is not the number of a question")
    return Row(line, student, sheet, int(re.split("[.,]", number)[0]), given.strip())


def mark(rows: Iterable[Row], path: Path) -> list[Marked]:
    """Every answer, graded."""
    sheets: dict[str, Sheet] = {}
    marked = []
    for row in rows:
        try:
            sheet = sheets[row.sheet] = sheets.get(row.sheet) or again(row.sheet)
        except UserError as error:
            raise UserError(f"{path}, line {row.line}: {error}") from None
        if not 1 <= row.number <= len(sheet.questions):
            known = f"{row.sheet} has 1 to {len(sheet.questions)}"
            raise UserError(f"{path}, line {row.line}: there is no question {row.number}: {known}")
        marked.append(_mark(row, sheet.questions[row.number - 1]))
    return marked


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
            one.row.student, one.row.sheet, one.row.number, one.row.answer, one.question.kata, one.right,
            len(one.question.blanks), "yes" if one.solved else "no", one.summary,
            one.mistake.hint if one.mistake else "", " ".join(blank.written for blank in one.question.blanks),
        )
        for one in marked
    )  # fmt: skip
    return _csv(GRADED, rows)


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV with a byte order mark, so that spreadsheets read it as UTF-8."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerows((head, *rows))
    return "\ufeff" + text.getvalue()
