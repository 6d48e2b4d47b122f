"""From one device to a thousand: memory, communication and the efficiency to expect, with what is assumed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..config import UserError
from .count import Counts
from .devices import Device
from .memory import ActivationMemory
from .parallel import DeviceMemory, Plan, Unit, device_memory, handed, sent

MACHINE = 8  # devices in a machine
NETWORK = 50e9  # bytes/s that each device sends to other machines: 400 Gbit/s each
COMPUTE = 0.4  # of the peak FLOP/s that a train step reaches
MOST = 1024  # devices in a table


@dataclass(frozen=True)
class Scale:
    """One number of devices."""

    plan: Plan
    memory: DeviceMemory
    recomputed: DeviceMemory  # with activation recomputation
    handed: dict[str, int]  # bytes to each kind of collective, in an update
    sent: int  # bytes by each device, in an update
    compute: float  # seconds of an update
    communication: float  # seconds

    @property
    def efficiency(self) -> tuple[float, float]:
        """The share of the time in which a device computes: nothing sent meanwhile, and as much as can be.

        DDP can send while the last micro-batch goes backwards, two thirds of its time; FSDP2 all the time.
        """
        meanwhile = self.compute if self.plan.parallel == "fsdp" else self.compute * 2 / 3 / self.plan.accumulate
        waits = self.communication, max(0.0, self.communication - meanwhile)
        least, most = (self.compute / (self.compute + wait) for wait in waits)
        return least, most


def bandwidth_of(on: Device, devices: int, given: float | None = None) -> float:
    """Bytes/s that each device sends: within a machine by its link, to other machines no faster than the network."""
    if given is not None:
        return given
    if not on.link and devices > 1:
        raise UserError(f"no machine has several {on.name}: --bandwidth says how many GB/s each sends to the others")
    return on.link if devices <= MACHINE else min(on.link, NETWORK)


def scale(
    units: list[Unit],
    plan: Plan,
    counts: Counts,
    held: ActivationMemory | None,
    batch: int,
    on: Device,
    recompute: bool = False,
    bandwidth: float | None = None,
) -> Scale:
    """The cost of an update with `batch` rows a device and micro-batch."""
    given = handed(units, plan, counts.trained.share)
    flops = counts.forward.flops + counts.backward + (counts.recomputed if recompute else 0)
    compute = plan.accumulate * batch * flops / (COMPUTE * on.rate(plan.dtype))
    moved = sent(given, plan.devices)
    return Scale(
        plan,
        device_memory(units, plan, held),
        device_memory(units, plan, held, recompute=True),
        given,
        moved,
        compute,
        moved / bandwidth_of(on, plan.devices, bandwidth) if moved else 0.0,
    )


def numbers_up_to(most: int) -> Sequence[int]:
    """1, 2, 4 … 1,024 devices, and the one asked for."""
    powers = [1 << i for i in range(MOST.bit_length())]
    return sorted({*powers, most})


def table(
    units: list[Unit],
    plan: Plan,
    counts: Counts,
    held: ActivationMemory | None,
    batch: int,
    on: Device,
    recompute: bool = False,
    bandwidth: float | None = None,
) -> list[Scale]:
    """The same rows a device on more and more devices."""
    plans = [replace(plan, devices=devices) for devices in numbers_up_to(plan.devices)]
    return [scale(units, one, counts, held, batch, on, recompute, bandwidth) for one in plans]
