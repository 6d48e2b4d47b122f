"""The 1,797 handwritten digits of 8×8 pixels that come with Pencil, in `digits.gz`.

Source: the test set of "Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak, donated 1998 to the
UCI Machine Learning Repository, https://doi.org/10.24432/C50P49. Licence: CC BY 4.0,
https://creativecommons.org/licenses/by/4.0/. scikit-learn (BSD-3-Clause) distributes the same images in the same order
(`sklearn.datasets.load_digits`). The values are unchanged; only the file format is Pencil's: a gzip file of 1797·64
bytes, the pixels from 0 to 16 of each image row by row, then 1797 bytes, the labels.
"""

import gzip
from functools import lru_cache
from importlib.resources import files

import numpy as np

COUNT, SIDE = 1797, 8  # images, and the height and width of each
BRIGHTEST = 16


@lru_cache
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The images (1797, 1, 8, 8) as uint8 from 0 to 255, their labels, and which (a random fifth) are held out."""
    content = gzip.decompress(files("pencil").joinpath("data", "images", "digits.gz").read_bytes())
    values = np.frombuffer(content, np.uint8)
    pixels, labels = values[: COUNT * SIDE * SIDE].reshape(COUNT, 1, SIDE, SIDE), values[COUNT * SIDE * SIDE :]
    pictures = np.round(pixels.astype(np.float64) * (255 / BRIGHTEST)).astype(np.uint8)
    order = np.random.Generator(np.random.Philox(key=0)).permutation(COUNT)
    held_out = np.zeros(COUNT, bool)
    held_out[order[: COUNT // 5]] = True
    return pictures, labels.astype(np.int64), held_out


@lru_cache
def handwriting() -> dict[bool, list[np.ndarray]]:
    """The images (n, 8, 8) of each digit, by whether they are held out."""
    pictures, labels, held_out = digits()
    return {
        unseen: [pictures[(labels == digit) & (held_out == unseen), 0] for digit in range(10)]
        for unseen in (False, True)
    }
