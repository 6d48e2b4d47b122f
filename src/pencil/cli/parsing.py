"""How the command line is read: values, the defaults that --help shows, and one plain sentence for each mistake."""

import re
from collections.abc import Sequence
from typing import Any, get_args

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    Token,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    convert,
)

from ..config import UserError
from .suggestions import command_meant, option_meant


def _value(kind: Any, tokens: Sequence[Token]) -> Any:
    """A value of its type; where a whole number is wanted, 1.5 is refused, not rounded."""
    kinds = (kind, *get_args(kind))
    if int in kinds:
        for token in tokens:
            if re.fullmatch(r"[+-]?\d*\.\d+", token.value) and float(token.value) % 1:
                raise ValueError(f"{token.value} is not a whole number")
    try:
        return convert(kind, tokens)
    except CoercionError:
        wanted = "a whole number" if int in kinds else "a number" if float in kinds else None
        if wanted is None:
            raise
        raise ValueError(f"{tokens[-1].value} is not {wanted}") from None


def _default(value: Any) -> str | None:
    """A default as --help shows it; nothing for an option that is unset or a flag that is off."""
    return None if value is None or value is False else str(value)


PARAMETERS = Parameter(converter=_value, show_default=_default)


def option_of(error: UnknownOptionError) -> str:
    """The option that is not known, without its value."""
    return str(error.token.keyword or error.token.value).partition("=")[0]


def sentence(error: CycloptsError, command: str, usage: str = "") -> str:
    """What is wrong with a command line, in one sentence; `usage` is how the command is written."""
    see, verb = f"{command} --help", command.removeprefix("pencil ")
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        commands = [name for name in (error.app or ()) if not name.startswith("-")]
        return f"{error.unused_tokens[0]} is not a command; {command_meant(error.unused_tokens[0], commands)}"
    if isinstance(error, UnknownOptionError):
        known = [name for argument in error.argument_collection for name in argument.names if name.startswith("--")]
        return (
            f"{verb} takes no {option_of(error)}; {option_meant(option_of(error), known) or f'{see} lists its options'}"
        )
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.keyword or error.argument.name
        if name.startswith("-"):
            return f"{name} needs a value"
        return f"{name.upper()} is missing; " + (f"usage: {usage}" if usage else f"{see} shows the usage")
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{verb} cannot use {' '.join(error.unused_tokens)!r}; " + (f"usage: {usage}" if usage else see)
    return str(error)


def significant_digits(digits: int) -> int:
    if not 1 <= digits <= 17:
        raise UserError(f"--digits must be from 1 to 17, not {digits}")
    return digits
