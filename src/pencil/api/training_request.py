"""A training as requested, before any default: on the command line, in a config file, or by plain names in Python.

The settings of a training have three forms. A `TrainingRequest` has what was requested and nothing else: plain values
by section. The `Request` of `train/task.py` is made of it for a task, with what it names looked up and opened: the
family's record, its options, the run to start from. A run has what they came to on the data: its model's config and its
`TrainConfig`, which config.toml keeps as tables; `read_config` makes them a `TrainingRequest` again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..config import UserError, build, fitted, nearest, nearest_setting, refuse, setting_types
from ..data.hub import FORMER, PREFIX
from ..data.path_patterns import is_several
from ..data.settings import DataConfig
from ..families.family import Family, family
from ..files import read_toml
from ..train.settings import NOT_DECAYING, UNDECIDED, TrainConfig, plain_names
from .loading import current_names

Values = dict[str, Any]
SECTIONS = ("run", "options", "model", "train", "data")
RECORDED = ("tokens", "plans")  # sections that only a run's own file has
# what [run] of a file may say; a run's own has more, which is no choice
IN_RUN = ("family", "preset", "data", "from", "settings")
FROM_DATA = ("vocab", "classes")  # model settings that follow from the data; the first from the tokenizer too
SIZED_BY_DATA = ("image_size", "channels", "patch", "context", "source_context")  # these too, unless they are given
TOKENIZER = ("tokenizer", "vocab")  # options of it


@dataclass(frozen=True)
class TrainingRequest:
    """What was requested of a training, by section."""

    family: str | None = None
    data: str | None = None
    preset: str | None = None
    options: Values = field(default_factory=dict)  # the family's own: a tokenizer, an image size, …
    model: Values = field(default_factory=dict)
    train: Values = field(default_factory=dict)
    data_settings: Values = field(default_factory=dict)
    from_run: str | None = None  # the run whose weights it begins with

    @property
    def record(self) -> Family:
        """The family's record."""
        if self.family is None:
            raise UserError("the family is missing: give one, such as the family of a config file's [run]")
        return family(self.family)

    def train_options(self) -> Any:
        """The options of the family, with its defaults."""
        return build(self.record.train_options, self.options)

    def over(self, file: "TrainingRequest", path: str | Path) -> tuple["TrainingRequest", list[str]]:
        """This request over that of a config file, and notes of what the file has and could not stay."""
        self._check_same_model(file, path)
        model, model_notes = self._model_over(file, path)
        train, train_notes = self._train_over(file, path)
        options = dict(file.options)
        if "tokenizer" in self._tokenizer_changes(file):
            options.pop("vocab", None)  # of the former tokenizer
        merged = TrainingRequest(
            self.family or file.family,
            self.data if self.data is not None else file.data,
            self.preset or (file.preset if self.from_run is None else None),
            options | self.options,
            model,
            train,
            file.data_settings | self.data_settings,
            self.from_run if self.from_run is not None else file.from_run,
        )
        return merged, model_notes + train_notes

    def _check_same_model(self, file: "TrainingRequest", path: str | Path) -> None:
        """Refuse a file of another family or of another preset."""
        refuse(
            (
                self.family is not None and file.family not in (None, self.family),
                f"{path} is of a {file.family}, not of a {self.family}",
            ),
            (
                self.preset is not None and file.preset not in (None, self.preset),
                f"{path} has the settings of the preset {file.preset}: leave --preset {self.preset} out, or the file",
            ),
        )

    def _tokenizer_changes(self, file: "TrainingRequest") -> list[str]:
        """The options of the tokenizer that are other than the file's."""
        return [name for name in TOKENIZER if name in self.options and self.options[name] != file.options.get(name)]

    def _model_over(self, file: "TrainingRequest", path: str | Path) -> tuple[Values, list[str]]:
        """The model settings over those of a file, without what other data or another tokenizer decides."""
        notes = []
        other_data = self.data is not None and file.data is not None and self.data != file.data
        changes = self._tokenizer_changes(file)
        decided = FROM_DATA if other_data else FROM_DATA[:1] if changes else ()
        model = {name: value for name, value in file.model.items() if name not in decided}
        if dropped := [f"model.{name}" for name in decided if name in file.model and name not in self.model]:
            why = self.data if other_data else f"--{changes[0]}"
            notes.append(f"{' and '.join(dropped)} of {path} follow{'s' * (len(dropped) < 2)} from {why} now")
        sizes = [name for name in SIZED_BY_DATA if name in model and name not in self.model]
        if other_data and sizes and self.record.data_decides:
            staying = ", ".join(f"model.{name} {model[name]}" for name in sizes)
            notes.append(f"{staying} of {path} stay; {self.data} decides what is removed from the file")
        return model | self.model, notes

    def _train_over(self, file: "TrainingRequest", path: str | Path) -> tuple[Values, list[str]]:
        """The training settings over those of a file, without those that steps, schedule or minutes now decide."""
        train, notes = dict(file.train), []
        if "steps" in self.train:
            train.pop("minutes", None)
            if "warmup" not in self.train and isinstance(warmup := train.get("warmup"), int):
                notes += _drop_long_warmup(train, warmup, self.train["steps"], path)
        if {**train, **self.train}.get("schedule") in NOT_DECAYING and train.pop("final_lr_fraction", None):
            notes.append(f"train.final_lr_fraction of {path} has no effect with the schedule, and is left out")
        if self.train.get("minutes") is not None:
            train = {name: value for name, value in train.items() if name not in UNDECIDED}
        return train | self.train, notes


