"""A part of a sum, and parts as a table."""

from collections.abc import Sequence
from copy import copy
from html import escape

from .receipt import format_number

SHOWN = 12  # parts of a table
SHARES = "The percentages are of the sum of the absolute contributions."
Row = tuple[str, str, str, str]


class Part:
    """One term of a sum: `value` of it, by `label` and `kind`; `parts` is what it is made of.

    `share` is its size among those beside it, |value|/Σ|value|. `cell` is the address of a recorded number that shows
    it: of a head, a bias or an embedding the cell that adds most, of a token the weight of attention that read it.
    """

    def __init__(self, id: str, label: str, kind: str, value: float, cell: str | None):
        self.id, self.label, self.kind, self.value, self.cell = id, label, kind, value, cell
        self.share = 0.0

    @property
    def parts(self) -> "list[Part]":
        """What it is made of, largest first; nothing if it divides no further."""
        return []

    @property
    def count(self) -> int:
        """How many parts it has at most, without working them out; 0 if it divides no further."""
        return 0

    def largest(self, count: int = SHOWN) -> "list[Part]":
        return self.parts[:count]

    def __repr__(self) -> str:
        return "\n".join([f"{self.label}: {format_number(self.value, 4)}", *lines(self.parts)])

    def _repr_html_(self) -> str:
        return html_table(f"{self.label}: {format_number(self.value, 4)}", self.parts)


class BlockPart(Part):
    """All that one block added itself."""

    def __init__(self, id: str, label: str, members: list[Part]):
        first = max(members, key=lambda one: abs(one.value))
        super().__init__(id, label, "block", sum(one.value for one in members), first.cell)
        self.members = shared([copy(one) for one in members])

    @property
    def parts(self) -> list[Part]:
        return self.members

    @property
    def count(self) -> int:
        return len(self.members)


def shared(parts: Sequence[Part]) -> list[Part]:
    """Largest first, each with its share."""
    size = sum(abs(one.value) for one in parts) or 1.0
    for one in parts:
        one.share = abs(one.value) / size
    return sorted(parts, key=lambda one: -abs(one.value))


def rows(parts: Sequence[Part], count: int = SHOWN, digits: int = 4) -> list[Row]:
    """Value, share, label and cell of the largest parts, and of the others together."""
    found = [(format_number(one.value, digits), f"{one.share:.1%}", one.label, one.cell or "") for one in parts[:count]]
    rest = parts[count:]
    if rest:
        total, share = sum(one.value for one in rest), sum(one.share for one in rest)
        found.append((format_number(total, digits), f"{share:.1%}", f"{len(rest)} more, together", ""))
    return found


def lines(parts: Sequence[Part]) -> list[str]:
    found = rows(parts)
    widths = [max((len(row[i]) for row in found), default=0) for i in range(3)]
    table = [f"{a:>{widths[0]}}  {b:>{widths[1]}}  {c:{widths[2]}}  {d}".rstrip() for a, b, c, d in found]
    return [*table, SHARES] if table else []


def html_table(title: str, parts: Sequence[Part]) -> str:
    lines = ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows(parts, len(parts)))
    return f"<p>{escape(title)}</p><table>{''.join(lines)}</table><p>{SHARES if parts else ''}</p>"
