"""From how many examples a transformer that begins with random weights is worth it: beside a simple model, by size.

python benchmarks/little_data.py [--task topic] [--sizes 100 300 1000 3000] [--steps 400]
python benchmarks/little_data.py --data reviews.csv

`topic` is a sentence from the docstrings of Python's own library, and which of eight packages it is from: a matter of
words. `order` is a list of words in which "hot" and "cold" occur, and which comes first: a matter of their order alone.
`digits` are scikit-learn's, of 8×8 pixels; of `placed` each is somewhere in a picture of 20×20. --data is a table of your own with the columns text and label.
Of each 300 examples are held out. Every size trains a reader (a vit of pictures) with two blocks of width 64, in batches of
16, otherwise as `pencil train` does by itself; the simple model is that of `pencil eval --baseline` for texts, and of
pictures logistic regression on pixels. Seconds are CPU time; the first has the start of the program. Needs scikit-learn.
"""

import argparse
import ast
import csv
import random
import re
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import pencil
from pencil.train.tasks.baselines import TFIDF

PACKAGES = "asyncio", "distutils", "email", "http", "importlib", "logging", "tkinter", "xml"
FILLER = "red blue green old new big small tall loud calm sharp plain round soft dark light".split()
SMALL = {"width": 64, "depth": 2, "heads": 4, "batch": 16}
HELD_OUT = 300

Rows = list[tuple[Any, str]]


def topic() -> Rows:
    """Sentences of docstrings, each with the package it is from."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        for path in sorted(Path(sysconfig.get_paths()["stdlib"], package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    for sentence in re.split(r"(?<=[.:!?])\s+|\n\s*\n", ast.get_docstring(node) or ""):
                        if 20 <= len(line := " ".join(sentence.split())) <= 160:
                            found.setdefault(line, package)
    return list(found.items())


def order() -> Rows:
    """Which of two words comes first, among others."""
    rng, found = random.Random(0), dict[str, str]()
    for _ in range(5000):
        words = rng.choices(FILLER, k=8)
        for word in rng.sample(("hot", "cold"), 2):
            words.insert(rng.randrange(len(words) + 1), word)
        found[" ".join(words)] = "hot" if words.index("hot") < words.index("cold") else "cold"
    return list(found.items())


def digits() -> Rows:
    images, labels = load_digits(return_X_y=True)
    pixels = (images.reshape(-1, 8, 8, 1) * 15.9).astype(np.uint8)
    return list(zip(pixels, map(str, labels), strict=True))


def placed() -> Rows:
    """The same digits, each somewhere in a larger picture: no pixel says anything by itself."""
    rng, rows = np.random.default_rng(0), []
    for pixels, label in digits():
        larger = np.zeros((20, 20, 1), np.uint8)
        top, left = rng.integers(0, 13, 2)
        larger[top : top + 8, left : left + 8] = pixels
        rows.append((larger, label))
    return rows


def table(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


def measure(rows: Rows, test: Rows, steps: int, out: Path) -> list[str]:
    """Accuracy and CPU seconds of the simple model and of a transformer, trained on these rows."""
    (inputs, labels), (held, truth) = (map(list, zip(*part, strict=True)) for part in (rows, test))
    text = isinstance(inputs[0], str)
    flat, flat_held = (given if text else [image.reshape(-1) / 255 for image in given] for given in (inputs, held))
    simple: Any = TFIDF.make() if text else LogisticRegression(max_iter=1000)
    begun = time.process_time()
    found = [(simple.fit(flat, labels).score(flat_held, truth), time.process_time() - begun)]
    begun = time.process_time()
    every = max(1, steps // 5)
    settings: Any = SMALL | dict(steps=steps, eval_every=every, save_every=steps)
    run = pencil.train("reader" if text else "vit", (inputs, labels), out=out, quiet=True, **settings)
    seconds = time.process_time() - begun
    found.append((pencil.evaluate(run, (held, truth), quiet=True)["accuracy"], seconds))
    return [f"{accuracy:.1%} ({seconds:.1f} s)" for accuracy, seconds in found]


TASKS = {"topic": topic, "order": order, "digits": digits, "placed": placed}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=(*TASKS,), default="topic")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 1000, 3000])
    parser.add_argument("--steps", type=int, default=400)
    chosen = parser.parse_args()
    rows = table(chosen.data) if chosen.data else TASKS[chosen.task]()
    random.Random(0).shuffle(rows)
    test, rest = rows[:HELD_OUT], rows[HELD_OUT:]
    print(f"{len(rest):,} examples of {len({label for _, label in rows})} classes, and {len(test)} held out")
    print("| examples | simple model | transformer from nothing |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for size in (size for size in chosen.sizes if size <= len(rest)):
            cells = measure(rest[:size], test, chosen.steps, Path(folder, str(size)))
            print(f"| {size:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
