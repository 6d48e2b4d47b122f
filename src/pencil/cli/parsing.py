"""How the command line is read: values, the defaults that --help shows, and one plain sentence for each mistake.

A word that is not understood may have meant a command, a setting without its section, or a model's input.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

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

from ..config import EPOCHS, OTHER_NAMES, UserError, closest, nearest_setting
from ..files import read_text

if TYPE_CHECKING:
    from ..families.family import Family

# commands of other programs
COMMANDS = {
    "predict": "sample", "generate": "sample", "infer": "sample", "inference": "sample", "classify": "sample",
    "translate": "sample", "complete": "sample", "evaluate": "eval", "test": "eval", "score": "eval", "fit": "train",
    "finetune": "train", "continue": "resume", "help": "--help", "version": "--version",
}  # fmt: skip
# options by which an input is given, of a family or of another program
INPUTS = (
    "--text", "--input", "--image", "--images", "--picture", "--file", "--prompt", "--source", "--label", "--class",
)  # fmt: skip

LEAST_TOKEN = 16  # characters


def read_token(path: Path | None) -> str | None:
    """The token that --token-file names, with which other machines may ask."""
    if path is None:
        return None
    token = read_text(path).strip()
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            f"{path} must hold one token of at least {LEAST_TOKEN} characters, such as: openssl rand -hex 32"
        )
    return token


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
        options = [name for argument in error.argument_collection for name in argument.names if name.startswith("--")]
        option = option_of(error)
        return f"{verb} takes no {option}; {option_meant(option, options) or f'{see} lists its options'}"
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


# ---- what a word may have meant


def command_meant(word: str, commands: Sequence[str]) -> str:
    """The command that was meant, or else all of them."""
    close = COMMANDS.get(word) or closest(word, commands)
    return f"did you mean {close}?" if close else f"the commands are {', '.join(commands)}"


def undotted_words(words: Sequence[str]) -> Iterator[str]:
    """The words that should be settings such as --train.lr 1e-3, and are not, without their values."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if not word.startswith("--") or "." not in name:
            yield name if word.startswith("-") else word
        if word.startswith("-") and not equals and rest:
            rest.pop(0)


def setting_meant(option: str, sections: Mapping[str, Iterable[str]]) -> str | None:
    """The setting that an option without a section meant, of those in these sections."""
    name = option.lstrip("-").replace("-", "_").lower()
    homes = {field: section for section, names in sections.items() for field in names}
    if name in EPOCHS and "steps" in homes:
        return nearest_setting(name, homes, section="--train.")
    field = name if name in homes else OTHER_NAMES.get(name, name)
    both = [f"--{section}.{field}" for section, names in sections.items() if field in names]
    if both:
        return f"did you mean {' or '.join(both)}?"
    close = closest(name, homes)
    return f"did you mean --{homes[close]}.{close}?" if close else None


def option_meant(option: str, options: Iterable[str]) -> str | None:
    """The option that was misspelt; its dashes are no letters."""
    close = closest(option.lstrip("-"), [one.lstrip("-") for one in options])
    return f"did you mean --{close}?" if close else None


def options_of(kind: type) -> dict[str, tuple[Any, Any]]:
    """The options of a dataclass: by name, each one's type and how it is shown."""
    options = {}
    for field, hint in get_type_hints(kind, include_extras=True).items():
        if get_args(hint) and hasattr(hint, "__metadata__"):
            parameter = hint.__metadata__[0]
            name = parameter.name[0] if parameter.name else "--" + field.replace("_", "-")
            options[name] = get_args(hint)[0], parameter
    return options


def inputs_of(verb: str, record: "Family") -> dict[str, bool]:
    """The options that give a model its input, and whether each is a file."""
    from ..families.options import INPUT

    kind = record.sample_options if verb == "sample" else record.trace_options
    types = {name: str(hint) for name, (hint, shown) in options_of(kind).items() if INPUT in _groups(shown)}
    return {name: "Path" in hint for name, hint in types.items() if "Path" in hint or "str" in hint}


def _groups(shown: Any) -> tuple[Any, ...]:
    return shown.group if isinstance(shown.group, tuple) else (shown.group,)


def input_meant(verb: str, record: "Family", option: str) -> str | None:
    """This model's input where the option is that of another, or else the option that was misspelt."""
    inputs = inputs_of(verb, record)
    if option in INPUTS and inputs:
        return f"its input is {' or '.join(inputs)}"
    kind = record.sample_options if verb == "sample" else record.trace_options
    return option_meant(option, options_of(kind))


def word_meant(verb: str, record: "Family", word: str) -> str | None:
    """How a word that stands alone is given to this model."""
    inputs = inputs_of(verb, record)
    files = [name for name, is_file in inputs.items() if is_file]
    options = files if files and (Path(word).suffix or Path(word).exists()) else list(inputs)
    shown = repr(word) if " " in word else word
    return f"give it with {' or '.join(f'{name} {shown}' for name in options)}" if options else None
