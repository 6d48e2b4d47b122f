"""Checkpoints of other libraries as runs: everything is checked and converted before the run's folder has its name."""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import __version__
from ...config import UserError, listed, with_article
from ...data.tokenizers.from_checkpoint import find_tokenizer
from ...data.tokenizers.tokenizer import Tokenizer, from_name
from ...families.family import FAMILIES, Family
from ...files import beside, sweep_folders, write_aside
from ...progress import pollable
from ...runs.run import Run, choose_path
from ...train.task import check_vocab
from ...weights.checkpoint_files import Checkpoint, open_checkpoint
from ...weights.maps import Architecture, read, renamed_names, skeleton
from ..loading import SETTINGS_VERSION
from ..original import about_generation, original_files
from .card import imported_card

Notify = Callable[[str], None]
# the field that names a model in the configs of each library
NAMED_BY = {"diffusers": "_class_name", "timm": "architecture", "transformers": "model_type"}
STORED = ("float32", "bfloat16", "float16")
TABLES = ("data", "embed")  # of a run, that a family may take from a checkpoint


class Known(NamedTuple):
    """An architecture that can be imported, and the family whose model it becomes."""

    family: Family
    architecture: Architecture


def list_architectures() -> list[Known]:
    """Every architecture of every family."""
    return [Known(record, one) for record in FAMILIES.values() for one in record.checkpoints]


def find_architecture(checkpoint: Checkpoint) -> tuple[Known, Mapping[str, Any]]:
    """The architecture of a checkpoint and its fields; refused where its name says another library."""
    one, theirs = _recognise(checkpoint)
    library = one.architecture.library
    if checkpoint.library not in ("", "hf", library):
        raise UserError(
            f"{checkpoint.where} is {with_article(one.architecture.name)} of {library}, and not of "
            f"{checkpoint.library}: leave {checkpoint.library}: out"
        )
    return one, theirs


def _recognise(checkpoint: Checkpoint) -> tuple[Known, Mapping[str, Any]]:
    """By its config, by what its file holds, or by its tensors."""
    for library, key in NAMED_BY.items():
        if isinstance(kind := checkpoint.config.get(key), str):
            return _by_name(library, kind, checkpoint.where), checkpoint.config
    if isinstance(args := checkpoint.values.get("model_args"), dict):
        return _by_name("nanogpt", "nanogpt", checkpoint.where), args | checkpoint.config
    for one in list_architectures():
        marks = one.architecture.marks
        if marks and set(marks) <= set(renamed_names(one.architecture, checkpoint.source)):
            return one, checkpoint.config
    raise UserError(
        f"{checkpoint.where} does not say what kind of model it is: it has no config.json with a model_type, "
        "architecture or _class_name, and its tensors are of none that is known by them"
    )


def _by_name(library: str, kind: str, where: str) -> Known:
    every = [one for one in list_architectures() if one.architecture.library == library]
    for one in every:
        if kind in one.architecture.types:
            return one
    names = [name for one in every for name in one.architecture.types]
    # only another spelling is proposed: what differs in a letter or a digit is another model
    same = [name for name in names if _letters(name) == _letters(kind)]
    meant = f"did you mean {same[0]}?" if same else listed(names, "pencil import --list")
    raise UserError(f"{where} is {with_article(kind)} of {library}, which cannot be imported; {meant}")


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def import_checkpoint(
    what: str,
    *,
    name: str | None = None,
    out: Path | None = None,
    dtype: str | None = None,
    tokenizer: str | None = None,
    without_tokenizer: bool = False,
    force: bool = False,
    notify: Notify = lambda line: None,
) -> Run:
    """Make a run of a checkpoint: a folder, a file, or one of the hub; nothing is left behind unless all of it fits."""
    if tokenizer is not None and without_tokenizer:
        raise UserError("--tokenizer and --without-tokenizer cannot be given together")
    requested_dtype, (path, taken) = stored_dtype(dtype), _place(what, name, out, force)
    with open_checkpoint(what, notify) as checkpoint, _naming(what):
        if path.exists() and checkpoint.folder.resolve().is_relative_to(path.resolve()):
            raise UserError(
                f"{path} holds the checkpoint itself, and would be replaced: choose another --name or --out"
            )
        (record, architecture), theirs = find_architecture(checkpoint)
        config = architecture.configure(theirs, checkpoint.source)
        notes = list[str]()
        own_tokenizer, tokens = (
            (None, {}) if without_tokenizer else _tokenizer(checkpoint, config, tokenizer, notes.append)
        )
        tables = record.imported(checkpoint, config) if record.imported else {}
        origin = {"from": what, "architecture": architecture.name, "library": architecture.library}
        origin |= {key: value for key in ("hub", "revision", "licence") if (value := getattr(checkpoint, key))}
        facts = {
            "family": record.name,
            "preset": "imported",
            "pencil": __version__,
            "settings": SETTINGS_VERSION,
            **tables.get("run", {}),
            **({"tokenizer": own_tokenizer.kind} if own_tokenizer else {}),
        }
        table = {"run": facts, "model": config, "train": {}, "import": origin, **({"tokens": tokens} if tokens else {})}
        table |= {section: tables[section] for section in TABLES if tables.get(section)}
        stored = requested_dtype or _dtype_of(checkpoint)
        count = record.parameters(config)
        notify(
            f"{what}: {architecture.name} of {architecture.library}, a {record.name} of {count:,} parameters in "
            f"{str(stored).removeprefix('torch.')}"
        )
        sweep_folders(path)
        aside, not_finite = beside(path), list[str]()
        try:
            run = Run.create(
                aside,
                table,
                own_tokenizer,
                others=original_files(checkpoint, architecture, tokenizer is None and not without_tokenizer),
            )
            with run.writing():
                shapes = {key: tuple(t.shape) for key, t in skeleton(architecture.model, config).state_dict().items()}
                tensors = _finite(read(architecture, checkpoint.source, config), stored, not_finite)
                facts = {"family": record.name, "pencil": __version__, "step": 0}
                run.stream_weights(shapes, stored, pollable(tensors, len(shapes)), facts)
                write_aside(aside / "README.md", imported_card(path, record, count, run).encode())
            _put(aside, path, force)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    notes += [
        *taken,
        *tables.get("notes", ()),
        *architecture.remarks(config),
        *architecture.about_dropout(theirs),
        *about_generation(checkpoint, architecture, record),
        *_about_values(config, own_tokenizer, not_finite),
    ]
    for note in notes:
        notify(note)
    return Run.open(path)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """What is wrong with a config or a tensor, with the checkpoint's name before it."""
    try:
        yield
    except UserError as error:
        if not str(error).startswith(("this ", "the config of this ")):
            raise
        raise UserError(f"{what}: {error}") from None


