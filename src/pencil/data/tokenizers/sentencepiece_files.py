"""Model files of sentencepiece: their few fields read without its library, and its normalisation of text."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...config import UserError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2
SPACE = "▁"
MOST_PIECES = 1_000_000


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

    def named(self, kind: int) -> dict[str, int]:
        return {piece: i for i, (piece, _, found) in enumerate(self.pieces) if found == kind}


def read_sentencepiece(content: bytes, where: str) -> SentencePieces:
    """The content of a .model or .spm file; what it asks for that is not supported is refused by name."""
    try:
        return _read(content)
    except UnicodeDecodeError:
        raise UserError(f"{where} is not a sentencepiece model, or is damaged: a piece is not UTF-8") from None
    except ValueError as error:
        raise UserError(f"{where} is not a sentencepiece model that can be used: {error}") from None


def _read(content: bytes) -> SentencePieces:
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(content):
        if number == 1:
            piece = dict(_fields(_bytes(value)))
            score = struct.unpack("<f", _bytes(piece.get(2, b"\0\0\0\0")))[0]
            pieces.append((_bytes(piece.get(1, b"")).decode(), score, int(piece.get(3, NORMAL))))
        elif number == 2:
            trainer = dict(_fields(_bytes(value)))
        elif number == 3:
            normalizer = dict(_fields(_bytes(value)))
        elif number == 5 and dict(_fields(_bytes(value))).get(2):
            raise ValueError("it rewrites decoded text (denormalizer_spec)")
        if len(pieces) > MOST_PIECES:
            raise ValueError(f"it has more than {MOST_PIECES:,} pieces")
    kinds = [kind for _, _, kind in pieces]
    for kind, name in ((USER_DEFINED, "user-defined symbols"), (UNUSED, "unused pieces")):
        if kind in kinds:
            raise ValueError(f"it has {name}, such as {pieces[kinds.index(kind)][0][:40]!r}")
    if kinds.count(UNKNOWN) != 1:
        raise ValueError("it has no piece for unknown text, or several")
    if len({piece for piece, *_ in pieces}) < len(pieces) or any(not piece for piece, *_ in pieces):
        raise ValueError("two of its pieces are the same, or one is empty")
    model = int(trainer.get(3, UNIGRAM))
    if model not in (UNIGRAM, BPE):
        raise ValueError("it is a model of words or characters, not Unigram or BPE")
    if trainer.get(24):
        raise ValueError("it marks the end of a word, not its beginning (treat_whitespace_as_suffix)")
    if not normalizer.get(5, 1):
        raise ValueError("it does not mark spaces (escape_whitespaces)")
    charsmap = _bytes(normalizer.get(2, b""))
    if charsmap:
        CharacterMap(charsmap)  # refused here, if damaged
    return SentencePieces(pieces, model, charsmap, bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1)))


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a field has another type than it should")
    return value


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: their numbers, and whole numbers or bytes."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(content, at)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(wire)
        if wire == 2:
            size, at = _varint(content, at)
        if size is None or not number:
            raise ValueError("it is damaged, or another kind of file")
        if at + size > len(content):
            raise ValueError("it is cut short")
        yield number, content[at : at + size]
        at += size


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            raise ValueError("it is cut short")
        value |= (content[at] & 127) << shift
        at += 1
        if content[at - 1] < 128:
            return value, at
    raise ValueError("it is damaged, or another kind of file")


class CharacterMap:
    """The map of characters to others (NFKC and the like): a trie in two arrays, and the replacements."""

    def __init__(self, content: bytes):
        size = int.from_bytes(content[:4], "little")
        if len(content) < 8 or not size or size % 4 or 4 + size > len(content):
            raise ValueError("its normalisation is damaged")
        self.units = struct.unpack(f"<{size // 4}I", content[4 : 4 + size])
        self.texts = content[4 + size :]
        self.root = self._step(0, self.units[0])
        self._known: dict[tuple[int, str], tuple[int, str | None]] = {}

    @staticmethod
    def _step(node: int, unit: int) -> int:
        return node ^ ((unit >> 10) << ((unit & 512) >> 6))

    def _follow(self, node: int, character: str) -> tuple[int, str | None]:
        """The node after a character (−1: there is none), and the replacement that ends there."""
        found = self._known.get((node, character))
        if found is None:
            found = self._known[node, character] = self._search(node, character)
        return found

    def _search(self, node: int, character: str) -> tuple[int, str | None]:
        unit = 0
        for byte in character.encode():
            node ^= byte
            if node >= len(self.units):
                return -1, None
            unit = self.units[node]
            if unit & 0x800000FF != byte:
                return -1, None
            node = self._step(node, unit)
        if not unit >> 8 & 1 or node >= len(self.units):
            return node, None
        begin = self.units[node] & 0x7FFFFFFF
        end = self.texts.find(b"\0", begin)
        return node, self.texts[begin:end].decode(errors="replace") if end >= 0 else None

    def replaced(self, text: str) -> Iterator[str]:
        """Each part of the text by its replacement: the longest part that has one, else one character."""
        at = 0
        while at < len(text):
            node, length, found = self.root, 0, text[at]
            for i in range(at, len(text)):
                node, replacement = self._follow(node, text[i])
                if replacement is not None:
                    length, found = i + 1 - at, replacement
                if node < 0:
                    break
            yield found
            at += max(1, length)


class Normalizer:
    """A text as sentencepiece prepares it: characters replaced, spaces joined and marked, one put before it."""

    def __init__(self, pieces: SentencePieces):
        self.pieces = pieces
        self.map = CharacterMap(pieces.charsmap) if pieces.charsmap else None

    def __call__(self, text: str) -> str:
        parts = self.map.replaced(text) if self.map else text
        if not self.pieces.remove_extra_spaces:
            found = "".join(parts)
        else:
            kept: list[str] = []
            spaced = True  # spaces at the beginning are removed
            for part in parts:
                part = part.lstrip(" ") if spaced else part
                if part:
                    kept.append(part)
                    spaced = part.endswith(" ")
            found = "".join(kept).rstrip(" ")
        if not found:
            return ""
        return (SPACE if self.pieces.dummy_prefix else "") + found.replace(" ", SPACE)


def write_sentencepiece(found: SentencePieces) -> bytes:
    """The content of a model file with these pieces."""
    content = b"".join(
        _field(1, _field(1, piece.encode()) + b"\x15" + struct.pack("<f", score) + _field(3, kind))
        for piece, score, kind in found.pieces
    )
    trainer = _field(3, found.model) + _field(35, int(bool(found.named(BYTE)))) + _field(40, found.unknown)
    for number, name in ((41, "<s>"), (42, "</s>"), (43, "<pad>")):
        # −1 is none
        trainer += _field(number, found.named(CONTROL).get(name, (1 << 64) - 1))
    trainer += _field(45, found.pieces[found.unknown][0].encode())
    normalizer = _field(1, b"pencil") + _field(2, found.charsmap) + _field(3, int(found.dummy_prefix))
    normalizer += _field(4, int(found.remove_extra_spaces)) + _field(5, 1)
    return content + _field(2, trainer) + _field(3, normalizer)


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _number(number << 3) + _number(value)
    return _number(number << 3 | 2) + _number(len(value)) + value


def _number(value: int) -> bytes:
    written = b""
    while value > 127:
        written += bytes([value & 127 | 128])
        value >>= 7
    return written + bytes([value])
