"""The sizes in a walk's sentences: {N} is the size of an axis of the tensors on screen, never a number written down.

`[sizes]` of a walk names them, as in N = "patches.flat:N": an axis by its letter or its index, from the first of the
tensors, separated by |, that the trace has. In a text {N} is the number, {N patch} "four patches", {F/D times} "twice",
{@name[index]} the number of a cell, and {seen name} how many
weights of a pattern no mask hides.
"""

import re
from collections.abc import Mapping

import numpy as np

from ...tracing.receipt import format_number
from ...tracing.trace_base import TraceBase
from .tables import masked

WORDS = "no one two three four five six seven eight nine ten eleven twelve".split()
PLACE = re.compile(r"\{([^{}]+)\}")
SENTENCES = re.compile(r"(?<=[.?!])(\s+)")


class Unresolved(Exception):
    """A size of something that the trace does not have."""


def present(trace: TraceBase, where: str) -> str | None:
    """The first of the names, separated by |, that a trace has; its encoder's where the trace has no other."""
    for one in (word.strip() for word in where.split("|")):
        for tried in (one, f"encoder.{one}"):
            if re.sub(r"[\[:].*", "", tried) in trace:
                return tried
    return None


def filled(text: str, sizes: Mapping[str, str], trace: TraceBase | None, leave_out: bool = False) -> str:
    """A text with its sizes; with `leave_out`, without the sentences that speak of what the trace does not have."""
    made = ""
    between = ""
    parts = SENTENCES.split(text)
    for sentence, after in zip(parts[::2], [*parts[1::2], ""], strict=True):
        try:
            made += between + PLACE.sub(lambda match: _written(match, sizes, trace), sentence)
            between = after
        except Unresolved:
            if not leave_out:
                raise
            between = max(between, after, key=lambda space: "\n" in space) if made else ""
    return made


def _written(match: re.Match[str], sizes: Mapping[str, str], trace: TraceBase | None) -> str:
    place = match[1].strip()
    if trace is None:
        raise Unresolved(f"{{{place}}} has no tensor to be the size of: the section names no example")
    if place.startswith("@"):
        where = present(trace, place[1:])
        if where is None:
            raise Unresolved(f"{{{place}}}: the trace has no tensor {place[1:]}")
        value = np.asarray(trace[where].value)
        if value.ndim:
            raise Unresolved(f"{{{place}}} names {value.size} numbers; give the index of one")
        return format_number(float(value))
    if place.startswith("seen "):
        if (where := present(trace, place[5:])) is None:
            raise Unresolved(f"{{{place}}}: the trace has no tensor {place[5:]}")
        return _number((~masked(trace, where)).sum())
    names, _, noun = place.partition(" ")
    size = _size(names, sizes, trace)
    text = _counted(size, noun) if noun else _number(size)
    begins = match.start() == 0
    return text[:1].upper() + text[1:] if begins else text


def _size(names: str, sizes: Mapping[str, str], trace: TraceBase) -> float:
    """The size of a name, or the ratio of two."""
    values = []
    for name in names.split("/"):
        if name not in sizes:
            raise Unresolved(f"{{{names}}}: {name} is not under [sizes]; known: {', '.join(sizes) or 'none'}")
        where = present(trace, sizes[name])
        if where is None:
            raise Unresolved(f"{{{names}}}: the trace has no tensor of {sizes[name]}")
        tensor, _, axis = where.partition(":")
        node = trace[tensor].node
        letters = node.axes.split()
        if axis not in letters and not re.fullmatch(r"-?\d+", axis):
            raise Unresolved(f"{{{names}}}: {tensor} has no axis {axis}; it has {' '.join(letters) or 'no letters'}")
        index = letters.index(axis) if axis in letters else int(axis)
        if not -len(node.shape) <= index < len(node.shape):
            raise Unresolved(f"{{{names}}}: {tensor} has {len(node.shape)} axes, and {axis} is none of them")
        values.append(node.shape[index])
    return values[0] / values[1] if len(values) > 1 else values[0]


def _number(size: float) -> str:
    """A size, or a ratio to three digits."""
    return f"{int(size):,}" if size == int(size) else f"{size:.3g}"


def _counted(size: float, noun: str) -> str:
    """A number of things: one patch, two patches, 35 patches; once, twice, three times."""
    number = WORDS[int(size)] if size == int(size) and size < len(WORDS) else _number(size)
    if noun == "times":
        return "once" if size == 1 else "twice" if size == 2 else f"{number} times"
    if size == 1:
        return f"{number} {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"