def stored_dtype(name: str | None) -> torch.dtype | None:
    """A dtype that weights can be stored in, by its name."""
    if name is not None and name not in STORED:
        raise UserError(f"--dtype is one of {', '.join(STORED)}, not {name}")
    return None if name is None else getattr(torch, name)


def _place(what: str, name: str | None, out: Path | None, force: bool) -> tuple[Path, list[str]]:
    """The folder of the run, and a sentence about it; one that is taken is refused before anything is read.

    Without a name of the user's it is that of the checkpoint, or else the next that is free.
    """
    if name is not None and (out or not name.strip(".") or set(name) & set("/\\\n")):
        raise UserError("--name must be a plain name under runs/, without --out; use --out for a folder elsewhere")
    usual = what.partition("@")[0].rstrip("/").replace("\\", "/").rpartition("/")[2].rpartition(":")[2]
    wanted = out or Path("runs") / (name or (Path(usual).stem if "." in usual[-12:] else usual))
    path = wanted if out or name or force else choose_path(wanted.name)
    taken = [f"{wanted} exists already, so this run is {path}: --name names it, --force replaces {wanted}"]
    if path.exists() and not force:
        raise UserError(f"{path} exists already; choose another --name, or --force to replace it")
    if path.exists() and not (path / "config.toml").is_file():
        raise UserError(f"{path} holds something that is not a run; choose another --name")
    return path, [] if path == wanted else taken


def _finite(
    tensors: Iterable[tuple[str, Tensor]], stored: torch.dtype, not_finite: list[str]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors; those with NaN or infinity are listed, and one with values that the dtype cannot hold is refused."""
    for name, tensor in tensors:
        if tensor.numel():
            least, most = tensor.aminmax()
            if not (least.isfinite() and most.isfinite()):
                not_finite.append(name)
            elif not (least.to(stored).isfinite() and most.to(stored).isfinite()):
                word, largest = str(stored).removeprefix("torch."), max(most.item(), -least.item())
                raise UserError(
                    f"{name} has a value of {largest:.3g}, which is too large for {word}: choose --dtype float32"
                )
        yield name, tensor


def _put(aside: Path, path: Path, force: bool) -> None:
    """Give a run that is whole its name; the former one of that name goes away."""
    old = Run.open(path).put_aside() if path.exists() and force else None
    aside.rename(path)
    if old is not None:
        shutil.rmtree(old)


def _tokenizer(
    checkpoint: Checkpoint, config: Any, file: str | None, notify: Notify
) -> tuple[Tokenizer | None, dict[str, Any]]:
    """The tokenizer of a checkpoint with its special tokens, or the one that the user gives."""
    if getattr(config, "vocab", None) is None:
        if file is not None:
            raise UserError("--tokenizer has no effect on a model that reads no text: leave it out")
        return None, {}
    if file is not None:
        tokenizer = from_name(file)
        check_vocab(config, tokenizer)
        return tokenizer, {}
    try:
        tokenizer, table = find_tokenizer(checkpoint.folder, notify) or (None, {})
        if tokenizer is not None:
            check_vocab(config, tokenizer)
    except UserError as error:
        raise UserError(
            f"{error}; --without-tokenizer imports the model alone, --tokenizer FILE with another"
        ) from None
    return tokenizer, table


def _about_values(config: Any, tokenizer: Tokenizer | None, not_finite: Sequence[str]) -> Iterator[str]:
    """Sentences about rows of the vocabulary without a token, weights that are no numbers, and a missing tokenizer."""
    vocab = getattr(config, "vocab", None)
    if vocab is not None and tokenizer is not None and (spare := vocab - tokenizer.vocab):
        # as where the vocabulary was made a multiple of something
        yield f"{spare} of its {vocab} rows of the vocabulary have no token: they are never sampled"
    if not_finite:
        more = f", and so do {len(not_finite) - 1} other tensors" if len(not_finite) > 1 else ""
        yield f"{not_finite[0]} holds NaN or infinity{more}: what the model computes will be NaN, too"
    if vocab is not None and tokenizer is None:
        yield "it comes without a tokenizer, so texts cannot be read: import it again with --tokenizer FILE"


def _dtype_of(checkpoint: Checkpoint) -> torch.dtype:
    """The one dtype of the weights; of several, the most exact."""
    floats = {kind for kind in checkpoint.source.dtypes().values() if kind.is_floating_point}
    kinds = sorted(floats, key=lambda kind: torch.finfo(kind).eps)
    if torch.float16 in floats and torch.bfloat16 in floats:
        return torch.float32
    return kinds[0] if kinds else torch.float32
