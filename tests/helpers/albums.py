"""Small picture data sets for the suite, made on the spot."""

import gzip
import json
import struct

import numpy as np
from PIL import Image


def picture(path, seed=0, size=(13, 11), mode="RGB", **how):
    """A noisy picture of its own brightness, no two alike; size is width and height."""
    rng = np.random.default_rng(seed)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(path, **how)
    return path


def photos(folder, counts=None, mode="RGB"):
    """One folder a class."""
    for k, (name, count) in enumerate((counts or {"cat": 7, "dog": 5}).items()):
        for i in range(count):
            picture(folder / name / f"{i}.png", seed=100 * k + i, mode=mode)
    return folder


def album(folder, captions=None, key="text", **more):
    """Pictures with a line each in metadata.jsonl."""
    captions = captions or [f"{word} number {i}" for word in ("a dot", "a bar", "a cup") for i in range(4)]
    rows = []
    for i, caption in enumerate(captions):
        picture(folder / f"p{i:02}.png", seed=i)
        rows.append({"file_name": f"p{i:02}.png", key: caption, **{k: v[i] for k, v in more.items()}})
    write_rows(folder, rows)
    return folder


def write_rows(folder, rows):
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"
    (folder / "metadata.jsonl").write_text(text, encoding="utf-8")


def idx_bytes(array):
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx(folder, prefix="", packed=False, train=23, test=11, side=(6, 9), classes=3):
    """MNIST's four files, with pictures of this height and width; the arrays by file."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, arrays = np.random.default_rng(5), {}
    for split, count in (("train", train), ("t10k", test)):
        arrays[split, "images-idx3"] = rng.integers(0, 256, (count, *side), dtype=np.uint8)
        arrays[split, "labels-idx1"] = (np.arange(count) % classes).astype(np.uint8)
    for (split, what), array in arrays.items():
        name, content = f"{prefix}{split}-{what}-ubyte", idx_bytes(array)
        (folder / (name + ".gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return arrays


def cut_short(path):
    """A JPEG whose end is missing: it begins like any other."""
    picture(path, seed=77, size=(64, 48), quality=95)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path
