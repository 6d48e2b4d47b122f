"""The terminal: notes on standard error, the output of `pencil sample`, and how this program is called."""

import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...config import UserError
from ...console import Console, for_reader, note, visible
from ...files import LARGEST_TEXT, is_text

QUIET, LINE_EVERY = 2, 10  # seconds before progress is shown, and between its lines where there is no terminal


def use_utf8() -> None:
    """Read and write UTF-8 where the system has another encoding, which lacks letters such as √ (pipes on Windows)."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            if stream.isatty():
                stream.reconfigure(errors="replace")
            else:
                stream.reconfigure(encoding="utf-8")


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
    if not is_text(text):
        raise UserError("the text is not UTF-8")
    return text


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[float], None]]:
    """A function to call with the share done of work that may take long, shown after two seconds.

    In a terminal it moves a bar, which goes away at the end; elsewhere it prints a line now and then.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console, began = Console(stderr=True), time.monotonic()
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=console, transient=True)
    task, line_due = bar.add_task(visible(what, one_line=True), total=1.0), QUIET

    def progress(share: float) -> None:
        nonlocal line_due
        spent = time.monotonic() - began
        bar.update(task, completed=share)
        if spent < line_due or share >= 1:
            return
        line_due = spent + LINE_EVERY
        if console.is_terminal:
            bar.start()
        else:
            note(f"{what}: {share:.0%} after {spent:.0f} s")

    try:
        yield progress
    finally:
        if bar.live.is_started:
            bar.stop()


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

    def result(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Nothing: a reader has the texts."""

    def file(self, path: Path, content: bytes) -> None:
        from ...files import write_aside

        write_aside(path, content)
        note(str(path))

    def note(self, line: str) -> None:
        note(line)


class JsonOutput:
    """One JSON object: `results`, a row for each output, and the `files` that were written; notes stay notes."""

    streams = False

    def __init__(self):
        self.plain: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.files: list[str] = []

    def stream(self, prompt: str, pieces: Iterator[list[str]]) -> None:
        self.plain.append(prompt + "".join(piece[0] for piece in pieces))

    def texts(self, texts: Sequence[str], between: str = "\n") -> None:
        self.plain += texts

    def result(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows += [dict(row) for row in rows]

    def file(self, path: Path, content: bytes) -> None:
        from ...files import write_aside

        write_aside(path, content)
        self.files.append(str(path))

    def note(self, line: str) -> None:
        note(line)

    def write(self, out: Path | None) -> None:
        """Print the object, or write it to a file; a family that gives no rows has its texts as such."""
        rows = self.rows or [{"text": text} for text in self.plain]
        text = json.dumps({"results": rows, "files": self.files}) + "\n"
        if out is None:
            sys.stdout.write(text)
        else:
            out.write_text(text, encoding="utf-8")
