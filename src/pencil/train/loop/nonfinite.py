"""Losses and gradients that are NaN or infinite: kept from the weights on the device, and read by the host later.

What is not finite is kept out on the device. `FiniteGuard.check` turns loss and gradient norm into a flag that never
leaves the device: fused AdamW reads it as `found_inf`, and so does our Muon; the moving average multiplies by it. The
host reads the losses ten steps later. With `train.nonfinite = "stop"` the flag stays set, so that by then the weights
are still those before the bad update: they are saved, and its batch is named by its samples.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ...config import UserError


class Nonfinite(NamedTuple):
    """An update that was left out, by the step it would have made."""

    step: int
    what: str  # "loss is nan"


class Updates(NamedTuple):
    """What the host reads of some updates: losses and gradient norms (before clipping), and those left out."""

    losses: list[float]
    norms: list[float]
    left_out: list[Nonfinite]


class FiniteGuard:
    """Decides on the device whether an update is applied, so that training never waits for the answer.

    With `stop`, all updates after the first bad one are left out as well: when the host reads of it, the weights are
    still those before it.
    """

    def __init__(self, device: torch.device, stop: bool):
        self.stop = stop
        self.stopped = torch.zeros((), device=device)
        self.recent: list[Tensor] = []  # loss and gradient norm since they were last read

    def check(self, loss: Tensor, norm: Tensor) -> Tensor:
        """1 if the update must be left out, else 0; on the device."""
        left_out = (~(torch.isfinite(loss) & torch.isfinite(norm))).float()
        if self.stop:
            left_out = self.stopped = torch.maximum(self.stopped, left_out)
        self.recent.append(torch.stack([loss.float(), norm.float()]))
        return left_out

    def read(self, step: int) -> Updates:
        """The updates since the last reading; `step` is how many were made in all."""
        read = Updates([], [], [])
        if not self.recent:
            return read
        values = torch.stack(self.recent).tolist()
        self.recent.clear()
        for at, (loss, norm) in enumerate(values, step - len(values) + 1):
            if math.isfinite(loss) and math.isfinite(norm):
                read.losses.append(loss)
                read.norms.append(norm)
                continue
            what = f"gradient norm is {norm}" if math.isfinite(loss) else f"loss is {loss}"
            read.left_out.append(Nonfinite(at, what))
            if self.stop:
                break
        return read


def require_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    """Refuse to write weights or moments that are not finite."""
    bad = [name for name, finite in zip(tensors, _are_finite(tensors.values()), strict=True) if not finite]
    if bad:
        raise UserError(
            f"{what} would hold NaN or infinity in {bad[0]}{f' and {len(bad) - 1} others' if bad[1:] else ''}, "
            "and was not written; a lower --train.lr may help"
        )


def _are_finite(tensors: Iterable[Tensor]) -> list[bool]:
    """Whether each tensor is finite; the host waits once for all of them."""
    flags = [tensor.isfinite().all() for tensor in tensors]
    devices = {flag.device for flag in flags}
    if len(devices) == 1:
        return torch.stack(flags).tolist()
    return [bool(flag) for flag in flags]


def name_samples(samples: list[str], most: int = 5) -> str:
    """The samples of a batch in a sentence."""
    rest = f" and {len(samples) - most} more" if len(samples) > most else ""
    return ", ".join(samples[:most]) + rest
