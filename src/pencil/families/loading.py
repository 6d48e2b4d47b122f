"""Runs opened for use: settings of older versions read under today's names, and the model with its weights."""

from pathlib import Path
from typing import Any

import torch

from ..config import upgraded
from ..runs import Loaded, Run
from ..train.settings import RENAMED_FOR_MASKS, TrainConfig
from .registry import family

SETTINGS_VERSION = "0.7"  # of the names of settings; a run made before is read under its own


def open_run(path: str | Path) -> Run:
    """A run folder, its settings under the names of this version."""
    run = Run.open(path)
    record, facts = family(run.family), run.config["run"]
    version = str(facts.get("settings", facts.get("pencil", "0")))
    if _release(version) < _release(SETTINGS_VERSION):
        train = upgraded(TrainConfig, run.config["train"])
        for old, new in RENAMED_FOR_MASKS.items():
            if new in record.train_settings and old in train:
                train[new] = train.pop(old)
        run.config |= {
            "run": facts | {"settings": SETTINGS_VERSION},
            "model": upgraded(record.config, run.config["model"]),
            "train": train,
        }
    return run


def _release(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def load_model(run: Run, device: torch.device | str = "cpu") -> Any:
    """The run's model with its best weights, ready to be used."""
    record = family(run.family)
    with torch.device("meta"):
        model = record.create(run.config["model"])
    run.load_weights(model, record.renamed_tensors)
    return model.to(device).eval()


def load(path: str | Path, device: torch.device | str = "cpu") -> Loaded:
    """Open a run: its model, its tokenizer and its folder."""
    run = open_run(path)
    has_text = (run.path / "tokenizer.json").is_file()
    return Loaded(load_model(run, device), run.tokenizer if has_text else None, run)
