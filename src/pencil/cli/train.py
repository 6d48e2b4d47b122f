"""train and resume."""

# the options of a command are those of its family, which is known when the command is made
# pyright: reportInvalidTypeForm=false
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..config import UserError, build, overrides, setting_types
from .suggestions import option_meant, setting_meant, undotted
from .terminal import note, program

# of train, for every family
OPTIONS = ("data", "from", "freeze", "preset", "config", "settings", "name", "out", "force")
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


def train_command(record: Any) -> Callable[..., int]:
    """The command for one family."""
    from ..families.options import DATA, MODEL, RUN, default

    presets = ", ".join(record.presets)

    def command(
        family: Annotated[str, Parameter(show=False)],
        /,
        *settings: Settings,
        data: Annotated[
            str | None,
            Parameter(group=DATA, help=record.data_help, show_default=default(record.data), allow_leading_hyphen=True),
        ] = None,
        options: Annotated[record.train_options, Parameter(name="*")] = record.train_options(),  # noqa: B008
        from_run: Annotated[
            str | None,
            Parameter(
                name="--from",
                group=MODEL,
                help="Begin with the weights of this run, trained or imported, with its model and its tokenizer "
                "(fine-tuning).",
            ),
        ] = None,
        freeze: Annotated[
            list[str] | None,
            Parameter(
                group=MODEL,
                negative=(),
                help="Do not train the parameters whose names match, such as 'blocks.[0-5].*' or tokens; "
                "repeat it for several. The same as --train.freeze.",
            ),
        ] = None,
        preset: Annotated[
            str | None,
            Parameter(
                group=MODEL,
                help=f"Sizes and training settings: {presets}.",
                show_default=default(record.default_preset),
            ),
        ] = None,
        config: Annotated[
            Path | None,
            Parameter(
                group=MODEL,
                help="A TOML file of settings, such as the config.toml of a run; FAMILY may then be left out. Options "
                "given here go over it.",
            ),
        ] = None,
        settings_only: Annotated[
            bool,
            Parameter(
                name="--settings",
                negative=(),
                group=MODEL,
                help="List every setting with its value and choices, as TOML that --config reads (into a file with "
                "--out FILE); train nothing.",
            ),
        ] = False,
        name: Annotated[
            str | None,
            Parameter(group=RUN, help="Name of the run under runs/.", show_default=default(f"DATA-{record.name}")),
        ] = None,
        out: Annotated[
            Path | None, Parameter(group=RUN, help="Folder of the run, instead of a name under runs/.")
        ] = None,
        force: Annotated[bool, Parameter(negative=(), group=RUN, help="Replace the run that is there.")] = False,
    ) -> int:
        words = overrides(_dotted(record, settings), ("model", "train", "data"))
        from ..families.chosen import Chosen, given_options, read_config, with_image_size
        from ..families.train_run import merge, start_training
        from .settings_list import write_settings

        given, sizes = with_image_size(given_options(options), words["model"])
        if freeze and "freeze" in words["train"]:
            raise UserError("--freeze is the same as --train.freeze: give one of the two")
        training = words["train"] | ({"freeze": ",".join(freeze)} if freeze else {})
        chosen = Chosen(record.name, data, preset, given, sizes, training, words["data"], from_run)
        if config is not None:
            chosen = merge(chosen, read_config(config), config, note)
        if settings_only:
            write_settings(chosen, out, force)
            return 0
        return train_to_end(*start_training(chosen, name, out, force, note))

    command.__doc__ = f"""Train a {record.name}: {record.summary}. Ctrl-C saves and prints the command that continues.

    A setting is given by its section and name: --model.depth 6 --train.lr 3e-4. --settings lists them all.
    --train.minutes 5 trains for five minutes; --train.patience 3 stops after three evaluations without a better
    validation loss.
    """
    return command


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
    from ..families.chosen import read_config

    named = read_config(path).family
    return words if named in words else [str(named), *words]


def _dotted(record: Any, words: tuple[str, ...]) -> list[str]:
    """The words, which are all dotted settings; anything else is refused with what it may have meant."""
    from ..families.chosen import plain_names

    sections = plain_names(record)
    own = [f"--{name.replace('_', '-')}" for name in (*OPTIONS, *sections.pop("options"))]
    for name in undotted(words):
        if name.startswith("-"):
            swapped = [one for one in own if sorted(one) == sorted(name)]  # --form is --from before it is --model.norm
            meant = option_meant(name, swapped) or setting_meant(name, sections) or option_meant(name, own)
            raise UserError(
                f"a {record.name} takes no {name}; {meant or f'pencil train {record.name} --help lists its options'}"
            )
        data = f"--data {name}" if Path(name).exists() or "/" in name or Path(name).suffix else "--data DATA"
        raise UserError(f"train cannot use {name!r} by itself; data is given with {data}, settings as --model.depth 6")
    return list(words)


