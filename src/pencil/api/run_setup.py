"""How a run starts: it is planned, with everything checked, before the first file is written.

With --from it begins with the weights of another run, which decide what can be chosen beside them.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import __version__
from ..collectives.processes import launch_facts, world
from ..config import UserError, build, fitted
from ..data.images.image_data import ImageData, lookalikes
from ..data.in_memory import copy_of, is_kept, named_in
from ..data.settings import DataConfig, check_data_settings
from ..data.split import SPLIT
from ..data.tables.pairs import PairData
from ..data.tokenizers.tokenizer import Tokenizer
from ..device import pick_device
from ..families.family import Family
from ..files import memory
from ..models.build import check_finite
from ..runs.files import DATA_COPY, DATA_RECORD, ORIGINAL, WEIGHTS
from ..runs.run import Run, choose_path
from ..train.freezing import frozen_names
from ..train.initial_weights import Start
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
from ..train.task import Prepared, Request, split_of, why_last
from .loading import SETTINGS_VERSION, load_model, open_run
from .original import origin_of
from .run_data import data_record, whole_path
from .training_request import TrainingRequest

# AdamW's peak rate for weights that were trained before, times the width: at 768 it is 6.5e-5, as others fine-tune
RATE_TIMES_WIDTH = 0.05


def train_config(record: Family, preset: str, train: dict[str, Any], start: Start | None = None) -> TrainConfig:
    """The training settings: those of the preset, or those for trained weights, with these over them."""
    if start is None:
        record.preset_values(preset)
    usual = record.training.get(preset, {}) if start is None else usual_training(record, start)
    config = build(TrainConfig, {**usual, **train}, "train.")
    check_settings(config, record.train_settings, record.name)
    check_final_rate(config, train)
    return config


class Training(NamedTuple):
    """A training that can begin."""

    run: Run
    task: Any  # on the run's data
    config: TrainConfig


@dataclass(frozen=True)
class RunPlan:
    """A run that is checked and not yet made: what its folder will hold, and the notes that announce it."""

    path: Path
    tables: dict[str, Any]  # of config.toml
    tokenizer: Tokenizer | None
    files: dict[str, bytes]  # the others
    task: Any
    config: TrainConfig
    notes: list[str]


def open_request(request: TrainingRequest, split: int = SPLIT, weights: bool = True) -> tuple[Request, TrainConfig]:
    """The request with what it names looked up and opened, and the training settings before the data is known.

    Without `weights` only the settings of the run that it starts from are read. Data that the weights of that run were
    trained on is divided by that run's rule: by another, some of it would be held out.
    """
    record, options, train = request.record, request.train_options(), with_budget(request.train)
    start = None if request.from_run is None else open_start(record, request.from_run, weights)
    preset = preset_of(record, request.preset, start)
    config = train_config(record, preset, train, start)
    data = record.data if request.data is None else request.data
    if start is not None and start.data & {data, whole_path(data, record.embedded)}:
        split = start.split
    return Request(record, data, preset, request.model, train, options, request.data_settings, start, split), config


def check_sections(request: Request) -> Request:
    """Refuse settings of the data and options that have no effect; the request with the options that hold."""
    check_data_settings(request.family, request.data_settings)
    if request.start is None:
        return request
    return replace(request, options=check_options(request.options, request.start))


def settings_of(request: TrainingRequest) -> tuple[Any, TrainConfig]:
    """The model's and the training settings as a run would have them."""
    opened, config = open_request(request, weights=False)
    record, start = opened.family, opened.start
    if request.data is None and not record.data_decides:
        sizes = (
            record.configure(opened.preset, **opened.model)
            if start is None
            else start.configure(start.values, opened.model)
        )
        return sizes, fit_schedule(opened, sizes, config)[0]
    prepared = prepare(check_sections(replace(opened, data=opened.data or record.data)), config)
    return prepared.model, fit_schedule(opened, prepared.model, prepared.train)[0]


