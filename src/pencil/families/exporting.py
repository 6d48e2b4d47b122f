"""Runs as checkpoints of other libraries: exactly what the run computes, or refused by what does not fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import UserError
from ..data.tokenizer_export import tokenizer_files
from ..files import beside
from ..tensors import write_tensors
from ..weights.fields import Unfit
from ..weights.maps import Architecture, skeleton, write
from .card import exported_card
from .importing import stored_dtype
from .loading import load_model, open_run
from .record import Family
from .registry import family

LIBRARIES = {"hf": "transformers", "timm": "timm", "diffusers": "diffusers"}
WEIGHTS = {"diffusers": "diffusion_pytorch_model.safetensors"}
Notify = Callable[[str], None]


def expressed(record: Family, config: Any, library: str, first: str = "") -> tuple[Architecture, dict[str, Any]]:
    """The architecture of a library that a config of ours is, and its config; refused by what does not fit.

    `first` is the one that is tried before the others.
    """
    every = [one for one in record.checkpoints if one.library == library and one.describe is not None]
    if not every:
        raise UserError(f"a {record.name} has no counterpart in {library}")
    faults: dict[str, list[str]] = {}  # by the setting: the architectures that do not have it
    for one in sorted(every, key=lambda one: one.name != first):
        assert one.describe is not None
        try:
            return one, one.describe(config)
        except Unfit as error:
            faults.setdefault(f"{error.setting}, and only {error.only} is there in", []).append(error.what)
        except UserError as error:
            faults.setdefault(str(error), [])
    raise UserError("; ".join(f"{fault} {', '.join(names)}".rstrip() for fault, names in faults.items()))


def export_run(
    path: str | Path,
    to: str,
    *,
    out: Path | None = None,
    dtype: str | None = None,
    force: bool = False,
    notify: Notify = lambda line: None,
) -> Path:
    """Write a run as a folder that a library loads; nothing is left behind unless all of it fits."""
    if to not in LIBRARIES:
        raise UserError(f"--to is one of {', '.join(LIBRARIES)}, not {to}")
    run, library, chosen = open_run(path), LIBRARIES[to], stored_dtype(dtype)
    record = family(run.family)
    config = record.read_config(run.config["model"])
    try:
        first = run.config.get("import", {}).get("architecture", "")
        architecture, described = expressed(record, config, library, first)
    except UserError as error:
        raise UserError(f"{run.path} cannot be exported to {library}: {error}") from None
    folder = out or Path("exports") / f"{run.path.name}-{to}"
    if folder.exists() and not force:
        raise UserError(f"{folder} exists already; choose another --out, or --force to replace it")
    contents, notes = {"config.json": described}, []
    if record.exported is not None:
        contents, notes = record.exported(run, config, library, described)
    files = {name: json.dumps(content, indent=2, ensure_ascii=False).encode() for name, content in contents.items()}
    if (run.path / "tokenizer.json").is_file():
        files |= tokenizer_files(run.tokenizer, getattr(config, "context", None))
        special = _special_ids(run.tokenizer, record.generates, bool(described.get("is_encoder_decoder")))
        files["config.json"] = _json({**contents["config.json"], **special})
        if record.generates and library == "transformers":
            never = [[token] for token in run.tokenizer.never]
            files["generation_config.json"] = _json(special | ({"bad_words_ids": never} if never else {}))
    model = load_model(run, dtype=chosen)
    kind = (described.get("architectures") or [described.get("_class_name", "")])[0]
    files["README.md"] = exported_card(folder, run.path, library, kind, run.config.get("import", {})).encode()
    aside = beside(folder)
    try:
        aside.mkdir(parents=True)
        for name, content in files.items():
            (aside / name).parent.mkdir(exist_ok=True)
            (aside / name).write_bytes(content)
        name = WEIGHTS.get(library, "model.safetensors")
        _write_weights(aside / name, architecture, model.state_dict(), config)
        if folder.exists():
            shutil.rmtree(folder)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for note in notes:
        notify(note)
    notify(f"{folder}: {architecture.name} for {library}, {sum(p.numel() for p in model.parameters()):,} parameters")
    return folder


def _write_weights(path: Path, architecture: Architecture, tensors: dict[str, Tensor], config: Any) -> None:
    """Their tensors, one at a time."""
    empty = skeleton(architecture.model, config).state_dict()
    shapes = {name: tuple(t.shape) for name, t in write(architecture, empty, config)}
    dtype = next(iter(tensors.values())).dtype
    write_tensors(path, shapes, dtype, write(architecture, tensors, config), {"format": "pt"})


def _special_ids(tokenizer: Any, generates: bool, targets: bool) -> dict[str, Any]:
    """The special tokens as the fields of another library's config; what it has not is null there, not its default.

    An encoder–decoder (`targets`) also has one that begins a target.
    """
    end = list(tokenizer.ends) if len(tokenizer.ends) > 1 else tokenizer.end
    found = {"bos_token_id": tokenizer.begin, "eos_token_id": end, "pad_token_id": tokenizer.pad}
    if targets:
        found["decoder_start_token_id"] = tokenizer.end if tokenizer.start is None else tokenizer.start
    return {name: value for name, value in found.items() if generates or value is not None}


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode()