def resume(
    run: Path,
    /,
    *settings: Settings,
    data: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    allow_changes: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Continue a run from its newest whole checkpoint, to the same bits as if it had never stopped.

    Parameters
    ----------
    run
        The run's folder. Training settings can be changed: pencil resume RUN --train.steps 4000. A change that alters
        the result, such as of train.lr, is announced and recorded in the run.
    data
        Where the data is, if it was moved; it must be the same, by its hash.
    allow_changes
        Go on although settings or files of the run were changed or damaged since it was saved.
    """
    from ..families import family, open_run
    from ..train.identity import review

    opened = open_run(run)
    if "import" in opened.config:
        place = shlex.quote(str(run))
        raise UserError(
            f"{run} was imported, so there is no training to continue; train from it: pencil train {opened.family} "
            f"--from {place} --data DATA"
        )
    if allow_changes:
        with opened.writing():
            if fault := opened.mend_manifest():
                note(f"{fault}; it is written anew, of the files as they are, which cannot be verified")
    # before the data is read; the trainer reports it
    changes, notes = review(opened, family(opened.family), allow_changes)
    try:
        return _continue(opened, settings, data, allow_changes)
    except UserError as error:
        if not changes:
            raise
        raise UserError(f"{error}; {notes[-1]}") from None


def _continue(opened: Any, settings: tuple[str, ...], data: str | None, allow_changes: bool) -> int:
    """Continue a run whose settings were reviewed."""
    from ..device import pick_device
    from ..families import family
    from ..families.run_setup import check_memory, task_of
    from ..train.settings import TrainConfig, check_patience, check_settings, fit_warmup
    from ..train.task import why_last

    for name in undotted(settings):
        meant = setting_meant(name, {"train": setting_types(TrainConfig)}) or "pencil resume --help lists its options"
        raise UserError(f"resume cannot use {name}; {meant}")
    changed = overrides(list(settings), ("train",))["train"]
    if "minutes" in changed and (decided := opened.config["train"].get("steps")):
        raise UserError(f"{opened.path} is trained for {decided} steps: --train.steps sets another number")
    if "steps" in changed and not opened.config["train"].get("steps"):  # a time budget that was not measured yet
        undecided = {name: "250" for name in ("eval_every", "save_every") if not opened.config["train"].get(name)}
        changed = {"minutes": "none", **undecided, **changed}
    config = build(TrainConfig, {**opened.config["train"], **changed}, "train.")
    check_settings(config, family(opened.family).train_settings, opened.family)
    # a preset's inverse square root may warm up for longer than the run
    fit_warmup(config, chosen="warmup" in changed or config.schedule != "inverse-sqrt")
    if pick_device(config.device).type == "cpu":
        record = family(opened.family)
        check_memory(record, record.read_config(opened.config["model"]), config)
    task = task_of(opened, config, data, note)
    check_patience(config, why_last(task))
    if data is not None:
        _record_place(opened, data)
    if not allow_changes and (line := _nothing_left(opened, config)):
        note(line)
        return 0
    return train_to_end(opened, task, config, allow_changes)


def _nothing_left(opened: Any, config: Any) -> str | None:
    """Why a run that has ended does not go on, and what continues it; None where there is something left to do."""
    from ..train import checkpoint
    from ..train.identity import newest_state
    from ..train.validation import Validation

    steps, newest = checkpoint.saved(opened.path), newest_state(opened.path)
    if not steps or newest is None or newest[1].get("evaluation_due"):
        return None
    validation = Validation.restored(newest[1].get("validation"), {})
    if steps[-1] < config.steps and not validation.exhausted(config.patience):
        return None
    opened.verify("tokenizer.json", "model.safetensors")
    kept, faults = checkpoint.latest(opened.path)
    for line in faults:
        note(line)
    if kept is None or kept.step < min(steps[-1], config.steps):
        return None
    if kept.step < config.steps:
        return (
            f"{opened.path} stopped at step {kept.step} of {config.steps}: no better validation loss in "
            f"{validation.without_better} evaluations; --train.patience 0 continues it"
        )
    made = f"{opened.path} has made {kept.step} steps and train.steps is {config.steps}"
    return f"{made}; a larger --train.steps continues it"


def _record_place(run: Any, data: str) -> None:
    """Write into the run where its data is."""
    from ..data.hub import current_form
    from ..families import family
    from ..families.run_setup import whole_path
    from ..train.identity import Change, record_changes

    was, now = run.config["run"]["data_path"], whole_path(data, family(run.family).embedded)
    if current_form(was) != now:
        with run.writing():
            run.config["run"]["data_path"] = now
            record_changes(run, 0, [Change("run.data_path", was, now)])


def train_to_end(run: Any, task: Any, config: Any, allow_changes: bool = False) -> int:
    """Train to the last step, or to the interruption; the exit status."""
    from ..families.train_run import train_to_end

    return 0 if train_to_end(run, task, config, allow_changes, program=program()).finished else 130
