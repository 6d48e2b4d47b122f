"""How a run starts, and how its task is found again: everything is checked before the first file is written."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..collectives.torchrun import launch_facts, world
from ..config import UserError, build, fitted
from ..data.builtin import TEXTS
from ..data.hub import PREFIX, current_form, say_current_form
from ..data.images.image_data import lookalikes
from ..data.settings import DataConfig
from ..data.sources import absolute, is_several
from ..data.split import SPLIT
from ..device import pick_device
from ..families.family import Family
from ..families.registry import family
from ..files import memory
from ..runs.manifest import DATA_RECORD
from ..runs.run import Run, choose_path
from ..train.schedule import published_peak
from ..train.settings import (
    TrainConfig,
    check_final_rate,
    check_patience,
    check_processes,
    check_settings,
    fit_warmup,
    idle_patience,
    with_budget,
)
from ..train.start import Start
from ..train.task import DataChanged, Request, check_unchanged, why_last
from .data_record import data_record, what_changed
from .from_run import begin_from, check_freeze, check_options, open_start, prepare, preset_of, usual_training
from .loading import SETTINGS_VERSION


def train_config(record: Family, preset: str, train: dict[str, Any], start: Start | None = None) -> TrainConfig:
    """The training settings: those of the preset, or those for trained weights, with these over them."""
    if start is None:
        record.preset_values(preset)
    usual = record.training.get(preset, {}) if start is None else usual_training(record, start)
    config = build(TrainConfig, {**usual, **train}, "train.")
    check_settings(config, record.train_settings, record.name)
    check_final_rate(config, train)
    return config


def check_data_settings(record: Family, chosen: Mapping[str, Any]) -> None:
    """Refuse a setting of how data is read that is not one, or that this family does not have."""
    for name in fitted(DataConfig, chosen, "data."):
        if name not in record.data_settings:
            raise UserError(f"data.{name} has no effect on a {record.name}: leave it out")


def settings_of(
    name: str,
    data: str | None = None,
    preset: str | None = None,
    model: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    options: Any = None,
    data_settings: dict[str, Any] | None = None,
    from_run: str | None = None,
) -> tuple[Any, TrainConfig]:
    """The model's and the training settings as a run would have them."""
    record, model, train = family(name), model or {}, with_budget(train or {})
    start = open_start(record, from_run, weights=False) if from_run is not None else None
    preset = preset_of(record, preset, start)
    config = train_config(record, preset, train, start)
    if data is None and not record.data_decides:
        sizes = record.configure(preset, **model) if start is None else start.configure(start.values, model)
        return sizes, fit_schedule(record, preset, sizes, config, train)[0]
    check_data_settings(record, data_settings or {})
    options = options if start is None else check_options(options, start)
    request = Request(record, data or record.data, preset, model, train, options, data_settings or {}, start)
    prepared = prepare(request, config)
    return prepared.model, fit_schedule(record, preset, prepared.model, prepared.train, train)[0]


def fit_schedule(
    record: Family, preset: str, model: Any, config: TrainConfig, chosen: Mapping[str, Any]
) -> tuple[TrainConfig, list[str]]:
    """The warm-up and the peak rate that fit the sizes trained, where none was chosen; and a note of what changed.

    A preset of the 2017 paper has the paper's peak: it depends on the width and the warm-up.
    """
    config, notes = fit_warmup(config, "warmup" in chosen)
    published = record.training.get(preset, {}).get("schedule") == config.schedule == "inverse-sqrt"
    if published and "lr" not in chosen and (peak := published_peak(model.width, config.warmup)) != config.lr:
        config = replace(config, lr=peak)
        notes.append(
            f"learning rate {peak:.3g} at its peak: (width·warm-up)^−½ as published, for width {model.width} and "
            f"{config.warmup} steps of warm-up; --train.lr sets another"
        )
    return config, notes


