"""What it costs to keep NaN and infinity out of the weights: a training step with the check against one without.

python benchmarks/guard.py                      (GPT-2 and DiT-B/2 on a GPU; a small GPT on a CPU)

The two variants are timed in turn within one run, each round in another order; a ratio is the median of the rounds'
own ratios.
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch

from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.train.loop import trainer as loop
from pencil.train.loop.trainer import Trainer

TEXT = "".join(f"line {i}: the pencil draws {i * 7 % 13} strips of {i * 5 % 11}.\n" for i in range(40_000))


class Unchecked:
    """The guard's place, with no check."""

    stop = False

    def check(self, loss, norm):
        return None


def plain_step(optimizer, left_out):
    optimizer.found_inf = None
    optimizer.step()


def seconds(made: Trainer, steps: int) -> float:
    def wait() -> None:
        if made.device.type == "cuda":
            torch.cuda.synchronize()

    wait()
    begun = time.perf_counter()
    for _ in range(steps):
        made.update()
    wait()
    return (time.perf_counter() - begun) / steps


def compare(name: str, made: Trainer, steps: int, rounds: int) -> None:
    checked = made.guard, loop.step_unless
    variants = {"checked": checked, "unchecked": (Unchecked(), plain_step)}
    ratios, times = [], []
    for round_ in range(rounds + 1):
        took = {}
        for kind in list(variants)[:: 1 if round_ % 2 else -1]:
            made.guard, loop.step_unless = variants[kind]
            took[kind] = seconds(made, steps)
            checked[0].recent.clear()
        if round_:  # the first round warms up
            ratios.append(took["checked"] / took["unchecked"])
            times.append(took["unchecked"])
    made.guard, loop.step_unless = checked
    print(f"{name}: {statistics.median(times) * 1e3:.2f} ms a step unchecked; checked takes "
          f"{statistics.median(ratios):.4f} of it (rounds {min(ratios):.4f}–{max(ratios):.4f})", flush=True)  # fmt: skip


def main() -> None:
    cuda = torch.cuda.is_available()
    cases = {
        "gpt2, AdamW": ("gpt", "gpt2", dict(optimizer="adamw"), 16),
        "gpt2, Muon": ("gpt", "gpt2", dict(optimizer="muon"), 16),
        "dit b/2, AdamW, EMA": ("dit", "b/2", dict(optimizer="adamw", ema=0.999), 32),
    } if cuda else {"gpt nano, Muon": ("gpt", "nano", dict(optimizer="muon"), 12)}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text(TEXT)
        for i, (name, (family, preset, train, batch)) in enumerate(cases.items()):
            model = {"image_size": "32", "channels": "3"} if family == "dit" else {}
            data = str(text) if family == "gpt" else None
            options = {"tokenizer": "byte"} if family == "gpt" else {}
            settings = {"steps": 100_000, "batch": batch, "accumulate": 1, **train}
            request = TrainingRequest(family, data, preset, options, model, settings)
            run, task, config = new_run(request, out=Path(folder) / f"run-{i}")
            compare(name, Trainer(task, run, config), 10 if cuda else 20, 15)
            torch.compiler.reset()


if __name__ == "__main__":
    main()