def fit_schedule(request: Request, model: Any, config: TrainConfig) -> tuple[TrainConfig, list[str]]:
    """The warm-up and the peak rate that fit the sizes trained, where none was chosen; and a note of what changed.

    A preset of the 2017 paper has the paper's peak: it depends on the width and the warm-up.
    """
    config, notes = fit_warmup(config, "warmup" in request.train)
    preset = request.family.training.get(request.preset, {})
    published = preset.get("schedule") == config.schedule == "inverse-sqrt"
    if published and "lr" not in request.train and (peak := published_peak(model.width, config.warmup)) != config.lr:
        config = replace(config, lr=peak)
        notes.append(
            f"learning rate {peak:.3g} at its peak: (width·warm-up)^−½ as published, for width {model.width} and "
            f"{config.warmup} steps of warm-up; --train.lr sets another"
        )
    return config, notes


def new_run(
    request: TrainingRequest,
    *,
    name: str | None = None,
    out: Path | None = None,
    force: bool = False,
    split: int = SPLIT,
    notify: Callable[[str], None] = lambda line: None,
) -> Training:
    """Check everything, read the data, and only then make the run's folder: runs/NAME, or `out`.

    `split` is the rule by which a part of the data is held out.
    """
    plan = plan_run(request, name, out, force, split)
    run = Run.create(plan.path, plan.tables, plan.tokenizer, force, plan.files)
    for note in plan.notes:
        notify(note)
    return Training(run, plan.task, plan.config)


def plan_run(
    request: TrainingRequest,
    name: str | None = None,
    out: Path | None = None,
    force: bool = False,
    split: int = SPLIT,
) -> RunPlan:
    """The run that a request comes to on its data; nothing of it is written."""
    opened, config = open_request(request, split)
    opened = _check_before_data(opened, config)
    _check_name(name, out, force)
    prepared = prepare(opened, config)
    config, schedule_notes = fit_schedule(opened, prepared.model, prepared.train)
    if hasattr(prepared.task, "train"):
        prepared.task.train = config
    if _on_cpu(config):
        check_memory(opened.family, prepared.model, config)
    check_patience(config, why_last(prepared.task))
    check_processes(config, world().size)
    usual = Path("runs") / f"{prepared.name}-{opened.family.name}"
    path = out or (Path("runs") / name if name else choose_path(usual.name))
    start_notes = [] if opened.start is None else begin_from(opened.start, prepared, config, path)
    check_freeze(opened.family, prepared.model, config, opened.start)
    tables = _tables(opened, prepared, config)
    record = data_record(tables["run"]["data_path"], opened.family.embedded, prepared.task)
    taken = not out and not name and path != usual
    notes = [
        f"Writing {path}" + (f"; {usual} is an earlier run, and --name gives another name." if taken else "."),
        *prepared.notes,
        *lookalikes([str(one) for one in prepared.facts.get("classes") or ()]),
        *_about_tokenizer(prepared.tokenizer, getattr(opened.options, "vocab", None)),
        *start_notes,
        *schedule_notes,
        *idle_patience(config),
    ]
    files = {DATA_RECORD: record, **({DATA_COPY: copy_of(opened.data)} if is_kept(opened.data) else {})}
    files |= {} if opened.start is None else opened.start.others
    return RunPlan(path, tables, prepared.tokenizer, files, prepared.task, config, notes)


def _check_before_data(request: Request, config: TrainConfig) -> Request:
    """Refuse before a large corpus is read what needs no data to be refused; the request with the options that hold."""
    record = request.family
    check_processes(config, world().size)
    fitted(record.config, request.model, "model.")
    request, on_cpu = check_sections(request), _on_cpu(config)
    if on_cpu and not record.data_decides and request.start is None:
        check_memory(record, record.configure(request.preset, **{"vocab": 256, **request.model}), config)
    return request


def _check_name(name: str | None, out: Path | None, force: bool) -> None:
    """Refuse a name that is no plain one, or that a run has already."""
    if name is not None and (out or not name.strip(".") or set(name) & set("/\\\n")):
        raise UserError("--name must be a plain name under runs/, without --out; use --out for a folder elsewhere")
    if name and (Path("runs") / name).exists() and not force:
        raise UserError(f"the name {name} is already taken by {Path('runs') / name}; choose another, or --force")


