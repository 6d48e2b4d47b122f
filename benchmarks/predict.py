"""`pencil predict`: its rate beside that of the model alone, its memory, and how far a batch moves the numbers.

python benchmarks/predict.py [--count 20000] [--preset small] [--size 64] [--device auto]

One vit with random weights. Pictures are PNG files of noise, made here; the model alone gets the same batches, read
before. Rates are taken in turns, three times, by the clock and, where the model computes on the CPU, by the CPU seconds
of all threads, which depend less on other load; the middle ratio is printed.
"""

import argparse
import resource
import statistics
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

from pencil.api.loading import predictor
from pencil.api.predict_files import BATCH, predict_file
from pencil.data.inputs import inputs_of
from pencil.device import pick_device
from pencil.families import FAMILIES
from pencil.families.predictions import ReadPicture, input_transform, read_picture
from pencil.runs.run import Loaded

ROUNDS, ALIKE = 3, 256  # of the timing; pictures that are compared


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--count", type=int, default=20_000)
    options.add_argument("--preset", default="small")
    options.add_argument("--size", type=int, default=64)
    options.add_argument("--device", default="auto")
    given = options.parse_args()
    device = pick_device(given.device)
    torch.manual_seed(0)
    sizes = dict(image_size=(given.size,) * 2, channels=3, patch=(8, 8), classes=11)
    model = FAMILIES["vit"].create(FAMILIES["vit"].configure(given.preset, **sizes)).to(device).eval()
    run = SimpleNamespace(path="the model", family="vit", config={"run": {}})
    loaded = Loaded(model, None, run)
    predict = predictor(loaded, {})
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name) / "pictures", np.random.default_rng(0)
        folder.mkdir()
        for i in range(min(given.count, 1000)):
            pixels = rng.integers(0, 255, (given.size, given.size + 6, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{i:07}.png")
        for i in range(1000, given.count):  # the same pictures under other names
            (folder / f"{i:07}.png").hardlink_to(folder / f"{i % 1000:07}.png")
        transform = input_transform(loaded)
        read = [ReadPicture(read_picture(folder / f"{i:07}.png", transform)) for i in range(min(given.count, ALIKE))]
        apart = np.stack([predict([one])[0].probabilities for one in read])
        together = np.stack([one.probabilities for one in predict(read)])
        print(
            f"largest difference of a probability, {BATCH} at once and one by one: {np.abs(apart - together).max():.1e}"
        )
        ratios, some = [], (read * BATCH)[: 8 * BATCH]
        clock, per = (time.process_time, "CPU second") if device.type == "cpu" else (time.perf_counter, "second")
        for i in range(ROUNDS):
            began = clock()
            predict_file(loaded, inputs_of([str(folder)], "picture"), Path(name) / f"{i}.csv")
            whole = given.count / (clock() - began)
            began, done = clock(), 0
            while done < given.count / 4:
                predict(some)
                done += len(some)
            alone = done / (clock() - began)
            ratios.append(whole / alone)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{whole:,.0f} pictures a {per}, the model alone {alone:,.0f}: {ratios[-1]:.2f}; peak {peak:,.0f} MB")
        print(
            f"{given.count:,} pictures of {given.size}×{given.size}, {given.preset}, {device}: {statistics.median(ratios):.2f}"
        )


if __name__ == "__main__":
    main()