def _drop_long_warmup(train: Values, warmup: int, steps: Any, path: str | Path) -> list[str]:
    """Leave out a file's warm-up that is longer than the steps chosen: it then follows from them."""
    if not str(steps).isdigit() or warmup <= int(steps):
        return []
    del train["warmup"]
    return [f"train.warmup {warmup} of {path} exceeds {steps} steps, so it follows from them"]


def with_image_size(options: Values, model: Values) -> tuple[Values, Values]:
    """`size` is another word for model.image_size, except with an autoencoder."""
    size = options.get("size")
    if size is None or options.get("vae") is not None:
        return options, model
    if "image_size" in model:
        raise UserError("--size is the same as --model.image_size here: give one of the two")
    return {name: value for name, value in options.items() if name != "size"}, {**model, "image_size": size}


def given_options(options: Any) -> Values:
    """The options that are not at their default."""
    return {one.name: value for one in fields(options) if (value := getattr(options, one.name)) != one.default}


def read_config(path: str | Path) -> TrainingRequest:
    """A training from a file: the config.toml of a run, or what `pencil train FAMILY --settings --out FILE` wrote."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no config file {path}")
    tables = read_toml(path)
    for section, table in tables.items():
        if section not in (*SECTIONS, *RECORDED) or not isinstance(table, dict):
            raise UserError(f"{path}: [{section}] is not a section of a training; {nearest(section, SECTIONS)}")
    facts, made = tables.get("run", {}), "pencil" in tables.get("run", {})
    for name, value in facts.items():
        if name not in IN_RUN and not made:
            raise UserError(f"{path}: run.{name} is not a setting; {nearest(name, IN_RUN)}")
        if name in IN_RUN and not isinstance(value, str):
            raise UserError(f"{path}: run.{name} must be a word, not {value!r}")
    named = {name: facts[name] for name in ("family", "data", "preset") if name in facts}
    if "from" in facts:
        named.pop("preset", None)  # its model is that of the run
    if "family" not in named:
        raise UserError(f'{path} does not say what to train: add family = "…" under [run]')
    try:
        record = family(named["family"])
        if made:
            tables = {"run": facts, "model": {}, "train": {}} | tables
            tables = current_names(record, tables, str(facts.get("settings", facts["pencil"])))
        # a run that was started from another has that one's tokenizer
        recorded = {} if "from" in facts else _recorded_options(record, facts, tables.get("model", {}))
        options = tables.get("options", recorded)
        return TrainingRequest(
            **named,
            from_run=facts.get("from"),
            options=fitted(record.train_options, options, "options."),
            model=fitted(record.config, tables.get("model", {}), "model."),
            train=_settle_budget(fitted(TrainConfig, tables.get("train", {}), "train.")),
            data_settings=fitted(DataConfig, tables.get("data", {}), "data."),
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _settle_budget(train: Values) -> Values:
    """The steps that a time budget came to, without the budget; or the budget alone where it had not decided yet."""
    if not train.get("minutes"):
        return train
    left_out = UNDECIDED if not train.get("steps") else ("minutes",)
    return {name: value for name, value in train.items() if name not in left_out}


def _recorded_options(record: Family, facts: Mapping[str, Any], model: Mapping[str, Any]) -> Values:
    """The options of a run that did not write them down, as far as it recorded what they came to."""
    option_names = {one.name for one in fields(record.train_options)}
    options = {name: facts[name] for name in ("tokenizer", "vae") if name in facts and name in option_names}
    if options.get("tokenizer") == "bpe" and "vocab" in model:
        options["vocab"] = model["vocab"]
    return options


def resolve(record: Family, settings: Mapping[str, Any]) -> dict[str, Values]:
    """Settings by their plain names, each in the section that has it.

    An option comes before a model setting of its name: the vocabulary of the tokenizer decides the model's. A name that
    the model and the training both have is refused.
    """
    sections = plain_names(record)
    values: dict[str, Values] = {section: {} for section in sections}
    for name, value in settings.items():
        homes = [section for section, names in sections.items() if name in names]
        home = homes[0] if homes else None
        if len(homes) > 1 and home != "options":
            tables = " or ".join(f"{section}={{{name!r}: …}}" for section in homes)
            raise UserError(f"{name} is a setting of {' and '.join(homes)}: give {tables}")
        if home is None:
            everything = [one for names in sections.values() for one in names]
            raise UserError(f"{name} is not a setting of a {record.name}; {nearest_setting(name, everything)}")
        values[home][name] = _as_word(value, setting_types(record.train_options)[name]) if home == "options" else value
    return values


def _as_word(value: Any, kind: Any) -> Any:
    """A number, a path or several numbers as the word that an option of words takes."""
    if kind not in (str, str | None) or isinstance(value, bool):
        return value
    if isinstance(value, tuple | list):
        return "x".join(map(str, value))
    return str(value) if isinstance(value, int | Path) else value


def check_data(request: TrainingRequest, path: str | Path) -> None:
    """Refuse a file of data that a config names and that is not there, with where it was looked for."""
    data = request.data
    if data is None or data in request.record.embedded or data == "-" or data.startswith((PREFIX, FORMER)):
        return
    if not is_several(data) and not Path(data).expanduser().exists():
        where = "" if Path(data).is_absolute() else " (a relative path is looked for in the working folder)"
        raise UserError(f"{path} names the data {data}, which is not there{where}; --data names another")
