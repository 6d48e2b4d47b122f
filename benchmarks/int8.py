"""What int8 weights cost: the validation loss of one trained model in each dtype, over the whole held-out text.

python benchmarks/int8.py tinyshakespeare.txt                               (trains the preset shakespeare, on a GPU)
python benchmarks/int8.py tinyshakespeare.txt --preset nanogpt --steps 300                           (a quick check)
python benchmarks/int8.py --run runs/mine                                              (a run that is trained already)

Every dtype computes on the same device; a difference between two losses is of the same windows, so it has little noise:
its standard error over the windows is printed beside it.
"""

import argparse
import math
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from pencil.api.loading import load_model, open_run
from pencil.api.run_data import task_of
from pencil.api.run_setup import new_run
from pencil.api.training_request import TrainingRequest
from pencil.config import build
from pencil.device import pick_device
from pencil.progress import track
from pencil.train.loop.trainer import Trainer
from pencil.train.settings import TrainConfig

DTYPES = ("float32", "bfloat16", "int8")


@torch.no_grad()
def losses(task, model) -> Tensor:
    """The mean loss of each held-out window."""
    starts, device, found = task.held_out_windows(None), next(model.parameters()).device, []
    for i in track(range(0, len(starts), 32)):
        tokens, targets = (t.to(device) for t in task._windows(task.data.val, starts[i : i + 32]))
        logits = model(tokens).double()
        found.append(torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none").mean(1).cpu())
    return torch.cat(found)


def megabytes(model) -> float:
    kept = {t.data_ptr(): t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())}
    return sum(kept.values()) / 1e6


def report(run, task, device) -> None:
    print("| dtype | validation loss | perplexity | change of the loss | MB |\n|---|---|---|---|---|")
    first = None
    for dtype in DTYPES:
        model = load_model(run, device, dtype)
        found = losses(task, model)
        first = found if first is None else first
        off = found - first
        error = off.std().item() / math.sqrt(len(off))
        change = "" if dtype == DTYPES[0] else f"{off.mean():+.5f} ± {error:.5f}"
        loss = found.mean().item()
        print(f"| {dtype} | {loss:.5f} | {math.exp(loss):.4f} | {change} | {megabytes(model):.1f} |", flush=True)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("text", nargs="?")
    words.add_argument("--run", help="a trained run of a gpt, in place of a text to train on")
    words.add_argument("--preset", default="shakespeare")
    words.add_argument("--steps", type=int)
    words.add_argument("--device", default="auto")
    options = words.parse_args()
    device = pick_device(options.device)
    if (options.text is None) == (options.run is None):
        words.error("give a text to train on, or --run")
    if options.run is not None:
        run = open_run(options.run)
        report(run, task_of(run, build(TrainConfig, run.config["train"], "train.")), device)
        return
    with tempfile.TemporaryDirectory() as folder:
        train = {"device": options.device} | ({} if options.steps is None else {"steps": options.steps})
        request = TrainingRequest("gpt", options.text, options.preset, train=train)
        run, task, config = new_run(request, out=Path(folder) / "run")
        outcome = Trainer(task, run, config).train()
        print(f"\n{options.preset}, {outcome.step} steps in {outcome.seconds:.0f} s on {device}\n")
        report(run, task, device)


if __name__ == "__main__":
    main()
