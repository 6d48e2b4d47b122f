"""Runs opened for use: settings of older versions read under today's names, and the model with its weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from ..config import UserError, fitted, nearest, upgraded
from ..core.layers import evaluating
from ..device import without_fallback_warnings
from ..families.family import FAMILIES, Family, family
from ..families.predictions import as_batch
from ..inference.int8 import to_int8
from ..models.build import model_html
from ..runs.files import WEIGHTS, find_run
from ..runs.run import Loaded, Run
from ..tensors import check_tensors
from ..train.settings import RENAMED_FOR_MASKS, TrainConfig
from .trained import RunVerbs

DEEP_BLOCKS = 100  # blocks that are built in no time
DTYPES = ("float32", "bfloat16", "float16", "float64", "int8")
# of the options of `pencil sample`: what is predicted from, and files that are written
NOT_TAKEN = ("prompt", "image", "source", "label", "out", "attention", "json")
SETTINGS_VERSION = "0.7"  # of the names of settings; a run made before is read under its own


def open_run(path: str | Path) -> Run:
    """A run folder, its settings under the names of this version."""
    run = Run(find_run(path, FAMILIES))
    facts = run.config["run"]
    if "task" in facts:
        raise UserError(
            f"{run.path} was trained by pencil.fit with the task {facts['task']}, which is your own code: continue and "
            "load it from Python"
        )
    try:
        record = family(run.family)
    except UserError as error:
        raise UserError(f"{run.path / 'config.toml'}: {error}") from None
    run.config |= current_names(record, run.config, str(facts.get("settings", facts.get("pencil", "0"))))
    return run


def current_names(record: Family, tables: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The tables of a run whose settings are of this version, under today's names."""
    if _release(version) >= _release(SETTINGS_VERSION):
        return dict(tables)
    train = upgraded(TrainConfig, tables["train"])
    for old, new in RENAMED_FOR_MASKS.items():
        if new in record.train_settings and old in train:
            train[new] = train.pop(old)
    facts, model = tables["run"] | {"settings": SETTINGS_VERSION}, upgraded(record.config, tables["model"])
    return {**tables, "run": facts, "model": model, "train": train}


def _release(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def load_model(run: Run, device: torch.device | str = "cpu", dtype: torch.dtype | str | None = None) -> Any:
    """The run's model with its best weights, ready to be used; in the dtype they are stored in, or in this one.

    The dtype "auto" is the stored one, but on a CPU at least float32: there half precision is slow, or not computed.
    With "int8" the matrices are rounded, and the rest is in bfloat16 on CUDA, elsewhere in float32.
    """
    wanted = _pick_dtype(run, device, dtype)
    if torch.device(device).type == "cpu":
        without_fallback_warnings()
    run.verify("config.toml", "tokenizer.json")  # a model of other settings would only be refused by its shapes
    record = family(run.family)
    config = record.read_config(run.config["model"])
    _check_depth(run, config)
    with torch.device("meta"):
        model = record.create(config)
    run.load_weights(model, record.renamed_tensors, device, None if wanted == torch.int8 else wanted)
    if wanted == torch.int8:
        to_int8(model, torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32)
    return model.to(device).eval()


def _pick_dtype(run: Run, device: torch.device | str, dtype: torch.dtype | str | None) -> torch.dtype | None:
    """A dtype by its name; None for the one that weights are stored in."""
    name, weights = str(dtype).removeprefix("torch."), run.path / WEIGHTS
    if name == "auto":
        half = torch.device(device).type == "cpu" and weights.is_file()
        half = half and any(one.dtype in ("BF16", "F16") for one in check_tensors(weights).tensors.values())
        return torch.float32 if half else None
    if dtype is None or name in DTYPES:
        return None if dtype is None else getattr(torch, name)
    raise UserError(f"the dtype {name} is not one that a model computes in; {nearest(name, ('auto', *DTYPES))}")


def _check_depth(run: Run, config: Any) -> None:
    """Refuse a deep model whose blocks are not in the weights: building it only to find that out takes long."""
    weights = run.path / WEIGHTS
    for name in ("depth", "decoder_depth"):
        depth = getattr(config, name, None) or 0
        if depth > DEEP_BLOCKS and weights.is_file() and depth > len(check_tensors(weights).tensors):
            raise UserError(
                f"{weights} is of another model: config.toml has model.{name} {depth}, and it has fewer tensors"
            )


def predict_loaded(loaded: Loaded, inputs: Any, keywords: Mapping[str, Any]) -> Any:
    """The result of one input, or a list of them for a list of inputs."""
    results_of = predictor(loaded, keywords)
    batch, single = as_batch(inputs)
    results = results_of(batch)
    return results[0] if single else results


def predictor(loaded: Loaded, keywords: Mapping[str, Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """What gives the results of several inputs with these options, which are checked first."""
    kind, model = family(loaded.run.family), loaded.model
    if (predict := kind.predict) is None:
        raise UserError(f"a {kind.name} has no predictions here: call its model")
    options = _options(kind.name, kind.sample_options, keywords)

    def results_of(batch: Sequence[Any]) -> list[Any]:
        if loaded.tokenizer is None and getattr(model.config, "vocab", None):
            raise UserError(f"a {kind.name} reads and writes text: give its tokenizer too, predict(…, tokenizer=…)")
        with evaluating(model.modules()):
            return predict(loaded, batch, options)

    return results_of


def _options(name: str, kind: type, keywords: Mapping[str, Any]) -> Any:
    """The sampling options of a family, checked as those of the command line."""
    names = [one.name for one in fields(kind) if one.name not in NOT_TAKEN]
    for word in keywords:
        if word not in names:
            takes = nearest(word, names) if names else "it takes none"
            raise UserError(f"{word} is not an option of a {name}'s predictions; {takes}")
    values = {word: [value] if word == "stop" and isinstance(value, str) else value for word, value in keywords.items()}
    lists = {word: values.pop(word) for word in ("stop",) if word in values}
    options = kind(**fitted(kind, values), **lists)
    # the input is checked apart: an empty one is refused where it is read
    inputs = {one: ["-"] for one in ("prompt", "image", "source") if hasattr(options, one)}
    kind(**{one.name: getattr(options, one.name) for one in fields(kind)} | inputs).check()
    return options


class OpenedRun(RunVerbs, Loaded):
    """A run opened for use: model, tokenizer, run. It predicts, and knows the names of its classes."""

    def _repr_html_(self) -> str:
        """What a notebook shows: what the run is, and its model as a tree."""
        return f"{self.run.about_html(family(self.run.family).summary)}{model_html(self.model)}"

    def predict(self, inputs: Any = None, **options: Any) -> Any:
        """What the model says of its inputs; see `pencil.predict`."""
        return predict_loaded(self, inputs, options)


def load(path: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype | str | None = None) -> OpenedRun:
    """Open a run: its model, its tokenizer and its folder.

    The weights go onto the device one tensor at a time. They keep the dtype they are stored in, unless another one is
    given: "float32", "bfloat16", "float16", "float64", or "auto", which is the stored one, on a CPU at least float32.
    With "int8" every matrix is rounded to whole numbers with a scale a row: less to read for each token, less exact.
    """
    run = open_run(path)
    has_text = (run.path / "tokenizer.json").is_file()
    return OpenedRun(load_model(run, device, dtype), run.tokenizer if has_text else None, run)
