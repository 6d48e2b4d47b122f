"""A model by the name of a preset, with other settings where given, or by the folder of a run."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..config import UserError, closest, fitted, nearest, overrides, setting_types
from ..runs.files import example_run
from .names import check_model, check_run, families
from .parsing import setting_meant

if TYPE_CHECKING:
    from ..families.family import Family

Model = Annotated[str, Parameter(allow_leading_hyphen=True)]  # settings may come before it


def settings_of(verb: str, words: Sequence[str], sections: Sequence[str]) -> tuple[str, dict[str, dict[str, str]]]:
    """A model's name, and by section the settings from `gpt:nano --model.heads 1 --train.ema 0.99`."""
    dotted, plain, rest = [], [], list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if not word.startswith("-"):
            plain.append(word)
            continue
        if "." not in name:
            of_models = [setting for record in families().values() for setting in setting_types(record.config)]
            meant = setting_meant(name, {"model": of_models}) or f"pencil {verb} --help lists its options"
            raise UserError(f"{verb} takes no {name}; {meant}")
        dotted += [word] if equals or not rest else [word, rest.pop(0)]
    values = overrides(dotted, sections)
    if not plain:
        raise UserError(f"WHAT is missing; usage: pencil {verb} WHAT [OPTIONS] [--model.SETTING VALUE]")
    if len(plain) > 1:
        raise UserError(_too_many(verb, *plain))
    return plain[0], values


def _too_many(verb: str, what: str, *more: str) -> str:
    by_name = families()
    if what in by_name and len(more) == 1 and more[0] in by_name[what].presets:
        return f"a family and its preset are one word: use {what}:{more[0]}"
    return f"{verb} takes one preset or run at a time, not {' and '.join((what, *more))}"


def title_of(what: str, config: Any, changed: Iterable[str]) -> str:
    """The model's name, and the settings changed in it."""
    values = {name: getattr(config, name) for name in changed}
    shown = {n: "×".join(map(str, v)) if isinstance(v, tuple) else str(v).lower() for n, v in values.items()}
    return f"{what} with {', '.join(f'{name} {value}' for name, value in shown.items())}" if shown else what


def is_run(what: str) -> bool:
    """Whether this is the folder of a run, or one of the examples, and not a preset."""
    return example_run(what) is not None or Path(what).is_dir()


def find_model(what: str, changes: Mapping[str, Any] | None = None) -> "tuple[Family, Any, dict[str, Any]]":
    """The family, the model's config and the training settings of a preset or of a run.

    `changes` are model settings over those of the preset.
    """
    by_name = families(strings=[what])
    presets = {f"{name}:{preset}": (name, preset) for name, one in by_name.items() for preset in one.presets}
    alike = [full for full in presets if full.endswith(f":{what}")]
    if len(alike) > 1:
        raise UserError(f"{what} is a preset of several families; use {', '.join(alike[:-1])} or {alike[-1]}")
    if what in presets or alike:
        name, preset = presets[alike[0] if alike else what]
        check_model(name, changes or {})
        from ..families import FAMILIES

        record = FAMILIES[name]
        changed = fitted(record.config, changes or {}, "model.")
        return record, record.configure(preset, **changed), dict(record.training.get(preset, {}))
    if is_run(what) and changes:
        raise UserError(
            f"{what} is a run, and its model has the settings it was trained with: leave --model.{next(iter(changes))} "
            "out, or give a preset"
        )
    if is_run(what):
        check_run(what)
        from ..api.loading import open_run
        from ..families import FAMILIES

        run = open_run(what)
        record = FAMILIES[run.family]
        # an imported run is trained with AdamW when another starts from it
        training = {"optimizer": "adamw"} if "import" in run.config else run.config["train"]
        return record, record.read_config(run.config["model"]), training
    if what in by_name:
        raise UserError(f"{what} is a family; use one of {', '.join(f for f in presets if presets[f][0] == what)}")
    close = closest(what, [*presets, *(preset for _, preset in presets.values())])
    hint = f"did you mean {close}?" if close else nearest(what, presets)
    raise UserError(f"{what} is neither a preset nor a run's folder; {hint}")
