"""`pencil.train`: what the verb does, from Python; and what both say while they do it.

What they say of a training's size (what it trains, which preset is shorter, which settings fit into memory) follows
from what `pencil cost` counts.
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from ..collectives.processes import (
    RankError,
    all_gather,
    has_process_group,
    is_lost_connection,
    launch_folder,
    restarts,
    world,
)
from ..config import UserError, build, refuse
from ..console import note, visible
from ..cost.count import count, count_trained
from ..cost.fitting import fitting
from ..cost.memory import train_memory
from ..cost.profile import on_meta
from ..data import in_memory
from ..device import pick_device, total_memory
from ..families.family import Family
from ..families.family import family as record_of
from ..progress import duration
from ..runs.run import Run
from ..train.freezing import blocks_with, describe_parts, freeze_parameters
from ..train.loop import time_budget
from ..train.loop.trainer import Outcome, Trainer
from ..train.model_selection import describe_highest
from ..train.parallel.gradients import uses_bfloat16
from ..train.settings import TrainConfig, slots_of
from ..train.tasks.metrics import class_table, describe_accuracy
from .loading import load
from .run_setup import Training, new_run
from .several_processes import check_same, make_once, processes
from .trained import TrainedRun
from .training_request import TrainingRequest, check_data, read_config, resolve, with_image_size

PICTURE_COLUMNS = ("image", "label", "text")  # of a table in memory, for a family without settings of columns
FILES_NAMED = 20  # unusable files reported one by one
SOON_SECONDS = 3600  # a training that takes no longer ends soon
Notify = Callable[[str], None]
Callback = Callable[[int, dict[str, float]], Any]


def train(
    family: str | None = None,
    data: Any = None,
    *,
    config: str | Path | None = None,
    preset: str | None = None,
    from_run: str | Path | None = None,
    model: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    name: str | None = None,
    out: str | Path | None = None,
    force: bool = False,
    quiet: bool = False,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
    text: str | None = None,
    label: str | None = None,
    source: str | None = None,
    target: str | None = None,
    image: str | None = None,
    keep_data: bool = False,
    **settings: Any,
) -> TrainedRun:
    """Train a model as `pencil train` does, to the same weights.

    A setting is given by its plain name (depth=4, steps=200, tokenizer="bpe"), or in the tables `model` and `train`.
    `config` is a file of settings, such as the config.toml of a run; what is given besides goes over it.
    `from_run` is a run whose weights it begins with (--from); `freeze` names the parameters that are not trained.
    `data` is a path, or in memory: a table (of pandas, polars, pyarrow, datasets, or a dict of columns), a tuple
    (inputs, labels), a list of pairs, or a list of texts. `text`, `label`, `source`, `target` and `image` name the
    columns of a table where it is not clear. The run records a hash of it; with `keep_data` it has a copy, from which
    it can be resumed anywhere.
    `on_step(step, metrics)` and `on_evaluation(step, metrics)` are called on the way; one that returns False stops.
    """
    began = time_budget.clock()
    file = None if config is None else read_config(config)
    if family is None and file is None:
        raise UserError('the family is missing: pencil.train("gpt", "notes.txt"), or pencil.train(config="run.toml")')
    record = file.record if family is None and file is not None else record_of(str(family))
    if isinstance(patterns := settings.get("freeze"), list | tuple):
        settings["freeze"] = ",".join(patterns)
    columns = {"text": text, "label": label, "source": source, "target": target, "image": image}
    named = [what for what, column in columns.items() if column is not None]
    in_memory.check_name(data)
    if data is None and (named or keep_data) and (file is None or file.data is None):
        what = f"{named[0]}= names a column of it" if named else "keep_data keeps a copy of it"
        raise UserError(f"data is None, and {what}: give the table (df.dropna(inplace=True) gives None, not df)")
    if in_memory.is_data(data):
        check_columns(record, named)
        data = in_memory.register(data, columns, keep_data)
    else:
        refuse((keep_data, "keep_data is for data in memory: a file stays where it is"))
        settings |= {f"{name}_column": column for name, column in columns.items() if column is not None}
    values = resolve(record, settings)
    for section, table in (("model", model), ("train", train)):
        if both := set(values[section]) & set(table or {}):
            raise UserError(f"{min(both)} is given twice: by its name and in {section}")
    options, sizes = with_image_size(values["options"], {**(model or {}), **values["model"]})
    request = TrainingRequest(
        record.name,
        None if data is None else str(data),
        preset,
        options,
        sizes,
        {**(train or {}), **values["train"]},
        values["data"],
        None if from_run is None else str(from_run),
    )
    notify = (lambda line: None) if quiet else note
    if file is not None and config is not None:
        request = merge(request, file, config, notify)
    with processes(request.train.get("device")):
        training = start_training(request, name, None if out is None else Path(out), force, notify)
        outcome = train_to_end(
            *training, notify=notify, quiet=quiet, on_step=on_step, on_evaluation=on_evaluation, began=began
        )
    return TrainedRun.of(training.run, outcome, load)


def check_columns(record: Family, named: Sequence[str]) -> None:
    """Refuse the name of a column that the family does not read."""
    own = [what for what in in_memory.COLUMNS if f"{what}_column" in record.data_settings] or list(PICTURE_COLUMNS)
    if odd := next((what for what in named if what not in own), None):
        raise UserError(f"{odd}= names no column that a {record.name} reads, only {', '.join(own)} do: leave it out")


def merge(request: TrainingRequest, file: TrainingRequest, path: str | Path, notify: Notify) -> TrainingRequest:
    """A request over what a config file says; what of the file could not stay is reported."""
    merged, notes = request.over(file, path)
    for line in notes:
        notify(line)
    if request.data is None:
        check_data(merged, path)
    return merged


def start_training(
    request: TrainingRequest, name: str | None, out: Path | None, force: bool, notify: Notify
) -> Training:
    """The run, its task and its training settings; everything is checked before the folder is made."""
    record = request.record
    check_same({"command": "train", **asdict(request), "name": name, "out": out, "force": force})

    def make(again: Path | None) -> Training:
        """`again` is a run of this training that is made once more."""
        if again is not None:
            return new_run(request, out=again, force=True, notify=notify)
        return new_run(request, name=name, out=out, force=force, notify=notify)

    run, task, config = make_once(make, out, name, notify)
    if restarts():
        return Training(run, task, config)
    count, device = record.parameters(task.config), pick_device(config.device).type
    several = f", {world().size} processes" if world().size > 1 else ""
    notify(f"A {record.name} of {count:,} parameters, from {task.about()}; on {device}{several}.")
    if request.from_run is not None or config.freeze is not None:
        notify(what_trains(record, task.config, config))
    return Training(run, task, config)


def resume_command(program: str, path: Path) -> str:
    """The command that goes on with a run, in as many processes as now."""
    words, size = f"resume {shlex.quote(str(path))}", world().size
    if size == 1 or launch_folder():
        return f"{program} {words}" + f" --processes {size}" * (size > 1)
    machines = int(os.environ.get("GROUP_WORLD_SIZE") or 1)
    options = f"--nproc-per-node {size}" if machines == 1 else "…"  # as it was started
    return f"torchrun {options} -m pencil {words}"


def usual_steps(run: Run, task: Any) -> int | None:
    """The steps of the run's preset, or of its data where that decides them; None from weights, which need fewer."""
    facts, record = run.config["run"], task.family
    if "from" in facts:
        return None
    data = getattr(getattr(task, "data", None), "training_defaults", {})
    decides = data if "image_size" not in record.preset_values(facts["preset"]) else {}
    return {**record.training.get(facts["preset"], {}), **decides}.get("steps", TrainConfig.steps)


