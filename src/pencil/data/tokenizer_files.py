"""What a tokenizer.json of another library may ask for: byte-level BPE that splits and decodes text as it is.

The library that reads such a file trusts it, so its content is checked first: ids without gaps, no regular expression
that can take exponential time, nothing that draws at random or rewrites the text.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..config import UserError

ALLOWED = {
    "normalizer": {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Sequence"},
    "pre_tokenizer": {"ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "Sequence"},
    "decoder": {"ByteLevel", "Fuse", "Sequence"},
}
INSIDE = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
MOST_PARTS, LONGEST_PATTERN = 16, 1_000


def check_tokenizer(content: Mapping[str, Any], where: str) -> None:
    """Refuse, before the library reads it, a tokenizer.json that is no plain byte-level BPE."""
    try:
        model, added = content["model"], content.get("added_tokens") or []
        known = model["vocab"].items()
        if "ByteLevel" not in {part["type"] for part in _parts(content.get("decoder"), INSIDE["decoder"])}:
            raise UserError(f"{where} does not decode to bytes; only byte-level BPE, as GPT-2's, can be used")
        _check_model(model, dict(known), added)
        for stage, allowed in ALLOWED.items():
            for part in _parts(content.get(stage), INSIDE[stage]):
                if part["type"] not in allowed:
                    raise ValueError(f"its {stage} {str(part['type'])[:40]} is not one that Pencil can use")
                if part["type"] == "Split":
                    _check_pattern(part["pattern"])
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{where} is not a tokenizer that can be used: {error}") from None
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{where} is not a tokenizer, or is damaged") from None


def check_characters(content: Mapping[str, Any], where: str) -> str:
    """The characters of Pencil's own kind: each once, in their order, since their places are the ids."""
    letters = content.get("characters")
    if not isinstance(letters, str) or any("\ud800" <= one <= "\udfff" for one in letters):
        raise UserError(f"{where} is not a tokenizer, or is damaged: it has no characters")
    if sorted(set(letters)) != list(letters):
        raise UserError(f"{where} is not a tokenizer, or is damaged: its characters are not in order, each once")
    return letters


def _check_model(model: Mapping[str, Any], ids: dict[str, Any], added: list[Mapping[str, Any]]) -> None:
    """A BPE whose ids, with those of the added tokens, are 0, 1, 2 …"""
    if model.get("type", "BPE") != "BPE":
        raise ValueError(f"its model is {str(model['type'])[:40]}, not BPE")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise ValueError(f"its {name} is not supported")
    for token in added:
        if not isinstance(token["content"], str) or not token["content"]:
            raise ValueError("an added token has no text")
        if ids.setdefault(token["content"], token["id"]) != token["id"]:
            raise ValueError(f"two tokens are {token['content'][:40]!r}")
    found = list(ids.values())
    if not all(type(one) is int for one in found):
        raise ValueError("an id is not a whole number")
    if sorted(found) != list(range(len(found))):
        raise ValueError(f"the ids of its {len(found):,} tokens are not 0 to {len(found) - 1:,}, each once")


def _parts(stage: Any, inside: str) -> Iterator[Mapping[str, Any]]:
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
