"""Verbs whose options depend on the family: the family is found first, then a command with just its options."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App, CycloptsError, UnknownOptionError

from ..config import UserError
from .numbers import PARAMETERS

if TYPE_CHECKING:
    from ..families.record import Family

RENAMED = {"--new": "--max-new-tokens"}
HELP = ("--help", "-h")


def run_family(target: str) -> "Family":
    """The family of a run."""
    from ..families import family, open_run

    return family(open_run(target).family)


def named_family(target: str) -> "Family":
    """A family by its name."""
    from ..families import family

    return family(target)


def trace_family(target: str) -> "Family | None":
    """The family of a run; none for a worked example or a trace file, which have their own input."""
    if target.startswith("example:") or not Path(target).is_dir():
        return None
    return run_family(target)


def dispatch(
    verb: str,
    words: Sequence[str],
    find: Callable[[str], "Family | None"],
    command: Callable[[Any], Callable[..., int]],
) -> int:
    """Run a verb with the options of the family that its first positional word names."""
    target = _target(words, find)
    record = find(target)
    app = App(
        name=f"pencil {verb}", default_parameter=PARAMETERS, help_flags=list(HELP), version_flags=[], result_action="return_value",
        help_format="plaintext",
    )  # fmt: skip
    app.default(command(record))
    try:
        return app(list(words), exit_on_error=False, print_error=False) or 0
    except UnknownOptionError as error:
        raise UserError(_unknown(verb, target, record, error)) from None


def _target(words: Sequence[str], find: Callable[[str], Any]) -> str:
    """The word that names a family or a run: the first, or the first that is one where options come before it."""
    if not words[0].startswith("-"):
        return words[0]
    for word in words[1:]:
        if word.startswith("-"):
            continue
        try:
            found = find(word)
        except UserError:
            continue
        if found is not None or word.startswith("example:"):
            return word
    return next((word for word in words if not word.startswith("-")), words[0])


def _unknown(verb: str, target: str, record: "Family | None", error: CycloptsError) -> str:
    word = str(getattr(getattr(error, "token", None), "keyword", None) or error).partition("=")[0]
    if word in RENAMED:
        return f"{word} is now called {RENAMED[word]}"
    what = f"{target} has its own input" if record is None else (
        f"{target} is a family" if target == record.name else f"{target} is a {record.name}"
    )  # fmt: skip
    return f"{what}: pencil {verb} takes no {word} here; pencil {verb} {target} --help lists its options"
