"""Presets side by side on one text at nanoGPT's published CPU sizes: 4 × 128, context 64, batch 12, 2,000 steps.

    python benchmarks/shakespeare.py tinyshakespeare.txt [--presets nanogpt nano] [--seeds 1337] [--steps 2000]

Prints the loss over the whole validation text, and the deviation of the estimate nanoGPT prints: the mean of 20 random
batches.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from pencil.api.loading import load_model
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.train.loop.trainer import Trainer


@torch.no_grad()
def estimates(task, model, draws: int = 100) -> tuple[float, float]:
    """Mean and deviation of nanoGPT's 20-batch estimate, from the loss of every window once."""
    ids, context, device = task.data.val, task.config.context, next(model.parameters()).device
    rng = np.random.default_rng(0)
    starts = rng.integers(0, len(ids) - context, 20 * 12 * 10)
    losses = []
    for start in np.array_split(starts, 20):
        tokens, targets = (t.to(device) for t in task._windows(ids, start))
        losses.append(
            torch.nn.functional.cross_entropy(model(tokens).transpose(1, 2), targets, reduction="none").mean(1).cpu()
        )
    windows = torch.cat(losses).numpy()
    means = [windows[rng.integers(0, len(windows), 240)].mean() for _ in range(draws)]
    return float(np.mean(means)), float(np.std(means))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    parser.add_argument("--presets", nargs="+", default=["nanogpt", "nano"])
    parser.add_argument("--seeds", nargs="+", default=["1337"])
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    rows = []
    for preset in options.presets:
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                train = {"steps": options.steps, "batch": 12, "seed": seed, "eval_every": 500}
                request = TrainingRequest("gpt", options.text, preset, train=train)
                run, task, config = new_run(request, out=Path(folder) / "run")
                outcome = Trainer(task, run, config).train()
                model = load_model(run)
                rows.append((preset, seed, task.evaluate(model)["val_loss"], *estimates(task, model), outcome.seconds))
    print("preset    seed   validation loss   20-batch estimate   training s")
    for preset, seed, loss, mean, deviation, spent in rows:
        print(f"{preset:9} {seed:6} {loss:15.4f}   {mean:.4f} ± {deviation:.4f}   {spent:10.1f}")


if __name__ == "__main__":
    main()
