"""An exercise in a terminal or over a pipe: shown, answered, its working uncovered at the end."""

import io
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from ..learn.katas.exercise import Question, Table
    from ..learn.katas.grader import Graded
    from ..learn.katas.progress import Outcome

TRIES = 3
NARROWEST, WIDEST = 20, 100  # columns: where there are fewer a table cannot be shown, and more are hard to read
LONGEST = 40  # letters of an answer that are said back
GAP = 2  # between two columns of a table
LEAVE, SHOW = ("q", "quit", "exit"), ("?", "show")
TIED = "\N{NO-BREAK SPACE}"
Lines = list[str]


class Left(Exception):
    """The learner wants to go."""


class Uncover(Exception):
    """The learner wants to see the working."""


class Screen:
    """A place to write on, never wider than the terminal, and to read lines from."""

    def __init__(self):
        self.console = Console(highlight=False)
        self.width = max(NARROWEST, min(WIDEST, self.console.width))
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # what is no text is no number either

    def say(self, text: str = "", style: str = "", indent: int = 0) -> None:
        """Text, wrapped, with nothing in it that steers a terminal; what is indented goes on a little further in."""
        for line in wrapped(text, self.width, indent):
            shown = "".join(c if c.isprintable() else " " if c == TIED else "�" for c in line)
            self.console.print(Text(shown, style), soft_wrap=True)

    def read(self, prompt: str) -> str:
        """The next line that is typed, without what surrounds it; prompts are for people, not for pipes."""
        person = sys.stdin is not None and sys.stdin.isatty()
        try:
            line = input(self._fitting(prompt)) if person else sys.stdin.readline() if sys.stdin else ""
        except (EOFError, KeyboardInterrupt):
            print()
            raise Left from None
        if not line and not person:
            raise Left
        line = line.strip()
        if line.lower() in LEAVE:
            raise Left
        if line.lower() in SHOW:
            raise Uncover
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
    """Words in a row, none of them broken where the line ends."""
    return between.join(word.replace(" ", TIED) for word in words)


# ---- what is given


def laid_out(tables: Iterable["Table"], width: int) -> Lines:
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


def _blocks(table: "Table", width: int) -> list[Lines]:
    """A table as aligned lines, its columns in as many portions as the width needs."""
    from ..learn.katas.writing import shown

    cells = [[shown(value) for value in row] for row in table.rows]
    count = max(map(len, cells), default=0)
    across = list(table.across or [])
    down = table.down or []
    columns = [[row[j] if j < len(row) else "" for row in cells] for j in range(count)]
    heads = [across[j] if j < len(across) else "" for j in range(count)]
    wide = [max(map(cell_len, (*column, head))) + GAP for column, head in zip(columns, heads, strict=True)]
    side = max(map(cell_len, down), default=0)
    edge = 0 if down else GAP  # without names of rows the first column stands at the edge
    blocks = []
    for begin, end in _portions(wide, width - side + edge):
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


def _portions(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Which columns go together so that each portion has room; at least one in each."""
    cuts = [0]
    while cuts[-1] < len(widths):
        fits = sum(total <= room for total in accumulate(widths[cuts[-1] :]))
        cuts.append(cuts[-1] + max(1, fits))
    return list(pairwise(cuts))


def show(question: "Question", screen: Screen) -> None:
    """The exercise, its working covered."""
    from ..learn.katas.writing import digits, labels

    screen.say(question.title + (f" (--seed {question.seed})" if question.seed is not None else ""), "bold")
    if question.page_words:
        screen.say(question.page_words)
    screen.say()
    for line in laid_out(question.given, screen.width - 2):
        screen.say(line and "  " + line)
    screen.say()
    screen.say(question.ask)
    how = digits(question)
    screen.say(f"Answer{' ' + how if how else ''}: {joined(labels(question), ' · ')}")
    screen.say("? shows the working, q leaves.", "dim")


# ---- the conversation


def ask(question: "Question", screen: Screen) -> "tuple[Outcome | None, bool]":
    """Show an exercise and take answers; how it went (None: nothing to count), and whether the learner left."""
    from ..learn.katas.grader import grade

    show(question, screen)
    answers = [""] * len(question.blanks)
    left = list(range(len(answers)))
    for wrong in range(TRIES):
        try:
            _fill(question, answers, left, screen)
        except Uncover:
            uncover(question, screen)
            screen.say("Seen, not solved.", "dim")
            return "seen", False
        except Left:
            screen.say("Not solved yet." if wrong else "This one was not counted.", "dim")
            return ("wrong" if wrong else None), True
        graded = grade(question, answers)
        if graded.solved:
            screen.say("✓ Right.", "green")
            uncover(question, screen)
            return ("corrected" if wrong else "solved"), False
        left = [i for i, right in enumerate(graded.right) if not right]
        _point_out(question, graded, left, screen)
        if wrong < TRIES - 1:
            screen.say(f"Try again ({TRIES - 1 - wrong} left), or ? for the working.", "dim")
    uncover(question, screen)
    return "wrong", False


def _fill(question: "Question", answers: Lines, wanted: Sequence[int], screen: Screen) -> None:
    """Read until every wanted blank has an answer that can be read; a line may hold one, several, or all."""
    from ..learn.katas.writing import choices, parts, understood

    words = choices(question)
    todo = list(wanted)
    while todo:
        line = screen.read(f"{question.blanks[todo[0]].label}: ")
        if not line:
            continue
        found = parts(line, [question.blanks[i] for i in todo])
        places = list(todo)
        if len(found) == len(answers) and len(todo) == len(wanted):
            places = list(range(len(answers)))  # all of them again, also those that were right
        if len(found) > len(places):
            screen.say(f"That is {len(found)} answers, and {len(places)} {_are(places)} asked for.")
            continue
        tried = list(answers)
        for i, word in zip(places, found, strict=False):
            tried[i] = word
        unread = [i for i in places[: len(found)] if not understood(tried[i], question.blanks[i], words)]
        if unread:
            what = (" or ".join(words) or "an answer") if question.blanks[unread[0]].words else "a number"
            screen.say(f"{tried[unread[0]][:LONGEST]} is not {what}; type one, ? for the working, or q to leave.")
            continue
        answers[:] = tried
        todo = [i for i in todo if i not in places[: len(found)]]


def _are(places: Sequence[int]) -> str:
    return "is" if len(places) == 1 else "are"


def _point_out(question: "Question", graded: "Graded", wrong: Sequence[int], screen: Screen) -> None:
    """Which blanks are wrong, and the mistake that explains them, by its name."""
    if len(question.blanks) == 1:
        said = "Not right."
    elif len(wrong) == len(question.blanks):
        said = "None of them is right."
    else:
        said = f"Not right yet: {joined((question.blanks[i].label for i in wrong), ' · ')}"
    screen.say(f"✗ {said}", "red")
    if graded.hint:
        screen.say(f"{graded.hint.name}: {graded.hint.hint}", "yellow")


def uncover(question: "Question", screen: Screen) -> None:
    """The answers and the working."""
    screen.say()
    screen.say(joined((f"{blank.label} = {blank.written}" for blank in question.blanks), "   "), "bold")
    for line in question.working:
        screen.say(line, indent=2)
