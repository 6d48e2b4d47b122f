"""Runs as checkpoints of other libraries: exactly what the run computes, or refused by what does not fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...config import UserError
from ...data.images.picture_code import picture_code
from ...data.tokenizers.export import tokenizer_files
from ...data.tokenizers.hf_tokenizers import LibraryTokenizer
from ...data.tokenizers.tokenizer import Tokenizer
from ...families.family import Family, family
from ...families.predictions import transform_of
from ...files import LOCK, beside, locked, read_text, sweep_folders
from ...models.build import check_finite
from ...runs.run import Run
from ...tensors import write_tensors
from ...weights.maps import Architecture, Unfit, skeleton, write
from ..loading import load_model, open_run
from ..original import CONFIG, GENERATION, MADE, OLDER, TEMPLATE, TOKENIZER, TOKENS, origin_of, read_original
from .card import EXPORTED, exported_card
from .importing import stored_dtype
from .onnx_export import onnx_files, write_onnx

LIBRARIES = {"hf": "transformers", "timm": "timm", "diffusers": "diffusers"}
TARGETS = (*LIBRARIES, "onnx")
WEIGHTS = {"diffusers": "diffusion_pytorch_model.safetensors"}
# every file and folder that an export writes
WRITTEN = frozenset(
    "README.md config.json model.safetensors diffusion_pytorch_model.safetensors tokenizer.json tokenizer_config.json "
    "special_tokens_map.json generation_config.json preprocessor_config.json chat_template.jinja spiece.model "
    "source.spm target.spm vocab.json modules.json 1_Pooling sentence_bert_config.json "
    "model.onnx step.onnx encoder.onnx weights.bin".split()
)
CLASS, IMAGE_PROCESSOR = "tokenizer_class", "preprocessor_config.json"
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
            return one, one.describe(config) | one.dropout_fields(config)
        except Unfit as error:
            faults.setdefault(f"{error.setting}, and only {error.only} is there in", []).append(error.what)
        except UserError as error:
            faults.setdefault(str(error), [])
    raise UserError("; ".join(f"{fault} {', '.join(names)}".rstrip() for fault, names in faults.items()))


class Export(NamedTuple):
    """What an export writes: files by name, then its weights; and what the user should know of it."""

    files: dict[str, bytes]
    write: Callable[[Any, Path], str]  # of the model, into the folder; a sentence about it
    notes: list[str]


def export_run(
    path: str | Path,
    to: str,
    *,
    out: Path | None = None,
    dtype: str | None = None,
    quantize: str | None = None,
    force: bool = False,
    notify: Notify = lambda line: None,
) -> Path:
    """Write a run as a folder that a library loads; nothing is left behind unless all of it fits."""
    if to not in TARGETS:
        raise UserError(f"--to is one of {', '.join(TARGETS)}, not {to}")
    run, requested_dtype = open_run(path), stored_dtype(dtype)
    record = family(run.family)
    config = record.read_config(run.config["model"])
    folder = out or Path("exports") / f"{run.path.name}-{to}"
    if to in LIBRARIES:
        if quantize is not None:
            raise UserError(f"--quantize is for --to onnx: leave it out, or with --to {to} choose a --dtype")
        export = checkpoint_export(run, record, config, LIBRARIES[to], folder)
    else:
        if requested_dtype not in (None, torch.float32):
            raise UserError("--to onnx writes float32: leave --dtype out; --quantize int8 makes the files smaller")
        export = onnx_export(run, record, config, folder, quantize, notify)
    check_folder(folder, force)
    model = load_model(run, dtype=requested_dtype)
    check_finite(model.state_dict().items())
    sweep_folders(folder)
    aside = beside(folder)
    try:
        aside.mkdir(parents=True)
        with locked(aside, f"{aside} is being written by another process"):
            for name, content in export.files.items():
                (aside / name).parent.mkdir(exist_ok=True)
                (aside / name).write_bytes(content)
            written = export.write(model, aside)
        (aside / LOCK).unlink(missing_ok=True)
        put_folder(aside, folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from None
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for note in export.notes:
        notify(note)
    notify(f"{folder}: {written}, {sum(p.numel() for p in model.parameters()):,} parameters")
    return folder


def checkpoint_export(run: Run, record: Family, config: Any, library: str, folder: Path) -> Export:
    """A checkpoint of a library; refused by what it does not have."""
    try:
        origin = origin_of(run)
        architecture, described = expressed(record, config, library, origin["from_architecture"] or "")
    except UserError as error:
        raise UserError(f"{run.path} cannot be exported to {library}: {error}") from None
    files, notes = files_beside(run, record, config, architecture, described)
    kind = (described.get("architectures") or [described.get("_class_name", "")])[0]
    pictures = architecture.library == "transformers" and hasattr(config, "image_size")
    code = picture_code(transform_of(run, config)) if pictures and IMAGE_PROCESSOR not in files else ""
    files["README.md"] = exported_card(folder, run.path, library, kind, origin, code).encode()

    def write_checkpoint(model: Any, aside: Path) -> str:
        empty, tensors = skeleton(architecture.model, config).state_dict(), model.state_dict()
        shapes = {name: tuple(t.shape) for name, t in write(architecture, empty, config)}
        weights, stored = aside / WEIGHTS.get(library, "model.safetensors"), next(iter(tensors.values())).dtype
        write_tensors(weights, shapes, stored, write(architecture, tensors, config), {"format": "pt"})
        return f"{architecture.name} for {library}"

    return Export(files, write_checkpoint, notes)


def onnx_export(run: Run, record: Family, config: Any, folder: Path, quantize: str | None, notify: Notify) -> Export:
    """Its forward passes as ONNX files."""

    def write_graphs(model: Any, aside: Path) -> str:
        write_onnx(run, record, model, aside, quantize, notify)
        return "ONNX"

    return Export(onnx_files(run, record, config, folder, quantize), write_graphs, [])


def check_folder(folder: Path, force: bool) -> None:
    """Refuse a folder that is there; with `force`, one that holds anything but an export."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder} is a {'link' if folder.is_symlink() else 'file'}; --out is the folder to write")
    if not folder.exists():
        return
    if not force:
        raise UserError(f"{folder} exists already; choose another --out, or --force to replace it")
    names = sorted(path.name for path in folder.iterdir() if path.name != LOCK)
    card = folder / "README.md"
    others = [name for name in names if name not in WRITTEN]
    if names and not (card.is_file() and EXPORTED in read_text(card)):
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


