"""The `pencil` command: its verbs, and how it fails: one sentence and exit status 2."""

import os
import re
import sys
from collections.abc import Sequence
from typing import Any, get_args

from cyclopts import App, CycloptsError, Parameter, Token, convert
from rich.console import Console

from .. import __version__
from ..config import UserError
from . import checking, cost, heads, kata, lab, looking, tracing, training, using


def _whole(kind: Any, tokens: Sequence[Token]) -> Any:
    """A value of its type; where a whole number is asked for, 1.5 is refused, not rounded."""
    if int in (kind, *get_args(kind)):
        for token in tokens:
            if re.fullmatch(r"[+-]?\d*\.\d+", token.value) and float(token.value) % 1:
                raise ValueError(f"{token.value} is not a whole number")
    return convert(kind, tokens)


app = App(
    name="pencil",
    default_parameter=Parameter(converter=_whole),
    help="Transformers from pencil arithmetic to production.",
    version=__version__,
    help_epilogue="Settings of training are dotted: pencil train gpt --model.depth 6 --train.lr 3e-4. "
    "--debug shows where a failure came from.",
)
app.command(training.demo)
app.command(training.train)
app.command(training.resume)
app.command(using.sample)
app.command(using.evaluate, name="eval")
app.command(looking.shapes)
app.command(tracing.why)
app.command(tracing.trace)
app.command(tracing.show)
app.command(tracing.diff)
app.command(heads.heads)
app.command(checking.check)
app.command(kata.app)
app.command(lab.lab)
app.command(cost.cost)
app.command(looking.doctor)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line; every failure the user can mend is one sentence."""
    words = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        status = app(words, exit_on_error=False, print_error=False)
        sys.stdout.flush()
        sys.exit(status or 0)
    except (UserError, CycloptsError) as error:
        if debug:
            raise
        _say(str(error))
        sys.exit(2)
    except OSError as error:
        if debug:
            raise
        if isinstance(error, BrokenPipeError):
            # the reader of our output left: say nothing more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _say(sentence: str) -> None:
    Console(stderr=True).print(f"pencil: {sentence}", highlight=False, markup=False, soft_wrap=True)
