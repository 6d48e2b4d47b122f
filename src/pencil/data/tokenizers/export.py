"""A tokenizer as files that other libraries load: the same ids for every text."""

import json
from typing import Any

from ...config import UserError
from .hf_tokenizers import END, LibraryTokenizer
from .sentencepiece import SentencePieceTokenizer, write_sentencepiece
from .tokenizer import ByteTokenizer, CharTokenizer, Tokenizer

UNKNOWN = ("<unk>", "[UNK]")


def tokenizer_files(tokenizer: Tokenizer, context: int | None = None) -> dict[str, bytes]:
    """The files of a tokenizer by name, for the folder of a checkpoint.

    `context` is the most tokens of the model. A text that contains the end token's name is read as that token.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _sentencepiece(tokenizer, context)
    if isinstance(tokenizer, LibraryTokenizer):
        content = tokenizer.to_json()
    elif isinstance(tokenizer, ByteTokenizer):
        content = json.dumps(_bytes(tokenizer.end), ensure_ascii=False)
    elif isinstance(tokenizer, CharTokenizer):
        content = json.dumps(_characters(tokenizer), ensure_ascii=False)
    else:
        raise UserError(f"a tokenizer of the kind {tokenizer.kind} cannot be exported")
    names = _names(tokenizer)
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    if context is not None:
        settings["model_max_length"] = context
    settings["clean_up_tokenization_spaces"] = tokenizer.clean
    return {
        "tokenizer.json": content.encode(),
        "tokenizer_config.json": _json(settings),
        "special_tokens_map.json": _json(names),
    }


def _json(content: Any) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _names(tokenizer: Tokenizer) -> dict[str, str]:
    """The names of special tokens, as other libraries call them."""
    before, after = tokenizer.around
    ids = {
        "bos_token": tokenizer.begin,
        "eos_token": tokenizer.end,
        "pad_token": tokenizer.pad,
        "mask_token": tokenizer.mask,
        # an encoder's: without a mask token there are none
        "cls_token": before[0] if before and tokenizer.mask is not None else None,
        "sep_token": after[-1] if after and tokenizer.mask is not None else None,
    }
    names = {name: tokenizer.token(i) for name, i in ids.items() if i is not None}
    if isinstance(tokenizer, LibraryTokenizer):
        unknown = next((text for text in UNKNOWN if tokenizer.id_of(text) is not None), None)
        names |= {} if unknown is None else {"unk_token": unknown}
    return names


def _file(model: dict[str, Any], split: dict[str, Any], decoder: dict[str, Any], end: int | None) -> dict[str, Any]:
    mark = {
        "id": end,
        "content": END,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [] if end is None else [mark],
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def _bytes(end: int | None) -> dict[str, Any]:
    """A byte-level BPE without merges: each byte is a token."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    # the library's letters for bytes: printable ones stand for themselves, the others follow from 256 on
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
    vocabulary = letters | ({} if end is None else {END: end})
    return _file({"type": "BPE", "vocab": vocabulary, "merges": []}, level, level, end)


def _characters(tokenizer: CharTokenizer) -> dict[str, Any]:
    """A word for each character; one that is not in the vocabulary is refused there too."""
    split = {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False}
    vocabulary = {character: i for i, character in enumerate(tokenizer.characters)}
    vocabulary |= {} if tokenizer.end is None else {END: tokenizer.end}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    return _file(model, split, {"type": "Fuse"}, tokenizer.end)


def _sentencepiece(tokenizer: SentencePieceTokenizer, context: int | None) -> dict[str, bytes]:
    """The files of sentencepiece again: spiece.model, or Marian's three."""
    names = _names(tokenizer)
    settings: dict[str, Any] = names | ({} if context is None else {"model_max_length": context})
    if tokenizer.clean:
        settings["clean_up_tokenization_spaces"] = True
    files = {"special_tokens_map.json": _json(names)}
    written = [write_sentencepiece(side.model) for side in tokenizer.sides]
    if tokenizer.ids is None:
        extra = sum(name.startswith("<extra_id_") for name in tokenizer.added)
        settings |= {"tokenizer_class": "T5Tokenizer", "extra_ids": extra}
        files["spiece.model"] = written[0]
    else:
        settings |= {"tokenizer_class": "MarianTokenizer", "separate_vocabs": False}
        files |= {"source.spm": written[0], "target.spm": written[-1], "vocab.json": _json(tokenizer.ids)}
    return files | {"tokenizer_config.json": _json(settings)}
