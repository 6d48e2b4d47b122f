"""What the fields of another library's config mean here: read, without effect, or refused by name.

Every field of a config has a use, or the config is refused; and what ours has and theirs cannot say is refused, too.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..config import UserError, with_article


class Only(NamedTuple):
    """A field that changes nothing at these values, and what we do not have at every other."""

    values: tuple[Any, ...]


def only(*values: Any) -> Only:
    return Only(values)


MAPPED = "mapped"  # read into our config
NEUTRAL = "neutral"  # changes no output: names, training, generation, what is returned
Use = str | Only


class Fields(dict[str, Any]):
    """The fields of another library's config; one that is needed and missing is refused by name."""

    def __init__(self, theirs: Mapping[str, Any], what: str):
        super().__init__(theirs)
        self.what = what

    def __missing__(self, name: str) -> Any:
        raise UserError(f"the config of this {self.what} has no {name}")

    def size(self, name: str, default: int | None = None) -> int:
        """A field that is a whole number above zero."""
        value = self[name] if default is None else self.get(name, default)
        if type(value) is not int or value < 1:
            raise UserError(f"this {self.what}'s {name} must be a whole number above 0, not {value!r}")
        return value

    def sizes(self, **names: str) -> dict[str, int]:
        """Our settings that are such fields, each by the name it has there."""
        return {ours: self.size(theirs) for ours, theirs in names.items()}

    def one_of(self, name: str, choices: Mapping[str, Any], default: str | None = None) -> Any:
        """Our word for a field that is one of several."""
        value = self[name] if default is None else self.get(name) or default
        if value not in choices:
            raise UserError(
                f"this {self.what}'s {name} is {value!r}, which ours does not have: only {_either(choices)}"
            )
        return choices[value]

    def given(self, name: str, default: Any) -> Any:
        """A field, or the library's default where a file leaves it out or has null."""
        return default if self.get(name) is None else self[name]


# fields whose null is a value of its own (all heads, no window); elsewhere the libraries refuse null
NULLABLE = ("num_key_value_heads", "sliding_window", "pad_token_id", "out_channels")


def with_defaults(theirs: Mapping[str, Any], defaults: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The fields of a config, and the library's defaults for those that it leaves out."""
    for name, default in defaults.items():
        if default is not None and name in theirs and theirs[name] is None and name not in NULLABLE:
            raise UserError(
                f"this {what}'s {name} must have a value, not null: leave it out for the library's default, {default!r}"
            )
    return {**defaults, **theirs}


def their_word(choices: Mapping[str, Any], ours: Any) -> str:
    """What `one_of` reads, backwards: of several words for one thing, the first."""
    return next(word for word, meaning in choices.items() if meaning == ours)


def check_fields(theirs: Mapping[str, Any], uses: Mapping[str, Use], what: str) -> None:
    """Refuse a config with a field that has no use here, or one set to what ours does not have."""
    if theirs.get("quantization_config"):
        raise UserError(f"this {what} is quantized (quantization_config), and only whole weights can be converted")
    for name, value in theirs.items():
        use = uses.get(name)
        if use is None and value is not None:
            raise UserError(f"this {what}'s config has {name} = {value!r}, which Pencil does not know")
        if isinstance(use, Only) and value is not None and value not in use.values:
            allowed = f": only {_either(use.values)}" if use.values else ""
            raise UserError(f"this {what}'s {name} is {value!r}, which ours does not have{allowed}")


class Unfit(UserError):
    """A setting of ours that another architecture does not have."""

    def __init__(self, name: str, value: Any, what: str, values: tuple[Any, ...]):
        super().__init__(f"model.{name} is {value!r}, which {with_article(what)} does not have: only {_either(values)}")
        self.setting, self.what, self.only = f"model.{name} is {value!r}", what, _either(values)


def must_have(config: Any, what: str, **wanted: Any) -> None:
    """Refuse a config of ours that another architecture cannot express, by the setting's name."""
    for name, values in wanted.items():
        values = values if isinstance(values, tuple) else (values,)
        if getattr(config, name) not in values:
            raise Unfit(name, getattr(config, name), what, values)


def _either(values: Iterable[Any]) -> str:
    return " or ".join(map(repr, values))
