"""A walk in a terminal or over a pipe, no wider than the screen: each question before what answers it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from rich.text import Text

from ...learn.check.check import Number
from ...learn.katas.exercise import Question, Table
from ...learn.katas.grader import grade
from ...learn.walks import Compared, Section, Shown, Walk
from ...learn.walks.sections import corrections
from .exercise import Quit, Screen, ShowWorking, enter, joined, laid_out, point_out, pose, show_working

KEYS = "Enter goes on, b back, w unfolds, q leaves"
COVERED = "Type your answer; Enter shows it, b goes back, q leaves"
MARKS = {"right": "", "rounded along the way": "~", "wrong": "✗"}
UNBROKEN = 30
CLAIMS = {"shown": "green", "not shown": "yellow", "wrong": "red"}


# ---- over a pipe


def everything(walk: Walk, screen: Screen, answers: bool = False) -> None:
    """All sections in their order; what follows a question is at the end, or below it with `answers`."""
    _title(walk, screen)
    covered: list[tuple[int, Section, range]] = []
    places: dict[str, str] = {}  # a step whose tables are at the end, and the answer that has them
    asked = 0
    for step, sections in walk.groups:
        _head(walk, step, sections, screen)
        for section in sections:
            _opening(section, screen)
            numbers = range(asked + 1, asked + 1 + len(section.questions))
            asked += len(section.questions)
            for number, question in zip(numbers, section.questions, strict=True):
                _question(question, f"Question {number}", screen)
                if answers:
                    show_working(question, screen)
            if section.questions and not answers:
                answer = _answer(numbers)
                screen.write(f"{answer.capitalize()} and the rest of this step are at the end.", "dim")
                covered.append((step, section, numbers))
                places[f"step {step}"] = f"{_answer(numbers)} (step {step})"
            else:
                _rest(walk, section, screen, places)
                _unfold([section], screen, places)
            _links(section, screen)
        screen.write()
    if covered:
        screen.write("─" * screen.width, "dim")
        screen.write("Answers", "bold")
    for step, section, numbers in covered:
        screen.write()
        screen.write(f"{_answer(numbers)} (step {step}, {_heading(section)})", "bold")
        for number, question in zip(numbers, section.questions, strict=True):
            if len(numbers) > 1:
                screen.write(f"Question {number}", "bold")
            show_working(question, screen)
        _rest(walk, section, screen, places)
        _unfold([section], screen, places)


def _answer(numbers: range) -> str:
    return f"answer {numbers[0]}" if len(numbers) == 1 else f"answers {numbers[0]}–{numbers[-1]}"


# ---- in a terminal


def stroll(walk: Walk, screen: Screen, answers: bool = False) -> None:
    """One step at a time, by keys; a question is answered, or its answer asked for, before the step goes on."""
    _title(walk, screen)
    groups, at = walk.groups, 0
    answered: set[int] = set(range(len(groups))) if answers else set()
    while at < len(groups):
        try:
            turn = _step(walk, at, answered, screen)
        except Quit:
            step = max(step for step, _ in groups[: at + 1])
            screen.write(f"Left at {step} of {walk.steps}.", "dim")
            return
        if at + turn < 0:
            screen.write("This is the first section.", "dim")
        at = max(0, at + turn)
    screen.write(f"The end of {walk.number}.", "bold")


def _step(walk: Walk, at: int, answered: set[int], screen: Screen) -> int:
    """One step: its questions, all that follows them, then a key; 1 to go on, -1 to go back."""
    step, sections = walk.groups[at]
    _head(walk, step, sections, screen)
    for section in sections:
        _opening(section, screen)
        for question in section.questions:
            _question(question, "Your turn" if len(section.questions) == 1 else question.title, screen)
            if at in answered:
                show_working(question, screen)
            elif not _answered(question, screen):
                return -1
        _rest(walk, section, screen)
        _links(section, screen)
        screen.write()
    answered.add(at)
    while True:
        try:
            key = screen.read(f"{KEYS}: ").lower()
        except ShowWorking:
            key = "w"
        if key == "w":
            _unfold(sections, screen)
        elif key in ("", "b"):
            return -1 if key else 1
        else:
            screen.write(f"{key[:20]} is no key here: {KEYS}.")


def _answered(question: Question, screen: Screen) -> bool:
    """Read answers until they are right or asked for; False where the reader goes back."""
    screen.write(f"{COVERED}.", "dim")
    answers = [""] * len(question.blanks)
    todo = wanted = list(range(len(answers)))
    while todo:
        try:
            line = screen.read(f"{question.blanks[todo[0]].label}: ")
        except ShowWorking:
            line = ""
        if line.lower() == "b":
            return False
        if line.lower() in ("", "w"):
            break
        todo = enter(question, answers, todo, wanted, line, screen)
        if not todo:
            graded = grade(question, answers)
            if graded.solved:
                screen.write("✓ Right.", "green")
                break
            todo = wanted = [i for i, right in enumerate(graded.right) if not right]
            point_out(question, graded, wanted, screen)
            screen.write("Try again; Enter shows the answer.", "dim")
    show_working(question, screen)
    return True


# ---- what a section has


def _title(walk: Walk, screen: Screen) -> None:
    screen.write(f"{walk.number}  {walk.title}", "bold")
    screen.write(walk.credit, "dim")
    if walk.run:
        screen.write(f"with the numbers of {walk.run}", "dim")
    if walk.beside:
        screen.write(f"lines are those of {walk.beside}", "dim")
    for note in filter(None, walk.notes):
        screen.write(note, "dim")
    screen.write()


def _heading(section: Section) -> str:
    return section.title + (f" ({section.about})" if section.about else "")


def _head(walk: Walk, step: int, sections: Sequence[Section], screen: Screen) -> None:
    screen.write("─" * screen.width, "dim")
    first, last = sections[0].lines[0], sections[-1].lines[1]
    where = f"line {first}" if first == last else f"lines {first}–{last}"
    if about := " · ".join([f"{step} of {walk.steps}"] * bool(step) + [where] * bool(walk.beside)):
        screen.write(about, "dim")
    for section in sections:
        screen.write(_heading(section), "bold")
    if sections[0].skipped:
        screen.write(f"Left out: {sections[0].skipped}.")


def _opening(section: Section, screen: Screen) -> None:
    """What a section says before its questions."""
    if section.text:
        screen.write(_plain(section.text))
    if section.lacking:
        screen.write(section.lacking, "yellow")


def _question(question: Question, name: str, screen: Screen) -> None:
    screen.write()
    screen.write(name, "bold")
    pose(question, screen)


def _rest(walk: Walk, section: Section, screen: Screen, places: Mapping[str, str] | None = None) -> None:
    """What a section shows: with questions, after their answers; `places` says where the tables of a step are."""
    if section.then:
        screen.write()
        screen.write(_plain(section.then))
    for source, tensors in groupby(section.shown, key=lambda shown: shown.source):
        screen.write()
        screen.write(f"Tensors of {source}", "dim")
        for shown in tensors:
            _tensor(shown, screen, places or {})
    if section.missing:
        screen.write(f"Not in this model: {', '.join(section.missing)}", "dim")
    if section.compared:
        screen.write()
        screen.write("Printed against right (✗ wrong, ~ rounded along the way)", "dim")
    for compared in section.compared:
        _compared(compared, walk, screen)
    if section.claims:
        screen.write()
        screen.write("Claims", "dim")
    for claim in section.claims:
        screen.write(f"{_line(walk, claim.line)}{_plain(claim.text)}", indent=2)
        evidence = _plain(claim.evidence)
        screen.write(f"{claim.verdict}{': ' if evidence else ''}{evidence}", CLAIMS[claim.verdict], 4)
        if claim.command:
            screen.write(claim.command, "cyan", 4)
    if lines := corrections(section):
        screen.write()
        screen.write("Corrections", "dim")
    for line in lines:
        screen.write(_plain(line), indent=2)


def _plain(text: str) -> str:
    """A text without the marks of code."""
    return re.sub(r"`([^`]+)`", r"\1", text)


def _line(walk: Walk, line: int | None) -> str:
    """Where a sentence stands in the reader's own copy of the document."""
    return f"line {line}:  " if walk.beside and line else ""


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


