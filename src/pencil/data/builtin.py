"""Built-in data: Python's documentation as text, scenes of handwritten digits with captions, and digits that move. No
download."""

from collections.abc import Callable

import numpy as np

from .images.digits import SIDE, handwriting

WORDS = (
    "a zero", "a one", "a two", "a three", "a four", "a five", "a six", "a seven", "an eight", "a nine"
)  # fmt: skip
PLACES = (
    ("at the top left", "at the top", "at the top right"),
    ("on the left", "in the middle", "on the right"),
    ("at the bottom left", "at the bottom", "at the bottom right"),
)
FRAMES, CANVAS = 8, 16  # of a video of a moving digit: their number, and the side of each


def pydoc() -> str:
    """Python's own documentation topics, which every CPython includes."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


TEXTS: dict[str, Callable[[], str]] = {"pydoc": pydoc}


def held_out_combination(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether two neighbouring digits of a caption are held out for the test: those that differ by 3 modulo 10."""
    return np.isin((first - second) % 10, (3, 7))


class Scenes:
    """Images of handwritten digits on a canvas, generated on the fly, each with a caption of its digits and places.

    Training scenes use four fifths of the handwriting, and no caption has neighbouring digits that differ by 3 modulo
    10. Test scenes use the other fifth, and every caption has such a pair. `draw` samples scenes with a generator.
    """

    def __init__(self, hard: bool = False):
        self.hard, self.canvas = hard, 32 if hard else 16

    def draw(
        self, rng: np.random.Generator, count: int, unseen: bool = False, held_out: bool = False
    ) -> tuple[np.ndarray, list[str]]:
        """`count` images (1, side, side) as uint8, and their captions.

        `unseen` uses the handwriting held out for the test. `held_out` uses only the combinations held out for it; else
        only the others are used.
        """
        counts, corners, caption = (self._several if self.hard else self._one_or_two)(rng, count, held_out)
        named = self._digits(rng, counts, held_out)
        style = rng.random(named.shape)
        canvases = np.zeros((count, 1, self.canvas, self.canvas), np.uint8)
        for i, many in enumerate(counts.tolist()):
            for j in range(many):
                styles, (row, column) = handwriting()[unseen][named[i, j]], corners[i, j]
                part = canvases[i, 0, row : row + SIDE, column : column + SIDE]
                np.maximum(part, styles[int(style[i, j] * len(styles))], out=part)
        words = [[WORDS[d] for d in row[:many]] for row, many in zip(named, counts, strict=True)]
        return canvases, [caption(i, row) for i, row in enumerate(words)]

    def _digits(self, rng: np.random.Generator, counts: np.ndarray, held_out: bool) -> np.ndarray:
        """The digits in the caption's order; rows that break the rule of combinations are sampled again."""
        named = rng.integers(0, 10, (len(counts), 4))
        while True:
            apart = held_out_combination(named[:, :-1], named[:, 1:]) & (np.arange(1, 4) < counts[:, None])
            wrong = apart.any(1) != held_out
            if not wrong.any():
                return named
            named[wrong] = rng.integers(0, 10, (int(wrong.sum()), 4))

    def _one_or_two(self, rng: np.random.Generator, count: int, held_out: bool):
        """Half the training scenes: one digit at one of nine places. The others: two, above or left of each other."""
        single = (rng.random(count) < 0.5) & (not held_out)
        thirds = rng.integers(0, 3, (count, 2))
        alone = np.clip(4 * thirds + rng.integers(-1, 2, (count, 2)), 0, self.canvas - SIDE)
        near = rng.integers(0, SIDE + 1, count)
        # the second digit shifts sideways by at most half a digit, so that "above" and "left of" stay distinct
        far = np.clip(near + rng.integers(-SIDE // 2, SIDE // 2 + 1, count), 0, SIDE)
        above = rng.random(count) < 0.5
        corners = np.stack((np.stack((0 * near, near), 1), np.stack((0 * far + SIDE, far), 1)), 1)
        corners = np.where(above[:, None, None], corners, corners[..., ::-1])
        corners[single, 0] = alone[single]

        def caption(i: int, words: list[str]) -> str:
            if single[i]:
                return f"{words[0]} {PLACES[thirds[i, 0]][thirds[i, 1]]}"
            return f"{words[0]} {'above' if above[i] else 'left of'} {words[1]}"

        return np.where(single, 1, 2), corners, caption

    def _several(self, rng: np.random.Generator, count: int, held_out: bool):
        """One to four digits in reading order, each anywhere in its own ninth of the canvas, without overlap."""
        counts = rng.integers(2 if held_out else 1, 5, count)
        present = np.arange(4) < counts[:, None]
        ninths, corners = np.zeros((count, 4), int), np.zeros((count, 4, 2), int)
        again = np.ones(count, bool)
        while again.any():
            n = int(again.sum())
            places = rng.random((n, 9)).argsort(1)[:, :4]
            places = np.sort(np.where(present[again], places, 9), 1)  # absent digits come last
            # a corner has seven positions along each axis of a ninth, and two pixels separate the ninths: which ninth
            # a digit is in stays visible
            ninths[again] = places
            corners[again] = 9 * np.stack((places // 3, places % 3), 2) + rng.integers(0, 7, (n, 4, 2))
            far = (abs(corners[:, :, None] - corners[:, None]) >= SIDE).any(-1)
            fine = far | np.eye(4, dtype=bool) | ~(present[:, :, None] & present[:, None])
            again = ~fine.all((1, 2))

        def caption(i: int, words: list[str]) -> str:
            return ", ".join(f"{word} {PLACES[n // 3][n % 3]}" for word, n in zip(words, ninths[i], strict=False))

        return counts, corners, caption


class MovingDigits:
    """`draw` samples videos with a generator; training videos use four fifths of the handwriting.

    A digit starts anywhere and moves one or two pixels a frame along each axis; at an edge it bounces back.
    """

    def draw(self, rng: np.random.Generator, count: int, unseen: bool = False) -> tuple[np.ndarray, list[int]]:
        """`count` videos (1, frames, side, side) as uint8, and their labels; `unseen` uses the held-out handwriting."""
        named = rng.integers(0, 10, count)
        style = rng.random(count)
        videos = np.zeros((count, 1, FRAMES, CANVAS, CANVAS), np.uint8)
        rows, columns = track(rng, count), track(rng, count)
        for i, digit in enumerate(named.tolist()):
            styles = handwriting()[unseen][digit]
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
