"""Grades a class: its CSV files, what each student has right, and which mistakes are common."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...config import UserError, refuse
from ...console import consecutive
from .exercise import Mistake, Question
from .grader import choices, grade, parts, understood
from .sheets import Sheet, again

COLUMNS = ("student", "sheet", "question", "answer")
MOST_BYTES = 10_000_000  # of a file
MOST_STUDENTS = 1000
LONGEST_CHARACTERS = 40  # of a cell that a message repeats
LISTED = 20  # bad lines that a message names
FORMULA = re.compile(r"[=+@\t-]")  # what a spreadsheet takes for the beginning of a formula
NUMBERS = re.compile(r"[-+−\d.,;/%\se]*", re.I)


@dataclass(frozen=True)
class Row:
    """One line of the file: a student's answer to one question of a sheet."""

    line: int
    student: str
    sheet: str
    number: int
    answer: str


class BadLines(UserError):
    """Several lines of a file are wrong: a heading, and a line about each."""

    def __init__(self, heading: str, lines: Sequence[str]):
        super().__init__(f"{heading} {'; '.join(lines)}")
        self.heading, self.lines = heading, lines


@dataclass
class Problems:
    """The lines of a file that cannot be graded, and why."""

    path: Path
    lines: dict[str, list[int]] = field(default_factory=dict)

    def add(self, line: int, what: str) -> None:
        self.lines.setdefault(what, []).append(line)

    def refuse(self) -> None:
        """Raise one error that names every bad line, if there is any."""
        if not self.lines:
            return
        by_line = sorted(self.lines.items(), key=lambda item: item[1])
        named = [f"line{'s' if len(lines) > 1 else ''} {runs(lines)}: {what}" for what, lines in by_line]
        if len(named) == 1:
            raise UserError(f"{self.path}, {named[0]}")
        more = [f"and {len(named) - LISTED} more"] if len(named) > LISTED else []
        count = sum(map(len, self.lines.values()))
        raise BadLines(f"{self.path} has {count} lines to correct:", [*named[:LISTED], *more])


def runs(numbers: Iterable[int]) -> str:
    """Numbers in order, consecutive ones as a range: 2, 6–12."""
    return ", ".join(consecutive(numbers))


# ---- writing


def template(papers: Iterable[tuple[str, Sheet]]) -> str:
    """A CSV file to type the answers of a class into: a line for each student and question."""
    return as_csv(COLUMNS, ((student, sheet.code, i, "") for student, sheet in papers for i in _numbers(sheet)))


def _numbers(sheet: Sheet) -> range:
    return range(1, len(sheet.questions) + 1)


def as_csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV with a byte order mark, so that spreadsheets read it as UTF-8."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerows((head, *([_inert(cell) for cell in row] for row in rows)))
    return "\ufeff" + text.getvalue()


def _inert(cell: object) -> object:
    """A word that a spreadsheet would take for a formula, with an apostrophe, which makes it a word."""
    formula = isinstance(cell, str) and FORMULA.match(cell) and not NUMBERS.fullmatch(cell)
    return f"'{cell}" if formula else cell


# ---- reading


def students(path: Path) -> list[str]:
    """The names in a text file, one a line."""
    problems, line_of = Problems(path), {}
    for line, name in enumerate(_decoded(_content(path), path).splitlines(), 1):
        name = _clean(name)
        if name in line_of:
            problems.add(
                line, f"{name[:LONGEST_CHARACTERS]} is already on line {line_of[name]}; students need different names"
            )
        elif name:
            line_of[name] = line
    problems.refuse()
    if not 0 < len(line_of) <= MOST_STUDENTS:
        raise UserError(f"{path} has {len(line_of):,} names; a class has 1 to {MOST_STUDENTS:,}, one a line")
    return list(line_of)


def read(path: Path) -> tuple[list[Row], Problems]:
    """The answers in a CSV file of any spreadsheet: in any encoding, with commas, semicolons or tabs."""
    lines = _table(_decoded(_content(path), path), path)
    places = _columns(lines[0][1], path)
    rows: dict[tuple[str, str, int], Row] = {}
    problems, above = Problems(path), ("", "")
    for line, cells in lines[1:]:
        if not any(cells):
            continue
        student, sheet, number, answer = _cells(cells, places, above)
        above = student, sheet
        what = _wrong(student, sheet, number)
        if what:
            problems.add(line, what)
            continue
        row = Row(line, student, sheet, int(re.split("[.,]", number)[0]), answer)
        whose = student, sheet, row.number
        if whose in rows:
            problems.add(line, f"question {row.number} of {student} on {sheet} is already on line {rows[whose].line}")
        else:
            rows[whose] = row
    if not rows and not problems.lines:
        raise UserError(f"{path} has no answers below its first line")
    return list(rows.values()), problems


def _content(path: Path) -> bytes:
    refuse(
        (path.is_dir(), f"{path} is a folder, not a file"),
        (not path.exists(), f"there is no file {path}"),
        (not path.is_file(), f"{path} is not a plain file"),
    )
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UserError(f"{path} is larger than the {MOST_BYTES:,} bytes that a class may have")
    return content


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
    """A cell on one line, without control characters, and without the apostrophe that makes it a word."""
    text = "".join(c if c.isprintable() else " " for c in cell).strip()
    return text[1:] if text.startswith("'") and FORMULA.match(text[1:]) else text


