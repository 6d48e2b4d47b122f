"""Addresses of cells: a tensor's name, and along each axis an index, a range or the label of a token.

blocks.0.attn.pattern[0, 2, :, 3]      indices count from 0, as in Python
logits[0,cat,seven]                    labels, where the axis has them
logits[0,a#2,"3"]                      the second "a"; a label that is a number, or has a comma, in quotes
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..config import UserError, nearest

LISTED = 12  # labels named in a refusal
EXAMPLE = "such as blocks.0.attn.scores[0,1,2,3]"
NUMBER = re.compile(r"[-+]?\d+")
RANGE = re.compile(r"[-+]?\d*(\s*:\s*[-+]?\d*){1,2}")
# what stands between commas: a label in quotes and what follows it, or anything else
PART = re.compile(r"""\s*(?:(?P<mark>["'])(?P<rest>(?:\\.|(?!(?P=mark))[^\\])*(?P=mark))?)?[^,]*""", re.DOTALL)
MARKED = re.compile(r"(.+)#(\d+)", re.DOTALL)


@dataclass(frozen=True)
class Label:
    """The label of a token as it was written; `occurrence` counts equal labels from 1."""

    text: str
    quoted: bool = False
    occurrence: int | None = None

    def __str__(self) -> str:
        text = quoted(self.text) if self.quoted else self.text
        return text if self.occurrence is None else f"{text}#{self.occurrence}"


Part = int | slice | Label


def parse(where: str) -> tuple[str, tuple[Part, ...]]:
    """A name, and an index, a range or a label for each axis given."""
    match = re.fullmatch(r"([^\[\]]+?)\s*(?:\[(.*)\])?", where.strip(), re.DOTALL)
    if not match:
        raise UserError(f"{where!r} is not a name with an index, {EXAMPLE}")
    name, inside = match[1], match[2]
    if inside is None or not inside.strip():
        return name, ()
    return name, tuple(_part(text, where) for text in _split(inside, where))


def _split(inside: str, where: str) -> list[str]:
    """The parts between commas; a comma in quotes is none of these."""
    parts, end = [], -1
    while end < len(inside):
        part = PART.match(inside, end + 1)
        assert part, "every text has a part, if an empty one"
        if part["mark"] and part["rest"] is None:
            text = inside[end + 1 :].strip()
            raise UserError(
                f"the quote {part['mark']} is not closed in {where}; a label that begins with it is {quoted(text)}"
            )
        parts.append(part[0])
        end = part.end()
    return parts


def _part(text: str, where: str) -> Part:
    text = text.strip()
    if not text:
        raise UserError(f"an index is missing in {where}")
    if NUMBER.fullmatch(text):
        return int(text)
    if RANGE.fullmatch(text):
        return slice(*(int(bit) if bit.strip() else None for bit in text.split(":")))
    if text[0] in "\"'":
        match = re.fullmatch(r"(['\"])((?:\\.|(?!\1)[^\\])*)\1\s*(?:#(\d+))?", text, re.DOTALL)
        if not match:
            raise UserError(f"{text} in {where} is not a label in quotes, such as {quoted('the cat')}")
        return Label(re.sub(r"\\(.)", r"\1", match[2], flags=re.DOTALL), True, int(match[3]) if match[3] else None)
    return Label(text)


def address(name: str, index: Sequence[int | slice]) -> str:
    """The address of a cell, or of a part, by its index."""
    return f"{name}[{','.join(map(written_index, index))}]" if len(index) else name


def written_index(index: Any) -> str:
    """An index or a range along one axis, as it is written."""
    if not isinstance(index, slice):
        return str(index)
    ends = ["" if end is None else str(end) for end in (index.start, index.stop, index.step)]
    return ":".join(ends[: 3 if ends[2] else 2])


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def written(labels: Sequence[str], index: int) -> str:
    """The label of an index as an address has it: in quotes where needed, numbered where it occurs more than once."""
    text = labels[index]
    plain = text and text == text.strip() and text[0] not in "\"'" and not set(",[]\\") & set(text)
    plain = plain and not any(form.fullmatch(text) for form in (NUMBER, RANGE, MARKED))
    return (text if plain else quoted(text)) + occurrence(labels, index)


def occurrence(labels: Sequence[str], index: int) -> str:
    """Which of several equal labels this is: "#2"; nothing for one that is alone."""
    same = [i for i, label in enumerate(labels) if label == labels[index]]
    return f"#{same.index(index) + 1}" if len(same) > 1 else ""


def located(label: Label, labels: Sequence[str], axis: str) -> int:
    """The index of a label along an axis."""
    text, count = label.text, label.occurrence
    if not label.quoted and (match := MARKED.fullmatch(text)) and match[1] in labels:
        if text in labels:
            raise UserError(f"{text} is a label and the number of one: write {quoted(text)} or {quoted(match[1])}#…")
        text, count = match[1], int(match[2])
    matches = _matching(text, labels)
    if not matches:
        raise UserError(f"no label along {axis} is {text}; {_listed(text, labels)}")
    names = [written(labels, i) for i in matches]
    if count is None and len(matches) > 1:
        shown = ", ".join(names[:LISTED]) + (" …" if len(names) > LISTED else "")
        raise UserError(f"{text} occurs {len(matches)} times along {axis}: write {shown}")
    if count is not None and not 1 <= count <= len(matches):
        times = "once" if len(matches) == 1 else f"{len(matches)} times"
        raise UserError(f"{text} occurs only {times} along {axis}, so there is no {label}")
    return matches[0 if count is None else count - 1]


def _matching(text: str, labels: Sequence[str]) -> list[int]:
    """Where a label is: as it stands, with a space for its visible sign, or without the sign it begins with."""
    for alike in (
        lambda label: label == text,
        lambda label: label == text.replace(" ", "␣").replace("\n", "⏎"),
        lambda label: label.removeprefix("␣") == text,
    ):
        if places := [i for i, label in enumerate(labels) if alike(label)]:
            return places
    if match := re.fullmatch(r"(\D+) (\d+)", text):  # of patches on a grid, the one at this place in reading order
        grid = [i for i, label in enumerate(labels) if re.fullmatch(rf"{re.escape(match[1])} \d+(,\d+)+", label)]
        return grid[int(match[2]) - 1 : int(match[2])] if match[2] != "0" else []
    return []


def _listed(text: str, labels: Sequence[str]) -> str:
    """The nearest label, if any is near, and the first of all of them."""
    names = [written(labels, i) for i in range(len(labels))]
    near = nearest(text, names)
    listed = ", ".join(names[:LISTED]) + (f" … ({len(names)} in all)" if len(names) > LISTED else "")
    return f"{near} The labels are {listed}" if near.startswith("did you mean") else f"the labels are {listed}"
