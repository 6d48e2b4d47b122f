"""What a tokenizer.json of another library may ask for.

The library that reads such a file trusts it, so its content is checked first: each id once and without wide gaps, no
regular expression that can take exponential time, nothing that draws at random, nothing that makes a text much longer.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...config import UserError, refuse
from ...files import is_text

ALLOWED = {
    "normalizer": {
        "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Sequence", "BertNormalizer", "Precompiled", "Prepend", "Replace",
        "Strip", "StripAccents", "Nmt",
    },
    "pre_tokenizer": {
        "ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "Sequence", "Metaspace",
        "BertPreTokenizer",
    },
    "post_processor": {"TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel", "Sequence"},
    "decoder": {"ByteLevel", "Fuse", "Sequence", "Metaspace", "Replace", "ByteFallback", "Strip", "WordPiece"},
}  # fmt: skip
INSIDE = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
# one of these decodes a model's tokens: with another, text would not come back
DECODERS = {
    "BPE": {"ByteLevel", "ByteFallback", "Metaspace"},
    "WordPiece": {"WordPiece"},
    "Unigram": {"Metaspace", "ByteFallback", "Replace"},
    "WordLevel": {"Fuse"},
}
AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")
MOST_PARTS, LONGEST_PATTERN, LONGEST_TEXT, LONGEST_WORD = 16, 1_000, 16, 1_000
SPARE_IDS = 1_000  # ids that stand for nothing, in a small file; a large one may leave out half


def check_tokenizer(content: Mapping[str, Any], where: str) -> None:
    """Refuse, before the library reads it, a tokenizer.json that cannot be used safely."""
    try:
        model, added = content["model"], content.get("added_tokens") or []
        kind = model.get("type") or _kind(model)
        refuse((kind not in DECODERS, f"its model is {str(kind)[:40]}, not {', '.join(DECODERS)}"))
        decoders = {part["type"] for part in stage_parts(content.get("decoder"), INSIDE["decoder"])}
        refuse(
            (not DECODERS[kind] & decoders, f"its decoder does not give the text of a {kind} back"),
            (
                "ByteLevel" in decoders and decoders - {"ByteLevel", "Fuse", "Sequence"},
                "its decoder changes what byte-level tokens decode to",
            ),
        )
        ids = _check_model(kind, model, added, "ByteLevel" in decoders)
        for stage, allowed in ALLOWED.items():
            for part in stage_parts(content.get(stage), INSIDE[stage]):
                name = part["type"]
                refuse((name not in allowed, f"its {stage} {str(name)[:40]} is not one that Pencil can use"))
                _check_part(stage, part, ids)
    except ValueError as error:
        raise UserError(f"{where} is not a tokenizer that can be used: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise UserError(f"{where} is not a tokenizer, or is damaged") from None


def check_characters(content: Mapping[str, Any], where: str) -> str:
    """The characters of Pencil's own kind: each once, in their order, since their places are the ids."""
    letters = content.get("characters")
    damaged = f"{where} is not a tokenizer, or is damaged"
    if not isinstance(letters, str) or not is_text(letters):
        raise UserError(f"{damaged}: it has no characters")
    if sorted(set(letters)) != list(letters):
        raise UserError(f"{damaged}: its characters are not in order, each once")
    return letters


def _kind(model: Mapping[str, Any]) -> str:
    """The model of a file that does not name it, as older versions of the library wrote."""
    if "merges" in model:
        return "BPE"
    if isinstance(model["vocab"], list):
        return "Unigram"
    return "WordPiece" if "continuing_subword_prefix" in model else "WordLevel"


def _check_model(kind: str, model: Mapping[str, Any], added: list[Mapping[str, Any]], byte_level: bool) -> set[int]:
    """The ids of the model and of the added tokens: each once, and without wide gaps."""
    ids = _unigram_ids(model) if kind == "Unigram" else dict(model["vocab"].items())
    unknown, any_text = model.get("unk_token"), byte_level or model.get("byte_fallback")
    refuse((model.get("dropout"), "its dropout is not supported"))
    if kind == "BPE":
        refuse(
            *((model.get(name), f"its {name} is not supported") for name in AFFIXES),
            (
                not any_text and unknown is None,
                "it is not byte-level and has no token for unknown text, which would be left out",
            ),
        )
    if kind == "WordPiece":
        refuse(
            (
                not 0 < model.get("max_input_chars_per_word", 100) <= LONGEST_WORD,
                f"its max_input_chars_per_word is not between 1 and {LONGEST_WORD:,}",
            ),
            (
                not 0 < len(model["continuing_subword_prefix"]) <= LONGEST_TEXT,
                "its continuing_subword_prefix is not supported",
            ),
        )
    if (kind == "WordPiece" or (kind == "BPE" and unknown is not None)) and model["unk_token"] not in ids:
        raise ValueError(f"its token for unknown text, {str(unknown)[:40]!r}, is not in its vocabulary")
    for token in added:
        text = token["content"]
        refuse((not isinstance(text, str) or not text, "an added token has no text"))
        refuse((ids.setdefault(text, token["id"]) != token["id"], f"two tokens are {text[:40]!r}"))
    return _check_ids(list(ids.values()))


