"""A command line of `train` checked before torch is imported, which takes seconds: family, paths and settings.

Whatever is refused here is refused by the command too, in the same words; what needs more than names is left to it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import UserError, expand_path, fitted, nearest, overrides
from .names import check_model, check_run, families, outdated
from .parsing import undotted_words
from .train import OPTIONS, SECTIONS, check_dotted

FLAGS = ("force", "settings")  # of the options, those without a value
DECIDED_BY_OTHERS = ("slots", "sync")  # settings of training whose values are right or wrong by others, of a preset too


def check_training(words: Sequence[str]) -> None:
    """Refuse the words after `train` where a name or a path in them is wrong."""
    targets = words[:1] if not words[0].startswith("-") else [word for word in words if not word.startswith("-")]
    records = families(strings=targets)
    if "torch" in sys.modules:
        return  # there is no time to be saved
    if targets and not set(targets) & set(records):
        raise UserError(f"{targets[-1]} is not a family of models; {nearest(targets[-1], records)}")
    record = records.get(words[0])
    if record is None or (parts := _split(record, words[1:])) is None:
        return
    options, rest = parts
    if outdated([name.lstrip("-") for name in undotted_words(rest)], [options.get("preset", "")]):
        return
    settings = overrides(check_dotted(record, rest), SECTIONS)
    if (config := options.get("config")) is not None and not Path(config).is_file():
        raise UserError(f"there is no config file {config}")
    _check_names(record, options, settings)
    if (data := options.get("data")) is not None:
        _check_data(record, data)


def _split(record: Any, words: Sequence[str]) -> tuple[dict[str, str], list[str]] | None:
    """The options with their values, and the other words; None where an option lacks its value."""
    names = {f"--{name}": name for name in (*OPTIONS, *record.train_options.__dataclass_fields__)}
    options, left, rest = {}, [], list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if option not in names:
            left.append(word)
            if word.startswith("-") and not equals and rest:
                left.append(rest.pop(0))
        elif names[option] not in FLAGS:
            if not equals and (not rest or (rest[0].startswith("--") and option != "--data")):
                return None
            options[names[option]] = value if equals else rest.pop(0)
    return options, left


def _check_names(record: Any, options: dict[str, str], settings: dict[str, dict[str, str]]) -> None:
    """Refuse a run, a preset or a setting that is none, or that this family has not, or has not with this value."""
    from ..data.settings import check_data_settings
    from ..train.settings import TrainConfig, check_settings, with_budget

    start, preset = options.get("from"), options.get("preset")
    if start is not None:
        check_run(start)
    elif preset is not None and "config" not in options and preset not in record.presets:
        raise UserError(f"{preset} is not a preset of {record.name}; {nearest(preset, record.presets)}")
    with_budget(settings["train"])
    for name, value in fitted(TrainConfig, settings["train"], "train.").items():
        if name not in DECIDED_BY_OTHERS:
            check_settings(TrainConfig(**{name: value}), tuple(record.train_settings), record.name)
    check_model(record.name, settings["model"])
    if "size" in options and not options.keys() & {"vae", "config"}:  # then it is another word for the model's
        check_model(record.name, {"image_size": options["size"]})
    check_data_settings(record, settings["data"])


def _check_data(record: Any, data: str) -> None:
    """Let the reader of this kind of data refuse a path that is not there."""
    from ..data.hub import current_form
    from ..data.images import open_images as images
    from ..data.path_patterns import PREFIX, expand, is_several
    from ..data.tables import pairs
    from ..data.text import corpus

    if data in ("", "-", *record.embedded) or current_form(data).startswith(PREFIX) or expand_path(data).exists():
        return
    columns = set(record.data_settings)
    if is_several(data) and "source_column" not in columns:
        expand(data)
    elif "source_column" in columns:
        pairs.load(data)
    elif "label_column" in columns and pairs.is_table(data):
        pairs.load_labelled(data)
    elif "text_column" in columns:
        corpus.find(data)
    else:
        images.load(data, next(want for want, names in images.EMBEDDED.items() if set(names) <= set(record.embedded)))
