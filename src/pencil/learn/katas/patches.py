"""Exercises on the three steps that cut an image into patches: a reshape, a transpose, and another reshape."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from ...core.patches import fold, glue, grid_of, swap
from ...core.probe import OFF, Probe
from .builder import Draws, Maker, Numbers, Work, blanks, mistake, squeezed, tensor, work
from .exercise import Blank, Question, Table, numbered

IMAGE = [[float(4 * row + column + 1) for column in range(4)] for row in range(4)]
AXES = "(patch row, row in patch, patch column, column in patch)"
PLACES = ["patch row", "row in patch", "patch column", "column in patch", "patch", "place"]
Rows = list[list[float]]


def columns_first(folded: Tensor) -> Tensor:
    """A wrong transpose: patches are taken down the columns before across."""
    return swap(folded).transpose(1, 2)


def no_transpose(folded: Tensor) -> Tensor:
    return folded


def cut(image: Rows, patch: int, transpose: Callable[[Tensor], Tensor] = swap) -> Work:
    """An image cut into patches, each step named."""
    size = (patch, patch)

    def steps(image: Tensor, probe: Probe = OFF) -> Tensor:
        count = np.prod(grid_of(image.shape[2:], size))
        folded = probe("folded", fold(image, size))
        return probe("patches", glue(probe("transposed", transpose(folded)), int(count)))

    return work(steps, tensor(image)[None, None])


def _table(image: Rows) -> Table:
    return Table("image", image, numbered("col", len(image[0]), first=0), numbered("row", len(image), first=0))


def _cut(image: Rows, patch: int) -> Question:
    done = cut(image, 2)
    straight, down = (cut(image, 2, other)["patches"][patch] for other in (no_transpose, columns_first))
    return Question(
        (_table(image),),
        f"Cut the image into patches of 2 × 2 pixels, from left to right and then down, and write the 4 pixels of each "
        f"as one row, in the same order. Write patch {patch + 1}; patch 1 is the top-left one.",
        blanks(numbered("pixel", 4), done["patches"][patch], 0),
        (
            mistake("no transpose", "Pixels read in order are a slice of rows and not a square.", straight),
            mistake("down before across", "Patches are taken row by row: across first, then down.", down),
        ),
        lambda: _origins(done, patch),
    )


def _origins(done: Work, patch: int) -> list[str]:
    """Where each pixel of a patch comes from: pixels are moved, not computed."""
    lines = []
    for i, label in enumerate(numbered("pixel", 4)):
        pixel = done.trace[f"patches[0,{patch},{i}]"].why().recorded
        row, column = np.argwhere(squeezed(done.inputs[0]) == pixel)[0]
        patch_row, inner_row, patch_column, inner_column = np.argwhere(done["folded"] == pixel)[0]
        place = f"patch ({patch_row}, {patch_column}), place ({inner_row}, {inner_column}) in it"
        lines.append(f"{label} = {pixel:.0f}: row {row}, col {column}; {place}")
    return lines


def _missing_transpose(image: Rows, patch: int) -> Question:
    straight, right = cut(image, 2, no_transpose), cut(image, 2)
    shapes = [_shape(image, done["patches"][0]) for done in (straight, right)]
    return Question(
        (_table(image),),
        f"An image is cut into patches in three steps: a reshape to {AXES}, a transpose that brings the two patch axes "
        f"to the front, and a reshape to one row per patch. A program left out the transpose, so it reads the pixels "
        f"in their order, four per patch. Write its patch {patch + 1}. Then: what shape has its patch 1 in the image, "
        f"row or square?",
        (
            *blanks(numbered("pixel", 4), straight["patches"][patch], 0),
            Blank("shape of patch 1", shapes[0], words=True),
        ),
        (
            mistake(
                "transposed all the same",
                "That is the patch with the transpose; without it the pixels are read in their order.",
                right["patches"][patch],
                shapes[1],
            ),
        ),
        lambda: [*_origins(straight, patch), f"patch 1 is all of one {shapes[0]} of the image, so no square"],
    )


def _shape(image: Rows, patch: np.ndarray) -> str:
    """Whether the pixels of a patch are a row of the image or a square."""
    rows = {row for row, pixels in enumerate(image) for pixel in pixels if pixel in patch}
    return "row" if len(rows) == 1 else "square"


def _trace_pixel(image: Rows, patch: int, row: int, column: int) -> Question:
    pixel, across = image[row][column], len(image[0]) // patch

    def places(done: Work) -> np.ndarray:
        """The coordinates of the pixel after the first reshape, then its patch and place after the last."""
        return np.array([*np.argwhere(done["folded"] == pixel)[0], *np.argwhere(done["patches"] == pixel)[0]])

    done, flipped = cut(image, patch), [list(line) for line in zip(*image, strict=True)]
    right, straight, mixed = map(places, (done, cut(image, patch, no_transpose), cut(flipped, patch)))
    patch_row, inner_row, patch_column, inner_column, index, place = (int(number) for number in right)
    return Question(
        (_table(image),),
        f"An image is cut into patches of {patch} × {patch} pixels in three steps: a reshape to {AXES}, a transpose to "
        f"(patch row, patch column, row in patch, column in patch), and a reshape to one row per patch. Follow the "
        f"pixel {pixel:.0f}, at row {row}, col {column}: its four coordinates after the first reshape; then its patch, "
        f"and its place in that patch's row. Everything is counted from 0.",
        blanks(PLACES, right, 0),
        (
            mistake("no transpose", "Patch and place are those of the pixels read in their order.", straight),
            mistake(
                "rows and columns mixed up",
                "The row gives patch row and row in patch, the column the other two.",
                mixed,
            ),
            mistake("counted from 1", "Everything here is counted from 0.", right + 1),
        ),
        lambda: [
            f"row {row} = {patch_row}·{patch} + {inner_row}: patch row {patch_row}, row in patch {inner_row}",
            f"col {column} = {patch_column}·{patch} + {inner_column}: patch column {patch_column}, column in patch "
            f"{inner_column}",
            f"transposed: ({patch_row}, {patch_column}, {inner_row}, {inner_column})",
            f"patch = {patch_row}·{across} + {patch_column} = {index}, place = {inner_row}·{patch} + {inner_column} = "
            f"{place}",
            f"patches[{index}] = {[int(n) for n in done['patches'][index]]}, and its pixel {place} is {pixel:.0f}",
        ],
    )


def _draw_cut(d: Draws) -> Numbers:
    rows, columns = d.pick([(4, 4), (4, 6), (6, 4)])
    return {"image": _image(d, rows, columns), "patch": d.whole(0, rows * columns // 4 - 1)}


def _draw_missing(d: Draws) -> Numbers:
    rows = d.pick([4, 6])
    return {"image": _image(d, rows, 4), "patch": d.whole(1, rows - 1)}


def _draw_pixel(d: Draws) -> Numbers:
    rows, columns, patch = d.pick([(4, 6, 2), (6, 4, 2), (6, 6, 2), (6, 6, 3), (8, 4, 2)])
    image = _image(d, rows, columns)
    return {"image": image, "patch": patch, "row": d.whole(0, rows - 1), "column": d.whole(0, columns - 1)}


def _image(d: Draws, rows: int, columns: int) -> Rows:
    """An image without equal pixels, so that each can be followed."""
    pixels = d.distinct(rows * columns, 1, 99)
    return [pixels[row * columns : (row + 1) * columns] for row in range(rows)]


MAKES = {
    "cut": Maker("cut", {"image": IMAGE, "patch": 1}, _draw_cut, _cut),
    "missing-swap": Maker("missing-swap", {"image": IMAGE, "patch": 2}, _draw_missing, _missing_transpose),
    "dot": Maker("dot", {"image": IMAGE, "patch": 2, "row": 1, "column": 2}, _draw_pixel, _trace_pixel),
}