def _check_ids(ids: list[Any]) -> set[int]:
    refuse((not all(type(i) is int and i >= 0 for i in ids), "an id is not a whole number"))
    count, last = len(ids), max(ids, default=0)
    refuse(
        (len(set(ids)) < count, f"the ids of its {count:,} tokens are not each once"),
        (
            last >= 2 * count + SPARE_IDS,
            f"its {count:,} tokens have ids up to {last:,}: most of them stand for nothing",
        ),
    )
    return set(ids)


def _unigram_ids(model: Mapping[str, Any]) -> dict[str, Any]:
    vocab, unknown = model["vocab"], model.get("unk_id")
    if not isinstance(vocab, list) or type(unknown) is not int or not 0 <= unknown < len(vocab):
        raise ValueError("its unk_id is not one of its ids, and unknown text would stop it")
    ids: dict[str, Any] = {}
    for i, (piece, score) in enumerate(vocab):
        if not isinstance(piece, str) or not piece or not math.isfinite(score):
            raise ValueError(f"its piece {i} has no text or no score")
        if ids.setdefault(piece, i) != i:
            raise ValueError(f"two tokens are {piece[:40]!r}")
    return ids


def stage_parts(stage: Any, inside: str) -> Iterator[Mapping[str, Any]]:
    """The parts of one stage, those of a sequence one by one."""
    todo, count = [stage] if stage is not None else [], 0
    while todo:
        part = todo.pop(0)
        count += 1
        if count > MOST_PARTS:
            raise ValueError(f"one of its stages has more than {MOST_PARTS} parts")
        yield part
        if part["type"] == "Sequence":
            todo += part[inside]


def _check_part(stage: str, part: Mapping[str, Any], ids: set[int]) -> None:
    """What a part may ask for: short patterns, and tokens that exist."""
    kind = part["type"]
    if kind in ("Split", "Replace"):
        _check_pattern(part["pattern"])
    not_in_vocabulary = "its post_processor puts tokens that are not in its vocabulary"
    refuse(
        (
            kind == "Replace" and len(part["content"]) > LONGEST_TEXT,
            f"its {stage} replaces text by more than {LONGEST_TEXT} letters",
        ),
        (
            kind == "Replace" and stage == "decoder" and part["pattern"].get("String") != "▁",
            "its decoder replaces other letters than ▁",
        ),
        (
            kind == "Prepend" and len(part["prepend"]) > LONGEST_TEXT,
            f"its {stage} puts more than {LONGEST_TEXT} letters before a text",
        ),
        (
            kind == "Strip" and stage == "decoder" and not (part["start"] in (0, 1) and part["stop"] == 0),
            "its decoder strips more than one letter at the beginning",
        ),
        (
            kind in ("BertProcessing", "RobertaProcessing") and not {part["sep"][1], part["cls"][1]} <= ids,
            not_in_vocabulary,
        ),
    )
    if kind == "TemplateProcessing":
        longest = max(len(part["single"]), len(part["pair"]))
        refuse((longest > MOST_PARTS, f"its post_processor puts more than {MOST_PARTS} tokens around a text"))
        used = [i for token in part["special_tokens"].values() for i in token["ids"]]
        refuse((not set(used) <= ids or len(used) > MOST_PARTS, not_in_vocabulary))


def _check_pattern(pattern: Mapping[str, Any]) -> None:
    """Refuse a regular expression that can take exponential time: a group that is repeated, or referred back to."""
    text = next(iter(pattern.values()))
    if len(text) > LONGEST_PATTERN:
        raise ValueError(f"a pattern of {len(text):,} letters is longer than {LONGEST_PATTERN:,}")
    if "Regex" not in pattern:
        return
    plain = re.sub(r"\\[^0-9kg]", "x", text)  # \( and \p are letters here, \1 and \k refer back
    plain = re.sub(r"\[[^\]]*\]", "x", plain)
    if re.search(r"\\|\)(?:[*+{])|\)\?[*+{]", plain) or plain.count("(") > MOST_PARTS:
        raise ValueError("a pattern repeats a group or refers back to one, which can take exponential time")
