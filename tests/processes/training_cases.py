"""Trainings for the tests of several processes: the same function runs here, and as a script on each of them."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from pencil.api.run_setup import prepare, train_config
from pencil.collectives.processes import process_group, world
from pencil.families import family
from pencil.train.loop.trainer import Trainer
from pencil.train.losses import cross_entropy as losses
from pencil.train.losses.cross_entropy import fuses
from pencil.train.recompute import model_blocks
from pencil.train.task import Request

STEPS = 3
SIZES = dict(width=24, depth=2, heads=3)
# a small epsilon would turn the rounding of gradients that are zero into whole steps
TRAIN = dict(batch=8, steps=7, warmup=2, eval_batches=2, device="cpu", eps=1e-4, ema=0.9)
DATA = {"vit": "digits", "captioner": "scenes", "seq2seq": "dates", "dit": "digits"}
# dropout's random numbers are each process's own
MODEL = {
    "gpt": dict(context=31, dropout=0.0), "reader": dict(context=31, dropout=0.0), "seq2seq": dict(dropout=0.0),
    "vit": dict(dropout=0.0, key_dropout=0.0), "captioner": dict(dropout=0.0), "dit": {},
}  # fmt: skip
SCRIPT = "import sys; sys.path.insert(0, sys.argv[1]); import training_cases; training_cases.main()"


def make(name, text, model=None, **train):
    """A trainer of a small model; `text` is the file for the families that read one."""
    record = family(name)
    chosen = {**TRAIN, **train}
    config = train_config(record, record.default_preset, chosen)
    data, sizes = DATA.get(name, str(text)), {**SIZES, **MODEL[name], **(model or {})}
    task = prepare(Request(record, data, record.default_preset, sizes, chosen), config).task
    return Trainer(task, None, task.train)


def train(name, text, model=None, poison=None, steps=STEPS, preview=False, fused=False, **settings):
    """A few updates: all tensors whole, and losses and evaluations before and after; `poison` is (rank, step).

    `preview`: the preview is among the facts, and how many blocks are whole at once while it is made and evaluated.
    """
    losses.fuses = fuses if not fused else lambda model, targets: True
    made = make(name, text, model, **settings)
    if poison is not None:
        clean = made.gradients.loss
        made.gradients.loss = lambda batch: (
            clean(batch) * (float("nan") if [world().rank, made.step] == poison else 1.0)
        )
    with made.group:
        with whole_blocks(made.model) as counts:
            first = made.evaluator.evaluate()
            shown = made.evaluator.look_inside()[0] if preview else None
        for _ in range(steps):
            made.update()
        found, _, left_out = made.guard.read(made.step)
        facts = {
            "first": first,
            "losses": found,
            "left out": [list(one) for one in left_out],
            "last": made.evaluator.evaluate(),
        }
        if preview:
            facts |= {"preview": shown and shown.content.hex(), "whole blocks": max(counts, default=0)}
        tensors = {name: whole(t) for name, t in made.model.state_dict().items()}
        if made.ema is not None:
            tensors |= {f"ema.{name}": whole(t) for name, t in made.ema.values.items()}
        for kind, optimizer in made.optimizers.items():
            for at, state in enumerate(optimizer.state.values()):
                tensors |= {f"{kind}.{at}.{key}": whole(value) for key, value in state.items()}
    return tensors, facts


@contextmanager
def whole_blocks(model):
    """How many blocks are whole, each time that one runs."""
    counts, blocks = [], model_blocks(model)

    def count(*_):
        counts.append(sum(not hasattr(next(block.parameters()), "full_tensor") for block in blocks))

    hooks = [block.register_forward_hook(count) for block in blocks]
    hooks += [block.mlp.register_forward_hook(count) for block in blocks]
    yield counts
    for hook in hooks:
        hook.remove()


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def main():
    torch.set_num_threads(1)
    _, out, cases = sys.argv[1:]
    with process_group(torch.device("cpu")):
        for number, case in enumerate(json.loads(cases)):
            tensors, facts = train(**case)
            path = Path(out) / f"{number}-{world().rank}"
            save_file({name: t.contiguous() for name, t in tensors.items()}, f"{path}.safetensors")
            Path(f"{path}.json").write_text(json.dumps(facts))
