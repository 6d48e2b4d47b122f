"""The tokenizer in the folder of another library's checkpoint: tokenizer.json, or the older files it is made of.

A tokenizer class of transformers that has a pipeline of its own takes no more of a tokenizer.json than the vocabulary,
the merges and, in some, what stands around a text; it makes the rest anew from tokenizer_config.json. The general class
takes tokenizer.json whole. Both add the special tokens that only tokenizer_config.json lists.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ...config import UserError, refuse
from ...files import check_inside, parse_json, read_bytes, read_text
from .check_tokenizer_json import INSIDE, check_tokenizer, stage_parts
from .hf_tokenizers import END, LibraryTokenizer, guarded, load_inner
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

Settings = Mapping[str, Any]
Files = Mapping[str, Mapping[str, Any]]  # the JSON files of a folder by name

GENERAL = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend")
# for a folder that names none; LLaMA has none then, and Mistral never
BY_MODEL = {
    "bert": "BertTokenizer", "roberta": "RobertaTokenizer", "gpt2": "GPT2Tokenizer", "gpt_neox": "GPTNeoXTokenizer",
    "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer", "t5": "T5Tokenizer",
}  # fmt: skip
# the special tokens that have names of their own, in the order in which they are added
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
GPT2 = {"bos_token": END, "eos_token": END, "unk_token": END}
ROBERTA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
           "cls_token": "<s>", "mask_token": "<mask>"}  # fmt: skip
LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
NEOX, QWEN = GPT2 | {"pad_token": "<|padding|>"}, {"eos_token": END, "unk_token": END, "pad_token": END}
# how an added token is found in a text
PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


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
    tokenizer = _find(folder, files, notify)
    if tokenizer is None:
        return None
    for text in listed_tokens(files) if isinstance(tokenizer, SentencePieceTokenizer) else ():
        if tokenizer.id_of(text) is None:
            raise UserError(
                f"{folder} lists the special token {text[:40]!r}, which its sentencepiece file does not have"
            )
    table = special_tokens(files, tokenizer)
    return tokenizer.with_tokens(table, str(folder)), table


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

    def of_vocabulary(ids: Any) -> list[int]:
        """Ids of the tokenizer: a model may have more, which stand for nothing, and −1 is none."""
        ids = ids if isinstance(ids, list) else [] if ids is None else [ids]
        return [i for i in ids if type(i) is not int or 0 <= i < tokenizer.vocab]

    ends = by_id("eos_token_id")
    ends = of_vocabulary(by_name("eos_token") if ends is None else ends)
    pads = of_vocabulary(by_id("pad_token_id") if by_name("pad_token") is None else by_name("pad_token"))
    begin = tokenizer.around[0]
    if len(begin) > 1:
        raise UserError(f"the tokenizer puts {len(begin)} tokens before a text, and one is supported")
    wanted = named.get("add_bos_token")
    table = {
        "begin": (by_name("bos_token") if wanted else None) if wanted is not None else next(iter(begin), None),
        "end": ends[0] if len(ends) == 1 else ends,
        "pad": next(iter(pads), None),
        "mask": by_name("mask_token"),
        "start": by_id("decoder_start_token_id"),
        "never": of_vocabulary(_never(files)),
        # other libraries do so for these only: of a BPE it would change the text
        "clean": bool(named.get("clean_up_tokenization_spaces")) and tokenizer.kind != "bpe",
    }
    return {name: value for name, value in table.items() if value is not None and value is not False and value != []}


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
    texts = {name: token_text(settings.get(name)) or usual for name, usual in names.items()}
    return {name: text for name, text in texts.items() if text in vocabulary}


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
        "added_tokens": sorted(marks.values(), key=lambda mark: mark["id"]),
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
    used = [token["SpecialToken"]["id"] for token in form if "SpecialToken" in token]
    pair = [
        {kind: {**token, "id": "B" if token["id"] == "A" else token["id"], "type_id": 1}}
        for part in form
        for kind, token in part.items()
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
        unknown = pieces.pieces[pieces.unknown][0]
        refuse(
            (pieces.of_kind(BYTE), f"{path} falls back to bytes, which is not supported for two vocabularies"),
            (unknown not in ids, f"{folder / 'vocab.json'} has no {unknown!r}, for unknown text"),
        )
    special = [
        token_text(settings.get(name)) or usual
        for name, usual in (("eos_token", "</s>"), ("pad_token", "<pad>"), ("unk_token", "<unk>"))
    ]
    for text in special[:2]:
        if text not in ids:
            raise UserError(f"{folder / 'vocab.json'} has no {text!r}")
    added = {text: ids[text] for text in special if text in ids}
    return SentencePieceTokenizer(source, target, ids, added, [ids[special[0]]], {}, str(folder))


def read_as_class(text: str, files: Files, where: str, notify: Callable[[str], None]) -> LibraryTokenizer:
    """A tokenizer.json as transformers reads it in a folder with these settings."""
    content = parse_json(text, where, "a tokenizer")
    name = _class_of(files, '"ByteLevel"' in text)
    if name is None:
        return with_listed_tokens(content, files, where)
    made = _rebuilt(content, name, files, where)
    tokenizer = with_listed_tokens(made, files, where, name)
    if stages := _replaced(content, made):
        notify(
            f"its tokenizer_class {name} makes the {' and the '.join(stages)} of a text anew, as in transformers: "
            "what tokenizer.json has there is not used"
        )
    return tokenizer


def with_listed_tokens(content: Settings, files: Files, where: str, name: str | None = None) -> LibraryTokenizer:
    """The tokenizer of a tokenizer.json, with the added tokens that its settings and the class `name` list."""
    from tokenizers import AddedToken

    check_tokenizer(content, where)
    inner = load_inner(json.dumps(content), where)

    def add(text: str, ways: Settings) -> None:
        guarded(lambda: inner.add_tokens([AddedToken(text, **ways)]), f"{where}: {text[:40]!r} cannot be added")

    with _settings_read(where):
        added = {i: (str(token["content"]), token) for i, token in _added_by_id(content, files).items()}
        special = list(_special(files, name))
    for i, (text, token) in added.items():
        add(text, {flag: bool(token[flag]) for flag in PLAIN if flag in token})
        if inner.token_to_id(text) != i:
            raise UserError(f"{where}: the added token {text[:40]!r} cannot have the id {i}")
    rows = files.get("config.json", {}).get("vocab_size")
    for text, ways in special:
        added_tokens = inner.get_added_tokens_decoder()
        if text in (token.content for token in added_tokens.values()):
            continue
        # a token that the model has no row for could not be read: it is not added
        next_id = max(inner.get_vocab_size(with_added_tokens=False), max(added_tokens, default=-1) + 1)
        if inner.token_to_id(text) is not None or not isinstance(rows, int) or next_id < rows:
            add(text, ways)
    return LibraryTokenizer(inner, {}, where)


@contextmanager
def _settings_read(where: object) -> Iterator[None]:
    """Refuse files beside a tokenizer that list its added or special tokens in another form than they can have."""
    try:
        yield
    except UserError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        missing = f" ({error.args[0]!r} is not there)" if isinstance(error, KeyError) else ""
        raise UserError(
            f"{where}: the added or special tokens in the files beside it cannot be read{missing}; see "
            "tokenizer_config.json and added_tokens.json"
        ) from None


def token_text(token: Any) -> str | None:
    """A token of a settings file, which is a text or an object with one."""
    token = token.get("content") if isinstance(token, Mapping) else token
    return token if isinstance(token, str) else None


def listed_tokens(files: Files) -> list[str]:
    """The special tokens that the settings list."""
    with _settings_read("tokenizer_config.json"):
        listed = (files.get("tokenizer_config.json", {}).get("added_tokens_decoder") or {}).values()
        return [text for token in listed if (text := token_text(token))] + [text for text, _ in _special(files, None)]


def _class_of(files: Files, byte_level: bool) -> str | None:
    """The class that transformers takes for a folder with a tokenizer.json; None for the general one."""
    config, settings = files.get("config.json", {}), files.get("tokenizer_config.json", {})
    kind, named = config.get("model_type"), settings.get("tokenizer_class") or config.get("tokenizer_class")
    named = str(named).removesuffix("Fast") if named else None
    # names that many files have wrong, and that the library overrules
    if kind == "mistral" or (named == "LlamaTokenizer" and byte_level):
        return None
    if kind == "qwen2":
        return BY_MODEL[kind]
    return None if named in GENERAL else named or BY_MODEL.get(str(kind))


def _named(files: Files) -> dict[str, Any]:
    """The named special tokens of the settings; special_tokens_map.json counts in older files only."""
    settings, older = (files.get(f"{name}.json", {}) for name in ("tokenizer_config", "special_tokens_map"))
    return {**settings, **({} if "added_tokens_decoder" in settings else older)}


def _added_by_id(content: Settings, files: Files) -> dict[int, Mapping[str, Any]]:
    """The added tokens by their ids: of tokenizer_config.json, or else of tokenizer.json and added_tokens.json."""
    listed = files.get("tokenizer_config.json", {}).get("added_tokens_decoder")
    if listed is not None:
        return {int(i): token for i, token in sorted(listed.items(), key=lambda item: int(item[0]))}
    names = _named(files)
    special = {token_text(names.get(name)) for name in NAMED} | {token_text(item) for item in _extra(names)}
    older = files.get("added_tokens.json", {})
    by_id = {i: {"content": t, "normalized": t not in special, "special": t in special} for t, i in older.items()}
    by_id |= {token["id"]: token for token in content.get("added_tokens") or ()}
    return dict(sorted(by_id.items()))


def _extra(names: Settings) -> list[Any]:
    extra = names.get("extra_special_tokens") or names.get("additional_special_tokens") or []
    return list(extra.values() if isinstance(extra, Mapping) else extra)


def _special(files: Files, name: str | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The special tokens of the settings and of a class, and how each is added where the vocabulary lacks it."""
    names = _named(files)
    usual = CLASSES[name].special if name else {}
    others = [key for key in names if key.endswith("_token") and key not in NAMED and isinstance(names[key], str)]
    tokens = [names.get(key, usual.get(key)) for key in (*NAMED, *others)] + _extra(names)
    # T5's own go away where tokenizer_config.json lists others, and stay where only an older file does
    others_listed = "additional_special_tokens" in files.get("tokenizer_config.json", {})
    if name == "T5Tokenizer" and not others_listed and "extra_special_tokens" not in names:
        tokens += [f"<extra_id_{i}>" for i in range(min(int(names.get("extra_ids", 100)), 10_000))]
    for token in tokens:
        if (text := token_text(token)) is not None:
            ways = {} if isinstance(token, str) else {flag: token[flag] for flag in PLAIN if flag in token}
            yield text, {**ways, "special": True}


