"""Diffusion: how images are noised, what a model predicts, and the samplers that go from noise back to an image.

Two processes. `GaussianDiffusion` (DDPM): x_t = √ᾱ_t·x₀ + √(1 − ᾱ_t)·ε for t from 0 to n − 1; the prediction target is
ε, x₀ or v. `RectifiedFlow`: x_t = (1 − t)·x₀ + t·ε for t from 0 to 1, and the prediction target is the velocity ε − x₀.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.special import log_ndtr

from ..config import UserError

Prediction = Literal["eps", "x0", "v"]
MAX_TIMESTEP = 1000.0  # the timestep a flow model reads at pure noise


def linear(count: int = 1000, first: float = 1e-4, last: float = 0.02) -> Float[Tensor, "n"]:
    """ᾱ_t of the linear schedule: β grows evenly from `first` to `last`."""
    return (1 - torch.linspace(first, last, count, dtype=torch.float64)).cumprod(0)


def cosine(count: int = 1000, offset: float = 0.008, max_beta: float = 0.999) -> Float[Tensor, "n"]:
    """ᾱ_t of the cosine schedule; β is at most `max_beta`."""

    def left(t: float) -> float:
        return math.cos((t + offset) / (1 + offset) * math.pi / 2) ** 2

    betas = [min(1 - left((t + 1) / count) / left(t / count), max_beta) for t in range(count)]
    return (1 - torch.tensor(betas, dtype=torch.float64)).cumprod(0)


SCHEDULES: dict[str, Callable[[], Tensor]] = {"linear": linear, "cosine": cosine}


def _per_row(values: Tensor, like: Tensor) -> Tensor:
    """One value a row, shaped to broadcast over images."""
    return values.to(like).reshape(-1, *[1] * (like.ndim - 1))


def _log_variance(output: Tensor, smallest: Any, largest: Any) -> Tensor:
    """The log variance a model chose: the smallest possible where its output is −1, the largest where it is 1."""
    share = (output + 1) / 2
    return share * largest + (1 - share) * smallest


def log_likelihood(
    image: Float[Tensor, "*s"], mean: Float[Tensor, "*s"], log_variance: Float[Tensor, "*s"], levels: int | None
) -> Float[Tensor, "*s"]:
    """log p of each value under a Gaussian; with `levels`, of the bin of values from −1 to 1 it was rounded to.

    The first and the last bin are open at their outer end.
    """
    off, inverse_std = image - mean, torch.exp(-log_variance / 2)
    if levels is None:
        return -((off * inverse_std) ** 2 + log_variance + math.log(2 * math.pi)) / 2
    half = 1 / (levels - 1)
    low, high = (off - half) * inverse_std, (off + half) * inverse_std
    # in the left tail, where small probabilities keep their digits: log(e^a − e^b) = a + log(1 − e^(b − a))
    right = off > 0
    a, b = log_ndtr(torch.where(right, -low, high)), log_ndtr(torch.where(right, -high, low))
    within = a + torch.log(-torch.expm1(b - a))
    return torch.where(image < half - 1, log_ndtr(high), torch.where(image > 1 - half, log_ndtr(-low), within))


@dataclass(frozen=True)
class GaussianDiffusion:
    """Noise in discrete steps, given by ᾱ_t, the signal's share of the variance after step t."""

    alphas_cumprod: Float[Tensor, "n"]
    prediction: Prediction = "eps"
    clip: float | None = None  # bound on |x₀| while sampling

    def __len__(self) -> int:
        return len(self.alphas_cumprod)

    def training_times(self, uniform: Tensor, normal: Tensor) -> Tensor:
        """Times to train at, uniformly distributed, from a uniform and a normal number for each."""
        return (uniform * len(self)).long()

    def timestep(self, t: Tensor) -> Tensor:
        """What the model reads at time t."""
        return t

    def _roots(self, t: Tensor | int, like: Tensor) -> tuple[Tensor, Tensor]:
        """√ᾱ and √(1 − ᾱ), of each row's time or of one for all."""
        if isinstance(t, int):  # the same numbers without a copy to the device, which would wait for it
            left, one = self._alpha(t), (len(like), *[1] * (like.ndim - 1))
            return like.new_full(one, math.sqrt(left)), like.new_full(one, math.sqrt(1 - left))
        roots = torch.stack((self.alphas_cumprod.sqrt(), (1 - self.alphas_cumprod).sqrt()))
        signal, noise = roots.to(like.dtype).to(t.device)[:, t]  # not every device has float64
        return _per_row(signal, like), _per_row(noise, like)

    def add_noise(self, image: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        signal, scale = self._roots(t, image)
        return signal * image + scale * noise

    def target(self, image: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """The prediction target."""
        if self.prediction == "eps":
            return noise
        if self.prediction == "x0":
            return image
        signal, scale = self._roots(t, image)
        return signal * noise - scale * image

    def split(self, x: Tensor, predicted: Tensor, t: Tensor | int) -> tuple[Tensor, Tensor]:
        """x₀ and ε in x, from the model's prediction."""
        signal, scale = self._roots(t, x)
        if self.prediction == "x0":
            image = predicted
        elif self.prediction == "eps":
            image = (x - scale * predicted) / signal
        else:
            image = signal * x - scale * predicted
        if self.clip is not None:
            image = image.clamp(-self.clip, self.clip)
        return image, (x - signal * image) / scale

    def times(self, steps: int) -> list[int]:
        """The times of a sampling run: evenly spaced, noisiest first, the last at 0."""
        if steps > len(self):
            raise UserError(f"--steps {steps} is more than the {len(self)} noise steps the model was trained with")
        return [round(t) for t in torch.linspace(len(self) - 1, 0, steps, dtype=torch.float64).tolist()]

    def _alpha(self, t: int) -> float:
        return 1.0 if t < 0 else float(self.alphas_cumprod[t])

    def ddpm(
        self, x: Tensor, predicted: Tensor, t: int, previous: int, noise: Tensor, variance: Tensor | None = None
    ) -> Tensor:
        """One DDPM step from time t to the `previous` one: the posterior mean, and fresh noise.

        `variance`, from −1 to 1, is the model's own choice between the smallest and the largest posterior variance.
        """
        image, _ = self.split(x, predicted, t)
        now, then = self._alpha(t), self._alpha(previous)
        step = now / then
        mean = math.sqrt(then) * (1 - step) / (1 - now) * image + math.sqrt(step) * (1 - then) / (1 - now) * x
        if previous < 0:
            return mean
        smallest = (1 - then) / (1 - now) * (1 - step)
        if variance is None:
            return mean + math.sqrt(smallest) * noise
        return mean + torch.exp(_log_variance(variance, math.log(smallest), math.log(1 - step)) / 2) * noise

    def variational_bound(
        self,
        image: Float[Tensor, "B *sides"],
        x: Float[Tensor, "B *sides"],
        predicted: Float[Tensor, "B *sides"],
        variance: Float[Tensor, "B *sides"],
        t: Int[Tensor, "B"],
        levels: int | None = 256,
    ) -> Float[Tensor, "B"]:
        """The term of step t in the variational bound on −log p(image), in bits a value; it trains the variance only.

        After the first step it is the KL divergence between the true posterior and the model's. At t = 0 it is the
        negative log-likelihood of the image, of values in `levels` bins from −1 to 1, or of any values.
        """
        mean, _ = self.split(x, predicted.detach(), t)
        pull, smallest, largest = (_per_row(part, x) for part in self._posterior().to(x.dtype).to(t.device)[:, t])
        # both means have the same share of x, so they differ by their estimates of the image
        off, log_variance = mean - image, _log_variance(variance, smallest, largest)
        divergence = (log_variance - smallest + torch.exp(smallest - log_variance) - 1) / 2
        divergence = divergence + (pull * off) ** 2 * torch.exp(-log_variance) / 2
        likelihood = -log_likelihood(image, mean, log_variance, levels)
        return torch.where(_per_row(t, x) == 0, likelihood, divergence).flatten(1).mean(1) / math.log(2)

    def _posterior(self) -> Float[Tensor, "3 n"]:
        """Of q(x_{t−1} | x_t, x₀): the weight of x₀ in its mean; the log of its smallest and of its largest variance.

        The smallest at t = 0 would be zero: that of t = 1 is used instead.
        """
        then = torch.cat((self.alphas_cumprod.new_ones(1), self.alphas_cumprod[:-1]))
        largest = 1 - self.alphas_cumprod / then
        smallest = (1 - then) / (1 - self.alphas_cumprod) * largest
        smallest[0] = smallest[1] if len(self) > 1 else largest[0]
        return torch.stack((then.sqrt() * largest / (1 - self.alphas_cumprod), smallest.log(), largest.log()))

    def ddim(
        self, x: Tensor, predicted: Tensor, t: int, previous: int, noise: Tensor | None = None, eta: float = 0.0
    ) -> Tensor:
        """One DDIM step: to x₀ and back out to less of the same ε; with `eta`, some of it is fresh noise."""
        image, eps = self.split(x, predicted, t)
        now, then = self._alpha(t), self._alpha(previous)
        fresh = eta * math.sqrt((1 - then) / (1 - now) * (1 - now / then))
        x = math.sqrt(then) * image + math.sqrt(max(0.0, 1 - then - fresh**2)) * eps
        return x if noise is None or not fresh else x + fresh * noise


@dataclass(frozen=True)
class RectifiedFlow:
    """A straight path from the image (t = 0) to noise (t = 1)."""

    prediction = "velocity"

    def training_times(self, uniform: Tensor, normal: Tensor) -> Tensor:
        """Times to train at, from a uniform and a normal number for each.

        Logit-normal: most of them are in the middle, where the velocity is hardest to predict.
        """
        return normal.sigmoid()

    def timestep(self, t: Tensor) -> Tensor:
        """What the model reads at time t."""
        return t * MAX_TIMESTEP

    def add_noise(self, image: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        t = _per_row(t, image)
        return (1 - t) * image + t * noise

    def target(self, image: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """The prediction target."""
        return noise - image

    def euler(self, x: Tensor, predicted: Tensor, t: float, previous: float) -> Tensor:
        """One Euler step along the predicted velocity."""
        return x + (previous - t) * predicted

    def times(self, steps: int) -> list[float]:
        return torch.linspace(1, 0, steps + 1, dtype=torch.float64).tolist()[:-1]


Process = GaussianDiffusion | RectifiedFlow
Denoiser = Callable[[Tensor, Tensor], Tensor]  # (x, the timestep of each row) to the model's prediction
SAMPLERS = {"ddpm": GaussianDiffusion, "ddim": GaussianDiffusion, "flow": RectifiedFlow, "heun": RectifiedFlow}


def make_process(noise_schedule: str, prediction: Prediction, clip: float | None = 1.0) -> Process:
    """The process of that name: flow, or a linear or cosine schedule."""
    if noise_schedule == "flow":
        return RectifiedFlow()
    return GaussianDiffusion(SCHEDULES[noise_schedule](), prediction, clip)


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
