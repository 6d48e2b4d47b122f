"""What a checkpoint of an image model has beside its weights: how images are prepared, and the names of the classes."""

from typing import Any

from ...config import build
from ...data.settings import DataConfig
from ...files import read_json
from ...runs.run import Run
from ...weights.checkpoint_files import Checkpoint
from ...weights.timm_vit import label_names
from ...weights.vit import DEIT, VIT, class_names
from .preprocessing import FILE, from_timm, from_transformers, to_timm, to_transformers


def imported(found: Checkpoint, config: Any) -> dict[str, Any]:
    """The tables of a run that is made of a checkpoint: its classes, and how its images are prepared."""
    theirs, notes = found.config, []
    if "architecture" in theirs:
        names, data = label_names(theirs), from_timm(theirs, config)
    else:
        names, data, file = class_names(theirs), {}, found.folder / FILE
        if file.is_file():
            kind = DEIT.name if theirs["model_type"] in DEIT.types else VIT.name
            data = from_transformers(read_json(file), kind, config)
        else:
            notes.append(f"it comes without {FILE}: images are cropped, and their pixels are from −1 to 1")
    run = {"classes": names} if len(names) == config.classes else {}
    if not run:
        notes.append(f"it does not name its {config.classes:,} classes: they are numbers here")
    return {"run": run, "data": data, "notes": notes}


def exported(run: Run, config: Any, library: str, described: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The files beside the weights, by name, for a run that is described so; and what the user should know of them."""
    reading = build(DataConfig, run.config.get("data") or {}, "data.")
    names = list(map(str, run.config["run"].get("classes") or ()))
    names = names if len(names) == config.classes else []
    if library == "timm":
        prepared, notes = to_timm(config, reading)
        labels = {"label_names": names} if names else {}
        return {"config.json": described | labels | {"pretrained_cfg": described["pretrained_cfg"] | prepared}}, notes
    prepared, notes = to_transformers(config, reading)
    if names:
        described = described | {
            "id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)},
        }
    return {"config.json": described, **({FILE: prepared} if prepared else {})}, notes
