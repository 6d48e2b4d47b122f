"""What is printed: names and texts of others never control the terminal."""

import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from rich import console as rich_console
from rich.segment import Segment

# C0, delete and C1, which terminals obey, the marks that reverse the order of letters, and bytes of a name that are no
# text (Python reads them as lone surrogates); tab and newline apart
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
CONTROL_OR_BREAK = re.compile(f"{CONTROL.pattern}|[\t\n\u2028\u2029]")


def visible(text: str, one_line: bool = False) -> str:
    """The text with control characters written out, as \\x1b; in one line, tabs and line breaks too."""
    return (CONTROL_OR_BREAK if one_line else CONTROL).sub(_written, text)


def shortened(name: str, most: int = 60) -> str:
    """A name of others as far as it is shown: one of thousands of letters takes long to draw, and fills the screen."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def consecutive(numbers: Iterable[int]) -> list[str]:
    """Numbers in order, those that follow one another as a range: 2, 6–12."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [f"{run[0]}–{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]


def _written(match: re.Match[str]) -> str:
    code = ord(match[0])
    # above 0x7e as JSON writes them, so that JSON stays JSON
    return f"\\x{code:02x}" if code < 0x7F else f"\\u{code:04x}"


class Console(rich_console.Console):
    """Rich's console; whatever is printed is made visible after it was laid out, so that colours stay."""

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text), style)


def note(*lines: str) -> None:
    """Lines for the user on standard error, apart from the result; each stays one line, whatever names stand in it."""
    for line in lines:
        Console(stderr=True).print(visible(line, one_line=True), highlight=False, markup=False, soft_wrap=True)


def for_reader(text: str) -> str:
    """A text for standard output: exact in a file or a pipe, made visible in a terminal."""
    return visible(text) if sys.stdout.isatty() else text


def end_at_once() -> None:
    """End the program: taking torch apart takes Python seconds, and nothing is left to write."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
