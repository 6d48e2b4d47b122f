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
Beside = Annotated[
    Path | None,
    Parameter(name="--document", help="Your copy of the document, whose lines are then named."),
]
Answers = Annotated[bool, Parameter(negative=(), help="Show the answers at once, below their questions.")]
Run = Annotated[
    str | None,
    Parameter(help="Show the numbers of this run (or trace file); its input is given as for pencil trace."),
]


def walk(
    document: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *options: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    html: Page = None,
    beside: Beside = None,
    answers: Answers = False,
    run: Run = None,
) -> int:
    """Go through a document section by section: its questions, its symbols, its numbers, the right ones, and why.

    In a terminal you answer a question, or press Enter to see the answer, before the section goes on; then Enter goes
    on, b goes back, w unfolds the arithmetic and q leaves. Over a pipe all of it is printed, the answers at the end.

    Parameters
    ----------
    document
        000, 001, 002, 003 or 004; backprop, a lesson on one training step; or a walk of your own (a .toml file, see
        docs/teach/write-a-walk.md).
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
        return _walk(document, html, beside, answers, None)
    if answers:
        raise UserError("--answers is for the questions of a document, and with --run there are none")
    from ..learn.walks.data import document as written

    written(document)  # an unknown document is refused before the run is opened
    record = trace_family(run)
    command, bound = read_line(
        "walk", [document, *options], USAGE, run, record, _run_command(record, run, html, beside)
    )
    with nullcontext() if record is not None else reporting_misfits(run):
        return command(*bound.args, **bound.kwargs)


def _run_command(record: "Family | None", run: str, html: Path | None, beside: Path | None) -> Callable[..., int]:
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

        source = Source(visible(run, one_line=True), open_trace(run, record, options, edit))
        return _walk(document, html, beside, False, source)

    return command


def _walk(document: str, html: Path | None, beside: Path | None, answers: bool, run: "Source | None") -> int:
    from ..learn.walks import walk
    from .screens.exercise import Screen
    from .screens.walk import everything, stroll

    check_output("--html", html, ".html", ".htm")
    made = walk(document, run, beside)
    if html is not None:
        from ..files import write_aside
        from ..learn.walks.page import page

        content = page(made, answers).encode()
        write_aside(html, content)
        note(f"{html}: {len(content) / 1e6:.2f} MB")
        return 0
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        stroll(made, Screen(), answers)
    else:
        everything(made, Screen(), answers)
    return 0
