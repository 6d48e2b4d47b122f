"""The terminal: notes on standard error, the output of `pencil sample`, and how this program is called."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..config import UserError
from ..console import Console, for_reader, note, visible
from ..files import LARGEST_TEXT

__all__ = ["TerminalOutput", "note", "note_line", "program", "read_input", "read_text", "result_console"]


def note_line(line: str) -> None:
    """A line for the user that stays one line, whatever names stand in it."""
    note(visible(line, one_line=True))


def result_console() -> Console:
    """Standard output: as wide as it needs to be where no terminal limits it."""
    console = Console(soft_wrap=True)
    return console if console.is_terminal else Console(soft_wrap=True, width=10_000)


def program() -> str:
    """What the user types to run this program: its bare name where the shell would find it."""
    return "pencil" if shutil.which("pencil") or not sys.argv[0].endswith("pencil") else sys.argv[0]


def read_input() -> str:
    """The text of standard input, up to the size that is read of a file."""
    try:
        text = sys.stdin.read(LARGEST_TEXT + 1)
    except UnicodeDecodeError:
        raise UserError("standard input is not UTF-8 text") from None
    if len(text) > LARGEST_TEXT:
        raise UserError(f"standard input has more than {LARGEST_TEXT / 1e6:g} million letters, the most that is read")
    return text


def read_text(text: str) -> str:
    """A text as it was given, or, for -, from standard input."""
    text = read_input() if text == "-" else text
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
        sys.stdout.write(for_reader(prompt))
        for piece in pieces:
            sys.stdout.write(for_reader(piece[0]))
            sys.stdout.flush()
        sys.stdout.write("\n")

    def texts(self, texts: Sequence[str], between: str = "\n") -> None:
        content = between.join(texts) + "\n"
        if self.out is None:
            sys.stdout.write(for_reader(content))
        else:
            self.out.write_text(content, encoding="utf-8")

    def file(self, path: Path, content: bytes) -> None:
        from ..files import write_aside

        write_aside(path, content)
        note(str(path))

    def note(self, line: str) -> None:
        note(line)
