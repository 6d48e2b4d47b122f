"""From one device to a thousand: memory, communication and the efficiency to expect, with what is assumed."""

from dataclasses import dataclass, replace

from ..config import UserError
from .count import Counts
from .devices import Device
from .memory import ActivationMemory
from .parallel import DeviceMemory, Plan, Unit, device_memory, handed, sent

MACHINE_DEVICES = 8
NETWORK_BYTES_PER_SECOND = 50e9  # that each device sends to other machines: 400 Gbit/s each
COMPUTE = 0.4  # of the peak FLOP/s that a train step reaches
MOST_DEVICES = 1024  # in a table


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


def bandwidth_of(on: Device, devices: int, stated: float | None = None) -> float:
    """Bytes/s that each device sends: within a machine by its link, to other machines no faster than the network."""
    if stated is not None:
        return stated
    if not on.link and devices > 1:
        raise UserError(f"no machine has several {on.name}: --bandwidth says how many GB/s each sends to the others")
    return on.link if devices <= MACHINE_DEVICES else min(on.link, NETWORK_BYTES_PER_SECOND)


def scale(
    units: list[Unit],
    plan: Plan,
    counts: Counts,
    activations: ActivationMemory | None,
    batch: int,
    on: Device,
    recompute: bool = False,
    bandwidth: float | None = None,
) -> Scale:
    """The cost of an update with `batch` rows a device and micro-batch."""
    by_kind = handed(units, plan, counts.trained.share)
    flops = counts.forward.flops + counts.backward + (counts.recomputed if recompute else 0)
    compute = plan.accumulate * batch * flops / (COMPUTE * on.rate(plan.dtype))
    moved = sent(by_kind, plan.devices)
    return Scale(
        plan,
        device_memory(units, plan, activations),
        device_memory(units, plan, activations, recompute=True),
        by_kind,
        moved,
        compute,
        moved / bandwidth_of(on, plan.devices, bandwidth) if moved else 0.0,
    )


def table(
    units: list[Unit],
    plan: Plan,
    counts: Counts,
    activations: ActivationMemory | None,
    batch: int,
    on: Device,
    recompute: bool = False,
    bandwidth: float | None = None,
) -> list[Scale]:
    """The same rows a device on 1, 2, 4 … 1,024 devices, and on those of the plan."""
    numbers = sorted({*(1 << i for i in range(MOST_DEVICES.bit_length())), plan.devices})
    plans = [replace(plan, devices=devices) for devices in numbers]
    return [scale(units, plan, counts, activations, batch, on, recompute, bandwidth) for plan in plans]
