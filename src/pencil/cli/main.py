"""The `pencil` command: its verbs, and how it fails: one sentence and exit status 2."""

import os
import sys
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError, Group

from .. import __version__
from ..collectives.processes import OtherRankFailed, world
from ..config import UserError
from ..console import note
from . import (
    average,
    bench,
    check,
    cost,
    demo,
    doctor,
    embed,
    evaluate,
    explore,
    export,
    figures,
    heads,
    import_weights,
    kata,
    lab,
    predict,
    resume,
    sample,
    serve,
    shapes,
    slides,
    trace,
    train,
    verify,
    walk,
)
from .before_torch import check_training
from .dispatch import HELP, dispatch, missing, named_family, run_family, trace_family
from .launch import Several, end_after_another, enter, launch, leave, say_failure, say_unexpected
from .parsing import PARAMETERS, sentence
from .screens.terminal import use_utf8

START, USE, INSIDE, LEARN, OTHER = (
    Group(name, sort_key=i)
    for i, name in enumerate(
        ("Start", "Train and use a model", "See inside a model", "Learn by hand and by experiment", "Other")
    )
)
# each verb with its usage, in the order of --help
VERBS: tuple[tuple[Group, str, Callable | App, str], ...] = (
    (START, "demo", demo.demo, "[OPTIONS]"),
    (START, "doctor", doctor.doctor, "[OPTIONS]"),
    (USE, "train", train.train, "FAMILY [OPTIONS]"),
    (USE, "resume", resume.resume, "RUN [OPTIONS] [--train.SETTING VALUE]"),
    (USE, "verify", verify.verify, "RUN"),
    (USE, "average", average.average, "RUN [OPTIONS]"),
    (USE, "import", import_weights.import_weights, "WHAT [OPTIONS]"),
    (USE, "export", export.export, "RUN --to LIBRARY [OPTIONS]"),
    (USE, "sample", sample.sample, "RUN [OPTIONS]"),
    (USE, "predict", predict.predict, "RUN INPUTS --out FILE [OPTIONS]"),
    (USE, "eval", evaluate.evaluate, "RUN [OPTIONS]"),
    (USE, "embed", embed.embed, "RUN [OPTIONS]"),
    (USE, "serve", serve.serve, serve.USAGE),
    (INSIDE, "explore", explore.explore, explore.USAGE),
    (INSIDE, "trace", trace.trace, "WHAT [OPTIONS]"),
    (INSIDE, "why", trace.why, "WHAT CELL [OPTIONS]"),
    (INSIDE, "show", trace.show, "WHAT [NAME] [OPTIONS]"),
    (INSIDE, "walk", walk.walk, walk.USAGE),
    (INSIDE, "diff", trace.diff, "A B [OPTIONS]"),
    (INSIDE, "heads", heads.heads, "RUN [OPTIONS]"),
    (INSIDE, "shapes", shapes.shapes, "WHAT [OPTIONS] [--model.SETTING VALUE]"),
    (INSIDE, "cost", cost.cost, "WHAT [OPTIONS] [--model.SETTING VALUE]"),
    (INSIDE, "bench", bench.bench, "[JOB] [OPTIONS]"),
    (LEARN, "kata", kata.app, "[NAME] [OPTIONS]"),
    (LEARN, "slides", slides.slides, "RUN --out FILE [OPTIONS]"),
    (LEARN, "figures", figures.figures, "DOCUMENT --out FOLDER [OPTIONS]"),
    (LEARN, "check", check.check, "FILES [OPTIONS]"),
    (LEARN, "lab", lab.lab, "[NAME] [OPTIONS]"),
)
USAGE = {verb: usage for _, verb, _, usage in VERBS}

app = App(
    name="pencil",
    usage="Usage: pencil COMMAND ...",
    default_parameter=PARAMETERS,
    group_parameters=Group("Options", sort_key=0),
    help="Transformers from pencil arithmetic to production.",
    version=__version__,
    help_epilogue="pencil COMMAND --help describes a command. --debug shows where a failure came from.",
)
for i, (group, verb, function, usage) in enumerate(VERBS):
    line = f"Usage: pencil {verb} {usage}".rstrip()
    if isinstance(function, App):
        function.group, function.sort_key, function.usage, function.help_epilogue = group, i, line, ""
        app.command(function)
    else:
        app.command(function, name=verb, group=group, sort_key=i, usage=line, help_epilogue="")

for flag in ("--help", "--version"):
    app[flag].group = OTHER

TRAINING = ("train", "resume")  # verbs that several processes can share
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
    alone = bool(words) and words[0] in USAGE and words[0] not in TRAINING
    if alone and "TORCHELASTIC_RUN_ID" in os.environ and world().size > 1:
        raise UserError(f"pencil {words[0]} runs in one process: start it without torchrun")
    if list(words) == ["train"]:
        raise UserError(missing("train", USAGE["train"]))
    if len(words) > 1 and words[0] in BY_FAMILY and not set(words[1:]) <= set(HELP):
        rest = words[1:]
        if words[0] == "train":
            rest = train.with_family(rest)
            if not set(rest) & set(HELP):
                check_training(rest)
        return dispatch(words[0], rest, USAGE[words[0]], *BY_FAMILY[words[0]])
    try:
        return app(words, exit_on_error=False, print_error=False) or 0
    except CycloptsError as error:
        verb = words[0] if words and words[0] in USAGE else ""
        usage = f"pencil {verb} {USAGE[verb]}" if verb else ""
        raise UserError(sentence(error, f"pencil {verb}".rstrip(), usage)) from error


def main(words: Sequence[str] | None = None, began: float | None = None) -> None:
    """Run the command line, which `began` at this time; every failure the user can fix is one sentence."""
    words = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in words
    if words[:1] not in (["explore"], ["serve"]):  # which show failures while they go on
        words = [word for word in words if word != "--debug"]
    use_utf8()
    try:
        if (ended := enter(began)) is not None:
            sys.exit(ended)
        status = run(words)
        sys.stdout.flush()
        sys.exit(status)
    except Several as asked:
        sys.exit(launch(asked.count, words, debug))
    except OtherRankFailed:
        end_after_another()
        sys.exit(1)
    except UserError as error:
        if debug:
            leave("failed")
            raise
        say_failure(error)
        sys.exit(2)
    except OSError as error:
        if debug:
            raise
        if isinstance(error, BrokenPipeError):
            # the reader of our output has closed it: write nothing more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        where = f"{error.filename}: " if error.filename else ""
        say_failure(f"{where}{error.strerror or error}")
        sys.exit(2)
    except KeyboardInterrupt:
        note("pencil: interrupted")
        sys.exit(130)
    except Exception as error:
        if debug or world().size == 1:
            raise
        say_unexpected(error)
        sys.exit(1)
