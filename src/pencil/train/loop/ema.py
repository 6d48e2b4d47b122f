"""The exponential moving average (EMA) of the weights, which a diffusion model is used with."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from ..parallel.dtensor_files import to_local


class ExponentialMovingAverage:
    """Decays by `decay` at each step towards the model's weights; faster at the beginning."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        # a frozen parameter is its own average
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.values = {name: p.detach().clone() for name, p in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int, skipped: Tensor | None = None) -> None:
        """Move towards the weights; not where `skipped` is 1."""
        # early weights are poor: at step n only about the last n/10 are averaged
        decay = min(self.decay, (1 + step) / (10 + step))
        # `_foreach_lerp_` takes no tensor as weight without synchronising with the host
        weight = 1 - decay if skipped is None else (1 - decay) * (1 - skipped)
        for value, parameter in zip(self.values.values(), self.parameters.values(), strict=True):
            to_local(value).lerp_(to_local(parameter), weight)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A context in which the model has the average as its weights."""
        with torch.no_grad():
            weights = {name: p.detach().clone() for name, p in self.parameters.items()}
            for name, p in self.parameters.items():
                to_local(p).copy_(to_local(self.values[name]))
        try:
            yield
        finally:
            with torch.no_grad():
                for name, p in self.parameters.items():
                    to_local(p).copy_(to_local(weights[name]))

    def restore(self, values: Mapping[str, Tensor]) -> None:
        """Restore a saved average; without one, start from the model's weights."""
        with torch.no_grad():
            for name, p in self.parameters.items():
                self.values[name].copy_(values.get(name, p))

    def reset(self) -> None:
        """Begin again with the model's weights."""
        with torch.no_grad():
            for name, p in self.parameters.items():
                to_local(self.values[name]).copy_(to_local(p))


def averaged(ema: ExponentialMovingAverage | None) -> AbstractContextManager[None]:
    """A context in which the model has the weights that it is used with: their average, where there is one."""
    return nullcontext() if ema is None else ema.in_place()