def _on_cpu(config: TrainConfig) -> bool:
    return pick_device(config.device).type == "cpu"


def _tables(request: Request, prepared: Prepared, config: TrainConfig) -> dict[str, Any]:
    """The tables of the run's config.toml."""
    record, start, data = request.family, request.start, getattr(prepared.task, "data", None)
    facts = {
        "family": record.name,
        "preset": request.preset,
        "data": request.data,
        "data_path": getattr(data, "pinned", "") or whole_path(request.data, record.embedded),
        "data_hash": prepared.hash,
        **prepared.facts,
        "pencil": __version__,
        "settings": SETTINGS_VERSION,
        **({"columns": columns} if (columns := named_in(request.data)) else {}),
        **({} if start is None else start.facts),
        **launch_facts(),
    }
    if isinstance(data, ImageData | PairData) and data.split > 1:  # the `split` of other data is no rule
        facts["split"] = data.split
    tables: dict[str, Any] = {"run": facts, "model": prepared.model, "train": config}
    if prepared.data is not None and any(value is not None for value in asdict(prepared.data).values()):
        tables["data"] = prepared.data
    if options := {name: value for name, value in asdict(request.options).items() if value is not None}:
        tables["options"] = options  # so that --config can read the whole training
    if start is not None and start.tokens:
        tables["tokens"] = start.tokens
    return tables


def _about_tokenizer(tokenizer: Tokenizer | None, wanted: int | None) -> list[str]:
    """How many tokens a tokenizer has; one that was trained to more than the text has says so."""
    if tokenizer is None:
        return []
    fewer = f"; the text has no more for --vocab {wanted}" if wanted is not None and tokenizer.vocab < wanted else ""
    return [f"tokenizer {tokenizer.kind}, {tokenizer.vocab:,} tokens{fewer}"]


def check_memory(record: Family, config: Any, train: TrainConfig) -> None:
    """Refuse what cannot fit: weights, gradients, two moments and the least a batch needs, against all memory.

    Of several processes, those of this machine; with FSDP each has its part of the model.
    """
    sizes = config.sizes
    tokens = sizes.get("T", 0)  # a family of one's own may have none
    words = sizes.get("t", tokens) * sizes.get("V", 0)
    # of a frozen part only the weights, and of recomputed blocks only what goes into them
    bytes_each, each = (4, 0) if train.freeze else (16, 1 if train.recompute == "blocks" else 8)
    size, local = world().size, int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    copies = local / size if train.parallel == "fsdp" else local
    try:
        row = words + each * tokens * config.width * config.depth
        needed = bytes_each * copies * record.parameters(config) + 4 * train.batch * local / size * row
    except RuntimeError:  # so large that its bytes cannot be counted
        needed = 1 << 63
    available = memory()
    if needed > available:
        raise UserError(
            f"this training needs about {needed / 1e9:,.0f} GB of memory and the machine has {available / 1e9:,.0f}; "
            f"try a smaller --train.batch, --model.width or --model.{'context' if 'V' in sizes else 'image_size'}"
        )


# ---- the weights of another run


def open_start(record: Family, place: str | Path, weights: bool = True) -> Start:
    """The run as the start of a training; refused where it is of another family or has no weights.

    Without `weights` only its settings are read.
    """
    run = open_run(place)
    if run.family != record.name:
        raise UserError(
            f"{place} is a run of a {run.family}, and a {record.name} cannot start from its weights; "
            f"pencil train {run.family} --from {place} can"
        )
    if not (run.path / WEIGHTS).exists():
        raise UserError(f"{place} has no weights yet, so nothing can start from them; pencil resume {place} trains it")
    facts, tensors = run.config["run"], load_model(run).state_dict() if weights else {}
    check_finite(tensors.items())
    has_text = (run.path / "tokenizer.json").is_file()
    return Start(
        str(place),
        record,
        record.read_config(run.config["model"]),
        tensors,
        run.tokenizer if has_text else None,
        tuple(map(str, facts.get("classes") or ())),
        build(DataConfig, run.config.get("data") or {}, "data."),
        {"from": str(place), "from_id": run.id, "from_step": run.weights_step, **origin_of(run)},
        run.config.get("tokens"),
        facts.get("vae"),
        facts.get("vae_hash"),
        facts.get("preset", record.default_preset),
        {ORIGINAL: (run.path / ORIGINAL).read_bytes()} if weights and (run.path / ORIGINAL).is_file() else {},
        data=frozenset(filter(None, (facts.get("data"), facts.get("data_path")))),
        split=split_of(run),
    )


