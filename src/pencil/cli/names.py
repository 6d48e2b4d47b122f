"""The names of families, presets and settings without torch, so that a typing error is answered at once.

The records of the families import torch, which takes seconds. What is needed of them to check a command line is kept
in names.json, which `python -m pencil.cli.names` writes anew; a test compares it with the records. What the sources
name and the file does not is left to the records.
"""

import json
import re
import sys
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..config import fitted, setting_types

if typing.TYPE_CHECKING:
    from ..families.family import Family

Table = dict[str, str]
FILE = Path(__file__).with_name("names.json")


@dataclass(frozen=True)
class Names:
    """What a command line is checked against, by the names that the record of a family has for it."""

    name: str
    presets: list[str]
    embedded: list[str]
    train_settings: list[str]
    data_settings: list[str]
    train_options: type
    config: type


def families(fields: Iterable[str] = (), strings: Iterable[str] = ()) -> Mapping[str, Any]:
    """The families by name, to check fields and strings against: names.json, or the records where those know more.

    A program may have registered a family of its own, and the sources may have been extended since the file was made.
    """
    if f"{__name__.partition('.')[0]}.families" not in sys.modules and not outdated(fields, strings):
        return _read_names()[0]
    from ..families import FAMILIES

    return FAMILIES


def outdated(fields: Iterable[str], strings: Iterable[str]) -> bool:
    """Whether the sources have one of these fields of a dataclass, or strings, and names.json has not."""
    stored = FILE.read_text(encoding="utf-8")
    patterns = [rf"^    {re.escape(one)}: " for one in fields if one not in stored]
    patterns += [f'"{re.escape(one)}"' for one in strings if one not in stored]
    if not patterns:
        return False
    named = re.compile("|".join(patterns), re.MULTILINE)
    folders = [FILE.parents[1] / name for name in ("core", "models", "families")]
    return any(named.search(file.read_text(encoding="utf-8")) for folder in folders for file in folder.rglob("*.py"))


def examples() -> list[str]:
    """The names of the worked examples."""
    return _read_names()[1]


def check_run(path: str | Path) -> Path:
    """The folder of a run; a path that is no run's is refused before what opens a run imports torch."""
    from ..runs.files import find_run

    return find_run(path, families())


def check_model(name: str, values: Mapping[str, Any]) -> None:
    """Refuse model settings that a family does not have, or has not with these values."""
    fitted(families(values, map(str, values.values()))[name].config, values, "model.")


@cache
def _read_names() -> tuple[dict[str, Names], list[str]]:
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: _names(name, **table) for name, table in stored["families"].items()}, stored["examples"]


def _names(name: str, options: Table, model: Table, former_values: list[Any], **others: Any) -> Names:
    """Names whose settings are dataclasses, as those of a record are."""
    here = {"__module__": __name__}  # where the types, which are stored as words, are looked up
    former = {"FORMER_VALUES": {(setting, old): new for setting, old, new in former_values}}
    return Names(
        name,
        train_options=make_dataclass(name, options.items(), namespace=here),
        config=make_dataclass(name, model.items(), namespace=here | former),
        **others,
    )


def collected() -> dict[str, Any]:
    """What names.json holds, from the records themselves."""
    from ..families import FAMILIES
    from ..learn.worked.examples import EXAMPLES

    def stored(record: "Family") -> dict[str, Any]:
        return {
            "presets": list(record.presets),
            "embedded": list(record.embedded),
            "train_settings": list(record.train_settings),
            "data_settings": list(record.data_settings),
            "options": _types(record.train_options),
            "model": _types(record.config),
            "former_values": [[*key, new] for key, new in getattr(record.config, "FORMER_VALUES", {}).items()],
        }

    return {"families": {name: stored(record) for name, record in FAMILIES.items()}, "examples": list(EXAMPLES)}


def _types(kind: type) -> dict[str, str]:
    """The type of each setting as a word of Python."""
    types = setting_types(kind)
    return {
        name: one.__name__ if isinstance(one, type) and not typing.get_args(one) else str(one)
        for name, one in types.items()
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(collected(), indent=1) + "\n", encoding="utf-8")
