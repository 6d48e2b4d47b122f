"""Helpers for tests of training: interruptions at a chosen step, and everything a run folder holds, bit by bit."""

import hashlib
import os
import signal

import torch
from safetensors import safe_open

from pencil.train.loop import checkpoint
from pencil.train.loop.report import Metrics


def interrupt_after(trainer, step, how=signal.SIGINT):
    """Let the training get this signal, as from Ctrl-C, after a step; it saves and stops."""
    _after(trainer, step, lambda: os.kill(os.getpid(), how))
    return trainer


class Killed(Exception):
    """Stands for a kill: nothing is saved after it."""


def kill_after(trainer, step):
    """Let the training end after a step, with nothing saved but the checkpoints so far."""

    def kill():
        raise Killed

    _after(trainer, step, kill)
    return trainer


def _after(trainer, step, action):
    update = trainer.update

    def watched():
        seen = update()
        if trainer.step == step:
            action()
        return seen

    trainer.update = watched


def bits(folder, step):
    """SHA-256 of every tensor of a checkpoint and of the run's weights; the facts about them; the metrics."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        weights = {name: _hash(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        facts = file.metadata()
    lines = [{k: v for k, v in line.items() if k not in ("rate", "time")} for line in Metrics.read(folder)]
    return {n: _hash(t) for n, t in checkpoint.read(folder, step).tensors.items()}, weights, facts, lines


def _hash(tensor):
    return hashlib.sha256(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
