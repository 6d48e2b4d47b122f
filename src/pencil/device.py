"""The device to compute on."""

import torch

from .config import UserError


def pick_device(name: str) -> torch.device:
    """CUDA, then Apple's MPS, then the CPU, unless one is named."""
    if name == "auto":
        mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(f"device {name} is not available on this machine; try auto or cpu") from None
    return device
