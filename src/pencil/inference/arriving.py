"""Tokens on their way from the device to the host."""

from collections import deque

import torch
from torch import Tensor


class Arriving:
    """Tokens on their way from the device: read in order, each when it has arrived."""

    def __init__(self):
        self.steps: deque[tuple[Tensor, torch.cuda.Event] | list[int]] = deque()

    def __len__(self) -> int:
        return len(self.steps)

    def push(self, chosen: Tensor) -> None:
        if not chosen.is_cuda:
            self.steps.append(chosen.tolist())
            return
        there, event = torch.empty(chosen.shape, dtype=chosen.dtype, pin_memory=True), torch.cuda.Event()
        there.copy_(chosen, non_blocking=True)
        event.record()
        self.steps.append((there, event))

    def pop(self) -> list[int]:
        step = self.steps.popleft()
        if isinstance(step, list):
            return step
        there, event = step
        event.synchronize()
        return there.tolist()