def _rebuilt(content: Settings, name: str, files: Files, where: str) -> dict[str, Any]:
    """What a class makes of a tokenizer.json: one again."""
    if name not in CLASSES:
        raise UserError(
            f"{where}: the tokenizer_class {name} may read it otherwise than it stands, and Pencil knows only "
            f'{", ".join(CLASSES)}; write "tokenizer_class": "PreTrainedTokenizerFast" into tokenizer_config.json to '
            "have it read as it stands"
        )
    kind, special, make = CLASSES[name]
    try:
        model = content["model"]
        if (model_kind := model.get("type", kind)) != kind:
            raise UserError(f"{where} is a {model_kind}, and the tokenizer_class {name} is a {kind}: they do not agree")
        ids = {piece: i for i, (piece, _) in enumerate(model["vocab"])} if kind == "Unigram" else dict(model["vocab"])
        added = _added_by_id(content, files)
        ids |= {str(token["content"]): i for i, token in added.items()}
        texts = {key: token_text(_named(files).get(key)) or usual for key, usual in special.items()}
        settings = files.get("tokenizer_config.json", {})
        marks = [{**PLAIN, **token, "id": i} for i, token in added.items()]
        return {"version": "1.0", "added_tokens": marks, "normalizer": None} | make(content, ids, texts, settings)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        missing = f": {error.args[0]!r} is not there" if isinstance(error, KeyError) else ""
        raise UserError(f"{where} is not a tokenizer that {name} can be made of, or is damaged{missing}") from None


