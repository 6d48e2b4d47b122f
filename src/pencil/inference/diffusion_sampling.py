"""Diffusion samplers: DDPM, DDIM, flow and Heun steps, classifier-free guidance, and the noise they start from."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..config import UserError
from .diffusion import GaussianDiffusion, Process, RectifiedFlow

Denoiser = Callable[[Tensor, Tensor], Tensor]  # (x, the timestep of each row) to the model's prediction
SAMPLERS = {"ddpm": GaussianDiffusion, "ddim": GaussianDiffusion, "flow": RectifiedFlow, "heun": RectifiedFlow}


def classifier_free_guidance(model: Any, given: Tensor | None, scale: float, places: Any = None) -> Denoiser:
    """The model's prediction, extrapolated from the unconditional to the conditional one; both in one forward pass.

    The variance is that of the conditional pass.
    """
    if not math.isfinite(scale):
        raise UserError(f"--guidance must be a finite number, not {scale}")
    if scale == 1 or given is None:
        return lambda x, timestep: model(x, timestep, given, places)
    twice = torch.cat((given, given))
    span = None if places is None else places.pick(torch.arange(len(given), device=given.device).repeat(2))
    drop_condition = torch.arange(2 * len(given), device=given.device) >= len(given)

    def denoise(x: Tensor, timestep: Tensor) -> Tensor:
        both = model(torch.cat((x, x)), torch.cat((timestep, timestep)), twice, span, drop_condition)
        conditional, unconditional = both[:, : x.shape[1]].chunk(2)
        guided = unconditional + scale * (conditional - unconditional)
        return guided if both.shape[1] == x.shape[1] else torch.cat((guided, both[: len(x), x.shape[1] :]), 1)

    return denoise


@torch.no_grad()
def sample_steps(
    process: Process,
    denoise: Denoiser,
    x: Tensor,
    steps: int,
    sampler: str | None = None,
    generators: Sequence[torch.Generator] | None = None,
) -> Iterator[Tensor]:
    """From noise x to an image: x after each step. The sampler is ddim or flow unless another is named.

    Fresh noise of a row comes from its own generator, so that no row depends on how many there are.
    """
    name = sampler or ("flow" if isinstance(process, RectifiedFlow) else "ddim")
    check_sampler(process, name)
    if steps < 1:
        raise UserError(f"--steps must be at least 1, not {steps}")

    def predict(x: Tensor, t: float) -> Tensor:
        return denoise(x, process.timestep(torch.full((len(x),), t, device=x.device)))

    if isinstance(process, RectifiedFlow):
        times = process.times(steps)
        for t, previous in zip(times, [*times[1:], 0.0], strict=True):
            predicted = predict(x, t)
            if name == "heun" and previous > 0:
                predicted = (predicted + predict(process.euler(x, predicted, t, previous), previous)) / 2
            x = process.euler(x, predicted, t, previous)
            yield x
        return
    times = process.times(steps)
    for t, previous in zip(times, [*times[1:], -1], strict=True):
        predicted, variance = split_variance(predict(x, t), x.shape[1])
        if name == "ddim":
            x = process.ddim(x, predicted, t, previous)
        else:
            x = process.ddpm(x, predicted, t, previous, draw_noise(x.shape, generators, x.dtype).to(x.device), variance)
        yield x


def draw_noise(
    shape: Sequence[int], generators: Sequence[torch.Generator] | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Noise of this shape; with generators, each row from its own."""
    if generators is None:
        return torch.randn(tuple(shape), dtype=dtype)
    if len(generators) != shape[0]:
        raise ValueError(f"{len(generators)} generators for {shape[0]} rows: each row needs its own")
    return torch.stack([torch.randn(tuple(shape[1:]), generator=g, dtype=dtype) for g in generators])


def split_variance(output: Tensor, channels: int) -> tuple[Tensor, Tensor | None]:
    """The prediction, and the variance where the model outputs twice the channels."""
    return (output, None) if output.shape[1] == channels else (output[:, :channels], output[:, channels:])


def check_sampler(process: Process, name: str) -> None:
    """Refuse a sampler that does not fit the prediction target."""
    if name not in SAMPLERS:
        raise UserError(f"{name} is not a sampler; known: {', '.join(SAMPLERS)}")
    if not isinstance(process, SAMPLERS[name]):
        fits = " or ".join(n for n, kind in SAMPLERS.items() if isinstance(process, kind))
        raise UserError(f"the sampler {name} does not fit a model that predicts {process.prediction}; use {fits}")


@torch.no_grad()
def sample_with_scheduler(scheduler: Any, denoise: Denoiser, x: Tensor, steps: int) -> Iterator[Tensor]:
    """The same with a scheduler of diffusers: anything with set_timesteps, timesteps and step."""
    scheduler.set_timesteps(steps)
    learned = "learned" in str(getattr(getattr(scheduler, "config", None), "variance_type", None))
    x = x * getattr(scheduler, "init_noise_sigma", 1.0)
    for t in scheduler.timesteps:
        given = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
        output = denoise(given, t.to(x.device).reshape(1).expand(len(x)))
        x = scheduler.step(output if learned else split_variance(output, x.shape[1])[0], t, x).prev_sample
        yield x
