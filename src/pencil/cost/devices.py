"""The roofline: a device needs at least the time for the FLOPs or for moving the bytes, whichever is longer."""

from dataclasses import dataclass

from ..config import UserError, nearest
from ..models.config import BlockConfig
from .count import Counts, Pass
from .memory import BYTES, TrainMemory, kv_cache
from .profile import CostProfile


@dataclass(frozen=True)
class Device:
    """Peak rates: FLOP/s of dense matrix products in each precision, bytes/s of its memory, and its size in bytes.

    `link` is the bytes/s that it sends to the others of its machine; 0 where no machine has several.
    """

    name: str
    bf16: float
    fp32: float
    bandwidth: float
    memory: float
    link: float = 0.0
    cuda: bool = True  # a GPU that torch calls cuda, AMD's too

    def rate(self, dtype: str) -> float:
        return self.bf16 if dtype == "bf16" else self.fp32


# vendor peak figures, without sparsity; an m1-max multiplies bfloat16 no faster than float32. Links: one way of
# NVLink or Infinity Fabric, else PCIe 4.0 with 16 lanes
DEVICES = {
    device.name: device
    for device in (
        Device("h200", 989e12, 67e12, 4.8e12, 141e9, 450e9),
        Device("h100", 989e12, 67e12, 3.35e12, 80e9, 450e9),
        Device("a100", 312e12, 19.5e12, 2.039e12, 80e9, 300e9),
        Device("mi300x", 1307e12, 163.4e12, 5.3e12, 192e9, 448e9),
        Device("l4", 121e12, 30.3e12, 300e9, 24e9, 32e9),
        Device("rtx4090", 165e12, 82.6e12, 1.008e12, 24e9, 32e9),
        Device("rtx3090", 71e12, 35.6e12, 936e9, 24e9, 32e9),
        Device("m1-max", 10.4e12, 10.4e12, 400e9, 64e9, cuda=False),
    )
}


def device(name: str) -> Device:
    if name.lower() not in DEVICES:
        raise UserError(f"{name} is not a device whose figures are known; {nearest(name.lower(), DEVICES)}")
    return DEVICES[name.lower()]


@dataclass(frozen=True)
class Workload:
    """FLOPs, and the fewest bytes that must come from memory or go there."""

    flops: int
    bytes: int
    tokens: int

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP/byte: below a device's own, the workload is memory-bound."""
        return self.flops / self.bytes

    def repeated(self, times: int) -> "Workload":
        """The same work so many times."""
        return Workload(times * self.flops, times * self.bytes, times * self.tokens)

    def seconds(self, on: Device, dtype: str) -> float:
        return max(self.flops / on.rate(dtype), self.bytes / on.bandwidth)

    def bound(self, on: Device, dtype: str) -> str:
        return "compute" if self.flops / on.rate(dtype) >= self.bytes / on.bandwidth else "memory"


def workloads(
    profile: CostProfile,
    config: BlockConfig,
    counts: Counts,
    memory: TrainMemory,
    batch: int,
    length: int | None = None,
    dtype: str = "bf16",
    optimizer: str = "muon",
    recompute: bool = False,
) -> dict[str, Workload]:
    """A train step and a forward pass; of a model that decodes, a prefill and one decode step instead of the latter.

    `recompute`: the train step runs the blocks a second time instead of keeping their activations.
    """
    tokens = profile.tokens(config, length)
    # weights are read forward and backward and gradients written; AdamW reads four values a parameter and writes three;
    # a moment that Muon does not have is neither read nor written, and of what is frozen the weights alone
    spared = 2 * (memory.adamw - memory.muon) if optimizer == "muon" else 0
    moved = 2 * memory.weights + 8 * memory.gradients - spared + 2 * memory.saved
    flops = counts.forward.flops + counts.backward + (counts.recomputed if recompute else 0)
    train = {"train_step": Workload(batch * flops, moved, batch * tokens)}

    def inference(passed: Pass, tokens: int, cache: int = 0) -> Workload:
        return Workload(batch * passed.flops, BYTES[dtype] * passed.matrices + cache, batch * tokens)

    if counts.prefill is None or counts.decode is None:
        return train | {"forward": inference(counts.forward, tokens)}
    cache = kv_cache(config, batch, tokens, dtype)
    return train | {"prefill": inference(counts.prefill, tokens, cache), "decode": inference(counts.decode, 1, cache)}
