"""An exercise in a terminal or over a pipe: shows it, reads the answers, then shows the working."""

import io
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from rich.cells import cell_len
from rich.text import Text

from ...console import Console
from ...learn.katas.exercise import Question, Table
from ...learn.katas.grader import Graded, choices, grade, parts, shown, understood, wanted
from ...learn.katas.progress import Outcome

TRIES = 3
NARROWEST, WIDEST = 20, 100  # columns: fewer cannot show a table, more are hard to read
LONGEST = 40  # characters of an answer that a message repeats
GAP = 2  # between two columns of a table
QUIT, SHOW = ("q", "quit", "exit"), ("?", "show")
NO_BREAK = "\N{NO-BREAK SPACE}"
Lines = list[str]


class Quit(Exception):
    """The learner typed q."""


class ShowWorking(Exception):
    """The learner typed ?."""


class Screen:
    """Writes text no wider than the terminal, and reads lines."""

    def __init__(self):
        self.console = Console(highlight=False)
        self.width = max(NARROWEST, min(WIDEST, self.console.width))
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # bytes that are not text are no number either

    def write(self, text: str = "", style: str = "", indent: int = 0) -> None:
        """Text, wrapped and without control characters; the next lines of indented text are indented further."""
        for line in wrapped(text, self.width, indent):
            printable = "".join(c if c.isprintable() else " " if c == NO_BREAK else "�" for c in line)
            self.console.print(Text(printable, style), soft_wrap=True)

    def read(self, prompt: str) -> str:
        """The next line typed, without surrounding spaces; the prompt is shown in a terminal only."""
        terminal = sys.stdin is not None and sys.stdin.isatty()
        try:
            line = input(self._fitting(prompt)) if terminal else sys.stdin.readline() if sys.stdin else ""
        except (EOFError, KeyboardInterrupt):
            print()
            raise Quit from None
        if not line and not terminal:
            raise Quit
        line = line.strip()
        if line.lower() in QUIT:
            raise Quit
        if line.lower() in SHOW:
            raise ShowWorking
        return line

    def _fitting(self, prompt: str) -> str:
        room = self.width - 12
        return prompt if cell_len(prompt) <= room else prompt[: room - 3].rstrip() + "…: "


def wrapped(text: str, width: int, indent: int = 0) -> Lines:
    """Lines of at most this width; each line of the text keeps its own beginning."""
    lines = []
    for line in text.split("\n"):
        first = " " * (indent + len(line) - len(line.lstrip()))
        rest = first + "  " if indent else first
        lines += textwrap.wrap(
            line.strip(), width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
        ) or [""]
    return lines


def joined(words: Iterable[str], between: str) -> str:
    """Words in a row, none broken at the end of a line."""
    return between.join(word.replace(" ", NO_BREAK) for word in words)


# ---- given tables


def laid_out(tables: Iterable[Table], width: int) -> Lines:
    """Tables side by side where there is room, else below one another; one too wide is cut into several."""
    lines: Lines = []
    row: list[Lines] = []
    for block in (block for table in tables for block in _blocks(table, width)):
        if row and sum(map(_wide, row)) + _wide(block) + 4 * len(row) > width:
            lines += [*_beside(row), ""]
            row = []
        row.append(block)
    return lines + _beside(row)


def _wide(block: Lines) -> int:
    return max(map(cell_len, block), default=0)


def _pad(text: str, width: int, right: bool = True) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _beside(blocks: Sequence[Lines]) -> Lines:
    """Blocks of lines next to one another."""
    tall = max(map(len, blocks), default=0)
    filled = [
        [_pad(line, _wide(block), right=False) for line in block + [""] * (tall - len(block))] for block in blocks
    ]
    return [(" " * 4).join(line).rstrip() for line in zip(*filled, strict=True)]


def _blocks(table: Table, width: int) -> list[Lines]:
    """A table as aligned lines, cut into several blocks of columns if it is too wide."""
    cells = [[shown(value) for value in row] for row in table.rows]
    count = max(map(len, cells), default=0)
    across = list(table.across or [])
    down = table.down or []
    columns = [[row[j] if j < len(row) else "" for row in cells] for j in range(count)]
    heads = [across[j] if j < len(across) else "" for j in range(count)]
    wide = [max(map(cell_len, (*column, head))) + GAP for column, head in zip(columns, heads, strict=True)]
    side = max(map(cell_len, down), default=0)
    edge = 0 if down else GAP  # without row names the first column starts at the left edge
    blocks = []
    for begin, end in _column_groups(wide, width - side + edge):
        name = table.name if not begin else f"{table.name} (more)"
        lines = wrapped(name, width) if name else []
        if across:
            lines.append((" " * side + "".join(_pad(heads[j], wide[j]) for j in range(begin, end)))[edge:])
        for i in range(len(cells)):
            label = _pad(down[i] if i < len(down) else "", side, right=False)
            cut = label + "".join(_pad(columns[j][i], wide[j]) for j in range(begin, end))
            lines.append(cut[edge:].rstrip())
        blocks.append(lines)
    return blocks


