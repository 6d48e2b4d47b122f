"""Data sets that come with Python or with a package: nothing to download."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

WORDS = (
    "a zero", "a one", "a two", "a three", "a four", "a five", "a six", "a seven", "an eight", "a nine"
)  # fmt: skip
PLACES = (
    ("at the top left", "at the top", "at the top right"),
    ("on the left", "in the middle", "on the right"),
    ("at the bottom left", "at the bottom", "at the bottom right"),
)
SIDE = 8  # of a handwritten digit


def pydoc() -> str:
    """Python's own documentation topics, which every CPython carries."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


TEXTS: dict[str, Callable[[], str]] = {"pydoc": pydoc}


@lru_cache
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """scikit-learn's 1,797 handwritten digits as bytes, their labels, and which (a random fifth) are held out."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    pictures = np.round(found.images * (255 / 16)).astype(np.uint8)[:, None]
    order = np.random.Generator(np.random.Philox(key=0)).permutation(len(pictures))
    held = np.zeros(len(pictures), bool)
    held[order[: len(order) // 5]] = True
    return pictures, found.target.astype(np.int64), held


def apart(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether two digits, one after the other in a caption, are kept for the test: those three apart, in a ring."""
    return np.isin((first - second) % 10, (3, 7))


class Scenes:
    """Pictures made on the fly of handwritten digits on a canvas, each with the caption that says what stands where.

    Training scenes use four fifths of the handwriting and never put digits three apart next to each other; test scenes
    use the rest of it, and every one of them does. `draw` gives scenes for a random generator.
    """

    def __init__(self, hard: bool = False):
        self.hard, self.canvas = hard, 32 if hard else 16
        pictures, labels, held = digits()
        self.writing = {
            unseen: [pictures[(labels == digit) & (held == unseen), 0] for digit in range(10)]
            for unseen in (False, True)
        }

    def draw(
        self, rng: np.random.Generator, count: int, unseen: bool = False, held_out: bool = False
    ) -> tuple[np.ndarray, list[str]]:
        """`count` pictures (1, side, side) of bytes, and their captions.

        `unseen` takes handwriting kept for the test; `held_out` only combinations kept for it, else only the others.
        """
        counts, spots, say = (self._several if self.hard else self._one_or_two)(rng, count, held_out)
        named = self._digits(rng, counts, held_out)
        style = rng.random(named.shape)
        canvases = np.zeros((count, 1, self.canvas, self.canvas), np.uint8)
        for i, many in enumerate(counts.tolist()):
            for j in range(many):
                styles, (row, column) = self.writing[unseen][named[i, j]], spots[i, j]
                part = canvases[i, 0, row : row + SIDE, column : column + SIDE]
                np.maximum(part, styles[int(style[i, j] * len(styles))], out=part)
        words = [[WORDS[d] for d in row[:many]] for row, many in zip(named, counts, strict=True)]
        return canvases, [say(i, row) for i, row in enumerate(words)]

    def _digits(self, rng: np.random.Generator, counts: np.ndarray, held_out: bool) -> np.ndarray:
        """Which digits, in the order of the caption; rows that break the rule are drawn again."""
        named = rng.integers(0, 10, (len(counts), 4))
        while True:
            kept = apart(named[:, :-1], named[:, 1:]) & (np.arange(1, 4) < counts[:, None])
            wrong = kept.any(1) != held_out
            if not wrong.any():
                return named
            named[wrong] = rng.integers(0, 10, (int(wrong.sum()), 4))

    def _one_or_two(self, rng: np.random.Generator, count: int, held_out: bool):
        """One digit at one of nine places in half the training scenes; else two, above or left of each other."""
        single = (rng.random(count) < 0.5) & (not held_out)
        thirds = rng.integers(0, 3, (count, 2))
        alone = np.clip(4 * thirds + rng.integers(-1, 2, (count, 2)), 0, self.canvas - SIDE)
        near = rng.integers(0, SIDE + 1, count)
        # the other one may slip sideways by half a digit, never so far that above and left of look alike
        far = np.clip(near + rng.integers(-SIDE // 2, SIDE // 2 + 1, count), 0, SIDE)
        above = rng.random(count) < 0.5
        spots = np.stack((np.stack((0 * near, near), 1), np.stack((0 * far + SIDE, far), 1)), 1)
        spots = np.where(above[:, None, None], spots, spots[..., ::-1])
        spots[single, 0] = alone[single]

        def say(i: int, words: list[str]) -> str:
            if single[i]:
                return f"{words[0]} {PLACES[thirds[i, 0]][thirds[i, 1]]}"
            return f"{words[0]} {'above' if above[i] else 'left of'} {words[1]}"

        return np.where(single, 1, 2), spots, say

    def _several(self, rng: np.random.Generator, count: int, held_out: bool):
        """One to four digits in reading order, each anywhere in a ninth of its own, none on another."""
        counts = rng.integers(2 if held_out else 1, 5, count)
        there = np.arange(4) < counts[:, None]
        ninths, spots = np.zeros((count, 4), int), np.zeros((count, 4, 2), int)
        again = np.ones(count, bool)
        while again.any():
            n = int(again.sum())
            chosen = rng.random((n, 9)).argsort(1)[:, :4]
            chosen = np.sort(np.where(there[again], chosen, 9), 1)  # those not there stand last
            # a ninth is seven places wide, with two between ninths, so that which one is meant can be seen
            ninths[again] = chosen
            spots[again] = 9 * np.stack((chosen // 3, chosen % 3), 2) + rng.integers(0, 7, (n, 4, 2))
            far = (abs(spots[:, :, None] - spots[:, None]) >= SIDE).any(-1)
            fine = far | np.eye(4, dtype=bool) | ~(there[:, :, None] & there[:, None])
            again = ~fine.all((1, 2))

        def say(i: int, words: list[str]) -> str:
            return ", ".join(f"{word} {PLACES[n // 3][n % 3]}" for word, n in zip(words, ninths[i], strict=False))

        return counts, spots, say
