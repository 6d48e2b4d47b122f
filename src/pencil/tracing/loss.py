"""The loss of a traced model: what training would minimise for these targets, one named tensor a step.

    probabilities = softmax(logits)          targets: the right index at each position, or less than 0 for none
    target_probabilities = probabilities at the targets
    losses = −ln(target_probabilities)       0 where there is no target
    loss = Σ losses / n, over the n positions that have one

Training computes the same number from the logits at once (`train/losses/cross_entropy.py`), without the probabilities.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from .tape import Tape

NONE = -100  # the target of a position that has none


def next_tokens(tokens: Sequence[int], last: int = NONE) -> Tensor | None:
    """The targets of a text: at each token the one after it, and at the last none, unless it is known."""
    targets = [*tokens[1:], last]
    return None if set(targets) == {NONE} else torch.tensor([targets])


def logits_of(output: Any) -> Tensor:
    """The logits in what a model gave."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    logits = output.get("logits") if logits is None and isinstance(output, Mapping) else logits
    if logits is None:
        raise UserError("this model gives no logits")
    return logits


def check_targets(targets: Any, logits: Tensor) -> Tensor:
    """The targets as whole numbers of the logits' shape, without its last axis."""
    targets = torch.as_tensor(targets)
    if targets.shape != logits.shape[:-1]:
        shapes = ("×".join(map(str, shape)) or "a single number" for shape in (targets.shape, logits.shape))
        raise UserError("targets are {} and the logits {}: one target for each row of logits".format(*shapes))
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise UserError(f"targets are whole numbers, the index of the right token at each place, not {targets.dtype}")
    if (targets >= logits.shape[-1]).any():
        raise UserError(f"a target is {int(targets.max())}, and the model tells {logits.shape[-1]} apart, from 0")
    if (targets < 0).all():
        raise UserError("no position has a target, so there is no loss: give at least one that is not below 0")
    return targets.long().to(logits.device)


EXACT = (torch.float32, torch.float64)  # logits in half precision have their softmax in single precision


def record(tape: Tape, logits: Tensor, targets: Any) -> dict[str, int]:
    """Compute the loss while the tape runs, and name its steps: the nodes of them and of the logits."""
    steps = {"logits": logits}

    def named(name: str, value: Tensor) -> Tensor:
        steps[name] = tape.fire(name, value)
        return steps[name]

    given = check_targets(targets, logits).detach().clone()
    tape.leaf_names[id(given)] = ["targets"], "input"
    right = named("targets", given)
    probabilities = named("probabilities", (logits if logits.dtype in EXACT else logits.float()).softmax(-1))
    counted = right >= 0
    n = int(counted.sum())
    everywhere = n == right.numel()
    places = right if everywhere else right.clamp(min=0)
    chosen = named("target_probabilities", probabilities.gather(-1, places[..., None])[..., 0])
    losses = named("losses", -chosen.log() if everywhere else (-chosen.log()).masked_fill(~counted, 0))
    named("loss", losses.sum() / n)
    return {name: tape.node_of(value) for name, value in steps.items()}


def describe(tape: Tape, steps: Mapping[str, int]) -> None:
    """The axes, symbols and formulas of the steps: the axes are those of the logits."""
    nodes = {name: tape.nodes[node] for name, node in steps.items()}
    axes, z = nodes["logits"].axes, nodes["logits"].symbol or nodes["logits"].name
    row, n = axes.rpartition(" ")[0], int((tape.value(steps["targets"]) >= 0).sum())
    about = {
        "targets": (row, "y", ""),
        "probabilities": (axes, "p", f"softmax({z})"),
        "target_probabilities": (row, "p_y", "p[y]"),
        "losses": (row, "ℓ", "−ln p_y"),
        "loss": ("", "", f"Σ ℓ/{n}"),
    }
    for name, description in about.items():
        nodes[name].axes, nodes[name].symbol, nodes[name].formula = description
