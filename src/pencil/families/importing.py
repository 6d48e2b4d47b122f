"""Checkpoints of other libraries as runs: everything is checked and converted before the run's folder has its name."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import __version__
from ..config import UserError, nearest
from ..data.tokenizer_folders import find_tokenizer
from ..data.tokenizers import Tokenizer, from_name
from ..files import beside, write_aside
from ..progress import pollable
from ..runs import Run, choose_path
from ..train.task import check_vocab
from ..weights.checkpoint_files import Checkpoint, open_checkpoint
from ..weights.maps import Architecture, read, renamed_names, skeleton
from .card import imported_card
from .loading import SETTINGS_VERSION
from .record import Family
from .registry import FAMILIES

Notify = Callable[[str], None]
# the field that names a model in the configs of each library
NAMED_BY = {"diffusers": "_class_name", "timm": "architecture", "transformers": "model_type"}
STORED = ("float32", "bfloat16", "float16")
TABLES = ("data", "embed")  # of a run, that a family may take from a checkpoint


class Known(NamedTuple):
    """An architecture that can be imported, and the family whose model it becomes."""

    family: Family
    architecture: Architecture


def known() -> list[Known]:
    """Every architecture of every family."""
    return [Known(record, one) for record in FAMILIES.values() for one in record.checkpoints]


def find_architecture(found: Checkpoint) -> tuple[Known, Mapping[str, Any]]:
    """The architecture of a checkpoint and its fields: by its config, by what its file holds, or by its tensors."""
    for library, key in NAMED_BY.items():
        if isinstance(kind := found.config.get(key), str):
            return _by_name(library, kind, found.where), found.config
    if isinstance(args := found.values.get("model_args"), dict):
        return _by_name("nanogpt", "nanogpt", found.where), args | found.config
    for one in known():
        marks = one.architecture.marks
        if marks and set(marks) <= set(renamed_names(one.architecture, found.source)):
            return one, found.config
    raise UserError(
        f"{found.where} does not say what kind of model it is: it has no config.json with a model_type, architecture "
        "or _class_name, and its tensors are of none that is known by them"
    )


def _by_name(library: str, kind: str, where: str) -> Known:
    every = [one for one in known() if one.architecture.library == library]
    for one in every:
        if kind in one.architecture.types:
            return one
    names = [name for one in every for name in one.architecture.types]
    raise UserError(
        f"{where} is a {kind} of {library}, which cannot be imported; {nearest(kind, names, 'pencil import --list')}"
    )


def import_checkpoint(
    what: str,
    *,
    name: str | None = None,
    out: Path | None = None,
    dtype: str | None = None,
    tokenizer: str | None = None,
    force: bool = False,
    notify: Notify = lambda line: None,
) -> Run:
    """Make a run of a checkpoint: a folder, a file, or one of the hub; nothing is left behind unless all of it fits."""
    chosen, path = stored_dtype(dtype), _place(what, name, out, force)
    with open_checkpoint(what, notify) as found:
        (record, architecture), theirs = find_architecture(found)
        config = architecture.configure(theirs, found.source)
        kept, tokens = _tokenizer(found, config, tokenizer)
        tables = record.imported(found, config) if record.imported else {}
        origin = {"from": what, "architecture": architecture.name, "library": architecture.library}
        origin |= {key: value for key in ("revision", "licence") if (value := getattr(found, key))}
        facts = {
            "family": record.name, "preset": "imported", "pencil": __version__, "settings": SETTINGS_VERSION,
            **tables.get("run", {}), **({"tokenizer": kept.kind} if kept else {}),
        }  # fmt: skip
        table = {"run": facts, "model": config, "train": {}, "import": origin, **({"tokens": tokens} if tokens else {})}
        table |= {section: tables[section] for section in TABLES if tables.get(section)}
        stored = chosen or _stored(found)
        count = record.parameters(config)
        notify(f"{what}: {architecture.name} of {architecture.library}, a {record.name} of {count:,} parameters in "
               f"{str(stored).removeprefix('torch.')}")  # fmt: skip
        aside = beside(path)
        try:
            run = Run.create(aside, table, kept)
            shapes = {key: tuple(t.shape) for key, t in skeleton(architecture.model, config).state_dict().items()}
            tensors = pollable(read(architecture, found.source, config), len(shapes))
            run.stream_weights(shapes, stored, tensors, {"family": record.name, "pencil": __version__, "step": 0})
            write_aside(aside / "README.md", imported_card(path, record, count, run).encode())
            _put(aside, path, force)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    for note in (*tables.get("notes", ()), *architecture.remarks(config), *_without_tokenizer(config, kept)):
        notify(note)
    return Run.open(path)


def stored_dtype(name: str | None) -> torch.dtype | None:
    """A dtype that weights can be stored in, by its name."""
    if name is not None and name not in STORED:
        raise UserError(f"--dtype is one of {', '.join(STORED)}, not {name}")
    return None if name is None else getattr(torch, name)


def _place(what: str, name: str | None, out: Path | None, force: bool) -> Path:
    """The folder of the run; one that is taken is refused before anything is read."""
    if name is not None and (out or not name.strip(".") or set(name) & set("/\\\n")):
        raise UserError("--name must be a plain name under runs/, without --out; use --out for a folder elsewhere")
    usual = what.partition("@")[0].rstrip("/").replace("\\", "/").rpartition("/")[2].rpartition(":")[2]
    path = out or (Path("runs") / name if name else choose_path(Path(usual).stem if "." in usual[-12:] else usual))
    if path.exists() and not force:
        raise UserError(f"{path} exists already; choose another --name, or --force to replace it")
    if path.exists() and not (path / "config.toml").is_file():
        raise UserError(f"{path} holds something that is not a run; choose another --name")
    return path


def _put(aside: Path, path: Path, force: bool) -> None:
    """Give a run that is whole its name; the former one of that name goes away."""
    old = None
    if path.exists() and force:
        old = beside(path)
        path.rename(old)
    aside.rename(path)
    if old is not None:
        shutil.rmtree(old)


def _tokenizer(found: Checkpoint, config: Any, given: str | None) -> tuple[Tokenizer | None, dict[str, Any]]:
    """The tokenizer of a checkpoint with its special tokens, or the one that the user gives."""
    if getattr(config, "vocab", None) is None:
        if given is not None:
            raise UserError("--tokenizer has no effect on a model that reads no text: leave it out")
        return None, {}
    tokenizer, table = (from_name(given), {}) if given else find_tokenizer(found.folder) or (None, {})
    if tokenizer is not None:
        check_vocab(config, tokenizer)
    return tokenizer, table


def _without_tokenizer(config: Any, kept: Tokenizer | None) -> list[str]:
    if kept is not None or getattr(config, "vocab", None) is None:
        return []
    return ["it comes without a tokenizer, so texts cannot be read: import it again with --tokenizer FILE"]


def _stored(found: Checkpoint) -> torch.dtype:
    """The one dtype of the weights; of several, the most exact."""
    floats = {kind for kind in found.source.dtypes().values() if kind.is_floating_point}
    kinds = sorted(floats, key=lambda kind: torch.finfo(kind).eps)
    if torch.float16 in floats and torch.bfloat16 in floats:
        return torch.float32
    return kinds[0] if kinds else torch.float32
