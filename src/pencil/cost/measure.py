"""What this machine does: its rates, and the time a model really takes."""

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from ..models import create
from .devices import WRITES, Device, Work
from .memory import BYTES, Training

TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
PATIENCE = 20.0  # seconds that one call may take


def seconds(call: Callable[[], Any], device: torch.device, least: int = 3, enough: float = 0.2) -> float:
    """The median of several calls, after one that is not counted."""

    def timed() -> float:
        begun = time.perf_counter()
        call()
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
        return time.perf_counter() - begun

    first, times = timed(), []
    while len(times) < least or sum(times) < enough:
        times.append(timed())
        if first > PATIENCE / 4:
            break
    return median(times)


def here(device: torch.device, dtype: str) -> Device:
    """This machine as a device: a large product's FLOP/s, and the bytes/s of a copy, read and written."""
    on_cpu = device.type == "cpu"
    n, size = (1024, 1 << 26) if on_cpu else (8192, 1 << 29)
    a, b = (torch.randn(n, n, device=device, dtype=TYPES[dtype]) for _ in "ab")
    rate = 2 * n**3 / seconds(lambda: a @ b, device)
    from_, to = torch.ones(size, device=device), torch.empty(size, device=device)
    bandwidth = 2 * from_.nbytes / seconds(lambda: to.copy_(from_), device)
    return Device("here", rate, rate, bandwidth, memory(device))


def memory(device: torch.device) -> float:
    """Bytes that there are."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else float("inf")


def model(
    family: str,
    c: Any,
    batch: int,
    length: int,
    dtype: str,
    device: torch.device,
    on: Device,
    need: Training,
    said: dict[str, Work],
) -> dict[str, float | str]:
    """Seconds of each work where it fits and ends soon; else why it was not measured."""
    found: dict[str, float | str] = {}
    for name, work in said.items():
        needed = need.total("adamw") if name == "training" else need.weights // 4 * BYTES[dtype] + work.bytes
        # real programs stay behind the roofline: five times as long is not rare
        if 5 * work.seconds(on, dtype) > PATIENCE:
            found[name] = "would take too long"
        elif needed > 0.8 * on.memory:
            found[name] = "does not fit"
        else:
            found[name] = _measured(name, family, c, batch, length, dtype, device)
    return found


def _measured(name: str, family: str, c: Any, batch: int, length: int, dtype: str, device: torch.device) -> float | str:
    net = create(family, c).to(device)
    given = [x.to(device) for x in net.example(batch)]
    if family not in ("vit", "dit"):
        given = [x[:, :length] if x.dtype == torch.long else x for x in given]
    if name == "training":
        optimizer = torch.optim.AdamW(net.parameters(), fused=True)
        return seconds(lambda: _step(net, optimizer, given, family, dtype), device)
    net = net.to(TYPES[dtype]).eval()
    given = [x.to(TYPES[dtype]) if x.is_floating_point() else x for x in given]
    with torch.no_grad():
        if name == "reading":
            last = {"last": True} if family in WRITES else {}
            return seconds(lambda: net(*given, **last), device)
        return _steps(net, given, device)


def _step(net: Any, optimizer: torch.optim.Optimizer, given: list[torch.Tensor], family: str, dtype: str) -> None:
    """One update on a loss of the model's usual size, in the precision the trainer would use."""
    with torch.autocast(given[0].device.type, torch.bfloat16) if dtype == "bf16" else nullcontext():
        said = net(*given).float()
        if family == "dit":
            loss = said.square().mean()
        else:
            said = said.flatten(0, -2)
            loss = F.cross_entropy(said, torch.zeros(len(said), dtype=torch.long, device=said.device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _steps(net: Any, given: list[torch.Tensor], device: torch.device) -> float | str:
    """A token a sequence, while the cache fills to the last; kernels that differ from length to length are ready."""
    tokens, steps = given[0], 5
    if tokens.shape[1] <= steps:
        return "the context is too short"
    taken = 0.0
    for _ in "warm", "timed":
        cache = net.new_cache(len(tokens), tokens.shape[1])
        net(tokens[:, :-steps], *given[1:], cache=cache, last=True)
        taken = seconds(lambda cache=cache: net(tokens[:, :1], cache=cache, last=True), device, steps - 1, enough=0)
    return taken