def _column_groups(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Ranges of columns that fit into the width; at least one column in each."""
    cuts = [0]
    while cuts[-1] < len(widths):
        fits = sum(total <= room for total in accumulate(widths[cuts[-1] :]))
        cuts.append(cuts[-1] + max(1, fits))
    return list(pairwise(cuts))


def pose(question: Question, screen: Screen) -> None:
    """Show the tables of an exercise, what is asked, and the blanks."""
    if question.tables:
        for line in laid_out(question.tables, screen.width - 2):
            screen.write(line and "  " + line)
        screen.write()
    screen.write(question.ask)
    begin, blanks, columns = wanted(question)
    screen.write(f"{begin}: {joined(blanks, ' · ')}{columns}")


def show(question: Question, screen: Screen) -> None:
    """Show the exercise without its working."""
    screen.write(question.title + (f" (--seed {question.seed})" if question.seed is not None else ""), "bold")
    screen.write()
    pose(question, screen)
    screen.write("? shows the working, q quits.", "dim")


# ---- answers


def ask(question: Question, screen: Screen) -> tuple[Outcome | None, bool]:
    """Show an exercise and read the answers; the outcome (None: not answered), and whether the learner quit."""
    show(question, screen)
    answers = [""] * len(question.blanks)
    left = list(range(len(answers)))
    for wrong in range(TRIES):
        try:
            _fill(question, answers, left, screen)
        except ShowWorking:
            show_working(question, screen)
            screen.write("Seen, not solved.", "dim")
            return "seen", False
        except Quit:
            screen.write("Not solved yet." if wrong else "This one was not counted.", "dim")
            return ("wrong" if wrong else None), True
        graded = grade(question, answers)
        if graded.solved:
            screen.write("✓ Right.", "green")
            show_working(question, screen)
            return ("corrected" if wrong else "solved"), False
        left = [i for i, right in enumerate(graded.right) if not right]
        point_out(question, graded, left, screen)
        if wrong < TRIES - 1:
            screen.write(f"Try again ({TRIES - 1 - wrong} left), or ? for the working.", "dim")
    show_working(question, screen)
    return "wrong", False


def _fill(question: Question, answers: Lines, wanted: Sequence[int], screen: Screen) -> None:
    """Read lines until every wanted blank has a valid answer; a line may hold one, several, or all."""
    todo = list(wanted)
    while todo:
        line = screen.read(f"{question.blanks[todo[0]].label}: ")
        if line:
            todo = enter(question, answers, todo, wanted, line, screen)


def enter(
    question: Question, answers: Lines, todo: Sequence[int], wanted: Sequence[int], line: str, screen: Screen
) -> list[int]:
    """Put the answers of one line into their blanks; the blanks that are still to fill."""
    words = choices(question)
    typed = parts(line, [question.blanks[i] for i in todo])
    places = list(todo)
    if len(typed) == len(answers) and len(todo) == len(wanted):
        places = list(range(len(answers)))  # all answers again, also the right ones
    if len(typed) > len(places):
        screen.write(f"That is {len(typed)} answers for {len(places)} blank{'s' * (len(places) != 1)}.")
        return list(todo)
    tried = list(answers)
    for i, word in zip(places, typed, strict=False):
        tried[i] = word
    unread = [i for i in places[: len(typed)] if not understood(tried[i], question.blanks[i], words)]
    if unread:
        what = (" or ".join(words) or "an answer") if question.blanks[unread[0]].words else "a number"
        screen.write(f"{tried[unread[0]][:LONGEST]} is not {what}; type one, ? for the working, or q to quit.")
        return list(todo)
    answers[:] = tried
    return [i for i in todo if i not in places[: len(typed)]]


def point_out(question: Question, graded: Graded, wrong: Sequence[int], screen: Screen) -> None:
    """Show which blanks are wrong, and the mistake that explains them."""
    if len(question.blanks) == 1:
        message = "Not right."
    elif len(wrong) == len(question.blanks):
        message = "None of them is right."
    else:
        message = f"Not right yet: {joined((question.blanks[i].label for i in wrong), ' · ')}"
    screen.write(f"✗ {message}", "red")
    if graded.hint:
        screen.write(f"{graded.hint.name}: {graded.hint.hint}", "yellow")


def show_working(question: Question, screen: Screen) -> None:
    """Show the answers and the working."""
    screen.write()
    screen.write(joined((f"{blank.label} = {blank.written}" for blank in question.blanks), "   "), "bold")
    for line in question.working:
        screen.write(line, indent=2)
