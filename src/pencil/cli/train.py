"""train and resume."""

# the options of a command are those of its family, which is known when the command is made
# pyright: reportInvalidTypeForm=false
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ..config import UserError, build, overrides
from .terminal import note, note_line, program

Settings = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]
FILES_NAMED = 20  # unusable files reported one by one


def train(family: str, /, *settings: Settings) -> int:
    """Train a model on your data; Ctrl-C saves and prints the command that continues.

    pencil train FAMILY --help lists the options of a family; pencil train FAMILY --settings every setting, such as
    --model.depth and --train.lr.

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
        preset: Annotated[
            str | None,
            Parameter(
                group=MODEL,
                help=f"Sizes and training settings: {presets}.",
                show_default=default(record.default_preset),
            ),
        ] = None,
        settings_only: Annotated[
            bool,
            Parameter(
                name="--settings",
                negative=(),
                group=MODEL,
                help="List every --model and --train setting with its value and choices, as TOML; train nothing.",
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
        chosen = overrides(_dotted(record, settings), ("model", "train"))
        options = _image_size(options, chosen["model"])
        from ..device import pick_device
        from ..families.run_setup import new_run, settings_of
        from ..train.settings import OPTIONAL
        from .settings_list import settings_list

        if settings_only:
            model, training = settings_of(record.name, data, preset, chosen["model"], chosen["train"], options)
            left_out = set(OPTIONAL) - set(record.train_settings)
            print(settings_list({"model": model, "train": training}, left_out))
            return 0
        run, task, config = new_run(
            record.name, data, preset=preset, model=chosen["model"], train=chosen["train"], options=options,
            run_name=name, out=out, force=force, notify=note,
        )  # fmt: skip
        count, device = record.parameters(task.config), pick_device(config.device).type
        note(f"A {record.name} of {count:,} parameters, from {task.about()}; on {device}.")
        return train_to_end(run, task, config)

    command.__doc__ = f"""Train a {record.name}: {record.summary}. Ctrl-C saves and prints the command that continues.

    A setting is given by its section and name: --model.depth 6 --train.lr 3e-4. --settings lists them all.
    """
    return command


def _dotted(record: Any, words: tuple[str, ...]) -> list[str]:
    """The words, which are all dotted settings; an option the family does not take is refused by name."""
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and "." not in name:
            raise UserError(f"a {record.name} takes no {name}; pencil train {record.name} --help lists its options")
    return list(words)


def _image_size(options: Any, model: dict[str, Any]) -> Any:
    """--size is another word for --model.image_size, except with --vae."""
    size = getattr(options, "size", None)
    if size is None or getattr(options, "vae", None) is not None:
        return options
    if "image_size" in model:
        raise UserError("--size is the same as --model.image_size here: give one of the two")
    model["image_size"] = size
    return replace(options, size=None)


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
    from ..train import checkpoint
    from ..train.settings import TrainConfig, check_settings, fit_warmup

    changed = overrides(list(settings), ("train",))["train"]
    config = build(TrainConfig, {**opened.config["train"], **changed}, "train.")
    check_settings(config, family(opened.family).train_settings, opened.family)
    # a preset's inverse square root may warm up for longer than the run
    fit_warmup(config, chosen="warmup" in changed or config.schedule != "inverse-sqrt")
    if pick_device(config.device).type == "cpu":
        record = family(opened.family)
        check_memory(record, record.read_config(opened.config["model"]), config.batch)
    task = task_of(opened, config, data, note)
    if data is not None:
        _record_place(opened, data)
    steps = checkpoint.saved(opened.path)
    if steps and steps[-1] >= config.steps and not allow_changes:
        opened.verify("tokenizer.json", "model.safetensors")
        kept, faults = checkpoint.latest(opened.path)
        for line in faults:
            note(line)
        if kept is not None and kept.step >= config.steps:
            note(f"{opened.path} has made {kept.step} steps and train.steps is {config.steps}; a larger --train.steps "
                 "continues it")  # fmt: skip
            return 0
    return train_to_end(opened, task, config, allow_changes)


def _record_place(run: Any, data: str) -> None:
    """Write into the run where its data is."""
    from ..families import family
    from ..families.run_setup import whole_path
    from ..train.identity import Change, record_changes

    was, now = run.config["run"]["data_path"], whole_path(data, family(run.family).embedded)
    if was != now:
        with run.writing():
            run.config["run"]["data_path"] = now
            record_changes(run, 0, [Change("run.data_path", was, now)])


def train_to_end(run: Any, task: Any, config: Any, allow_changes: bool = False) -> int:
    """Train to the last step, or to the interruption; report where things are."""
    from ..train.loop import Trainer

    skipped = task.skipped()
    for name, fault in skipped[:FILES_NAMED]:
        note_line(f"skipped {name}: {fault}")
    try:
        outcome = Trainer(task, run, config, allow_changes).train()
    except (RuntimeError, MemoryError) as error:
        # torch words it differently on each device
        if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
            raise
        raise UserError(
            "out of memory; try a smaller --train.batch, --model.width or "
            + ("--model.image_size" if hasattr(task.config, "image_size") else "--model.context")
        ) from None
    later = task.skipped()[len(skipped) :]
    for name, fault in later[:FILES_NAMED]:
        note_line(f"skipped {name}: {fault}")
    if lost := len(skipped) + len(later):
        note(f"{lost} file{'s' if lost > 1 else ''} of the data could not be used.")
    if not outcome.finished:
        done = f"Stopped after step {outcome.step}, and saved" if outcome.step else "Stopped before the first step"
        note(f"{done}. Continue with:\n  {program()} resume "
             f"{shlex.quote(str(run.path))}")  # fmt: skip
        return 130
    best = outcome.best
    headline = "" if task.headline == "val_loss" else f"{task.headline} {best[task.headline]:.4f}, "
    kept = "best " if task.select_best else ""
    steps = f"{outcome.step} step" + "s" * (outcome.step > 1)
    note(f"Trained {steps} in {outcome.seconds:.1f} s; {kept}{headline}val_loss {best['val_loss']:.4f} "
         f"at step {best['step']}; the run is in {run.path}")  # fmt: skip
    return 0
