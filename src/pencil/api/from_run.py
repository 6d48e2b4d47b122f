"""--from: another run opened as the start of a training, and what cannot be chosen beside it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..config import UserError, build
from ..data.settings import DataConfig
from ..families.family import Family
from ..models.output import check_finite
from ..runs.files import ORIGINAL, WEIGHTS
from ..train.frozen import frozen_names
from ..train.settings import TrainConfig
from ..train.start import Start
from ..train.task import Prepared, Request, split_of
from .loading import load_model, open_run
from .original import origin_of

# AdamW's peak rate for weights that were trained before, times the width: at 768 it is 6.5e-5, as others fine-tune
RATE_TIMES_WIDTH = 0.05


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