def train_to_end(
    run: Run,
    task: Any,
    config: TrainConfig,
    allow_changes: bool = False,
    *,
    notify: Notify = note,
    program: str = "pencil",
    **trainer: Any,
) -> Outcome:
    """Train to the last step, or to the interruption; report where things are. `trainer` goes to the Trainer."""

    def report_skipped(files: list[tuple[str, str]]) -> None:
        for name, fault in files[:FILES_NAMED]:
            notify(visible(f"skipped {name}: {fault}", one_line=True))

    def shorter(seconds: float) -> str:
        return propose_shorter(task.family, run.config["run"]["preset"], task.config, config, seconds)

    skipped = task.skipped()
    report_skipped(skipped)
    try:
        usual = {"propose": shorter, "usual_steps": usual_steps(run, task)}
        outcome = Trainer(task, run, config, allow_changes, **{**usual, **trainer}).train()
    except (RuntimeError, MemoryError) as error:
        # torch words it differently on each device
        words, text = ("out of memory", "allocate memory", "not enough memory"), str(error).lower()
        if isinstance(error, RuntimeError) and (is_lost_connection(error) or not any(word in text for word in words)):
            raise
        raise out_of_memory(task.family, task.config, config) from None
    several = (
        all_gather(task.skipped()) if has_process_group() else [task.skipped()]
    )  # each process has read its own pictures
    if not world().is_rank0:
        return outcome
    everywhere = dict.fromkeys((name, fault) for one in several for name, fault in one)
    later = [one for one in everywhere if one not in skipped]
    report_skipped(later)
    if lost := len(skipped) + len(later):
        notify(f"{lost} file{'s' if lost > 1 else ''} of the data could not be used.")
    if not outcome.finished:
        done = f"Stopped after step {outcome.step}, and saved" if outcome.step else "Stopped before the first step"
        notify(f"{done}. Continue with:")
        notify(f"  {resume_command(program, run.path)}")
        return outcome
    best = outcome.best
    steps = f"{outcome.step} step" + "s" * (outcome.step > 1)
    metrics = f"val_loss {best['val_loss']:.4f}"
    if task.headline != "val_loss":
        metrics = f"{task.headline} {best[task.headline]:.4f}, {metrics}"
    which = f"{metrics} at step {best['step']}"
    if task.select_best:
        highest = describe_highest(outcome.highest, best, task.headline)
        which = f"kept step {best['step']}, the lowest val_loss: {metrics}{f' ({highest})' * bool(highest)}"
    used = outcome.used and f" ({outcome.used})"
    notify(f"Trained {steps} in {outcome.seconds:.1f} s{used}; {which}; the run is in {run.path}")
    for line in filter(None, [describe_accuracy(best, task.unit), *class_table(best)]):
        notify(visible(line, one_line=True))
    few = config.eval_batches * config.batch
    if describe_accuracy(best, task.unit) and few < (held_out := len(task.data.test)):
        notify(
            f"These are figures of {few:,} of the {held_out:,} held-out {task.unit} (--train.eval_batches "
            f"{config.eval_batches}); of all: {program} eval {shlex.quote(str(run.path))}"
        )
    if best["step"] == 0 and outcome.step:
        notify(
            "No evaluation was better than that of the untrained model, so its weights are kept: train for more "
            "steps, or with a smaller --train.lr"
        )
    if outcome.early:
        notify(f"It stopped before step {config.steps or run.config['train']['steps']}: {outcome.early}. Go on with:")
        notify(f"  {resume_command(program, run.path)} --train.patience 0")
    elif outcome.overfits:
        notify(outcome.overfits)
    return outcome


