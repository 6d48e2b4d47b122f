"""A tokenizer of sentencepiece files: one file, or Marian's two with one table of ids."""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...config import UserError
from .library import guarded, utf8
from .sentencepiece_files import (
    BPE,
    BYTE,
    NORMAL,
    SPACE,
    CharacterMap,
    Normalizer,
    SentencePieces,
)
from .special_tokens import SpecialTokens, WithoutSpecialTokens

KIND = "sentencepiece"
LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)  # the code of a target language, at the beginning of a source
FIELDS = ("pieces", "model", "charsmap", "dummy_prefix", "remove_extra_spaces")


def merges(found: SentencePieces) -> list[tuple[str, str]]:
    """The merges of a BPE in their order: a file has only their results, and scores."""
    normal = {piece: (-score, i) for i, (piece, score, kind) in enumerate(found.pieces) if kind == NORMAL}
    pairs = [
        (order, piece[:cut], piece[cut:])
        for piece, order in normal.items()
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]
    return [(left, right) for _, left, right in sorted(pairs, key=lambda one: one[0])]


def make_model(found: SentencePieces) -> Any:
    """The library's model of these pieces."""
    from tokenizers import models

    if found.model == BPE:
        vocabulary = {piece: i for i, (piece, *_) in enumerate(found.pieces)}
        unknown, fallback = found.pieces[found.unknown][0], bool(found.named(BYTE))
        return models.BPE(vocabulary, merges(found), unk_token=unknown, fuse_unk=True, byte_fallback=fallback)
    lowest = min(score for _, score, _ in found.pieces)
    scores = [(piece, score if kind == NORMAL else lowest - 100) for piece, score, kind in found.pieces]
    return models.Unigram(scores, unk_id=found.unknown, byte_fallback=bool(found.named(BYTE)))


class Side:
    """One file: texts to the numbers of its pieces."""

    def __init__(self, found: SentencePieces):
        from tokenizers import Tokenizer as Inner

        self.found, self.normalize = found, Normalizer(found)
        self.inner = guarded(lambda: Inner(make_model(found)), "a sentencepiece model cannot be used")

    def encode(self, text: str) -> list[int]:
        """As sentencepiece itself does; what looks like a control piece is text."""
        normal = self.normalize(text)
        if not normal:
            return []
        return guarded(lambda: self.inner.encode(normal, add_special_tokens=False).ids, "the text cannot be encoded")


class SentencePieceTokenizer(WithoutSpecialTokens):
    """Texts to ids by a file of sentencepiece, normalised exactly as sentencepiece does.

    `ids` maps pieces to ids, where they are not the numbers of the pieces (Marian: `target` has its own file).
    `added` are tokens recognised in a text; `after` those put after one.
    """

    kind, joined, cuttable = KIND, True, False

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
        self.sides = [Side(one) for one in (source, target) if one is not None]
        self.ids = None if ids is None else dict(ids)
        self.added, self.after = dict(added or {}), list(after)
        self.around = (), tuple(after)
        self._names = {i: piece for piece, i in (self.ids or {}).items()}
        if self.ids is None:
            self._names = {i: piece for i, (piece, *_) in enumerate(source.pieces)}
        self._names |= {i: piece for piece, i in self.added.items()}
        self.vocab = max(self._names) + 1
        self.special = SpecialTokens.read(tokens or {}, self.vocab, where)
        self.begin, self.mask, self.pad = self.special.begin, self.special.mask, self.special.pad
        self.start, self.never = self.special.start, self.special.never
        self.end = self.special.end[0] if self.special.end else None
        words = sorted(self.added, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, words)) + ")") if words else None

    @property
    def ends(self) -> tuple[int, ...]:
        return self.special.end

    @property
    def byte_lengths(self) -> np.ndarray | None:
        return None

    def encode(self, text: str) -> np.ndarray:
        return self._encode(text, self.sides[0])

    def encode_target(self, text: str) -> np.ndarray:
        return self._encode(text, self.sides[-1])

    def encode_with_special(self, text: str, pair: str | None = None) -> list[int]:
        second = [] if pair is None else [*self.encode(pair).tolist(), *self.after]
        return [*self.encode(text).tolist(), *self.after, *second]

    def _encode(self, text: str, side: Side) -> np.ndarray:
        found: list[int] = []
        for part in self._split.split(utf8(text)) if self._split else [utf8(text)]:
            if part in self.added:
                found.append(self.added[part])
            elif self.ids is None:
                found += side.encode(part)
            else:
                found += self._by_name(part, side, self.ids)
        return np.asarray(found, np.int32)

    def _by_name(self, text: str, side: Side, ids: Mapping[str, int]) -> list[int]:
        """Marian's: the code of a language, then the pieces; one that the table does not have is unknown."""
        code = LANGUAGE.match(text)
        names = [code[0]] if code else []
        unknown = ids[side.found.pieces[side.found.unknown][0]]
        encoded = side.encode(text[code.end() :] if code else text)
        names += [side.found.pieces[i][0] for i in encoded]
        return [ids.get(name, unknown) for name in names]

    @cached_property
    def _hidden(self) -> set[int]:
        hidden = set(self.added.values()) | set(self.after) | set(self.ends)
        hidden |= {i for i in (self.pad, self.mask, self.begin) if i is not None}
        for side in self.sides:
            for i, (piece, _, kind) in enumerate(side.found.pieces):
                if kind not in (NORMAL, BYTE):
                    hidden.add(i if self.ids is None else self.ids.get(piece, -1))
        return hidden

    def hidden(self, i: int) -> bool:
        return int(i) in self._hidden

    def pending(self, i: int) -> bool:
        return False

    def plain(self, ids: Sequence[int]) -> str:
        names = [self._names.get(int(i), "") for i in ids if not self.hidden(i)]
        text = "".join(names).replace(SPACE, " ")
        return text[1:] if self.ids is None and text.startswith(" ") else text

    def decode(self, ids: Sequence[int]) -> str:
        return self.tidy(self.plain(ids))

    def tidy(self, text: str) -> str:
        """Marian's texts have no space at either end."""
        return self.special.tidy(text.strip() if self.ids is not None else text)

    def certain(self, text: str) -> int:
        return self.special.certain(text.rstrip() if self.ids is not None else text)

    def id_of(self, token: str) -> int | None:
        found = {piece: i for i, piece in self._names.items()}
        return found.get(token)

    def with_tokens(self, tokens: Mapping[str, Any], where: str) -> "SentencePieceTokenizer":
        """The same with other special tokens."""
        target = self.sides[1].found if len(self.sides) > 1 else None
        return SentencePieceTokenizer(self.sides[0].found, target, self.ids, self.added, self.after, tokens, where)

    def token(self, i: int) -> str:
        return self._names.get(int(i), "").replace(SPACE, " ")

    def to_json(self) -> str:
        sides = [
            {**vars(side.found), "charsmap": base64.b64encode(side.found.charsmap).decode()} for side in self.sides
        ]
        content: dict[str, Any] = {"kind": KIND, "source": sides[0]}
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
    if charsmap:
        CharacterMap(charsmap)
    if content["model"] not in (1, 2) or len({piece for piece, *_ in pieces} - {""}) < len(pieces):
        raise ValueError
    if [kind for *_, kind in pieces].count(2) != 1 or any(kind not in (1, 2, 3, 6) for *_, kind in pieces):
        raise ValueError
    prefix, extra = bool(content["dummy_prefix"]), bool(content["remove_extra_spaces"])
    return SentencePieces(pieces, content["model"], charsmap, prefix, extra)
