"""The `pencil` command: its verbs, and how it fails: one sentence and exit status 2."""

import os
import sys
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError

from .. import __version__
from ..config import UserError
from . import check, cost, demo, doctor, evaluate, heads, kata, lab, sample, shapes, trace, train
from .dispatch import HELP, dispatch, named_family, run_family, trace_family
from .numbers import PARAMETERS
from .terminal import note

app = App(
    name="pencil",
    default_parameter=PARAMETERS,
    help="Transformers from pencil arithmetic to production.",
    version=__version__,
    help_epilogue="Settings of training are dotted: pencil train gpt --model.depth 6 --train.lr 3e-4. "
    "--debug shows where a failure came from.",
)
app.command(demo.demo)
app.command(train.train)
app.command(train.resume)
app.command(sample.sample)
app.command(evaluate.evaluate, name="eval")
app.command(shapes.shapes)
app.command(trace.why)
app.command(trace.trace)
app.command(trace.show)
app.command(trace.diff)
app.command(heads.heads)
app.command(check.check)
app.command(kata.app)
app.command(lab.lab)
app.command(cost.cost)
app.command(doctor.doctor)

# verbs whose options depend on the family that their first word names
BY_FAMILY: dict[str, tuple[Callable, Callable]] = {
    "train": (named_family, train.train_command),
    "sample": (run_family, sample.sample_command),
    "why": (trace_family, trace.why_command),
    "trace": (trace_family, trace.trace_command),
    "show": (trace_family, trace.show_command),
}


def run(words: Sequence[str]) -> int:
    """Run one command."""
    if len(words) > 1 and words[0] in BY_FAMILY and not set(words[1:]) <= set(HELP):
        return dispatch(words[0], words[1:], *BY_FAMILY[words[0]])
    return app(words, exit_on_error=False, print_error=False) or 0


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; every failure the user can fix is one sentence."""
    words = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        status = run(words)
        sys.stdout.flush()
        sys.exit(status)
    except (UserError, CycloptsError) as error:
        if debug:
            raise
        note(f"pencil: {error}")
        sys.exit(2)
    except OSError as error:
        if debug:
            raise
        if isinstance(error, BrokenPipeError):
            # the reader of our output has closed it: write nothing more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        where = f"{error.filename}: " if error.filename else ""
        note(f"pencil: {where}{error.strerror or error}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
