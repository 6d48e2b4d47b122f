"""The device to compute on, and its memory.

Training leaves the caller's random state. The generators of the CPU and of the training's device are seeded at every
step, and put back at the end; `torch.manual_seed` would also seed devices that are not used.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from .config import UserError
from .files import memory

GRADIENT_SHARE = 0.1  # of a device's memory, that a whole gradient may take while it accumulates


def pick_device(name: str) -> torch.device:
    """CUDA, then Apple's MPS, then the CPU, unless one is named."""
    if name == "auto":
        mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
        if name != "cuda" or not torch.cuda.is_available():  # each process of a training takes another one
            torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(f"device {name} is not available on this machine; try auto or cpu") from None
    return device


def without_fallback_warnings() -> None:
    """Leave out torch's warning, with a C++ stack, that a CPU without bfloat16 or float16 units uses another kernel."""
    warnings.filterwarnings("ignore", "mkldnn_matmul failed")


def seed_generators(number: int, device: torch.device) -> None:
    """Seed torch's generators of the CPU and of this device; `torch.manual_seed` would seed all other devices too."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(number)
    elif device.type == "mps":
        torch.mps.manual_seed(number)


def random_state(device: torch.device) -> Callable[[], None]:
    """What brings torch's random state of the CPU and of this device back to what it is now."""
    others = [] if device.type == "cpu" else [getattr(torch, device.type)]
    states = torch.get_rng_state(), [module.get_rng_state(device) for module in others]

    def restore() -> None:
        torch.set_rng_state(states[0])
        for module, state in zip(others, states[1], strict=True):
            module.set_rng_state(state, device)

    return restore


@contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Leave torch's random state as it was before."""
    restore = random_state(device)
    try:
        yield
    finally:
        restore()


def total_memory(device: torch.device) -> int:
    """The bytes of a CUDA device's memory; elsewhere those of the machine's."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else memory()


def free_memory(device: torch.device) -> int:
    """The bytes that tensors can still take on a CUDA device; elsewhere all memory of the machine."""
    if device.type != "cuda":
        return memory()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def sync_of(setting: str, trained: int, memory: float) -> str:
    """What `train.sync` is on a device of this memory: how often FSDP sums the gradient of so many values, if auto.

    Once an update sends the least, but the device then holds the whole gradient while it accumulates.
    """
    if setting != "auto":
        return setting
    return "update" if 4 * trained <= GRADIENT_SHARE * memory else "batch"
