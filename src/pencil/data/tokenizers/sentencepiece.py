"""A tokenizer of sentencepiece files: one file, or Marian's two with one table of ids.

The package of sentencepiece (an extra) reads and writes its files and encodes texts. A run has the pieces in its
tokenizer.json, from which a model file is written again.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...config import UserError, package, refuse
from .hf_tokenizers import guarded, utf8
from .special_tokens import SpecialTokens, Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2
SPACE = "▁"
FILE_FORMAT = "sentencepiece.sentencepiece_model_pb2"  # a module of the package
MOST_PIECES = 1_000_000
LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)  # the code of a target language, at the beginning of a source


@dataclass(frozen=True)
class SentencePieces:
    """A model file: its pieces (text, score, type), and how it normalises a text."""

    pieces: list[tuple[str, float, int]]
    model: int  # UNIGRAM or BPE
    charsmap: bytes
    dummy_prefix: bool
    remove_extra_spaces: bool

    @property
    def unknown(self) -> int:
        return next(i for i, (_, _, kind) in enumerate(self.pieces) if kind == UNKNOWN)

    def of_kind(self, kind: int) -> dict[str, int]:
        """The pieces of a kind with their numbers."""
        return {piece: i for i, (piece, _, other) in enumerate(self.pieces) if other == kind}


def _package(where: str, module: str = "sentencepiece") -> Any:
    """A module of the package of sentencepiece: the package, or the format of its files."""
    return package(module, f"{where} is a tokenizer of sentencepiece, which needs its package", "sentencepiece")


def read_sentencepiece(content: bytes, where: str) -> SentencePieces:
    """The content of a .model or .spm file; what it asks for that is not supported is refused by name."""
    file = _package(where, FILE_FORMAT).ModelProto
    proto = guarded(lambda: file.FromString(content), f"{where} is not a sentencepiece model, or is damaged")
    try:
        return _read(proto)
    except UnicodeDecodeError:
        raise UserError(f"{where} is not a sentencepiece model, or is damaged: a piece is not UTF-8") from None
    except ValueError as error:
        raise UserError(f"{where} is not a sentencepiece model that can be used: {error}") from None


def _read(proto: Any) -> SentencePieces:
    refuse(
        (len(proto.pieces) > MOST_PIECES, f"it has more than {MOST_PIECES:,} pieces"),
        (proto.denormalizer_spec.precompiled_charsmap, "it rewrites decoded text (denormalizer_spec)"),
    )
    pieces = [(piece.piece, piece.score, piece.type) for piece in proto.pieces]
    kinds = [kind for _, _, kind in pieces]
    for kind, name in ((USER_DEFINED, "user-defined symbols"), (UNUSED, "unused pieces")):
        if kind in kinds:
            raise ValueError(f"it has {name}, such as {pieces[kinds.index(kind)][0][:40]!r}")
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    refuse(
        (kinds.count(UNKNOWN) != 1, "it has no piece for unknown text, or several"),
        (
            len({piece for piece, *_ in pieces} - {""}) < len(pieces),
            "two of its pieces are the same, or one is empty",
        ),
        (trainer.model_type not in (UNIGRAM, BPE), "it is a model of words or characters, not Unigram or BPE"),
        (
            trainer.treat_whitespace_as_suffix,
            "it marks the end of a word, not its beginning (treat_whitespace_as_suffix)",
        ),
        (not normalizer.escape_whitespaces, "it does not mark spaces (escape_whitespaces)"),
    )
    prefix, extra = normalizer.add_dummy_prefix, normalizer.remove_extra_whitespaces
    return SentencePieces(pieces, trainer.model_type, normalizer.precompiled_charsmap, prefix, extra)


def write_sentencepiece(model: SentencePieces, where: str = "the tokenizer") -> bytes:
    """The content of a model file with these pieces."""
    proto = _package(where, FILE_FORMAT).ModelProto()
    for piece, score, kind in model.pieces:
        proto.pieces.add(piece=piece, score=score, type=kind)
    control = model.of_kind(CONTROL)
    proto.trainer_spec.model_type = model.model
    proto.trainer_spec.byte_fallback = bool(model.of_kind(BYTE))
    proto.trainer_spec.unk_id = model.unknown
    proto.trainer_spec.unk_piece = model.pieces[model.unknown][0]
    # −1 is none
    proto.trainer_spec.bos_id = control.get("<s>", -1)
    proto.trainer_spec.eos_id = control.get("</s>", -1)
    proto.trainer_spec.pad_id = control.get("<pad>", -1)
    proto.normalizer_spec.name = "pencil"
    proto.normalizer_spec.precompiled_charsmap = model.charsmap
    proto.normalizer_spec.add_dummy_prefix = model.dummy_prefix
    proto.normalizer_spec.remove_extra_whitespaces = model.remove_extra_spaces
    proto.normalizer_spec.escape_whitespaces = True
    return proto.SerializeToString()


def merges(model: SentencePieces) -> list[tuple[str, str]]:
    """The merges of a BPE in their order: a file has only their results, and scores."""
    normal = {piece: (-score, i) for i, (piece, score, kind) in enumerate(model.pieces) if kind == NORMAL}
    pairs = [
        (order, piece[:cut], piece[cut:])
        for piece, order in normal.items()
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]
    return [(left, right) for _, left, right in sorted(pairs, key=lambda pair: pair[0])]


def library_model(model: SentencePieces) -> Any:
    """The model of the `tokenizers` library with these pieces, which fall back to bytes."""
    from tokenizers import models

    if model.model == BPE:
        vocabulary = {piece: i for i, (piece, *_) in enumerate(model.pieces)}
        unknown = model.pieces[model.unknown][0]
        return models.BPE(vocabulary, merges(model), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    lowest = min(score for _, score, _ in model.pieces)
    scores = [(piece, score if kind == NORMAL else lowest - 100) for piece, score, kind in model.pieces]
    return models.Unigram(scores, unk_id=model.unknown, byte_fallback=True)


class Side:
    """One file: texts to the numbers of its pieces."""

    def __init__(self, model: SentencePieces, where: str):
        self.model = model
        processor, content = _package(where).SentencePieceProcessor, write_sentencepiece(model, where)
        self.processor = guarded(lambda: processor(model_proto=content), f"{where} is not a tokenizer, or is damaged")

    def encode(self, text: str) -> list[int]:
        """What looks like a control piece is text."""
        return guarded(lambda: self.processor.encode(text), "the text cannot be encoded")


class SentencePieceTokenizer(Tokenizer):
    """Texts to ids by a file of sentencepiece, normalised exactly as sentencepiece does.

    `ids` maps pieces to ids, where they are not the numbers of the pieces (Marian: `target` has its own file).
    `added` are tokens recognised in a text; `after` those put after one.
    """

    kind, joined, cuttable = "sentencepiece", True, False

    def __init__(
        self,
        source: SentencePieces,
        target: SentencePieces | None = None,
        ids: Mapping[str, int] | None = None,
        added: Mapping[str, int] | None = None,
        after: Sequence[int] = (),
        tokens: Mapping[str, Any] | None = None,
        where: str = "the tokenizer",
    ):
        self.sides = [Side(model, where) for model in (source, target) if model is not None]
        self.ids = None if ids is None else dict(ids)
        self.added, self.after = dict(added or {}), list(after)
        self.around = (), tuple(after)
        self._names = {i: piece for piece, i in (self.ids or {}).items()}
        if self.ids is None:
            self._names = {i: piece for i, (piece, *_) in enumerate(source.pieces)}
        self._names |= {i: piece for piece, i in self.added.items()}
        self.use_special(SpecialTokens.read(tokens or {}, self.vocab, where))
        words = sorted(self.added, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, words)) + ")") if words else None

    @property
    def vocab(self) -> int:
        return max(self._names) + 1

    def encode(self, text: str) -> np.ndarray:
        return self._encode(text, self.sides[0])

    def encode_target(self, text: str) -> np.ndarray:
        return self._encode(text, self.sides[-1])

    def encode_with_special(self, text: str, pair: str | None = None) -> list[int]:
        second = [] if pair is None else [*self.encode(pair).tolist(), *self.after]
        return [*self.encode(text).tolist(), *self.after, *second]

    def _encode(self, text: str, side: Side) -> np.ndarray:
        encoded: list[int] = []
        for part in self._split.split(utf8(text)) if self._split else [utf8(text)]:
            if part in self.added:
                encoded.append(self.added[part])
            elif self.ids is None:
                encoded += side.encode(part)
            else:
                encoded += self._by_name(part, side, self.ids)
        return np.asarray(encoded, np.int32)

    def _by_name(self, text: str, side: Side, ids: Mapping[str, int]) -> list[int]:
        """Marian's: the code of a language, then the pieces; one that the table does not have is unknown."""
        code = LANGUAGE.match(text)
        names = [code[0]] if code else []
        unknown = ids[side.model.pieces[side.model.unknown][0]]
        encoded = side.encode(text[code.end() :] if code else text)
        names += [side.model.pieces[i][0] for i in encoded]
        return [ids.get(name, unknown) for name in names]

    @cached_property
    def _hidden(self) -> set[int]:
        hidden = set(self.added.values()) | set(self.after) | set(self.ends)
        hidden |= {i for i in (self.pad, self.mask, self.begin) if i is not None}
        for side in self.sides:
            for i, (piece, _, kind) in enumerate(side.model.pieces):
                if kind not in (NORMAL, BYTE):
                    hidden.add(i if self.ids is None else self.ids.get(piece, -1))
        return hidden

    def hidden(self, i: int) -> bool:
        return int(i) in self._hidden

    def plain(self, ids: Sequence[int]) -> str:
        names = [self._names.get(int(i), "") for i in ids if not self.hidden(i)]
        text = "".join(names).replace(SPACE, " ")
        return text[1:] if self.ids is None and text.startswith(" ") else text

    def decode(self, ids: Sequence[int]) -> str:
        return self.tidy(self.plain(ids))

    def tidy(self, text: str) -> str:
        """Marian's texts have no space at either end."""
        return super().tidy(text.strip() if self.ids is not None else text)

    def certain(self, text: str) -> int:
        return super().certain(text.rstrip() if self.ids is not None else text)

    def id_of(self, token: str) -> int | None:
        return {piece: i for i, piece in self._names.items()}.get(token)

    def with_tokens(self, tokens: Mapping[str, Any], where: str) -> "SentencePieceTokenizer":
        """The same with other special tokens."""
        target = self.sides[1].model if len(self.sides) > 1 else None
        return SentencePieceTokenizer(self.sides[0].model, target, self.ids, self.added, self.after, tokens, where)

    def token(self, i: int) -> str:
        return self._names.get(int(i), "").replace(SPACE, " ")

    def to_json(self) -> str:
        sides = [
            {**vars(side.model), "charsmap": base64.b64encode(side.model.charsmap).decode()} for side in self.sides
        ]
        content: dict[str, Any] = {"kind": self.kind, "source": sides[0]}
        if len(sides) > 1:
            content["target"] = sides[1]
        if self.ids is not None:
            content["ids"] = self.ids
        return json.dumps(content | {"added": self.added, "after": self.after}, ensure_ascii=False)

    @staticmethod
    def read(content: Mapping[str, Any], where: str, tokens: Mapping[str, Any] | None) -> "SentencePieceTokenizer":
        """The tokenizer of its tokenizer.json."""
        try:
            source = _side(content["source"])
            target = _side(content["target"]) if "target" in content else None
            ids, added, after = content.get("ids"), content["added"], content["after"]
            for table in (ids or {}, added):
                _check_table(table, len(ids or source.pieces) + len(added))
            if "" in added or any(type(i) is not int or not 0 <= i < 2 * len(ids or source.pieces) for i in after):
                raise ValueError
            for side in (source, target):
                if side is not None and ids is not None and side.pieces[side.unknown][0] not in ids:
                    raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
            raise UserError(f"{where} is not a tokenizer, or is damaged") from None
        return SentencePieceTokenizer(source, target, ids, added, after, tokens, where)


def _check_table(table: Mapping[str, Any], count: int) -> None:
    values = list(table.values())
    if not all(type(i) is int and 0 <= i < 2 * count + 1_000 for i in values) or len(set(values)) < len(values):
        raise ValueError


def _side(content: Mapping[str, Any]) -> SentencePieces:
    pieces = [(str(piece), float(score), int(kind)) for piece, score, kind in content["pieces"]]
    charsmap = base64.b64decode(content["charsmap"], validate=True)
    if content["model"] not in (UNIGRAM, BPE) or len({piece for piece, *_ in pieces} - {""}) < len(pieces):
        raise ValueError
    kinds = [kind for *_, kind in pieces]
    if kinds.count(UNKNOWN) != 1 or not {NORMAL, UNKNOWN, CONTROL, BYTE}.issuperset(kinds):
        raise ValueError
    prefix, extra = bool(content["dummy_prefix"]), bool(content["remove_extra_spaces"])
    return SentencePieces(pieces, content["model"], charsmap, prefix, extra)
