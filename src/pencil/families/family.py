"""The record of a family: everything that is special to one kind of model is reached through it.

One record a family. Everything special to a family is a field of its `Family` record: config and presets, task, the
options of its verbs as small dataclasses, `sample`, `trace`, its cost profile, its attention layouts, the checkpoint
maps. Verbs, loop and reports know the record's fields and no family. What several families share is a function or a
mixin beside them (`families/options.py`, `families/explore_profile.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import UserError, build, nearest
from ..cost.profile import CostProfile
from ..inference.graphs import RuntimeProfile
from ..inference.head_patterns import HeadProfile
from ..models.build import parameters as count_parameters
from ..weights.maps import Architecture
from .explore_profile import ExploreProfile
from .options import NoOptions


@dataclass(frozen=True)
class Family:
    """One kind of model. A new family is one module with one record, and one line in the registry."""

    name: str
    summary: str  # what goes in and what comes out
    config: type  # the frozen dataclass of its model settings
    model: type
    presets: Mapping[str, Mapping[str, Any]]  # model settings by preset
    training: Mapping[str, Mapping[str, Any]]  # training settings by preset, over TrainConfig's defaults
    task: Any  # prepare(request, config) and reopen(family, run, source, config)
    data: str  # used when --data is not given
    data_help: str
    embedded: tuple[str, ...] = ()  # data sets that come with Pencil
    eval_help: str = ""
    train_settings: tuple[str, ...] = ()  # of the training settings that only some families take
    data_settings: tuple[str, ...] = ()  # of how data is read, which only some families have
    train_options: type = NoOptions  # what `pencil train` takes besides the common options
    sample_options: type = NoOptions
    sample: Callable[..., None] | None = None  # (loaded, options, output)
    embed: Callable[..., Any] | None = None  # (loaded, texts, how, notify) -> a vector for each text
    predict: Callable[..., list[Any]] | None = None  # (loaded, inputs, sample options) -> a result for each input
    trace_options: type = NoOptions
    trace: Callable[..., Any] | None = None  # (loaded, options, double) -> LiveTrace
    cost: CostProfile = field(default_factory=CostProfile)
    explore: ExploreProfile | None = None  # how `pencil explore` shows its models
    heads: HeadProfile | str = "its attention heads have no score here"  # or why its heads cannot be scored
    checkpoints: tuple[Architecture, ...] = ()  # of other libraries, that become its models
    imported: Callable[..., dict[str, Any]] | None = None  # (checkpoint, config) -> tables of the run, and notes
    # (run, config, library, their config) -> the JSON files beside the weights by name, and notes
    exported: Callable[..., tuple[dict[str, Any], list[str]]] | None = None
    runtime: RuntimeProfile | None = None  # its forward passes for other runtimes, and the lines that use them
    generates: bool = False  # whether it writes token after token
    default_preset: str = "nano"
    data_decides: bool = True  # whether sizes other than the vocabulary follow from the data
    evaluate: Callable[..., Any] | None = (
        None  # (task, model, folder, classifier_of(task)); the task's report unless given
    )

    def preset_values(self, preset: str | None = None) -> Mapping[str, Any]:
        """The model settings of a preset."""
        preset = preset or self.default_preset
        if preset not in self.presets:
            raise UserError(f"{preset} is not a preset of {self.name}; {nearest(preset, self.presets)}")
        return self.presets[preset]

    def configure(self, preset: str | None = None, **values: Any) -> Any:
        """The model's config: a preset, with these values over it."""
        return build(self.config, {**self.preset_values(preset), **values}, "model.")

    def read_config(self, table: Mapping[str, Any]) -> Any:
        """The model's config from the table of a run."""
        return build(self.config, table, "model.")

    def create(self, config: Mapping[str, Any] | Any) -> Any:
        """The model from its config, or from a table of settings."""
        return self.model(self.read_config(config) if isinstance(config, Mapping) else config)

    def parameters(self, config: Any) -> int:
        """The number of parameters, without allocating them."""
        return count_parameters(lambda: self.create(config))

    @property
    def renamed_tensors(self) -> Mapping[str, str]:
        """Name prefixes of tensors in runs made before 0.7, and what they are called now."""
        return getattr(self.model, "RENAMED_TENSORS", {})


FAMILIES: dict[str, Family] = {}


def register(record: Family) -> None:
    """Add a family: from then on every verb knows it."""
    FAMILIES[record.name] = record


def family(name: str) -> Family:
    """The record of that name."""
    if name not in FAMILIES:
        raise UserError(f"{name} is not a family of models; {nearest(name, FAMILIES)}")
    return FAMILIES[name]


def configure(name: str, preset: str | None = None, **values: Any) -> Any:
    """The config of a family's model: a preset, with these values over it."""
    return family(name).configure(preset, **values)


def create(name: str, config: Mapping[str, Any] | Any) -> Any:
    """The model of a family from its config, or from a table of settings."""
    return family(name).create(config)