# ---- its size


def what_trains(record: Family, model: Any, config: TrainConfig) -> str:
    """The sentence: "12.3 M of 124 M parameters train (blocks 6–11 and head); about 2.1 GB of memory"."""
    counts, whole = count(record.create, record.cost, model), on_meta(record.create, model)
    sizes = {name: p.numel() for name, p in whole.named_parameters()}
    what, note = f"all {_short(sum(sizes.values()))} parameters train", ""
    if frozen := freeze_parameters(whole, config.freeze):
        trained = [name for name in sizes if name not in frozen]
        some, total = (_short(sum(sizes[name] for name in names)) for names in (trained, sizes))
        what = f"{some} of {total} parameters train ({describe_parts(trained, sizes)})"
        counts = replace(counts, trained=count_trained(whole, record.cost))
        if counts.trained.blocks > len(blocks_with(trained)):
            note = "; the backward pass goes through frozen blocks too, since parts before them train"
    device = pick_device(config.device)
    dtype = "bf16" if uses_bfloat16(config, device) else "fp32"
    memory = train_memory(record.cost, model, counts, config.batch, dtype=dtype, cuda=device.type == "cuda")
    needed = memory.total(config.optimizer, config.recompute == "blocks") + memory.gradients * bool(config.ema)
    unknown = "" if memory.activations else ", without activations"
    return f"{what}; about {_short(needed, 'B')} of memory{unknown}{note}"