def _replaced(content: Settings, made: Settings) -> list[str]:
    """The stages of a tokenizer.json that another one replaces: those that decide where a text is split."""

    def parts(tokenizer: Settings, stage: str) -> list[Mapping[str, Any]]:
        return [part for part in stage_parts(tokenizer.get(stage), INSIDE[stage]) if part["type"] != "Sequence"]

    def differs(stage: str) -> bool:
        old, new = parts(content, stage), parts(made, stage)
        # a file may leave out what is usual
        return len(old) != len(new) or any(
            a.get(key, value) != value for a, b in zip(old, new, strict=True) for key, value in b.items()
        )

    return [stage for stage in ("normalizer", "pre_tokenizer") if differs(stage)]


def byte_level(vocabulary: Mapping[str, int], merges: list[Any], settings: Settings) -> dict[str, Any]:
    """GPT-2's."""
    level = {
        "type": "ByteLevel",
        "add_prefix_space": bool(settings.get("add_prefix_space")),
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocabulary, "merges": merges},
    }


def around(cls: str, sep: str, ids: Mapping[str, int], settings: Settings) -> dict[str, Any]:
    """What RoBERTa puts around a text."""
    return {
        "type": "RobertaProcessing",
        "sep": [sep, ids[sep]],
        "cls": [cls, ids[cls]],
        "trim_offsets": True,
        "add_prefix_space": bool(settings.get("add_prefix_space")),
    }


