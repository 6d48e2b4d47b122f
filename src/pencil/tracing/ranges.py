"""Lists of cells as ranges: cut wherever they stop running along a row or down a column."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .graph import Array

# A formula's text and how tightly it binds (3 a call or a cell, 2 a power, 1 a product, 0 a sum, −1 a sign),
# or a number known when the workbook is written.
Part = tuple[str, int] | float
RIGHT, DOWN = 1, 2


class Kept:
    """The part of a tensor that is shown: along each axis the indices of its rows and columns."""

    def __init__(self, whole: tuple[int, ...], mask: Array | None = None):
        self.whole, self.full = whole, mask is None or bool(mask.all())
        if self.full:
            self.indices = [np.arange(size) for size in whole]
        else:
            self.indices = used(np.asarray(mask).reshape(whole))
        self.shape = tuple(len(one) for one in self.indices)
        self.size = int(np.prod(self.shape))

    @property
    def flat(self) -> Array:
        """The places of its cells among those of the whole tensor."""
        if self.full:
            return np.arange(self.size)
        return np.ravel_multi_index(np.ix_(*self.indices), self.whole).reshape(-1)

    def position(self, flat: Array) -> Array:
        """Where cells of the whole tensor are in this part."""
        if self.full:
            return flat
        index = np.unravel_index(flat, self.whole)
        inside = [np.searchsorted(mine, one) for mine, one in zip(self.indices, index, strict=True)]
        return np.ravel_multi_index(inside, self.shape)

    def __str__(self) -> str:
        """The part as an address writes it; … where indices are no range."""
        if self.full:
            return ""
        words = [_range(mine, size) for mine, size in zip(self.indices, self.whole, strict=True)]
        last = max(axis for axis, size in enumerate(self.whole) if self.shape[axis] < size)
        return f"[{','.join(words[: last + 1])}]"


def _range(indices: Array, size: int) -> str:
    first, last = int(indices[0]), int(indices[-1])
    if len(indices) == 1:
        return str(first)
    if len(indices) == size:
        return ":"
    return f"{first}:{last + 1}" if last - first == len(indices) - 1 else "…"


def used(mask: Array) -> list[Array]:
    """Along each axis the indices at which anything is set."""
    axes = range(mask.ndim)
    return [np.flatnonzero(mask.any(tuple(other for other in axes if other != axis))) for axis in axes]


@dataclass(frozen=True)
class Block:
    """The place of a tensor, or of a part of one, in a workbook: its first cell, and what of it is there."""

    sheet: str
    row: int
    column: int
    kept: Kept

    @property
    def width(self) -> int:
        return self.kept.shape[-1] if self.kept.shape else 1

    @property
    def last(self) -> tuple[int, int]:
        """Its last row and column."""
        return self.row + self.kept.size // self.width - 1, self.column + self.width - 1

    def at(self, flat: Array) -> tuple[Array, Array]:
        """The rows and columns of cells, given by their places in the whole tensor."""
        where = self.kept.position(flat)
        return self.row + where // self.width, self.column + where % self.width


class Line:
    """The cells of a list, for many cells at once: where each is, or what is written in its place."""

    def __init__(self, block: Array, row: Array, column: Array, other: Mapping[tuple[int, int], Part]):
        self.block, self.row, self.column, self.other = block, row, column, other
        same = (np.diff(block) == 0) & (block[:, 1:] >= 0)
        down, right = np.diff(row), np.diff(column)
        # the direction from each cell to the next; 0 where that is elsewhere
        across, along = (down == 0) & (right == 1), (down == 1) & (right == 0)
        self.directions: list[list[int]] = (same * (RIGHT * across + DOWN * along)).tolist()


@dataclass(frozen=True)
class Piece:
    """A part of a list that is one range of every line: `length` terms from `start`, in `rows` rows."""

    start: int
    length: int
    directions: tuple[int, ...]
    rows: int = 1


ONE = Piece(0, 1, ())


def cut(lines: Sequence[Line], i: int, whole: bool, product: bool) -> list[Piece]:
    """The list of cell i in pieces, single terms unless `whole`: each is one range of every line.

    All its ranges run in one direction, but for a product of two lines: a row times a column is one of matrices.
    """
    count = max((len(line.block[i]) for line in lines), default=1)
    if whole and count > 1:
        # the usual case at once: every line is one range
        ways = [line.directions[i] for line in lines]
        first = tuple(way[0] for way in ways)
        straight = all(way.count(way[0]) == len(way) == count - 1 for way in ways)
        if straight and all(first) and (len(set(first)) == 1 or product):
            return [Piece(0, count, first)]
    steps = list(zip(*[line.directions[i] for line in lines], strict=True)) if whole else []
    pieces: list[Piece] = []
    j = 0
    while j < count:
        directions = steps[j] if j < len(steps) else (0,)
        length = 1
        if all(directions) and (len(set(directions)) == 1 or product):
            while j + length - 1 < len(steps) and steps[j + length - 1] == directions:
                length += 1
        piece = Piece(j, length, directions if length > 1 else (0,) * len(lines))
        before = pieces[-1] if pieces else ONE
        if (
            piece.directions == before.directions == (RIGHT,) * len(lines)
            and length == before.length
            and _below(lines, i, before, j)
        ):
            pieces[-1] = replace(before, rows=before.rows + 1)
        else:
            pieces.append(piece)
        j += length
    return pieces


def _below(lines: Sequence[Line], i: int, piece: Piece, j: int) -> bool:
    """Whether what starts at a term is right under a piece, in every line."""
    for line in lines:
        block, row, column = (at[i, j] - at[i, piece.start] for at in (line.block, line.row, line.column))
        if block or column or row != piece.rows:
            return False
    return True