def _short(number: float, unit: str = "") -> str:
    """Three digits and a letter: 12.3 M, 2.10 GB."""
    for letter, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            value = number / size
            digits = f"{value:.0f}" if value >= 99.5 else f"{value:.1f}"
            return f"{digits} {letter if unit or letter != 'G' else 'billion'}{unit}"
    return f"{number:.0f}{f' {unit}' if unit else ''}"


def propose_shorter(record: Family, preset: str, model: Any, config: TrainConfig, seconds: float) -> str:
    """What the training takes here, and what would take less: another preset, or a time budget."""
    line = f"the preset {preset} takes about {duration(seconds)} here"
    faster = {name: time for name, time in _times(record, preset, model, config, seconds).items() if time < seconds / 2}
    soon = {name: time for name, time in faster.items() if time <= SOON_SECONDS}
    if faster:
        # the largest of those that end soon, or the fastest
        name = max(soon, key=lambda one: soon[one]) if soon else min(faster, key=lambda one: faster[one])
        line += f"; --preset {name} about {duration(faster[name])}"
    return f"{line}; --train.minutes 30 stops after half an hour, with a schedule that fits"


def _times(record: Family, preset: str, model: Any, config: TrainConfig, seconds: float) -> dict[str, float]:
    """For each other preset the seconds that its FLOPs would take at this pace, on the same data."""
    # the vocabulary, the classes, the image size: what the preset leaves to the data
    from_data = {one.name: getattr(model, one.name) for one in fields(model) if one.name not in record.presets[preset]}
    usual = asdict(build(TrainConfig, record.training.get(preset, {})))
    changed = {name: value for name, value in asdict(config).items() if value != usual[name]}
    times, flops = {}, _flops(record, model, config)
    for other in record.presets:
        if other == preset:
            continue
        try:
            training = build(TrainConfig, {**record.training.get(other, {}), **changed})
            sizes = record.configure(other, **{**from_data, **record.presets[other]})
            if sizes.depth * sizes.width**2 <= model.depth * model.width**2:  # a larger model is not counted
                times[other] = seconds * _flops(record, sizes, training) / flops
        except (UserError, RuntimeError):  # sizes that do not fit the data
            continue
    return times


def _flops(record: Family, model: Any, config: TrainConfig) -> float:
    counted = count(record.create, record.cost, model)
    return (counted.forward.flops + counted.backward) * config.batch * config.accumulate * config.steps


def out_of_memory(record: Family, model: Any, train: TrainConfig) -> UserError:
    """The error, with the batch, accumulation and recomputation of the same update that would fit."""
    size = "--model.image_size" if hasattr(model, "image_size") else "--model.context"
    mend = f"try a smaller --train.batch, --model.width or {size}"
    if fit := _fit(record, model, train):
        mend = f"{fit} would fit, by pencil cost, with as many rows in an update"
    sentence = f"out of memory with --train.batch {train.batch}; {mend}"
    here = world()
    return RankError(here.rank, sentence) if here.size > 1 else UserError(sentence)


def _fit(record: Family, model: Any, train: TrainConfig) -> str:
    """The settings that would fit, as on the command line; nothing where none would, or none can be counted."""
    device, here = pick_device(train.device), world()
    memory = total_memory(device)
    if device.type != "cuda":  # the processes of a machine share it
        memory //= int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    parallel = "ddp" if train.parallel == "auto" else train.parallel

    def slots(batch: int) -> int:
        try:
            return slots_of(replace(train, batch=batch))
        except UserError:
            return 0

    try:
        fit = fitting(
            record.create,
            record.cost,
            model,
            train,
            memory,
            here.size,
            parallel,
            "bf16" if uses_bfloat16(train, device) else "fp32",
            device.type == "cuda",
            slots if train.exact else None,
        )
    except (RuntimeError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError):
        return ""  # a family of one's own may have a profile that cannot be counted
    return "" if fit is None else fit.words(train, parallel)