def new_run(
    name: str,
    data: str | None = None,
    *,
    preset: str | None = None,
    model: dict[str, Any] | None = None,
    train: dict[str, Any] | None = None,
    data_settings: dict[str, Any] | None = None,
    options: Any = None,
    run_name: str | None = None,
    out: Path | None = None,
    force: bool = False,
    from_run: str | None = None,
    notify: Callable[[str], None] = lambda line: None,
    split: int = SPLIT,
) -> tuple[Run, Any, TrainConfig]:
    """Check everything, read the data, and only then make the run's folder.

    `split` is the rule by which a part of the data is held out.
    """
    record, model, train = family(name), model or {}, with_budget(train or {})
    start = open_start(record, from_run) if from_run is not None else None
    preset = preset_of(record, preset, start)
    data = record.data if data is None else data
    # refused before a large corpus is read; what only the data can settle is checked after
    config = train_config(record, preset, train, start)
    check_processes(config, world().size)
    fitted(record.config, model, "model.")
    check_data_settings(record, data_settings or {})
    options = options if start is None else check_options(options or record.train_options(), start)
    on_cpu = pick_device(config.device).type == "cpu"
    if not record.data_decides and on_cpu and start is None:
        check_memory(record, record.configure(preset, **{"vocab": 256, **model}), config)
    if run_name is not None and (out or not run_name.strip(".") or set(run_name) & set("/\\\n")):
        raise UserError("--name must be a plain name under runs/, without --out; use --out for a folder elsewhere")
    if run_name and (Path("runs") / run_name).exists() and not force:
        raise UserError(
            f"the name {run_name} is already taken by {Path('runs') / run_name}; choose another, or --force"
        )
    request = Request(record, data, preset, model, train, options, data_settings or {}, start, split)
    prepared = prepare(request, config)
    settings, notes = fit_schedule(record, preset, prepared.model, prepared.train, train)
    if hasattr(prepared.task, "train"):
        prepared.task.train = settings
    if on_cpu:
        check_memory(record, prepared.model, settings)
    check_patience(settings, why_last(prepared.task))
    check_processes(settings, world().size)
    usual = Path("runs") / f"{prepared.name}-{record.name}"
    path = out or (Path("runs") / run_name if run_name else choose_path(usual.name))
    begins = [] if start is None else begin_from(start, prepared, settings, path)
    check_freeze(record, prepared.model, settings, start)
    facts = {
        "family": record.name,
        "preset": preset,
        "data": data,
        "data_path": getattr(getattr(prepared.task, "data", None), "pinned", "") or whole_path(data, record.embedded),
        "data_hash": prepared.hash,
        **prepared.facts,
        "pencil": __version__,
        "settings": SETTINGS_VERSION,
        **({} if start is None else start.facts),
        **launch_facts(),
    }
    if (rule := getattr(getattr(prepared.task, "data", None), "split", 1)) > 1:
        facts["split"] = rule
    table = {"run": facts, "model": prepared.model, "train": settings}
    if prepared.data is not None and any(value is not None for value in asdict(prepared.data).values()):
        table["data"] = prepared.data
    if used := {name: value for name, value in asdict(request.options).items() if value is not None}:
        table["options"] = used  # so that --config can read the whole training
    if start is not None and start.tokens:
        table["tokens"] = start.tokens
    others = {DATA_RECORD: data_record(facts["data_path"], record.embedded, prepared.task)}
    run = Run.create(path, table, prepared.tokenizer, force, {**others, **({} if start is None else start.others)})
    taken = not out and not run_name and path != usual
    writing = f"Writing {path}" + (f"; {usual} is an earlier run, and --name gives another name." if taken else ".")
    tokens = _about_tokenizer(prepared.tokenizer, getattr(options, "vocab", None))
    alike = lookalikes([str(name) for name in prepared.facts.get("classes") or ()])
    for note in [writing, *prepared.notes, *alike, *tokens, *begins, *notes, *idle_patience(settings)]:
        notify(note)
    return run, prepared.task, settings


def _about_tokenizer(tokenizer: Any, wanted: int | None) -> list[str]:
    """How many tokens a tokenizer has; one that was trained to more than the text has says so."""
    if tokenizer is None:
        return []
    fewer = f"; the text has no more for --vocab {wanted}" if wanted is not None and tokenizer.vocab < wanted else ""
    return [f"tokenizer {tokenizer.kind}, {tokenizer.vocab:,} tokens{fewer}"]


