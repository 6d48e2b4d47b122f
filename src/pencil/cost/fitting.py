"""Which batch, accumulation and recomputation would fit into a device's memory."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import nn

from ..device import sync_of
from ..models.config import BlockConfig
from .activations import FULL
from .count import Counts, count
from .memory import train_memory
from .parallel import Plan, device_memory, units_of
from .profile import CostProfile, on_meta

USABLE = 0.92  # of a device's memory; the rest is the driver's, the kernels' work space, and gaps between tensors


class Fit(NamedTuple):
    """Settings of the same update that fit, and the bytes they need on each device."""

    batch: int  # rows of a micro-batch, of all devices together
    accumulate: int
    recompute: str
    parallel: str
    bytes: int
    sync: str  # as it was, unless gradients must be summed more often to fit

    def words(self, than: Any, parallel: str = "ddp") -> str:
        """As on the command line; what is as it was is left out."""
        settings = {"batch": self.batch, "accumulate": self.accumulate, "recompute": self.recompute, "sync": self.sync}
        changed = [f"--train.{name} {value}" for name, value in settings.items() if value != getattr(than, name)]
        return " ".join([*changed, *([f"--train.parallel {self.parallel}"] * (self.parallel != parallel))])


def fitting(
    build: Callable[[Any], nn.Module],
    profile: CostProfile,
    config: BlockConfig,
    train: Any,
    memory: float,
    devices: int = 1,
    parallel: str = "ddp",
    dtype: str = "bf16",
    cuda: bool = True,
    slots: Callable[[int], int] | None = None,
) -> Fit | None:
    """The largest micro-batch that fits into `memory` bytes of each device, with as many rows in an update as before.

    Settings that need less than the present ones, which did not fit. Recomputation, which costs time, only where no
    batch fits without it, and FSDP2 instead of DDP only where nothing else fits. In exact mode `slots` has those of a
    batch, 0 where it cannot be cut; they run one after the other, and sums of their gradients are held. None: nothing
    fits, or the family has no formulas.
    """
    if profile.activations is None:
        return None
    counts, units = count(build, profile, config), units_of(on_meta(build, config))
    rows = train.batch * train.accumulate

    def need(kind: str, sync: str, batch: int, recompute: str) -> int:
        sync = sync_of(sync, counts.trained.parameters, memory)
        plan = Plan(kind, 1 if slots else devices, rows // batch, train.optimizer, bool(train.ema), dtype, sync)
        parts = slots(batch) if slots else devices
        needed = train_memory(profile, config, counts, batch // parts, None, dtype, cuda, plan.sharded)
        sums = FULL * counts.trained.parameters * (parts // devices).bit_length() if slots else 0
        return device_memory(units, plan, needed.activations, recompute == "blocks").total + sums

    most = min(USABLE * memory, need(parallel, train.sync, train.batch, train.recompute) - 1)
    for batch, recompute, kind, sync in _choices(train, devices, parallel, counts, slots):
        needed = need(kind, sync, batch, recompute)
        if needed <= most:
            return Fit(batch, rows // batch, recompute, kind, needed, sync)
    return None


def _choices(
    train: Any, devices: int, parallel: str, counts: Counts, slots: Callable[[int], int] | None
) -> Iterator[tuple[int, str, str, str]]:
    """Batches that divide the rows of an update and are divided by the devices, the largest first."""
    rows = train.batch * train.accumulate
    batches = [n for n in range(train.batch, 0, -1) if rows % n == 0 and n % devices == 0]
    if slots:
        batches = [n for n in batches if slots(n) and slots(n) % devices == 0]
    again = ("blocks",) if train.recompute == "blocks" or not counts.trained.all_blocks else ("none", "blocks")
    others = (("fsdp", train.sync), ("fsdp", "batch")) if devices > 1 and not slots else ()  # exact mode has no fsdp
    for kind, sync in dict.fromkeys(((parallel, train.sync), *others)):
        for recompute in again:
            for batch in batches:
                yield batch, recompute, kind, sync
