"""train: its options by family, and the words after it before a family is known."""

# the options of a command are those of its family, which is known when the command is made
# pyright: reportInvalidTypeForm=false
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ..collectives.processes import only_rank0_prints, world
from ..config import UserError, overrides
from ..console import note
from .launch import began, leave, start_several
from .parsing import option_meant, setting_meant, undotted_words
from .screens.terminal import program

if TYPE_CHECKING:
    from ..families.family import Family
    from ..runs.run import Run
    from ..train.settings import TrainConfig

# of train, for every family
SECTIONS = ("model", "train", "data")  # of the settings
OPTIONS = ("data", "from", "freeze", "preset", "config", "settings", "name", "out", "force", "processes")
Settings = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


def train(family: str, /, *settings: Settings) -> int:
    """Train a model on your data; Ctrl-C saves and prints the command that continues.

    pencil train FAMILY --help lists the options of a family; pencil train FAMILY --settings every setting, such as
    --model.depth and --train.lr; pencil train --config FILE trains with the settings of a file.

    Parameters
    ----------
    family
        gpt (text to the next token), vit (image to class), captioner (image to text), seq2seq (text to text), reader
        (text to class, or masked tokens) or dit (label, text or nothing to image; label to video).
    """
    raise AssertionError("train is dispatched by family")


def train_command(record: "Family") -> Callable[..., int]:
    """The command for one family."""
    from ..families.options import DATA, MODEL, RUN, default
    from .train_options import ConfigFile, Force, Freeze, From, Out, Processes, SettingsOnly

    data_help = Parameter(
        group=DATA, help=record.data_help, show_default=default(record.data), allow_leading_hyphen=True
    )
    presets = f"Sizes and training settings: {', '.join(record.presets)}."
    preset_help = Parameter(group=MODEL, help=presets, show_default=default(record.default_preset))
    name_help = Parameter(group=RUN, help="Name of the run under runs/.", show_default=default(f"DATA-{record.name}"))

    def command(
        family: Annotated[str, Parameter(show=False)],
        /,
        *settings: Settings,
        data: Annotated[str | None, data_help] = None,
        options: Annotated[record.train_options, Parameter(name="*")] = record.train_options(),  # noqa: B008
        from_run: From = None,
        freeze: Freeze = None,
        preset: Annotated[str | None, preset_help] = None,
        config: ConfigFile = None,
        settings_only: SettingsOnly = False,
        name: Annotated[str | None, name_help] = None,
        out: Out = None,
        force: Force = False,
        processes: Processes = None,
    ) -> int:
        words = overrides(check_dotted(record, settings), SECTIONS)
        from ..api.several_processes import processes as join_others
        from ..api.train import merge, start_training
        from ..api.training_request import TrainingRequest, given_options, read_config, with_image_size
        from .screens.settings_list import write_settings

        plain_options, model = with_image_size(given_options(options), words["model"])
        training = _with_freeze(words["train"], freeze)
        request = TrainingRequest(record.name, data, preset, plain_options, model, training, words["data"], from_run)
        if not settings_only:
            start_several(processes)
        if config is not None:
            with only_rank0_prints():
                request = merge(request, read_config(config), config, note)
        if settings_only:
            write_settings(request, out, force)
            return 0
        with join_others(request.train.get("device")):
            return train_to_end(*start_training(request, name, out, force, note))

    command.__doc__ = f"""Train a {record.name}: {record.summary}. Ctrl-C saves and prints the command that continues.

    A setting is given by its section and name: --model.depth 6 --train.lr 3e-4. --settings lists them all.
    --train.minutes 5 trains for five minutes; --train.patience 3 stops after three evaluations without a better
    validation loss.
    """
    return command


def _with_freeze(training: dict[str, str], freeze: list[str] | None) -> dict[str, str]:
    """The training settings with the patterns of --freeze."""
    if not freeze:
        return training
    if "freeze" in training:
        raise UserError("--freeze is the same as --train.freeze: give one of the two")
    return training | {"freeze": ",".join(freeze)}


def with_family(words: Sequence[str]) -> Sequence[str]:
    """The words after `train`, with the family that --config names where none comes first."""
    option = next((i for i, word in enumerate(words) if word.partition("=")[0] == "--config"), None)
    if option is None or not words[0].startswith("-"):
        return words
    value = words[option].partition("=")[2]
    if not value and option + 1 == len(words):
        raise UserError("--config needs a value")
    path = value or words[option + 1]
    if not Path(path).is_file():  # before torch is imported
        raise UserError(f"there is no config file {path}")
    from ..api.training_request import read_config

    named = read_config(path).family
    return words if named in words else [str(named), *words]


def check_dotted(record: Any, words: Sequence[str]) -> list[str]:
    """The words, which are all dotted settings; anything else is refused with what it may have meant."""
    from ..train.settings import plain_names

    sections = plain_names(record)
    own = [f"--{name.replace('_', '-')}" for name in (*OPTIONS, *sections.pop("options"))]
    for name in undotted_words(words):
        if name.startswith("-"):
            swapped = [one for one in own if sorted(one) == sorted(name)]  # --form is --from before it is --model.norm
            meant = option_meant(name, swapped) or setting_meant(name, sections) or option_meant(name, own)
            raise UserError(
                f"a {record.name} takes no {name}; {meant or f'pencil train {record.name} --help lists its options'}"
            )
        data = f"--data {name}" if Path(name).exists() or "/" in name or Path(name).suffix else "--data DATA"
        raise UserError(f"train cannot use {name!r} by itself; data is given with {data}, settings as --model.depth 6")
    return list(words)


def train_to_end(run: "Run", task: Any, config: "TrainConfig", allow_changes: bool = False) -> int:
    """Train to the last step, or to the interruption; the exit status."""
    from ..api.train import train_to_end

    outcome = train_to_end(run, task, config, allow_changes, program=program(), began=began())
    if world().size > 1:
        leave("reported")
        return 0  # any other status would have torchrun start it again
    return 0 if outcome.finished else 130