def task_of(
    run: Run, config: TrainConfig, data: str | None = None, notify: Callable[[str], None] = lambda line: None
) -> Any:
    """The task of a run, on the data it was trained on, which may lie elsewhere; data that has changed is refused."""
    record, facts = family(run.family), run.config["run"]
    if "import" in run.config:
        raise UserError(
            f"{run.path} was imported, and has no data of its own: name some with --data, or train from it: "
            f"pencil train {run.family} --from {run.path} --data DATA"
        )
    if "data_path" not in facts or "data_hash" not in facts:
        raise UserError(
            f"{run.path} does not record where its data is: it was made by Pencil {facts.get('pencil', '?')}"
        )
    source = facts["data_path"] if data is None else whole_path(data, record.embedded)
    one = source != "-" and not is_several(source)
    if data is None and one and Path(source).is_absolute() and not Path(source).exists():
        raise UserError(
            f"{source}, the data of {run.path}, is not there; if it was moved: pencil resume {run.path} --data PATH"
        )
    try:
        task = record.task.reopen(record, run, source, config)
        former = getattr(getattr(task, "data", None), "former_hash", None)
        if task.hash != facts["data_hash"] and former is not None and former() == facts["data_hash"]:
            notify(f"{source} is compared by what an older version recorded of it, which is not the whole of each file")
            return task
        check_unchanged(run, task.hash, source)
    except UserError as error:
        raise _explained(error, run, source, record) from None
    return task


def _explained(error: UserError, run: Run, source: str, record: Family) -> UserError:
    """The error of data that cannot be used, with what has changed in it since the run was trained."""
    changes = what_changed(run, source, record.embedded)
    if not isinstance(error, DataChanged):
        # data that was changed so that it can no longer be read
        same = not changes or source in record.embedded
        return error if same else UserError(f"{error} ({source} has changed since {run.path} was trained: {changes})")
    why = f"{error}: {changes}" if changes else str(error)
    place = shlex.quote(source)
    version = "Python" if source in TEXTS else "Pencil"
    mend = f"use the version of {version} that made the run" if source in record.embedded else "put it back as it was"
    return DataChanged(
        f"{why}; {mend}, evaluate on it as it is (pencil eval {run.path} --data {place}), or train a new run"
    )


def whole_path(data: str, embedded: Sequence[str]) -> str:
    """Where the data is, from any working folder: an absolute path; the name of embedded data as it is."""
    say_current_form(data)
    data = current_form(data)
    hub, bare = data.startswith(PREFIX), data.removeprefix(PREFIX)
    if is_several(data):
        return absolute(data)
    path = Path(bare).expanduser()
    return f"{PREFIX * hub}{path.resolve()}" if path.exists() and data not in embedded else data


def check_memory(record: Family, config: Any, train: TrainConfig) -> None:
    """Refuse what cannot fit: weights, gradients, two moments and the least a batch needs, against all memory.

    Of several processes, those of this machine; with FSDP each has its part of the model.
    """
    sizes = config.sizes
    tokens = sizes.get("T", 0)  # a family of one's own may have none
    words = sizes.get("t", tokens) * sizes.get("V", 0)
    # of a frozen part only the weights, and of recomputed blocks only what goes into them
    kept, each = (4, 0) if train.freeze else (16, 1 if train.recompute == "blocks" else 8)
    size, local = world().size, int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    copies = local / size if train.parallel == "fsdp" else local
    try:
        row = words + each * tokens * config.width * config.depth
        needed = kept * copies * record.parameters(config) + 4 * train.batch * local / size * row
    except RuntimeError:  # so large that its bytes cannot be counted
        needed = 1 << 63
    available = memory()
    if needed > available:
        raise UserError(
            f"this training needs about {needed / 1e9:,.0f} GB of memory and the machine has {available / 1e9:,.0f}; "
            f"try a smaller --train.batch, --model.width or --model.{'context' if 'V' in sizes else 'image_size'}"
        )
