"""Lists of cells as ranges: cut wherever they stop running along a row or down a column."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .graph import Array

# A formula's text and how tightly it binds (3 a call or a cell, 2 a power, 1 a product, 0 a sum, −1 a sign),
# or a number known when the workbook is written.
Part = tuple[str, int] | float
RIGHT, DOWN = 1, 2


@dataclass(frozen=True)
class Block:
    """The place of a tensor in a workbook: its first cell, and its number of columns."""

    sheet: str
    row: int
    column: int
    width: int


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
