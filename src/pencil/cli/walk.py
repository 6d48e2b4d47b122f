"""The command walk: a document section by section in a terminal, over a pipe, or as one page."""

# the options of a command are those of the run's family, which is known when the command is made
# pyright: reportInvalidTypeForm=false
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..config import UserError, check_output
from ..console import note, visible
from .dispatch import read_line, reporting_misfits, trace_family
from .trace import Edits, open_trace, trace_options

if TYPE_CHECKING:
    from ..families.family import Family
    from ..learn.walks import Source

USAGE = "DOCUMENT [OPTIONS]"
Page = Annotated[
    Path | None, Parameter(help="Write the walk as one self-contained page (.html) to read, project or print.")
]
Run = Annotated[
    str | None,
    Parameter(help="Show the numbers of this run (or trace file); its input is given as for pencil trace."),
]


def walk(
    document: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *options: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    html: Page = None,
    run: Run = None,
) -> int:
    """Go through one of the five documents section by section: its symbols, its numbers, the right ones, and why.

    In a terminal Enter goes on, b goes back, w unfolds the arithmetic and q leaves; over a pipe all of it is printed.

    Parameters
    ----------
    document
        000, 001, 002, 003 or 004.
    """
    if document.startswith("-"):
        raise UserError(f"the document comes before {document.partition('=')[0]}; usage: pencil walk {USAGE}")
    if run is None:
        if options:
            word = options[0].partition("=")[0]
            raise UserError(
                f"walk takes no {word} without --run; pencil walk --help lists its options"
                if word.startswith("-")
                else f"walk cannot use {word!r}; usage: pencil walk {USAGE}"
            )
        return _walk(document, html, None)
    from ..learn.walks.data import document as written

    written(document)  # an unknown document is refused before the run is opened
    record = trace_family(run)
    command, bound = read_line("walk", [document, *options], USAGE, run, record, _run_command(record, run, html))
    with nullcontext() if record is not None else reporting_misfits(run):
        return command(*bound.args, **bound.kwargs)


def _run_command(record: "Family | None", run: str, html: Path | None) -> Callable[..., int]:
    """The command for a run, with the input options of its family."""
    kind = trace_options(record)

    def command(
        document: str,
        /,
        *,
        options: Annotated[kind, Parameter(name="*", show=record is not None)] = kind(),  # noqa: B008
        edit: Edits = None,
    ) -> int:
        from ..learn.walks import Source

        return _walk(document, html, Source(visible(run, one_line=True), open_trace(run, record, options, edit)))

    return command


def _walk(document: str, html: Path | None, run: "Source | None") -> int:
    from ..learn.walks import walk
    from .screens.exercise import Screen
    from .screens.walk import everything, stroll

    check_output("--html", html, ".html", ".htm")
    sections = walk(document, run)
    if html is not None:
        from ..files import write_aside
        from ..learn.walks.page import page

        content = page(sections).encode()
        write_aside(html, content)
        note(f"{html}: {len(content) / 1e6:.2f} MB")
        return 0
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        stroll(sections, Screen())
    else:
        everything(sections, Screen())
    return 0
