"""What a word that is not understood may have meant: a command, a setting without its section, a model's input."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from ..config import EPOCHS, OTHER_NAMES, closest, nearest_setting

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


def option_meant(option: str, known: Iterable[str]) -> str | None:
    """The option that was misspelt; its dashes are no letters."""
    close = closest(option.lstrip("-"), [one.lstrip("-") for one in known])
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
