"""The files of an exported checkpoint beside its weights: config, tokenizer, generation settings."""

import json
from typing import Any

from ...data.tokenizers.export import tokenizer_files
from ...data.tokenizers.library import LibraryTokenizer
from ...data.tokenizers.tokenizer import Tokenizer
from ...families.family import Family
from ...runs.run import Run
from ...weights.maps import Architecture
from ..original import CONFIG, GENERATION, MADE, OLDER, TEMPLATE, TOKENIZER, TOKENS, read_kept

CLASS = "tokenizer_class"


def files_beside(
    run: Run, record: Family, config: Any, architecture: Architecture, described: dict[str, Any]
) -> tuple[dict[str, bytes], list[str]]:
    """The files by name, for a model that is described so; and what the user should know of them.

    What the run keeps of the original is written as it was there.
    """
    contents, notes = {"config.json": described}, []
    if record.exported is not None:
        contents, notes = record.exported(run, config, architecture.library, described)
    kept = read_kept(run) if architecture.library == "transformers" else {}
    same = kept.get("architecture") == architecture.name
    theirs = kept.get("config.json", {}) if same else {}
    files: dict[str, bytes] = {}
    special: dict[str, Any] = {}
    if (run.path / "tokenizer.json").is_file():
        context = getattr(config, "context", None)
        files = tokenizer_files(run.tokenizer, context)
        if TOKENIZER in kept or TOKENS in kept or same:
            _as_kept(files, kept, same, context if "import" not in run.config else None)
        special = _special_ids(run.tokenizer, kept, record.generates, bool(described.get("is_encoder_decoder")))
    elif getattr(config, "vocab", None) is not None:
        notes = [*notes, f"{run.path} has no tokenizer, so the folder has none: copy that of the original into it"]
    contents["config.json"] |= special | {name: theirs[name] for name in CONFIG if name in theirs}
    if record.generates and architecture.library == "transformers":
        older = {name: theirs[name] for name in OLDER if theirs.get(name) is not None}
        if same and GENERATION in kept:
            contents[GENERATION] = kept[GENERATION]
        elif special or older:
            never = [[token] for token in run.tokenizer.never] if special else []
            contents[GENERATION] = special | ({"bad_words_ids": never} if never else {}) | older
    return {name: _json(content) for name, content in contents.items()} | files, notes


def _as_kept(files: dict[str, bytes], kept: dict[str, Any], same: bool, context: int | None) -> None:
    """Put the settings of the tokenizer into its files as the original has them.

    `context` is the most that a run reads which was trained from an imported one.
    """
    ours = json.loads(files[TOKENIZER])
    settings = dict(kept.get(TOKENIZER) or {name: value for name, value in ours.items() if name != CLASS})
    if kept.get(MADE) and "tokenizer.json" in files:  # which the class of the original would read in another way
        settings = {**ours, **settings, CLASS: ours[CLASS]}
    elif CLASS not in settings and not same:  # without one the library goes by the kind of the model
        settings[CLASS] = ours[CLASS]
    if context is not None and settings.get("model_max_length", context + 1) > context:
        settings["model_max_length"] = context
    files[TOKENIZER] = _json(settings)
    if TOKENS in kept:
        files[TOKENS] = _json(kept[TOKENS])
    elif TOKENIZER in kept:  # which then has all that the original says of them
        files.pop(TOKENS, None)
    if TEMPLATE in kept:
        files[TEMPLATE] = kept[TEMPLATE].encode()


def _special_ids(tokenizer: Tokenizer, kept: dict[str, Any], generates: bool, targets: bool) -> dict[str, Any]:
    """The special tokens as the fields of another library's config; what it has not is null there, not its default.

    An encoder–decoder (`targets`) also has one that begins a target.
    """
    begin, end = tokenizer.begin, list(tokenizer.ends) if len(tokenizer.ends) > 1 else tokenizer.end
    if begin is None and isinstance(tokenizer, LibraryTokenizer):  # one that is put before no text has only a name
        named = kept.get(TOKENIZER, {}).get("bos_token", kept.get(TOKENS, {}).get("bos_token"))
        named = named.get("content") if isinstance(named, dict) else named
        begin = tokenizer.id_of(named) if isinstance(named, str) else None
    found = {"bos_token_id": begin, "eos_token_id": end, "pad_token_id": tokenizer.pad}
    if targets:
        found["decoder_start_token_id"] = tokenizer.end if tokenizer.start is None else tokenizer.start
    return {name: value for name, value in found.items() if generates or value is not None}


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode()
