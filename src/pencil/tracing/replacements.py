"""What the cells of an edit become besides a number: their mean over the positions, noise, or another input's values.

A position becomes the mean over the positions that it may attend to: in a text that is written, over itself and those
before it. So the mean does not depend on what is written later, and the logits that chose a token are those of its
trace. Noise is drawn position by position for the same reason, and is the same in every row of a batch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import UserError

POSITIONS = ("T", "s", "t", "M", "N", "n")  # the letters of axes of positions (core/probe.py: LEGEND)
MEAN, NOISE, PATCH = "mean", "noise", "patch"
WORDS = f"a number, {MEAN}, {NOISE}:DEVIATION:SEED or {PATCH}"


@dataclass(frozen=True)
class Mean:
    """The mean over the positions that each may attend to."""

    axis: int = -1  # of the positions, once it is known
    mask: Any = None  # of (query positions, key positions), once the model is known; None: all see all

    def __str__(self) -> str:
        return MEAN

    def of(self, old: Tensor) -> Tensor:
        count = old.shape[self.axis]
        at = torch.arange(count, device=old.device)
        seen = torch.ones(count, count, dtype=torch.bool, device=old.device)
        if self.mask is not None:
            seen = self.mask(at[:, None], at).expand(count, count)
        rows = old.movedim(self.axis, 0)
        mean = (seen / seen.sum(-1, keepdim=True)).double() @ rows.double().flatten(1)
        return mean.reshape(rows.shape).movedim(0, self.axis).to(old)


@dataclass(frozen=True)
class Noise:
    """The values plus Gaussian noise of this standard deviation."""

    deviation: float
    seed: int = 0
    axis: int | None = None  # of the positions; None: there are none
    batch: bool = False  # whether the first axis is the batch

    def __str__(self) -> str:
        return f"{NOISE}:{self.deviation:g}:{self.seed}"

    def of(self, old: Tensor) -> Tensor:
        like = old if self.axis is None else old.movedim(self.axis, int(self.batch))
        shape = tuple(like.shape[int(self.batch) :])
        drawn = np.random.Generator(np.random.Philox(key=self.seed)).standard_normal(shape)
        noise = torch.from_numpy(np.asarray(drawn * self.deviation)).to(old)
        noise = noise.expand(like.shape)
        return old + (noise if self.axis is None else noise.movedim(int(self.batch), self.axis))


@dataclass(frozen=True)
class Patch:
    """The same cells of another run of the model; of a position that only one of the two has, nothing changes."""

    values: np.ndarray | None = None  # of the whole tensor, once the other run is known

    def __str__(self) -> str:
        return PATCH

    def of(self, old: Tensor) -> Tensor:
        assert self.values is not None
        new, common = old.clone(), tuple(slice(min(a, b)) for a, b in zip(old.shape, self.values.shape, strict=True))
        new[common] = torch.as_tensor(np.ascontiguousarray(self.values[common])).to(old)
        return new


Replacement = Mean | Noise | Patch


def read_replacement(text: str) -> Replacement | None:
    """What a word stands for; None where it is none of these."""
    word, *rest = text.strip().split(":")
    if word == MEAN and not rest:
        return Mean()
    if word == PATCH and not rest:
        return Patch()
    if word != NOISE:
        return None
    try:
        deviation, seed = float(rest[0]), int(rest[1]) if len(rest) > 1 else 0
    except (IndexError, ValueError):
        deviation, seed = -1.0, 0
    if not (0 < deviation < float("inf") and 0 <= seed < 1 << 63 and len(rest) <= 2):
        raise UserError(f"{text!r} is no noise: write {NOISE}:DEVIATION:SEED, such as {NOISE}:0.5:7, above 0")
    return Noise(deviation, seed)


def resolved(trace: Any, name: str, value: Replacement, other: Any = None) -> Replacement:
    """The replacement of a named value of a trace: with its axis of positions, its mask, or the other run's values.

    `other` is the trace that is patched from.
    """
    node = trace.graph.nodes[trace.find(name)]
    if "float" not in node.dtype and "complex" not in node.dtype:
        raise UserError(f"{name} holds {node.dtype}, which are no quantities: set a number instead")
    axes = [node.letter(i) for i in range(len(node.shape))]
    axis = next((i for i, letter in enumerate(axes) if letter in POSITIONS), None)
    if isinstance(value, Noise):
        return Noise(value.deviation, value.seed, axis, bool(axes) and axes[0].startswith("B"))
    if isinstance(value, Mean):
        if axis is None:
            raise UserError(f"{name} has no axis of positions to take the mean over: set a number, or noise")
        mask = getattr(trace.traced_model.model, "mask", None) if axes[axis] == "T" else None
        return Mean(axis, mask)
    if other is None:
        raise UserError(
            f"{name}={PATCH} takes the values of a second input: name one, with --patch-from or as the other input on "
            "the page; in Python the value is its trace"
        )
    if name not in other.graph.names:
        raise UserError(f"{name} is not computed for the input that is patched from: choose another value")
    values = np.asarray(other.array(name))
    if values.ndim != len(node.shape) or any(
        a != b and letter not in (*POSITIONS, "S") for a, b, letter in zip(values.shape, node.shape, axes, strict=True)
    ):
        shapes = ["×".join(map(str, shape)) for shape in (node.shape, values.shape)]
        raise UserError(f"{name} cannot be patched: its shape is {shapes[0]}, and {shapes[1]} for the other input")
    return Patch(values)
