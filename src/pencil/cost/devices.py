"""How fast a device could be: the time for the arithmetic or for moving the bytes, whichever is longer."""

from dataclasses import dataclass, replace
from typing import Any

from ..config import UserError, nearest
from .count import flops
from .memory import BYTES, FULL, cache, training
from .parts import Part, Product, count_tokens, lengths, parts_of, stepped

WRITES = ("gpt", "captioner", "seq2seq")  # families that say one word after another


@dataclass(frozen=True)
class Device:
    """Peak rates: FLOP/s of dense products in each precision, bytes/s of its memory, and how many bytes that holds."""

    name: str
    bf16: float
    fp32: float
    bandwidth: float
    memory: float

    def rate(self, dtype: str) -> float:
        return self.bf16 if dtype == "bf16" else self.fp32


# makers' figures, without sparsity; an m1-max multiplies bfloat16 no faster than float32
DEVICES = {
    device.name: device
    for device in (
        Device("h200", 989e12, 67e12, 4.8e12, 141e9),
        Device("h100", 989e12, 67e12, 3.35e12, 80e9),
        Device("a100", 312e12, 19.5e12, 2.039e12, 80e9),
        Device("mi300x", 1307e12, 163.4e12, 5.3e12, 192e9),
        Device("l4", 121e12, 30.3e12, 300e9, 24e9),
        Device("rtx4090", 165e12, 82.6e12, 1.008e12, 24e9),
        Device("rtx3090", 71e12, 35.6e12, 936e9, 24e9),
        Device("m1-max", 10.4e12, 10.4e12, 400e9, 64e9),
    )
}


def device(name: str) -> Device:
    if name.lower() not in DEVICES:
        raise UserError(f"{name} is not a device whose figures are known; {nearest(name.lower(), DEVICES)}")
    return DEVICES[name.lower()]


@dataclass(frozen=True)
class Work:
    """Something to do: FLOPs, and the fewest bytes that must come from memory or go there."""

    flops: int
    bytes: int
    tokens: int

    @property
    def intensity(self) -> float:
        """FLOPs a byte: under a device's own, it waits for its memory."""
        return self.flops / self.bytes

    def seconds(self, on: Device, dtype: str) -> float:
        return max(self.flops / on.rate(dtype), self.bytes / on.bandwidth)

    def bound(self, on: Device, dtype: str) -> str:
        return "arithmetic" if self.flops / on.rate(dtype) >= self.bytes / on.bandwidth else "memory"


def works(
    family: str, c: Any, batch: int, length: int | None = None, dtype: str = "bf16", optimizer: str = "muon"
) -> dict[str, Work]:
    """Training on a batch, reading one, and, of a model that writes, one more token for each sequence."""
    parts, half = parts_of(family, c, batch, length), BYTES[dtype]
    learned, needed = sum(part.parameters for part in parts), training(family, c, batch, length, dtype)
    tokens = count_tokens(family, c, batch, length)
    # weights are read forward and back and gradients written; AdamW reads four numbers for each, and writes three;
    # a moment that Muon does without is neither read nor written
    spared = 2 * (needed.adamw - needed.muon) if optimizer == "muon" else 0
    found = {"training": Work(flops(parts).both, 10 * FULL * learned - spared + 2 * needed.kept, tokens)}
    if family not in WRITES:
        return found | {"reading": Work(flops(parts).forward, half * _multiplied(parts), tokens)}
    # a prompt is read for what comes after its last word
    parts = [replace(p, rows=batch) if isinstance(p, Product) and p.group == "head" else p for p in parts]
    held = lengths(family, c, length)[0] + getattr(c, "before", 0)
    kept = cache(c, batch, held, dtype, source=sum(lengths(family, c, length)[1:]))
    found["reading"] = Work(flops(parts).forward, half * _multiplied(parts) + kept, tokens)
    step = stepped(family, c, batch, held, length)
    return found | {"writing": Work(flops(step).forward, half * _multiplied(step) + kept, batch)}


def _multiplied(parts: list[Part]) -> int:
    """Numbers of all matrices."""
    return sum(p.inside * p.outside * p.times for p in parts if isinstance(p, Product))
