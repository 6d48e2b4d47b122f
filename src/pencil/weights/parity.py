"""The original beside ours: the same input through both, and the largest error of every block."""

from math import inf, isfinite
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..config import UserError
from ..core.probe import Probe
from .maps import Architecture


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


@torch.no_grad()
def compare(architecture: Architecture, theirs: nn.Module, ours: Any, seed: int = 0) -> list[Difference]:
    """Every value that both have, and the logits last, for one random input."""
    given = architecture.inputs(ours.config, torch.Generator().manual_seed(seed))
    watched = dict(architecture.outputs(ours.config))
    held: dict[str, Tensor] = {}
    hooks = [
        theirs.get_submodule(module).register_forward_hook(
            lambda _, __, out, name=name: held.update({name: _first(out)})
        )
        for name, module in watched.items()
    ]
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