def preset_of(record: Family, preset: str | None, start: Start | None) -> str:
    """The preset; of a training that starts from a run, the run's, and no other can be chosen."""
    if start is None:
        return preset or record.default_preset
    if preset not in (None, start.preset):
        raise UserError(
            f"--preset {preset} has no effect beside --from: the model is that of {start.place}; leave it out"
        )
    return start.preset


def usual_training(record: Family, start: Start) -> dict[str, Any]:
    """The training settings where none are chosen: of the family's default preset, at a rate for trained weights."""
    rate = float(f"{RATE_TIMES_WIDTH / start.config.width:.2g}")
    return {**record.training.get(record.default_preset, {}), "optimizer": "adamw", "lr": rate}


def check_options(options: Any, start: Start) -> Any:
    """Refuse a tokenizer or an autoencoder beside --from; the options, with the autoencoder of the source."""
    for name in ("tokenizer", "vocab", "size"):
        if getattr(options, name, None) is not None:
            raise UserError(f"--{name} has no effect beside --from: that of {start.place} is used; leave it out")
    own, vae = start.vae, getattr(options, "vae", None)
    if vae is not None and str(vae) != own:
        has = f"the autoencoder {own}" if own else "no autoencoder: its model reads pixels"
        raise UserError(f"--vae {vae} cannot be used beside --from: {start.place} has {has}; leave it out")
    return options if own is None else replace(options, vae=own)


def prepare(request: Request, config: TrainConfig) -> Prepared:
    """The task on the data; of text that the source's tokenizer does not know, with what can be done."""
    try:
        return request.family.task.prepare(request, config)
    except UserError as error:
        if request.start is None or "is not among the" not in str(error):
            raise
        unknown = str(error).partition(";")[0]  # the rest is of a training that chooses its tokenizer
        raise UserError(
            f"{unknown}: {request.start.place} has a tokenizer of characters; leave that character out of the data, or "
            "start from a run with --tokenizer byte or bpe"
        ) from None


def begin_from(start: Start, prepared: Prepared, config: TrainConfig, path: Path) -> list[str]:
    """Give the task its start; sentences about what is taken, what is new, and how it is trained."""
    if path.exists() and path.resolve() == Path(start.place).resolve():
        raise UserError(f"{path} is the run to start from: choose another --out or --name for the new one")
    if start.vae is not None and prepared.facts.get("vae_hash") != start.vae_hash:
        raise UserError(
            f"{start.vae} is not the autoencoder that {start.place} was trained with: its content is another"
        )
    new = start.plan(prepared.model, prepared.facts.get("classes") or ())
    prepared.task.start = start
    step = start.facts.get("from_step")
    of = f" (step {step:,})" if step else ""
    rate = f"learning rate {config.lr:g} with {'AdamW' if config.optimizer == 'adamw' else 'Muon and AdamW'}"
    return [
        f"starts from the weights of {start.place}{of}; optimizer state, step and schedule are new; {rate}",
        *new,
    ]


def check_freeze(record: Family, model: Any, config: TrainConfig, start: Start | None) -> None:
    """Refuse patterns that match no parameter, all of them, or one that is new and would stay as it was drawn."""
    if config.freeze is None:
        return
    with torch.device("meta"):
        names = [name for name, _ in record.create(model).named_parameters()]
    frozen = frozen_names(names, config.freeze)
    if start is not None and (new := sorted(frozen & start.fresh)):
        raise UserError(f"train.freeze {config.freeze} matches {new[0]}, which is new here and must be trained")
