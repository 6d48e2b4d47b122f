"""Training on several devices, with DDP or FSDP2: the memory of one device, and the bytes it sends in an update.

DDP: every device has the whole model, and the gradients are summed once an update. FSDP2: every device has a piece of
each parameter. The parameters of a block are gathered before it runs, forwards and again backwards, and its gradient is
reduced and scattered. Parameters outside blocks are gathered once a micro-batch and stay until the backward pass ends.
Under bf16 autocast blocks are gathered in bf16; all else is in float32.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from .activations import FULL
from .memory import BYTES, ActivationMemory

CROSS = "cross"  # the cross-attention of a block
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "all-reduce", "all-gather", "reduce-scatter", "all-to-all"


class Parameter(NamedTuple):
    """One parameter: its shape, whether it is trained, and whether Muon updates it where that is used."""

    shape: tuple[int, ...]
    trained: bool
    matrix: bool

    def piece(self, world: int) -> int:
        """Values of a device's piece. Rows are dealt out: where they do not divide, the last pieces are padding."""
        return math.prod((-(-self.shape[0] // world), *self.shape[1:])) if self.shape else 1


class Unit(NamedTuple):
    """Parameters that FSDP2 gathers together, how often in a step, and how many such units there are."""

    parameters: tuple[Parameter, ...]
    gathers: int = 1
    times: int = 1

    def pieces(self, world: int, trained: bool = False, matrix: bool = False) -> int:
        """Values of a device's pieces; of those trained only, or of the matrices that Muon updates."""
        wanted = [p for p in self.parameters if p.trained >= trained and p.matrix >= matrix]
        return sum(p.piece(world) for p in wanted)

    def whole(self, world: int, trained: bool = False) -> int:
        """Values that a collective gathers or scatters, padding included."""
        return world * self.pieces(world, trained)


def unit_of(name: str) -> str:
    """The unit of a parameter: its block, the cross-attention of that, or "", which is all outside blocks."""
    words = name.split(".")
    if "blocks" not in words[:-1]:
        return ""
    end = words.index("blocks") + 2
    return ".".join(words[: end + (words[end : end + 1] == [CROSS])])


def units_of(model: nn.Module) -> list[Unit]:
    """The units of a model, that outside blocks first; those of the same parameters are one entry."""
    by_unit: dict[str, list[Parameter]] = {"": []}
    for name, p in model.named_parameters():
        unit = unit_of(name)
        matrix = p.requires_grad and p.ndim == 2 and bool(unit)
        by_unit.setdefault(unit, []).append(Parameter(tuple(p.shape), p.requires_grad, matrix))
    # a cross-attention reads the source before its block runs, so it is gathered for both, forwards and backwards
    gathers = {name: 1 if not name else 4 if name.endswith(f".{CROSS}") else 2 for name in by_unit}
    units = Counter(Unit(tuple(parameters), gathers[name]) for name, parameters in by_unit.items())
    return [unit._replace(times=times) for unit, times in units.items()]


@dataclass(frozen=True)
class Plan:
    """How a model is trained on several devices."""

    parallel: str = "ddp"
    devices: int = 1
    accumulate: int = 1  # micro-batches in an update
    optimizer: str = "adamw"
    ema: bool = False
    dtype: str = "bf16"
    sync: str = "batch"  # how often FSDP2 reduces gradients: once an update, or with each micro-batch

    @property
    def pieces(self) -> int:
        """Among how many devices the parameters are divided."""
        return self.devices if self.parallel == "fsdp" else 1

    @property
    def sharded(self) -> bool:
        return self.parallel == "fsdp"

    @property
    def holds_whole(self) -> bool:
        """Whether FSDP2 holds the whole gradient while it accumulates."""
        return self.sharded and self.sync == "update" and self.accumulate > 1


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of the fullest device in a train step."""

    weights: int
    gradients: int
    optimizer: int
    average: int  # the EMA of the weights
    gathered: int  # whole parameters, and whole gradients on their way
    activations: int
    total: int  # at the peak; less than the sum where gradients come as activations go


def device_memory(
    units: list[Unit], plan: Plan, activation: ActivationMemory | None, recompute: bool = False
) -> DeviceMemory:
    """What each device needs; `held` is of the micro-batch of one device.

    DDP holds gradients all the time, and those that were accumulated before beside them. Otherwise gradients come
    during the backward pass, unless some were accumulated before. An evaluation needs less than a step: FSDP2 gathers
    block by block for it, too.
    """

    def summed(trained: bool = False, matrix: bool = False, pieces: int = plan.pieces) -> int:
        return FULL * sum(unit.times * unit.pieces(pieces, trained, matrix) for unit in units)

    weights, gradients = summed(), summed(trained=True)
    state = 2 * gradients - (summed(matrix=True) if plan.optimizer == "muon" else 0)
    average = gradients * plan.ema
    peak, in_blocks, of_block = 0, 0, 0
    if activation is not None and recompute:
        peak, in_blocks, of_block = (
            activation.peak_recomputed,
            activation.in_blocks_recomputed,
            activation.of_block_recomputed,
        )
    elif activation is not None:
        peak, in_blocks, of_block = activation.peak, activation.in_blocks, activation.of_block
    accumulated = gradients if plan.accumulate > 1 else 0
    if plan.holds_whole:
        accumulated = summed(trained=True, pieces=1)
    outside = FULL * units[0].pieces(1, trained=True)
    blocks = sum(unit.times for unit in units if unit.gathers == 2)
    in_last = max(0, in_blocks - max(0, blocks - 1) * of_block)
    # gradients, what is gathered, and activations: at the loss, in the first and the last block of the backward pass,
    # and at its end
    if plan.parallel == "ddp":
        early = accumulated + (gradients if plan.devices > 1 else 0)
        moments = [(early, 0, peak), (max(early, outside), 0, in_blocks), (gradients, 0, in_last)]
    else:
        whole, moving = FULL * units[0].whole(plan.devices), _moving(units[1:], plan, of_block)
        moving += whole + outside * (not plan.holds_whole)
        rest = gradients - FULL * max((u.pieces(plan.devices, trained=True) for u in units), default=0)
        moments = [
            (accumulated, whole, peak),
            (accumulated, moving, in_blocks),
            (max(rest, accumulated), moving, in_last),
            (gradients, whole + outside + FULL * units[0].whole(plan.devices, trained=True), 0),
        ]
    at_once, always = max(moments, key=sum), weights + state + average
    gradients, activations = max(gradients, accumulated), max(peak, in_blocks)
    return DeviceMemory(weights, gradients, state, average, at_once[1], activations, always + sum(at_once))


def _moving(blocks: list[Unit], plan: Plan, of_block: int) -> int:
    """Of blocks in FSDP2's backward pass: the parameters of one, those of the next, which are gathered meanwhile, its
    gradient, and the gradient of the one before, which is sent; that one has given back its activations.

    To a whole gradient that is held, another in the same dtype is added where it lies."""
    each, devices = BYTES[plan.dtype], plan.devices
    parameters = max((each * u.whole(devices) for u in blocks), default=0)
    in_place = plan.holds_whole and each == FULL
    gradient = 0 if in_place else max((each * u.pieces(1, trained=True) for u in blocks), default=0)
    on_its_way = max((FULL * u.whole(devices, trained=True) for u in blocks), default=0)
    return parameters * min(devices, 2) + gradient + max(0, on_its_way - of_block)


def handed(units: list[Unit], plan: Plan, share: float = 1.0) -> dict[str, int]:
    """Bytes that each device hands to the collectives in one update: of a gathered tensor the whole, padding included.

    `share` of the blocks is what the backward pass goes through, for which they are gathered half of the times. Of the
    matrices that Muon sends, the mean of all devices. Left out are the few numbers of the loss, the gradient's norm and
    signals.
    """
    if plan.devices == 1:
        return {}
    if plan.parallel == "ddp":
        return {ALL_REDUCE: FULL * sum(u.times * u.pieces(1, trained=True) for u in units)}
    gathered = sum(
        (BYTES[plan.dtype] if u.gathers > 1 else FULL)  # what is outside blocks is gathered once
        * round(u.times * u.whole(plan.devices) * (u.gathers - (1 - share) * (u.gathers // 2)))
        for u in units
    )
    reduced = FULL * sum(u.times * u.whole(plan.devices, trained=True) for u in units)
    reduces = plan.accumulate if plan.sync == "batch" else 1
    by_kind = {ALL_GATHER: plan.accumulate * gathered, REDUCE_SCATTER: reduces * reduced}
    if plan.optimizer == "muon":
        # each matrix goes whole to the device that works it, and its update comes back in pieces
        matrices = FULL * sum(u.times * u.pieces(1, matrix=True) for u in units)
        by_kind[ALL_TO_ALL] = 2 * matrices // plan.devices
    return by_kind


def sent(by_kind: dict[str, int], devices: int) -> int:
    """Bytes that each device sends, by rings: a tensor goes round twice in an all-reduce, otherwise once."""
    turns = sum(size * (2 if name == ALL_REDUCE else 1) for name, size in by_kind.items())
    return turns * (devices - 1) // devices
