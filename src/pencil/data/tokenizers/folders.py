"""The tokenizer in the folder of another library's checkpoint: tokenizer.json, or the older files it is made of."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...config import UserError
from ...files import check_inside, parse_json, read_bytes, read_text
from .classes import (
    BERT,
    GPT2,
    ROBERTA,
    Files,
    around,
    byte_level,
    listed_tokens,
    read_as_class,
    token_text,
    with_listed_tokens,
    wordpiece,
)
from .library import LibraryTokenizer
from .sentencepiece import (
    BYTE,
    CONTROL,
    UNKNOWN,
    SentencePieces,
    SentencePieceTokenizer,
    library_model,
    read_sentencepiece,
)
from .tokenizer import read_json

SETTINGS = (
    "config.json", "generation_config.json", "special_tokens_map.json", "tokenizer_config.json", "added_tokens.json",
)  # fmt: skip
# names of special tokens where the settings have none
USUAL = {"eos_token": ("</s>", "<|endoftext|>"), "pad_token": ("<pad>", "[PAD]"), "mask_token": ("<mask>", "[MASK]")}
SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model")
FILES = ("tokenizer.json", "source.spm", "target.spm", "vocab.json", "merges.txt", "vocab.txt", *SENTENCEPIECE_FILES)
Found = LibraryTokenizer | SentencePieceTokenizer


def find_tokenizer(
    folder: Path, notify: Callable[[str], None] = lambda line: None
) -> tuple[Found, dict[str, Any]] | None:
    """The tokenizer of a checkpoint's folder and the `[tokens]` table of a run with it; None if it has no files of one.

    The tokenizer already has the special tokens of the table.
    """
    for name in (*SETTINGS, *FILES):
        check_inside(folder / name, folder)
    files = {
        name: parse_json(read_text(folder / name), str(folder / name)) for name in SETTINGS if (folder / name).is_file()
    }
    settings = files.get("tokenizer_config.json", {})
    if (folder / "tokenizer.json").is_file():  # which says itself what begins and ends a text
        settings = {key: value for key, value in settings.items() if key not in ("add_bos_token", "add_eos_token")}
        files["tokenizer_config.json"] = settings
    if settings.get("split_special_tokens"):
        raise UserError(f"{folder / 'tokenizer_config.json'} has split_special_tokens, which is not supported")
    found = _find(folder, files, notify)
    if found is None:
        return None
    for text in listed_tokens(files) if isinstance(found, SentencePieceTokenizer) else ():
        if found.id_of(text) is None:
            raise UserError(
                f"{folder} lists the special token {text[:40]!r}, which its sentencepiece file does not have"
            )
    table = special_tokens(files, found)
    return found.with_tokens(table, str(folder)), table


def _find(folder: Path, files: Files, notify: Callable[[str], None]) -> Found | None:
    def has(*names: str) -> bool:
        return all((folder / name).is_file() for name in names)

    if has("source.spm", "target.spm", "vocab.json"):
        return _marian(folder, files)
    if has("tokenizer.json"):
        path = folder / "tokenizer.json"
        text = read_text(path)
        if "model" in parse_json(text, str(path), "a tokenizer"):
            return read_as_class(text, files, str(path), notify)
        tokenizer = read_json(text, str(path), {})
        assert isinstance(tokenizer, SentencePieceTokenizer)  # ours of characters or bytes have no special tokens
        return tokenizer
    for name in SENTENCEPIECE_FILES:
        if has(name):
            pieces = read_sentencepiece(read_bytes(folder / name), str(folder / name))
            return _sentencepiece(pieces, files, folder / name)
    if has("vocab.json", "merges.txt"):
        return with_listed_tokens(_byte_level(folder, files), files, str(folder / "vocab.json"))
    if has("vocab.txt"):
        return with_listed_tokens(_wordpiece(folder, files), files, str(folder / "vocab.txt"))
    return None


def special_tokens(files: Files, tokenizer: Found) -> dict[str, Any]:
    """The `[tokens]` table of a run: the ids of special tokens, as the settings of a checkpoint's folder say.

    `files` are the parsed JSON files by name; ids of the model's settings come before names of the tokenizer's.
    """
    config, generation = files.get("config.json", {}), files.get("generation_config.json", {})
    named = {**files.get("special_tokens_map.json", {}), **files.get("tokenizer_config.json", {})}

    def by_name(name: str) -> int | None:
        texts = [token_text(named[name])] if name in named else USUAL.get(name, ())
        ids = [tokenizer.id_of(text) for text in texts if text is not None]
        return next((i for i in ids if i is not None and (name in named or tokenizer.hidden(i))), None)

    def by_id(name: str) -> Any:
        return config.get(name) if generation.get(name) is None else generation[name]

    def known(ids: Any) -> list[int]:
        """Ids of the tokenizer: a model may have more, which stand for nothing, and −1 is none."""
        ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
        return [i for i in ids if type(i) is not int or 0 <= i < tokenizer.vocab]

    ends = by_id("eos_token_id")
    ends = known(by_name("eos_token") if ends is None else ends)
    pads = known(by_id("pad_token_id") if by_name("pad_token") is None else by_name("pad_token"))
    begin = tokenizer.around[0]
    if len(begin) > 1:
        raise UserError(f"the tokenizer puts {len(begin)} tokens before a text, and one is supported")
    wanted = named.get("add_bos_token")
    found = {
        "begin": (by_name("bos_token") if wanted else None) if wanted is not None else next(iter(begin), None),
        "end": ends[0] if len(ends) == 1 else ends,
        "pad": next(iter(pads), None),
        "mask": by_name("mask_token"),
        "start": by_id("decoder_start_token_id"),
        "never": known(_never(files)),
        # other libraries do so for these only: of a BPE it would change the text
        "clean": bool(named.get("clean_up_tokenization_spaces")) and tokenizer.kind != "bpe",
    }
    return {name: value for name, value in found.items() if value is not None and value is not False and value != []}


def _never(files: Files) -> list[int]:
    """Tokens that are never generated, as transformers reads them: of config.json only where there is no
    generation_config.json."""
    name = "generation_config.json" if "generation_config.json" in files else "config.json"
    settings = files.get(name, {})
    words, others = settings.get("bad_words_ids") or [], settings.get("suppress_tokens") or []
    if not all(isinstance(word, list) and len(word) == 1 for word in words) or not isinstance(others, list):
        raise UserError(f"{name} has bad_words_ids of several tokens, which is not supported: remove it")
    return [*(word[0] for word in words), *others]


def _added(token: str, i: int, lstrip: bool = False) -> dict[str, Any]:
    return {
        "id": i,
        "content": token,
        "single_word": False,
        "lstrip": lstrip,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _specials(names: Mapping[str, str], settings: Mapping[str, Any], vocabulary: Mapping[str, int]) -> dict[str, str]:
    """The special tokens of the vocabulary by name, as the settings or else the original has them."""
    found = {name: token_text(settings.get(name)) or usual for name, usual in names.items()}
    return {name: text for name, text in found.items() if text in vocabulary}


def _byte_level(folder: Path, files: Files) -> dict[str, Any]:
    """GPT-2's vocab.json and merges.txt, and RoBERTa's, which puts tokens around a text."""
    vocabulary = parse_json(read_text(folder / "vocab.json"), str(folder / "vocab.json"))
    lines = read_text(folder / "merges.txt").split("\n")
    rules = [line.rstrip("\r") for line in lines if line.strip("\r") and not line.startswith("#version")]
    settings = {**files.get("special_tokens_map.json", {}), **files.get("tokenizer_config.json", {})}
    roberta = files.get("config.json", {}).get("model_type") == "roberta"
    roberta = roberta or str(settings.get("tokenizer_class", "")).startswith("Roberta")
    special = _specials(ROBERTA if roberta else GPT2, settings, vocabulary)
    post = None
    if roberta:
        missing = {"cls_token", "sep_token"} - set(special)
        if missing:
            raise UserError(f"{folder / 'vocab.json'} has no {min(missing)}, which stands around every text")
        post = around(special["cls_token"], special["sep_token"], vocabulary, settings)
    marks = {text: _added(text, vocabulary[text], name == "mask_token") for name, text in special.items()}
    made = byte_level(vocabulary, [rule.split(" ") for rule in rules], settings)
    return {
        "version": "1.0",
        "added_tokens": sorted(marks.values(), key=lambda one: one["id"]),
        "normalizer": None,
        "post_processor": post,
        **made,
    }


def _wordpiece(folder: Path, files: Files) -> dict[str, Any]:
    """BERT's vocab.txt, with the settings of tokenizer_config.json."""
    lines = read_text(folder / "vocab.txt").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    vocabulary: dict[str, int] = {}
    for i, line in enumerate(lines):
        if vocabulary.setdefault(line.rstrip("\r"), i) != i:
            raise UserError(f"{folder / 'vocab.txt'} has {line[:40]!r} twice, in line {i + 1}")
    settings = {**files.get("special_tokens_map.json", {}), **files.get("tokenizer_config.json", {})}
    special = _specials(BERT, settings, vocabulary)
    for name in ("unk_token", "cls_token", "sep_token"):
        if name not in special:
            raise UserError(f"{folder / 'vocab.txt'} has no {name}")
    marks = [_added(text, vocabulary[text]) for text in dict.fromkeys(special.values())]
    return {"version": "1.0", "added_tokens": marks, **wordpiece(vocabulary, vocabulary, special, settings)}


