"""The terminal: notes on standard error, the output of `pencil sample`, and how this program is called."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from ..config import UserError


def note(line: str) -> None:
    """A line for the user, apart from the result."""
    Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)


def result_console() -> Console:
    """Standard output: as wide as it needs to be where no terminal limits it."""
    console = Console(soft_wrap=True)
    return console if console.is_terminal else Console(soft_wrap=True, width=10_000)


def program() -> str:
    """What the user types to run this program: its bare name where the shell would find it."""
    return "pencil" if shutil.which("pencil") or not sys.argv[0].endswith("pencil") else sys.argv[0]


def read_text(text: str) -> str:
    """A text as it was given, or, for -, from standard input."""
    try:
        text = sys.stdin.read() if text == "-" else text
    except UnicodeDecodeError:
        raise UserError("standard input is not UTF-8 text") from None
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UserError("the text is not UTF-8")
    return text


class TerminalOutput:
    """Text to standard output, or to a file."""

    def __init__(self, out: Path | None):
        self.out = out

    @property
    def streams(self) -> bool:
        return self.out is None

    def stream(self, prompt: str, pieces: Iterator[list[str]]) -> None:
        sys.stdout.write(prompt)
        for piece in pieces:
            sys.stdout.write(piece[0])
            sys.stdout.flush()
        sys.stdout.write("\n")

    def texts(self, texts: Sequence[str], between: str = "\n") -> None:
        content = between.join(texts) + "\n"
        if self.out is None:
            sys.stdout.write(content)
        else:
            self.out.write_text(content, encoding="utf-8")

    def file(self, path: Path, content: bytes) -> None:
        from ..files import write_aside

        write_aside(path, content)
        note(str(path))

    def note(self, line: str) -> None:
        note(line)
