"""Exercises on the three moves that cut a photo into strips: fold, swap, glue."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from ...core.patches import fold, glue, grid_of, swap
from ...core.probe import OFF, Probe
from .builder import Draws, Maker, Numbers, Work, blanks, mistake, squeezed, tensor, work
from .exercise import Blank, Question, Table

PHOTO = [[float(4 * row + column + 1) for column in range(4)] for row in range(4)]


def columns_first(folded: Tensor) -> Tensor:
    """A wrong swap: squares are taken down the columns before across."""
    return swap(folded).transpose(1, 2)


def cut_photo(photo: list[list[float]], patch: int, swap: Callable[[Tensor], Tensor] = swap) -> Work:
    """The three moves, each named."""
    size = (patch, patch)

    def moves(photo: Tensor, probe: Probe = OFF) -> Tensor:
        count = np.prod(grid_of(photo.shape[2:], size))
        folded = probe("folded", fold(photo, size))
        return probe("strips", glue(probe("swapped", swap(folded)), int(count)))

    return work(moves, tensor(photo)[None, None])


def no_swap(folded: Tensor) -> Tensor:
    return folded


def _given(photo: list[list[float]]) -> Table:
    columns = [f"col {i}" for i in range(len(photo[0]))]
    return Table("photo", photo, columns, [f"row {i}" for i in range(len(photo))])


def _cut(photo: list[list[float]], strip: int) -> Question:
    done = cut_photo(photo, 2)
    straight, down = (cut_photo(photo, 2, other)["strips"][strip] for other in (no_swap, columns_first))
    dots = [f"dot {i + 1}" for i in range(4)]
    cells = [(dot, f"strips[0,{strip},{i}]") for i, dot in enumerate(dots)]
    return Question(
        (_given(photo),),
        f"Cut the photo into 2 × 2 squares and write each square's 4 dots as one strip: strip 1 is the top-left "
        f"square, then on to the right. Write strip {strip + 1}.",
        blanks(dots, done["strips"][strip], 0),
        (
            mistake("no swap", "Read straight off the line, the dots are a slice of rows and not a square.", straight),
            mistake("down before across", "Squares are taken row by row: across first, then down.", down),
        ),
        lambda: _moves(done, cells),
        "FOLD reads the line as (down-band, in-square-down, across-band, in-square-across); SWAP brings the two band "
        "labels together; GLUE writes each square's 4 dots as one row.",
    )


def _moves(done: Work, cells: list[tuple[str, str]]) -> list[str]:
    """Where each dot comes from: dots are moved, not computed."""
    lines = []
    for label, where in cells:
        dot = done.trace[where].why().recorded
        row, column = np.argwhere(squeezed(done.inputs[0]) == dot)[0]
        floor, down, wing, across = np.argwhere(done["folded"] == dot)[0]
        place = f"square ({floor}, {wing}), place ({down}, {across}) in it"
        lines.append(f"{label} = {dot:.0f}: row {row}, col {column}; {place}")
    return lines


def _missing_swap(photo: list[list[float]], strip: int) -> Question:
    straight, right = cut_photo(photo, 2, no_swap), cut_photo(photo, 2)
    dots = [f"dot {i + 1}" for i in range(4)]
    kinds = [_kind(photo, done["strips"][0]) for done in (straight, right)]
    cells = [(dot, f"strips[0,{strip},{i}]") for i, dot in enumerate(dots)]
    return Question(
        (_given(photo),),
        f"A program left out the SWAP and read the flat line straight, four dots per strip. Write its strip "
        f"{strip + 1}. Then: is its strip 1 a row or a square of the photo?",
        (*blanks(dots, straight["strips"][strip], 0), Blank("strip 1 is a", kinds[0], words=True)),
        (
            mistake(
                "swapped all the same",
                "That is the strip with the swap; without it the line is read straight.",
                right["strips"][strip],
                kinds[1],
            ),
        ),
        lambda: [*_moves(straight, cells), f"strip 1 is all of one {kinds[0]} of the photo, so no square"],
        "Skip the SWAP: read the flat line straight, four dots per strip. What went wrong with strip 1?",
    )


def _kind(photo: list[list[float]], strip: np.ndarray) -> str:
    """Whether the dots of a strip are a row of the photo or a square."""
    rows = {row for row, dots in enumerate(photo) for dot in dots if dot in strip}
    return "row" if len(rows) == 1 else "square"


def _dot(photo: list[list[float]], patch: int, row: int, column: int) -> Question:
    labels = ["floor", "desk-row", "wing", "desk", "chip", "spot"]
    dot = photo[row][column]
    transposed = [list(line) for line in zip(*photo, strict=True)]
    done = cut_photo(photo, patch)
    right = _labels(done["folded"], done["strips"], dot)
    straight, mixed = (
        _labels(other["folded"], other["strips"], dot)
        for other in (cut_photo(photo, patch, no_swap), cut_photo(transposed, patch))
    )
    floor, desk_row, wing, desk, chip, spot = (int(one) for one in right)
    across = len(photo[0]) // patch
    return Question(
        (_given(photo),),
        f"Dot {dot:.0f} sits at row {row}, col {column}, counted from 0; the squares are {patch} × {patch}. FOLD "
        f"splits the row into (floor, desk-row) and the column into (wing, desk). After SWAP and GLUE, which chip "
        f"(strip) is it in, and at which spot, both counted from 0?",
        blanks(labels, right, 0),
        (
            mistake("no swap", "Chip and spot are those of the line read straight: the swap is missing.", straight),
            mistake("down and across mixed up", "The row gives floor and desk-row, the column wing and desk.", mixed),
            mistake("counted from 1", "Everything here is counted from 0.", right + 1),
        ),
        lambda: [
            f"row {row} = {floor}·{patch} + {desk_row}: floor {floor}, desk-row {desk_row}",
            f"col {column} = {wing}·{patch} + {desk}: wing {wing}, desk {desk}",
            f"swapped: ({floor}, {wing}, {desk_row}, {desk})",
            f"chip = {floor}·{across} + {wing} = {chip}, spot = {desk_row}·{patch} + {desk} = {spot}",
            f"strips[{chip}] = {[int(one) for one in done['strips'][chip]]}, and its dot {spot} is {dot:.0f}",
        ],
        "Trace one dot: FOLD gives it four labels, SWAP re-orders them to (floor, wing, desk-row, desk), GLUE makes "
        "them (chip, spot).",
    )


def _labels(folded: np.ndarray, strips: np.ndarray, dot: float) -> np.ndarray:
    """The labels of a dot after the fold, then its chip and spot after the glue."""
    return np.array([*np.argwhere(folded == dot)[0], *np.argwhere(strips == dot)[0]])


def _draw_cut(d: Draws) -> Numbers:
    rows, columns = d.pick([(4, 4), (4, 6), (6, 4)])
    return {"photo": _photo(d, rows, columns), "strip": d.whole(0, rows * columns // 4 - 1)}


def _draw_missing(d: Draws) -> Numbers:
    rows = d.pick([4, 6])
    return {"photo": _photo(d, rows, 4), "strip": d.whole(1, rows - 1)}


def _draw_dot(d: Draws) -> Numbers:
    rows, columns, patch = d.pick([(4, 6, 2), (6, 4, 2), (6, 6, 2), (6, 6, 3), (8, 4, 2)])
    photo = _photo(d, rows, columns)
    return {"photo": photo, "patch": patch, "row": d.whole(0, rows - 1), "column": d.whole(0, columns - 1)}


def _photo(d: Draws, rows: int, columns: int) -> list[list[float]]:
    """A photo without equal dots, so that each can be traced."""
    dots = d.distinct(rows * columns, 1, 99)
    return [dots[row * columns : (row + 1) * columns] for row in range(rows)]


MAKES = {
    "cut": Maker("cut", {"photo": PHOTO, "strip": 1}, _draw_cut, _cut),
    "missing-swap": Maker("missing-swap", {"photo": PHOTO, "strip": 2}, _draw_missing, _missing_swap),
    "dot": Maker("dot", {"photo": PHOTO, "patch": 2, "row": 1, "column": 2}, _draw_dot, _dot),
}
