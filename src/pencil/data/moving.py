"""Videos made on the fly: a handwritten digit that moves across a canvas and bounces off its edges."""

import numpy as np

from .builtin import SIDE, digits

FRAMES, CANVAS = 8, 16


class MovingDigits:
    """`draw` gives videos for a random generator; training videos use four fifths of the handwriting.

    A digit begins anywhere and moves one or two dots a frame down or up, and across; at an edge it turns back.
    """

    def __init__(self):
        pictures, labels, held = digits()
        self.writing = {
            unseen: [pictures[(labels == digit) & (held == unseen), 0] for digit in range(10)]
            for unseen in (False, True)
        }

    def draw(self, rng: np.random.Generator, count: int, unseen: bool = False) -> tuple[np.ndarray, list[int]]:
        """`count` videos (1, frames, side, side) of bytes, and their digits; `unseen` in handwriting of the test."""
        named = rng.integers(0, 10, count)
        style = rng.random(count)
        videos = np.zeros((count, 1, FRAMES, CANVAS, CANVAS), np.uint8)
        rows, columns = track(rng, count), track(rng, count)
        for i, digit in enumerate(named.tolist()):
            styles = self.writing[unseen][digit]
            picture = styles[int(style[i] * len(styles))]
            for frame, (row, column) in enumerate(zip(rows[i], columns[i], strict=True)):
                videos[i, 0, frame, row : row + SIDE, column : column + SIDE] = picture
        return videos, named.tolist()


def track(rng: np.random.Generator, count: int) -> np.ndarray:
    """Places along one side, frame by frame: an even pace, turned back at either end."""
    room = CANVAS - SIDE
    start, pace = rng.integers(0, room + 1, (count, 1)), rng.choice([-2, -1, 1, 2], (count, 1))
    along = (start + pace * np.arange(FRAMES)) % (2 * room)
    return np.where(along > room, 2 * room - along, along)


class VideoExamples:
    """Videos that are in memory already; none is varied."""

    def __init__(self, videos: np.ndarray, targets: list[int]):
        self.videos, self.targets = videos, targets

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, which, look, rng=None):
        rows = [int(i) for i in which]
        return self.videos[rows], [self.targets[i] for i in rows]
