"""Verbs whose options depend on the family: the family is found first, then a command with just its options."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App, CycloptsError, UnknownOptionError, UnusedCliTokensError

from ..config import UserError
from ..runs.files import example_run
from .names import check_run, examples, families
from .parsing import PARAMETERS, input_meant, option_of, sentence, word_meant

if TYPE_CHECKING:
    from ..families.family import Family

HELP = ("--help", "-h")
TRACE_FILE = ".safetensors"


def run_family(target: str) -> "Family":
    """The family of a run."""
    check_run(target)
    from ..api.loading import open_run
    from ..families import family

    return family(open_run(target).family)


def named_family(target: str) -> "Family":
    """A family by its name."""
    from ..families import family

    return family(target)


def trace_family(target: str) -> "Family | None":
    """The family of a run; none for a worked example or a trace file, which have their own input."""
    if example_run(target) or (Path(target).is_dir() and not target.startswith("example:")):
        return run_family(target)
    if not (target.startswith("example:") or target.endswith(TRACE_FILE) or Path(target).exists()):
        hint = f"; the worked example is example:{target}" if target in examples() else ""
        hint = f"; did you mean {meant}?" if ((meant := Path("runs", target)) / "config.toml").is_file() else hint
        raise UserError(f"{target} is no run's folder, no trace file and no example:NAME{hint}")
    return None


@contextmanager
def reporting_misfits(path: str | Path) -> Iterator[None]:
    """Work on a trace file: what its checks could not foresee is a sentence too, since the file is another's."""
    try:
        yield
    except UserError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError) as error:
        raise UserError(
            f"{path} cannot be followed: its graph does not fit its values ({type(error).__name__})"
        ) from error


def dispatch(
    verb: str,
    words: Sequence[str],
    usage: str,
    find: Callable[[str], "Family | None"],
    command: Callable[[Any], Callable[..., int]],
) -> int:
    """Run a verb with the options of the family that its first positional word names.

    The word is the first, unless options come before it: then which of the words it is depends on the options, and
    those on the family. It is the one that is still the first positional word when read with its own family.
    """
    asks_help = bool(set(words) & set(HELP))
    targets = words[:1] if not words[0].startswith("-") else [word for word in words if not word.startswith("-")]
    if not targets:
        raise UserError(missing(verb, usage))
    failures: list[tuple[bool, UserError]] = []
    for target in targets:
        record = None
        try:
            record = find(target)
            function, bound = read_line(verb, words, usage, target, record, command(record))
        except UserError as error:
            failures.append((record is not None, error))
            continue
        if asks_help or len(targets) == 1 or str(next(iter(bound.arguments.values()), None)) == target:
            with nullcontext() if record is not None else reporting_misfits(target):
                return function(*bound.args, **bound.kwargs) or 0
    failures.sort(key=lambda failure: failure[0])  # a word that names a family says more than one that does not
    raise failures[-1][1] if failures else UserError(f"usage: pencil {verb} {usage}")


def missing(verb: str, usage: str) -> str:
    """What to say where the first word of a verb is missing: of a family, which there are."""
    families_named = ""
    if usage.startswith("FAMILY"):
        *most, last = families()
        families_named = f": {', '.join(most)} or {last}"
    return f"{usage.split()[0]} is missing{families_named}; usage: pencil {verb} {usage}"


def read_line(
    verb: str,
    words: Sequence[str],
    usage: str,
    target: str,
    record: "Family | None",
    command: Callable[..., int],
) -> tuple[Callable[..., Any], Any]:
    """The line read with the options of this family."""
    shown = usage.replace("FAMILY", target)
    app = App(
        name=f"pencil {verb}",
        usage=f"Usage: pencil {verb} {shown}",
        default_parameter=PARAMETERS,
        version_flags=[],
        help_flags=list(HELP),
        help_format="plaintext",
    )
    app[HELP[0]].show = False
    app.default(command)
    try:
        function, bound, _ = app.parse_args(list(words), exit_on_error=False, print_error=False)
    except UnknownOptionError as error:
        raise UserError(_explain_unknown(verb, target, record, option_of(error))) from None
    except UnusedCliTokensError as error:
        raise UserError(
            _explain_unused(verb, record, error) or sentence(error, f"pencil {verb}", f"pencil {verb} {shown}")
        ) from None
    except CycloptsError as error:
        raise UserError(sentence(error, f"pencil {verb}", f"pencil {verb} {shown}")) from None
    return function, bound


def _explain_unused(verb: str, record: "Family | None", error: UnusedCliTokensError) -> str | None:
    """How a word after the run is given to the model as its input; None where it has no such input."""
    if (
        record is None
        or len(words := error.unused_tokens or []) != 1
        or not (meant := word_meant(verb, record, words[0]))
    ):
        return None
    return f"{verb} cannot use {words[0]!r} by itself; {meant}"


def _explain_unknown(verb: str, target: str, record: "Family | None", option: str) -> str:
    if verb == "train":
        return f"{option} comes after the family: pencil train {target} {option} VALUE"
    see = f"pencil {'trace' if verb == 'walk' else verb} {target} --help lists its options"
    if record is not None:
        return f"{target} is a {record.name}: it takes no {option}; {input_meant(verb, record, option) or see}"
    if target.startswith("example:"):
        return f"{target} has its own input: leave {option} out; {see}"
    return f"{target} is a recorded trace: leave {option} out; {see}"
