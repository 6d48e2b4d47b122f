"""Videos generated on the fly: a handwritten digit that moves across a canvas and bounces off its edges."""

import numpy as np

from .digits import SIDE, digits

FRAMES, CANVAS = 8, 16


class MovingDigits:
    """`draw` samples videos with a generator; training videos use four fifths of the handwriting.

    A digit starts anywhere and moves one or two pixels a frame along each axis; at an edge it bounces back.
    """

    def __init__(self):
        pictures, labels, held_out = digits()
        self.handwriting = {
            unseen: [pictures[(labels == digit) & (held_out == unseen), 0] for digit in range(10)]
            for unseen in (False, True)
        }

    def draw(self, rng: np.random.Generator, count: int, unseen: bool = False) -> tuple[np.ndarray, list[int]]:
        """`count` videos (1, frames, side, side) as uint8, and their labels; `unseen` uses the held-out handwriting."""
        named = rng.integers(0, 10, count)
        style = rng.random(count)
        videos = np.zeros((count, 1, FRAMES, CANVAS, CANVAS), np.uint8)
        rows, columns = track(rng, count), track(rng, count)
        for i, digit in enumerate(named.tolist()):
            styles = self.handwriting[unseen][digit]
            picture = styles[int(style[i] * len(styles))]
            for frame, (row, column) in enumerate(zip(rows[i], columns[i], strict=True)):
                videos[i, 0, frame, row : row + SIDE, column : column + SIDE] = picture
        return videos, named.tolist()


def track(rng: np.random.Generator, count: int) -> np.ndarray:
    """Coordinates along one axis, frame by frame: constant speed, reversed at either end."""
    space = CANVAS - SIDE
    start, speed = rng.integers(0, space + 1, (count, 1)), rng.choice([-2, -1, 1, 2], (count, 1))
    along = (start + speed * np.arange(FRAMES)) % (2 * space)
    return np.where(along > space, 2 * space - along, along)
