"""The average of all weights so far, the latest counting most: what a diffusion model is used with."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """Keeps `share` of itself at each step and takes the rest from the model; early on it takes more."""

    def __init__(self, model: nn.Module, share: float):
        self.model, self.share = model, share
        self.values = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        # the first weights are worth little: at step n no more than the last n/10 or so are averaged
        share = min(self.share, (1 + step) / (10 + step))
        values = list(self.values.values())
        torch._foreach_lerp_(values, list(self.model.parameters()), 1 - share)  # pyright: ignore

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the average as its weights within this."""
        with torch.no_grad():
            own = {name: p.detach().clone() for name, p in self.model.named_parameters()}
            for name, p in self.model.named_parameters():
                p.copy_(self.values[name])
        try:
            yield
        finally:
            with torch.no_grad():
                for name, p in self.model.named_parameters():
                    p.copy_(own[name])

    def restore(self, values: Mapping[str, Tensor]) -> None:
        """Go on from an average that was saved; without one, from the model's weights."""
        with torch.no_grad():
            for name, p in self.model.named_parameters():
                self.values[name].copy_(values.get(name, p))
