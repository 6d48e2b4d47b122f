"""What a family's `sample` writes to: text as it is decoded, whole texts, the same as data, files and notes."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

SEPARATOR = "\n" + "-" * 40 + "\n"


@runtime_checkable
class Output(Protocol):
    """The terminal, or a file, of `pencil sample`."""

    @property
    def streams(self) -> bool:
        """Whether one text can be shown as it is decoded."""
        ...

    def stream(self, prompt: str, pieces: Iterator[list[str]]) -> None:
        """One text, as it is decoded."""
        ...

    def texts(self, texts: Sequence[str], between: str = "\n") -> None:
        """Several texts."""
        ...

    def result(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """The same as data, for --json: one row for each output, with what it is of."""
        ...

    def file(self, path: Path, content: bytes) -> None:
        """A file, whole; its path is reported."""
        ...

    def note(self, line: str) -> None:
        """A line for the user, apart from the result."""
        ...


def context_full(context: int) -> str:
    """The note on a text that the context ended."""
    return f"(stopped: the context of {context} tokens is full)"


def joined(prompts: Sequence[str], pieces: Iterator[list[str]]) -> list[str]:
    """Each prompt and its continuation, whole."""
    texts = list(prompts)
    for step in pieces:
        texts = [text + piece for text, piece in zip(texts, step, strict=True)]
    return texts
