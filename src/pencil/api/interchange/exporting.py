"""Runs as checkpoints of other libraries: exactly what the run computes, or refused by what does not fit."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from ...config import UserError
from ...families.family import Family
from ...families.registry import family
from ...files import LOCK, beside, locked, read_text, sweep_folders
from ...models.output import check_finite
from ...tensors import write_tensors
from ...weights.dropout import dropout_fields
from ...weights.fields import Unfit
from ...weights.maps import Architecture, skeleton, write
from ..loading import load_model, open_run
from ..original import origin_of
from .card import EXPORTED, exported_card
from .export_files import files_beside
from .importing import stored_dtype

LIBRARIES = {"hf": "transformers", "timm": "timm", "diffusers": "diffusers"}
WEIGHTS = {"diffusers": "diffusion_pytorch_model.safetensors"}
# every file and folder that an export writes
WRITTEN = frozenset(
    "README.md config.json model.safetensors diffusion_pytorch_model.safetensors tokenizer.json tokenizer_config.json "
    "special_tokens_map.json generation_config.json preprocessor_config.json chat_template.jinja spiece.model "
    "source.spm target.spm vocab.json modules.json 1_Pooling sentence_bert_config.json".split()
)
Notify = Callable[[str], None]


def expressed(record: Family, config: Any, library: str, first: str = "") -> tuple[Architecture, dict[str, Any]]:
    """The architecture of a library that a config of ours is, and its config; refused by what does not fit.

    `first` is the one that is tried before the others.
    """
    every = [one for one in record.checkpoints if one.library == library and one.describe is not None]
    if not every:
        there = {one.library for one in record.checkpoints if one.describe is not None}
        others = " or ".join(f"--to {to}" for to, name in LIBRARIES.items() if name in there)
        raise UserError(f"a {record.name} has no counterpart in {library}{f': use {others}' if others else ''}")
    faults: dict[str, list[str]] = {}  # by the setting: the architectures that do not have it
    for one in sorted(every, key=lambda one: one.name != first):
        assert one.describe is not None
        try:
            return one, one.describe(config) | dropout_fields(one, config)
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
        origin = origin_of(run)
        architecture, described = expressed(record, config, library, origin["from_architecture"] or "")
    except UserError as error:
        raise UserError(f"{run.path} cannot be exported to {library}: {error}") from None
    folder = out or Path("exports") / f"{run.path.name}-{to}"
    check_folder(folder, force)
    files, notes = files_beside(run, record, config, architecture, described)
    model = load_model(run, dtype=chosen)
    check_finite(model.state_dict().items())
    kind = (described.get("architectures") or [described.get("_class_name", "")])[0]
    files["README.md"] = exported_card(folder, run.path, library, kind, origin).encode()
    sweep_folders(folder)
    aside = beside(folder)
    try:
        aside.mkdir(parents=True)
        with locked(aside, f"{aside} is being written by another process"):
            for name, content in files.items():
                (aside / name).parent.mkdir(exist_ok=True)
                (aside / name).write_bytes(content)
            name = WEIGHTS.get(library, "model.safetensors")
            _write_weights(aside / name, architecture, model.state_dict(), config)
        (aside / LOCK).unlink(missing_ok=True)
        put_folder(aside, folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from None
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for note in notes:
        notify(note)
    notify(f"{folder}: {architecture.name} for {library}, {sum(p.numel() for p in model.parameters()):,} parameters")
    return folder


def check_folder(folder: Path, force: bool) -> None:
    """Refuse a folder that is there; with `force`, one that holds anything but an export."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder} is a {'link' if folder.is_symlink() else 'file'}; --out is the folder to write")
    if not folder.exists():
        return
    if not force:
        raise UserError(f"{folder} exists already; choose another --out, or --force to replace it")
    held = sorted(path.name for path in folder.iterdir() if path.name != LOCK)
    card = folder / "README.md"
    others = [name for name in held if name not in WRITTEN]
    if held and not (card.is_file() and EXPORTED in read_text(card)):
        raise UserError(f"{folder} holds something that is not an exported checkpoint; choose another --out")
    if others:
        raise UserError(
            f"{folder} also holds {others[0]}, which no export writes; move it away, or choose another --out"
        )


def put_folder(aside: Path, folder: Path) -> None:
    """Give a folder that is whole its name; the former one of that name goes away."""
    old = None
    if folder.exists():
        old = beside(folder)
        folder.rename(old)
    aside.rename(folder)
    if old is not None:
        shutil.rmtree(old)


def _write_weights(path: Path, architecture: Architecture, tensors: dict[str, Tensor], config: Any) -> None:
    """Their tensors, one at a time."""
    empty = skeleton(architecture.model, config).state_dict()
    shapes = {name: tuple(t.shape) for name, t in write(architecture, empty, config)}
    dtype = next(iter(tensors.values())).dtype
    write_tensors(path, shapes, dtype, write(architecture, tensors, config), {"format": "pt"})
