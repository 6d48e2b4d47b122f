"""What a benchmark is run with, and the rows it gives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ..cost.devices import Device, Workload
from ..cost.measure import local_device
from .peers import Peers

Row = dict[str, Any]
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Plan:
    """The options of a benchmark, and the rates of this machine that its results are compared with."""

    device: torch.device
    peers: Peers = field(default_factory=Peers)
    quick: bool = False
    repeat: int = 5
    preset: str | None = None
    batch: int | None = None
    tokens: int | None = None
    compile: bool = False  # our decode step; a user chooses it too
    notify: Callable[[str], None] = lambda line: None

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """bfloat16 on CUDA, else float32."""
        return torch.bfloat16 if self.cuda else torch.float32

    @property
    def dtype_name(self) -> str:
        return NAMES[self.dtype]

    @cached_property
    def ceilings(self) -> Device:
        """The rates of this machine, measured when they are first asked for."""
        return local_device(self.device, self.dtype_name)

    def shares(self, work: Workload | None, seconds: float) -> Mapping[str, float]:
        """MFU, and the share of the bandwidth at the fewest bytes, of work that takes this long."""
        if work is None:
            return {}
        return {
            "mfu": work.flops / seconds / self.ceilings.rate(self.dtype_name),
            "bandwidth_share": work.bytes / seconds / self.ceilings.bandwidth,
        }