def files_beside(
    run: Run, record: Family, config: Any, architecture: Architecture, described: dict[str, Any]
) -> tuple[dict[str, bytes], list[str]]:
    """The files by name, for a model that is described so; and what the user should know of them.

    What the run keeps of the original is written as it was there.
    """
    contents, notes = {"config.json": described}, []
    if record.exported is not None:
        contents, notes = record.exported(run, config, architecture.library, described)
    original = read_original(run) if architecture.library == "transformers" else {}
    same = original.get("architecture") == architecture.name
    theirs = original.get("config.json", {}) if same else {}
    files: dict[str, bytes] = {}
    special: dict[str, Any] = {}
    if (run.path / "tokenizer.json").is_file():
        context = getattr(config, "context", None)
        files = tokenizer_files(run.tokenizer, context)
        if TOKENIZER in original or TOKENS in original or same:
            _restore_tokenizer_files(files, original, same, context if "import" not in run.config else None)
        special = _special_ids(run.tokenizer, original, record.generates, bool(described.get("is_encoder_decoder")))
    elif getattr(config, "vocab", None) is not None:
        notes = [*notes, f"{run.path} has no tokenizer, so the folder has none: copy that of the original into it"]
    contents["config.json"] |= special | {name: theirs[name] for name in CONFIG if name in theirs}
    if record.generates and architecture.library == "transformers":
        older = {name: theirs[name] for name in OLDER if theirs.get(name) is not None}
        if same and GENERATION in original:
            contents[GENERATION] = original[GENERATION]
        elif special or older:
            never = [[token] for token in run.tokenizer.never] if special else []
            contents[GENERATION] = special | ({"bad_words_ids": never} if never else {}) | older
    return {name: _json(content) for name, content in contents.items()} | files, notes


def _restore_tokenizer_files(
    files: dict[str, bytes], original: dict[str, Any], same: bool, context: int | None
) -> None:
    """Put the settings of the tokenizer into its files as the original has them.

    `context` is the most that a run reads which was trained from an imported one.
    """
    ours = json.loads(files[TOKENIZER])
    settings = dict(original.get(TOKENIZER) or {name: value for name, value in ours.items() if name != CLASS})
    if original.get(MADE) and "tokenizer.json" in files:  # which the class of the original would read in another way
        settings = {**ours, **settings, CLASS: ours[CLASS]}
    elif CLASS not in settings and not same:  # without one the library goes by the kind of the model
        settings[CLASS] = ours[CLASS]
    if context is not None and settings.get("model_max_length", context + 1) > context:
        settings["model_max_length"] = context
    files[TOKENIZER] = _json(settings)
    if TOKENS in original:
        files[TOKENS] = _json(original[TOKENS])
    elif TOKENIZER in original:  # which then has all that the original says of them
        files.pop(TOKENS, None)
    if TEMPLATE in original:
        files[TEMPLATE] = original[TEMPLATE].encode()


def _special_ids(tokenizer: Tokenizer, original: dict[str, Any], generates: bool, targets: bool) -> dict[str, Any]:
    """The special tokens as the fields of another library's config; what it has not is null there, not its default.

    An encoder–decoder (`targets`) also has one that begins a target.
    """
    begin, end = tokenizer.begin, list(tokenizer.ends) if len(tokenizer.ends) > 1 else tokenizer.end
    if begin is None and isinstance(tokenizer, LibraryTokenizer):  # one that is put before no text has only a name
        named = original.get(TOKENIZER, {}).get("bos_token", original.get(TOKENS, {}).get("bos_token"))
        named = named.get("content") if isinstance(named, dict) else named
        begin = tokenizer.id_of(named) if isinstance(named, str) else None
    ids = {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": tokenizer.pad}
    if targets:
        ids["decoder_start_token_id"] = tokenizer.end if tokenizer.start is None else tokenizer.start
    return {name: value for name, value in ids.items() if generates or value is not None}


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode()