def wordpiece(
    vocabulary: Mapping[str, int], ids: Mapping[str, int], texts: Mapping[str, str], settings: Settings
) -> dict[str, Any]:
    """BERT's, with these texts of its special tokens."""
    cls, sep = texts["cls_token"], texts["sep_token"]
    first, second = ({"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB"))
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": bool(settings.get("tokenize_chinese_chars", True)),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": bool(settings.get("do_lower_case", True)),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_mark(cls), first, _mark(sep)],
            "pair": [_mark(cls), first, _mark(sep), second, _mark(sep, 1)],
            "special_tokens": {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in (cls, sep)},
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": texts["unk_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }


def _mark(text: str, kind: int = 0) -> dict[str, Any]:
    return {"SpecialToken": {"id": text, "type_id": kind}}


Ids = Mapping[str, int]
Texts = Mapping[str, str]


def _gpt2(content: Settings, ids: Ids, texts: Texts, settings: Settings) -> dict[str, Any]:
    model = content["model"]
    made = byte_level(model["vocab"], model["merges"], settings)
    return made | {"post_processor": content.get("post_processor")}


def _roberta(content: Settings, ids: Ids, texts: Texts, settings: Settings) -> dict[str, Any]:
    processor = around(texts["cls_token"], texts["sep_token"], ids, settings)
    return _gpt2(content, ids, texts, settings) | {"post_processor": processor}


def _neox(content: Settings, ids: Ids, texts: Texts, settings: Settings) -> dict[str, Any]:
    return _gpt2(content, ids, texts, settings) | {"normalizer": {"type": "NFC"}, "post_processor": None}


def _qwen2(content: Settings, ids: Ids, texts: Texts, settings: Settings) -> dict[str, Any]:
    made = _gpt2(content, ids, texts, settings)
    split = {"type": "Split", "pattern": {"Regex": QWEN_SPLIT}, "behavior": "Isolated", "invert": False}
    parts = [split, made["pre_tokenizer"] | {"use_regex": False}]
    return made | {"normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}}


def _bert(content: Settings, ids: Ids, texts: Texts, settings: Settings) -> dict[str, Any]:
    return wordpiece(content["model"]["vocab"], ids, texts, settings)


def _llama(content: Settings, ids: Ids, texts: Texts, settings: Settings) -> dict[str, Any]:
    prefix = settings.get("add_prefix_space")
    prefix = prefix is None or bool(prefix)
    scheme = "never" if not prefix else "always" if settings.get("legacy") else "first"
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    model = {key: content["model"][key] for key in ("vocab", "merges")}
    return {
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False},
        "post_processor": content.get("post_processor"),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *strip,
            ],
        },
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": True, "byte_fallback": True, **model},
    }


def _t5(content: Settings, ids: Ids, texts: Texts, settings: Settings) -> dict[str, Any]:
    normalizers = stage_parts(content.get("normalizer"), INSIDE["normalizer"])
    spaces = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    end = _mark("</s>")
    return {
        "normalizer": next((part for part in normalizers if part["type"] == "Precompiled"), None),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, spaces]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, end],
            "pair": [first, end, second, end],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [ids[texts["eos_token"]]], "tokens": ["</s>"]}},
        },
        "decoder": spaces,
        "model": {"type": "Unigram", "vocab": content["model"]["vocab"], "unk_id": 2, "byte_fallback": False},
    }


class TokenizerClass(NamedTuple):
    """A tokenizer class of transformers."""

    model: str  # the kind of its model
    special: Mapping[str, str]  # its special tokens where the settings name none
    make: Callable[[Settings, Ids, Texts, Settings], dict[str, Any]]


CLASSES = {
    "BertTokenizer": TokenizerClass("WordPiece", BERT, _bert),
    "ElectraTokenizer": TokenizerClass("WordPiece", BERT, _bert),
    "GPT2Tokenizer": TokenizerClass("BPE", GPT2, _gpt2),
    "RobertaTokenizer": TokenizerClass("BPE", ROBERTA, _roberta),
    "GPTNeoXTokenizer": TokenizerClass("BPE", NEOX, _neox),
    "Qwen2Tokenizer": TokenizerClass("BPE", QWEN, _qwen2),
    "LlamaTokenizer": TokenizerClass("BPE", LLAMA, _llama),
    "T5Tokenizer": TokenizerClass("Unigram", T5, _t5),
}