def _sentencepiece(pieces: SentencePieces, files: Files, path: Path) -> Found:
    """LLaMA 2's file and the like: the library's own form, where it is exact. Else, as T5's, the package's."""
    settings, config = files.get("tokenizer_config.json", {}), files.get("config.json", {})
    special = pieces.of_kind(CONTROL) | pieces.of_kind(UNKNOWN)
    if not pieces.charsmap and not pieces.remove_extra_spaces and pieces.of_kind(BYTE):
        return with_listed_tokens(_with_fallback(pieces, special, settings), files, str(path))
    if pieces.of_kind(BYTE):
        raise UserError(f"{path} falls back to bytes and normalises text, which is not supported together")
    end = token_text(settings.get("eos_token")) or "</s>"
    extra = int(settings.get("extra_ids", 100)) if config.get("model_type", "t5") == "t5" else 0
    count = len(pieces.pieces)
    added = special | {f"<extra_id_{i}>": count + extra - 1 - i for i in range(min(extra, 10_000))}
    if end not in special:
        raise UserError(f"{path} has no {end}, which ends a text")
    return SentencePieceTokenizer(pieces, added=added, after=[special[end]], tokens={}, where=str(path))


def _with_fallback(pieces: SentencePieces, special: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Any]:
    from tokenizers import Tokenizer as Inner

    model = json.loads(Inner(library_model(pieces)).to_str())["model"]
    begin, end = (token_text(settings.get(f"{name}_token")) for name in ("bos", "eos"))
    begin, end = begin or "<s>", end or "</s>"
    form: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    if settings.get("add_bos_token", True) and begin in special:
        form.insert(0, {"SpecialToken": {"id": begin, "type_id": 0}})
    if settings.get("add_eos_token") and end in special:
        form.append({"SpecialToken": {"id": end, "type_id": 0}})
    used = [one["SpecialToken"]["id"] for one in form if "SpecialToken" in one]
    pair = [
        {kind: {**one, "id": "B" if one["id"] == "A" else one["id"], "type_id": 1}}
        for part in form
        for kind, one in part.items()
    ]
    prefix = [{"type": "Prepend", "prepend": "▁"}] if pieces.dummy_prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if pieces.dummy_prefix else []
    return {
        "version": "1.0",
        "added_tokens": [_added(text, i) for text, i in sorted(special.items(), key=lambda s: s[1])],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*prefix, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": form,
            "pair": form + pair,
            "special_tokens": {text: {"id": text, "ids": [special[text]], "tokens": [text]} for text in used},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *strip,
            ],
        },
        "model": model,
    }


