"""The original beside ours: the same input through both, and the largest error of every block."""

from collections.abc import Callable
from math import inf, isfinite
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..config import UserError
from ..core.probe import Probe
from ..models.config import BlockConfig
from .maps import SHORT, Architecture

SECONDS = 60.0
ROTATED = 16_384  # positions whose angles, position·frequency in float32, are exact enough for the comparison


class Difference(NamedTuple):
    """How far a value of ours is from the original's."""

    name: str
    error: float  # the largest
    largest: float  # absolute value of the original

    @property
    def relative(self) -> float:
        """Of the largest value; infinite where a value is NaN or infinite in either model, since it equals nothing."""
        if not isfinite(self.error) or not isfinite(self.largest):
            return inf
        return self.error / self.largest if self.largest else self.error


class Reached(NamedTuple):
    """What was compared."""

    rows: list[Difference]
    length: int  # the longest text, 0 for models without
    unread: str  # what is beyond it, in a sentence; empty where nothing is


def _context(config: BlockConfig) -> int:
    """The most tokens of a text; 0 for a model that reads none."""
    return config.context if config.vocab else 0


def compare_lengths(
    architecture: Architecture,
    theirs: nn.Module,
    ours: Any,
    memory: int,
    seconds: float = SECONDS,
    clock: Callable[[], float] = monotonic,
) -> Reached:
    """A short text, and then twice as many tokens at a time up to the model's limit, while the next pass fits into the
    memory and all of them into the seconds. Of each value the largest error."""
    config, most = ours.config, _context(ours.config)
    if config.positions == "rope":
        most = min(most, ROTATED)
    length, growth, start = min(SHORT, most), 2.0, clock()
    rows = compare(architecture, theirs, ours, length=length)
    took = clock() - start
    while length < most:
        following = min(2 * length, most)
        if clock() - start + took * growth > seconds or _bytes(config, following) > memory:
            break
        began = clock()
        more = compare(architecture, theirs, ours, length=following)
        rows = [max(pair, key=lambda row: row.relative) for pair in zip(rows, more, strict=True)]
        before, took, length = took, clock() - began, following
        growth = min(max(2.0, took / before if before else 2.0), 4.0)
    return Reached(rows, length, _unread(config, length, most))


def _bytes(config: BlockConfig, length: int) -> int:
    """About how much a pass of both takes: scores, their softmax and a mask; hidden states; and logits in float64."""
    states = 4 * (config.depth + 1) * config.width + 8 * config.vocab
    return 4 * length * (4 * config.heads * length + states)


def _unread(config: BlockConfig, length: int, most: int) -> str:
    if length >= _context(config):
        return ""
    also = f" and the window of {config.window:,}" if (config.window or 0) >= length else ""
    why = "the library rounds their angles in float32" if length == most else "the time and the memory do not suffice"
    return f"positions beyond {length:,}{also} were not compared: {why}"


@torch.no_grad()
def compare(
    architecture: Architecture, theirs: nn.Module, ours: Any, seed: int = 0, length: int = SHORT, exact: bool = True
) -> list[Difference]:
    """Every value that both have, and the logits last, for one random input of so many tokens, at most the context.

    What the library rounds more than the rest is computed exactly there, unless `exact` is False."""
    given = architecture.inputs(ours.config, torch.Generator().manual_seed(seed), min(length, _context(ours.config)))
    watched = dict(architecture.outputs(ours.config))
    held: dict[str, Tensor] = {}
    hooks = [
        theirs.get_submodule(module).register_forward_hook(
            lambda _, __, out, name=name: held.update({name: _first(out)})
        )
        for name, module in watched.items()
    ]
    for name, module in theirs.named_modules() if exact else ():
        if hook := architecture.exact.get(name.rpartition(".")[2]):
            hooks.append(module.register_forward_hook(hook))
    try:
        wanted = architecture.ask(theirs, given)
    finally:
        for hook in hooks:
            hook.remove()
    probe = Probe(*watched)
    logits = ours(*given, probe=probe)
    missing = [name for name in watched if name not in held or name not in probe.values]
    if missing:
        raise UserError(f"{missing[0]} was not computed by both models")
    pairs = [(name, probe.values[name], held[name]) for name in watched] + [("logits", logits, wanted)]
    return [_difference(name, mine, other) for name, mine, other in pairs]


def _first(output: Any) -> Tensor:
    """A module's output; of several, the first."""
    return (output[0] if isinstance(output, tuple) else output).detach().clone()


def _difference(name: str, ours: Tensor, theirs: Tensor) -> Difference:
    if ours.shape != theirs.shape:
        raise UserError(f"{name} has shape {tuple(ours.shape)} here and {tuple(theirs.shape)} in the original")
    error = (ours.double() - theirs.double()).abs().amax().item()
    return Difference(name, error, theirs.double().abs().amax().item())