def _plain(cell: str) -> str:
    return cell.strip().strip('"').lower()


def _columns(head: Sequence[str], path: Path) -> dict[str, int]:
    names = [_plain(cell) for cell in head]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        several = "columns" if len(missing) > 1 else "column"
        raise UserError(f"{path} has no {several} {' and '.join(missing)}: its first line must be {','.join(COLUMNS)}")
    return {name: names.index(name) for name in COLUMNS}


def _cells(cells: Sequence[str], places: dict[str, int], above: tuple[str, str]) -> Iterator[str]:
    """Student, sheet, question and answer of a line; a student or a sheet that is left empty is the one above."""
    student, sheet, number, answer = (cells[i] if (i := places[name]) < len(cells) else "" for name in COLUMNS)
    if places["answer"] == max(places.values()):
        answer = " ".join((answer, *cells[places["answer"] + 1 :]))  # numbers typed into separate cells
    yield from (student or above[0], (sheet or above[1]).lower(), number, answer.strip())


def _wrong(student: str, sheet: str, number: str) -> str:
    """What is wrong with a line, if anything."""
    for name, value in (("student", student), ("sheet", sheet), ("question", number)):
        if not value:
            return f"the {name} is missing"
    # spreadsheets may write 3 as 3.0, and people as 3.
    fine = re.fullmatch(r"\d{1,6}([.,]0*)?", number)
    return "" if fine else f"{number[:LONGEST_CHARACTERS]} is not the number of a question"


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
            has = f"{row.sheet} has 1 to {len(sheet.questions)}"
            problems.add(row.line, f"there is no question {row.number}: {has}")
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
    answers = parts(row.answer, blanks)
    if len(answers) > len(blanks):
        boxes = "1 box" if len(blanks) == 1 else f"{len(blanks)} boxes"
        return Marked(row, question, 0, False, None, f"{len(answers)} answers for {boxes}")
    graded = grade(question, answers)
    words = choices(question)
    unread = [part for part, blank in zip(answers, blanks, strict=False) if not understood(part, blank, words)]
    if not answers:
        note = NOTHING
    elif unread:
        note = f"{unread[0][:LONGEST_CHARACTERS]} cannot be read"
    elif len(answers) < len(blanks):
        note = f"{len(answers)} of {len(blanks)} boxes filled"
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
    for answer in marked:
        groups.setdefault((answer.row.student, answer.row.sheet), []).append(answer)
    results = []
    for (name, code), own in groups.items():
        wrong = tuple(answer for answer in own if not answer.solved and answer.summary != NOTHING)
        answered = {answer.row.number for answer in own if answer.summary != NOTHING}
        total = int(code.split("-")[-3])
        missing = tuple(i for i in range(1, total + 1) if i not in answered)
        results.append(Student(name, code, len(answered) - len(wrong), total, wrong, missing))
    return results


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
    for answer in marked:
        groups.setdefault(answer.row.student, []).append(answer)
    sums = []
    for name, own in groups.items():
        questions = [question for code in {answer.row.sheet for answer in own} for question in again(code).questions]
        sheets, boxes = len({answer.row.sheet for answer in own}), sum(len(question.blanks) for question in questions)
        solved, right = sum(answer.solved for answer in own), sum(answer.right for answer in own)
        sums.append(Total(name, sheets, solved, len(questions), right, boxes))
    return sums


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
    for answer in marked:
        sheets.setdefault(answer.row.sheet, {}).setdefault(answer.row.number, []).append(answer)
    summaries = []
    for code, answers in sorted(sheets.items()):
        total = len({answer.row.student for own in answers.values() for answer in own})
        for number, question in enumerate(again(code).questions, 1):
            own = answers.get(number, [])
            made = Counter(answer.summary for answer in own if not answer.solved)
            made += Counter({NOTHING: total - len(own)})
            hints = {answer.mistake.name: answer.mistake.hint for answer in own if answer.mistake}
            solved = sum(answer.solved for answer in own)
            summaries.append(QuestionSummary(code, number, question, solved, total, tuple(made.most_common()), hints))
    return summaries


def commonest(marked: Iterable[Marked]) -> list[tuple[str, int]]:
    """The mistakes by name, most common first; a name with different meanings is counted by exercise.

    A mistake without values, such as too few decimals, belongs to no exercise and is the same in all.
    """
    made = [(answer.mistake, answer.question.kata) for answer in marked if answer.mistake]
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
            answer.row.student,
            answer.row.sheet,
            answer.row.number,
            answer.row.answer,
            answer.question.kata,
            answer.right,
            len(answer.question.blanks),
            "yes" if answer.solved else "no",
            answer.summary,
            answer.mistake.hint if answer.mistake else "",
            " ".join(blank.written for blank in answer.question.blanks),
        )
        for answer in marked
    )
    return as_csv(GRADED, rows)