def _marian(folder: Path, files: Files) -> SentencePieceTokenizer:
    """Marian's two files of pieces, and its one table of ids."""
    settings = files.get("tokenizer_config.json", {})
    if settings.get("separate_vocabs"):
        raise UserError(f"{folder} has a vocabulary for each language (separate_vocabs), which is not supported")
    source, target = (
        read_sentencepiece(read_bytes(folder / name), str(folder / name)) for name in ("source.spm", "target.spm")
    )
    ids = parse_json(read_text(folder / "vocab.json"), str(folder / "vocab.json"))
    for path, pieces in ((folder / "source.spm", source), (folder / "target.spm", target)):
        if pieces.of_kind(BYTE):
            raise UserError(f"{path} falls back to bytes, which is not supported for two vocabularies")
        if pieces.pieces[pieces.unknown][0] not in ids:
            raise UserError(f"{folder / 'vocab.json'} has no {pieces.pieces[pieces.unknown][0]!r}, for unknown text")
    special = [
        token_text(settings.get(name)) or usual
        for name, usual in (("eos_token", "</s>"), ("pad_token", "<pad>"), ("unk_token", "<unk>"))
    ]
    for text in special[:2]:
        if text not in ids:
            raise UserError(f"{folder / 'vocab.json'} has no {text!r}")
    added = {text: ids[text] for text in special if text in ids}
    return SentencePieceTokenizer(source, target, ids, added, [ids[special[0]]], {}, str(folder))