def _unfold(sections: Iterable[Section], screen: Screen, places: Mapping[str, str] | None = None) -> None:
    """The arithmetic of a step; with `places`, what an earlier step has unfolded is not unfolded again."""
    for one in [one for section in sections for one in section.unfolded]:
        screen.write()
        screen.write(one.command, "bold")
        if places is not None and one.again:
            screen.write(f"as in {places.get(one.again, one.again)}", indent=2)
            continue
        for line in one.lines:
            screen.write(line, indent=2)


def _tensor(shown: Shown, screen: Screen, places: Mapping[str, str]) -> None:
    """A tensor: the document's symbol, our name and formula, and its numbers, unless an earlier step has shown them."""
    sizes = " ".join(f"{axis} {size}" for axis, size in zip(shown.axes, shown.shape, strict=False))
    sizes = sizes or "×".join(map(str, shown.shape))
    about = joined((shown.name, sizes), "   ") + "   " + _whole(shown.meaning)
    if shown.again:
        again = re.sub(r"step \d+", lambda match: places.get(match[0], match[0]), shown.again)
        screen.write(f"{shown.symbol}:  {joined([shown.name], '')}   as in {again}", indent=2)
        return
    screen.write(f"{shown.symbol}:  {about}".rstrip(), indent=2)
    tables = []
    for grid in shown.grids:
        down = list(grid.down) if any(grid.down) else None
        across = list(grid.across) if any(grid.across) else None
        tables.append(Table(grid.where, grid.written(), across, down))
    _lines(laid_out(tables, screen.width - 4), screen)
    if shown.cut:
        screen.write(f"(cut: {shown.cut})", "dim", 4)


def _compared(compared: Compared, walk: Walk, screen: Screen) -> None:
    """Printed numbers and the right ones; where all are right, once."""
    numbers = [number for row in compared.rows for number in row]
    named = "" if compared.name == compared.formula else f"{compared.name} = "
    same = f"   as {compared.where}" if compared.where else ""
    head = f"{_line(walk, compared.line)}{named}{compared.formula}{same}"
    if len(numbers) == 1:
        screen.write(f"{head}   {_whole(_one(numbers[0]))}", indent=2)
        return
    screen.write(f"{head}   {joined(compared.counted.split(', '), ', ')}", indent=2)
    if compared.where and compared.counts["right"] == len(numbers):
        return  # the tensor has the same table
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
