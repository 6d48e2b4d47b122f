"""Data such as a stranger brings: pictures of odd shapes in class folders, an album, tables and texts."""

import csv
import json
from pathlib import Path

import numpy as np
from PIL import Image

SHAPES = ((41, 41), (61, 127), (97, 53), (31, 83))
COLOURS = ("red", "green", "blue")


def make_data(folder: Path) -> None:
    """Pictures of odd shapes in class folders, an album with captions, tables with three delimiters, and texts."""
    rng = np.random.default_rng(1)

    def picture(path: Path, colour: int, shape: tuple[int, int]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 90, (*shape, 3))
        pixels[..., colour] += 150
        Image.fromarray(pixels.astype(np.uint8)).save(path)

    for name, count in (("photos", 23), ("others", 7)):
        for number, colour in enumerate(COLOURS):
            for i in range(count):
                picture(folder / name / colour / f"{i}.png", number, SHAPES[i % len(SHAPES)])
    (folder / "photos" / "red" / "notes.heic").write_bytes(b"not a picture by its ending")
    captions = []
    for i in range(37):
        picture(folder / "album" / f"{i}.jpg", i % 3, SHAPES[i % len(SHAPES)])
        captions.append({"file_name": f"{i}.jpg", "text": f"a {COLOURS[i % 3]} wall"})
    (folder / "album" / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in captions))
    picture(folder / "cat.png", 0, (71, 33))

    texts = [(f"{'good, fine' if i % 2 else 'bad; dull'} film, number {i}", "5" if i % 2 else "1") for i in range(83)]
    with (folder / "reviews.csv").open("w", newline="") as file:
        table = csv.writer(file, delimiter=";")
        table.writerows([("id", "review", "stars"), *((i, *row) for i, row in enumerate(texts))])
    rows = [{"text": text, "label": label} for text, label in texts]
    (folder / "marks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "pairs.tsv").write_text("".join(f"say {i}\t{i} times\n" for i in range(71)))
    (folder / "other-pairs.tsv").write_text("".join(f"say {i}\t{i} times\n" for i in range(100, 117)))
    for name in ("notes", "letters"):
        lines = (
            f"Once the {name} sat on mat {i}, and the quick brown fox jumps over a lazy dog.\n" for i in range(211)
        )
        (folder / f"{name}.txt").write_text("".join(lines))
