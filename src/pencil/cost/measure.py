"""Measurements on this machine: its rates, and the time a model takes."""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from ..files import memory
from ..models.config import BlockConfig
from .devices import Device, Workload
from .memory import BYTES, TrainMemory
from .profile import CostProfile

LOCAL = "local"  # the name of this machine
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
LONGEST_SECONDS = 20.0  # that one call may take
STEPS = 5  # decode steps that are timed


def processor() -> str:
    """The name of this machine's processor; empty where the system has none."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")


def synchronize(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def seconds(call: Callable[[], Any], device: torch.device, least: int = 3, enough: float = 0.2) -> float:
    """The median of several calls, after one that is not counted."""

    def timed() -> float:
        begun = time.perf_counter()
        call()
        synchronize(device)
        return time.perf_counter() - begun

    first, times = timed(), []
    while len(times) < least or sum(times) < enough:
        times.append(timed())
        if first > LONGEST_SECONDS / 4:
            break
    return median(times)


def local_device(device: torch.device, dtype: str) -> Device:
    """This machine as a device: the FLOP/s of a large matrix product, and the bytes/s of a copy, read and written."""
    on_cpu = device.type == "cpu"
    # between products that are each waited for, a GPU would be idle for a tenth of the time
    n, size, calls = (1024, 1 << 26, 1) if on_cpu else (8192, 1 << 29, 10)
    a, b = (torch.randn(n, n, device=device, dtype=TYPES[dtype]) for _ in "ab")
    product, source, target = torch.empty_like(a), torch.ones(size, device=device), torch.empty(size, device=device)

    def repeated(call: Callable[[], Any]) -> float:
        return seconds(lambda: [call() for _ in range(calls)], device) / calls

    rate = 2 * n**3 / repeated(lambda: torch.mm(a, b, out=product))
    bandwidth = 2 * source.nbytes / repeated(lambda: target.copy_(source))
    return Device(LOCAL, rate, rate, bandwidth, memory_size(device))


def memory_size(device: torch.device) -> float:
    """Bytes of the device's memory."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return memory()


def measure(
    build: Callable[[Any], nn.Module],
    profile: CostProfile,
    config: BlockConfig,
    batch: int,
    length: int | None,
    dtype: str,
    device: torch.device,
    on: Device,
    memory: TrainMemory,
    workloads: Mapping[str, Workload],
) -> dict[str, float | str]:
    """Seconds of each workload that fits and ends soon; otherwise why it was not measured."""
    times: dict[str, float | str] = {}
    for name, work in workloads.items():
        train = name == "train_step"
        needed = memory.total("adamw") if train else memory.weights // 4 * BYTES[dtype] + work.bytes
        # real programs are slower than the roofline: five times as slow is not rare
        if 5 * work.seconds(on, dtype) > LONGEST_SECONDS:
            times[name] = "would take too long"
        elif needed > 0.8 * on.memory:
            times[name] = "does not fit"
        else:
            model: Any = build(config).to(device)
            inputs = profile.inputs(model, batch, length)
            time_of = {"train_step": _train_step, "decode": _decode}.get(name, _forward)
            times[name] = time_of(model, profile, inputs, dtype, device)
    return times


def _train_step(
    model: nn.Module, profile: CostProfile, inputs: tuple[Tensor, ...], dtype: str, device: torch.device
) -> float:
    """One update with AdamW, in the precision the trainer uses."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16) if dtype == "bf16" else nullcontext():
            loss = profile.loss(model(*inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return seconds(step, device)


@torch.no_grad()
def _forward(
    model: nn.Module, profile: CostProfile, inputs: tuple[Tensor, ...], dtype: str, device: torch.device
) -> float:
    """A forward pass; of a model that decodes, a prefill: logits for the last token only."""
    model, inputs = _for_inference(model, inputs, dtype)
    last = {"last": True} if profile.decodes else {}
    return seconds(lambda: model(*inputs, **last), device)


@torch.no_grad()
def _decode(
    model: Any, profile: CostProfile, inputs: tuple[Tensor, ...], dtype: str, device: torch.device
) -> float | str:
    """A token a sequence, while the cache fills up; the first round warms up kernels that depend on the length."""
    model, (tokens, *rest) = _for_inference(model, inputs, dtype)
    if tokens.shape[1] <= STEPS:
        return "the context is too short"
    taken = 0.0
    for _ in "warm-up", "timed":
        cache = model.new_cache(len(tokens), tokens.shape[1])
        model(tokens[:, :-STEPS], *rest, cache=cache, last=True)
        taken = seconds(lambda cache=cache: model(tokens[:, :1], cache=cache, last=True), device, STEPS - 1, enough=0)
    return taken


def _for_inference(model: Any, inputs: tuple[Tensor, ...], dtype: str) -> tuple[Any, tuple[Tensor, ...]]:
    to = TYPES[dtype]
    return model.to(to).eval(), tuple(x.to(to) if x.is_floating_point() else x for x in inputs)
