"""The contributions in a file without a server: what is open on screen, what the page opens, then the largest."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import UserError
from ..tracing.contributions import Contributions
from .contributed import contributed

SHOWN = 12  # output numbers whose contributions are in the file, and parts of each that are divided
WAYS = 3  # largest tokens or patches of a head that lead on to the input
DIVIDED = 48  # parts that are divided further, besides these
Step = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Asked:
    """What is on screen in Why: a cell, what it is compared with, and the parts that are divided."""

    cell: str = ""
    against: str | None = None
    open: Sequence[str] = ()


@dataclass(frozen=True)
class Whole:
    """One output number, or its difference from another, with its contributions."""

    cell: str
    against: str | None
    found: Contributions

    def key(self, part: Any = None) -> str:
        """As the page asks for it (web/src/lib/file.ts)."""
        return f"{self.cell}|{self.against or ''}|{part.id if part else ''}"

    def data(self, part: Any = None) -> dict[str, Any]:
        return contributed(self.found, self.cell, self.against, part)


def prepared(
    subject: Any, key: str, answer: dict[str, Any], start: str, asked: Asked, room: int, step: Step
) -> tuple[dict[str, Any], list[str]]:
    """Contributions by the key that the page asks for, as many as fit; and sentences: what is not there."""
    cells = [one["cell"] for one in answer.get("tokens") or answer.get("classes") or ()] or [start]
    held: dict[str, Any] = {}
    for name, make in _ordered(subject, key, cells, asked, step):
        if name in held:
            continue
        data = make()
        room -= len(json.dumps(data))
        if room < 0:
            break
        held[name] = data
    return held, _lacking(held, cells)


def _lacking(held: dict[str, Any], cells: Sequence[str]) -> list[str]:
    found = []
    if absent := sum(f"{cell}||" not in held for cell in cells):
        found.append(f"Why: the contributions to {absent} of {len(cells)} numbers of the answer.")
    inside = [
        f"{name.rpartition('|')[0]}|{part['id']}"
        for name, one in held.items()
        for part in one["parts"]
        if part["parts"]
    ]
    if absent := sum(name not in held for name in inside):
        found.append(f"Why: what {absent} of the {len(inside)} parts that divide are made of; the largest ones divide.")
    if len(cells) > 1:
        found.append("Why: contributions to other differences between two numbers than the one that was on screen.")
    return found


def _ordered(
    subject: Any, key: str, cells: Sequence[str], asked: Asked, step: Step
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """What may be in the file, what matters most first."""
    wanted = dict.fromkeys([(asked.cell, asked.against)] if asked.cell else [])
    wanted |= dict.fromkeys((cell, None) for cell in cells[:SHOWN])
    done, total = 0, (2 + 2 * WAYS) * len(wanted) + len(asked.open) + DIVIDED
    wholes: list[Whole] = []
    for cell, against in wanted:
        step(done, total, f"contributions to {cell}")
        done += 1
        try:
            one = Whole(cell, against, subject.contributed(key, cell, against))
        except UserError:
            continue
        wholes.append(one)
        yield one.key(), one.data
        begun = _unfolded(_opened_first(one.found))
        if (cell, against) == (asked.cell, asked.against):
            begun += _chosen(one.found, asked.open)
        for part in begun:
            step(done, total, f"the parts of {part.label}")
            done += 1
            yield one.key(part), lambda one=one, part=part: one.data(part)
    for one, part in (*_ways(wholes), *_largest(wholes)):
        step(min(done, total), total, f"the parts of {part.label}")
        done += 1
        yield one.key(part), lambda one=one, part=part: one.data(part)


def _chosen(found: Contributions, ids: Sequence[str]) -> list[Any]:
    """The parts that are divided on screen."""
    parts = []
    for id in ids:
        try:
            parts.append(found.part(id))
        except UserError:
            continue  # of another number
    return parts


def _opened_first(found: Contributions) -> Any:
    """The head that the page divides by itself: the largest."""
    return max((p for p in found.parts if p.kind == "head" and p.count), key=lambda p: abs(p.value), default=None)


def _unfolded(part: Any) -> list[Any]:
    """A part, and what the page divides with it: of a token or a patch also its embedding."""
    if part is None:
        return []
    inner = next((p for p in part.parts if p.kind == "embedding" and p.count), None) if _placed(part) else None
    return [part, *_unfolded(inner)]


def _placed(part: Any) -> bool:
    return part.kind in ("token", "patch")


def _ways(wholes: Sequence[Whole]) -> Iterator[tuple[Whole, Any]]:
    """From the first head of each number to its largest tokens or patches, and from these to the input."""
    for i in range(WAYS):
        for one in wholes:
            head = _opened_first(one.found)
            inside = sorted((p for p in head.parts if p.count), key=lambda p: -abs(p.value)) if head else []
            for part in inside[i : i + 1]:
                yield from ((one, p) for p in _unfolded(part))


def _largest(wholes: Sequence[Whole]) -> Iterator[tuple[Whole, Any]]:
    """The other parts, level by level, the largest first."""
    levels = [(one, part) for one in wholes for part in one.found.parts[:SHOWN] if part.count]
    levels.sort(key=lambda pair: -abs(pair[1].value))
    left = DIVIDED
    while levels and left > 0:
        levels, left = levels[:left], left - len(levels)
        yield from levels
        levels = [(one, inner) for one, part in levels for inner in part.parts[:2] if inner.count]
