"""Noise into pictures: how a picture is noised, what a model may say of it, and the steps back.

Two ways to noise. `Steps`, of DDPM: x_t = √ᾱ_t·x₀ + √(1 − ᾱ_t)·ε for t from 0 to n − 1, and the model says ε, x₀ or v.
`Flow`, rectified: x_t = (1 − t)·x₀ + t·ε for t from 0 to 1, and the model says ε − x₀, the way from picture to noise.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.special import log_ndtr

from .config import UserError

Said = Literal["eps", "x0", "v"]
Denoise = Callable[[Tensor, Tensor], Tensor]  # (x, what the clock shows, one a row) to what the model says
CLOCK = 1000.0  # what the clock shows at pure noise


def linear(count: int = 1000, first: float = 1e-4, last: float = 0.02) -> Float[Tensor, "n"]:
    """ᾱ_t where β grows evenly from `first` to `last`."""
    return (1 - torch.linspace(first, last, count, dtype=torch.float64)).cumprod(0)


def cosine(count: int = 1000, offset: float = 0.008, most: float = 0.999) -> Float[Tensor, "n"]:
    """ᾱ_t that falls as a squared cosine; no step takes away more than `most` of what is left."""

    def left(t: float) -> float:
        return math.cos((t + offset) / (1 + offset) * math.pi / 2) ** 2

    betas = [min(1 - left((t + 1) / count) / left(t / count), most) for t in range(count)]
    return (1 - torch.tensor(betas, dtype=torch.float64)).cumprod(0)


SCHEDULES: dict[str, Callable[[], Tensor]] = {"linear": linear, "cosine": cosine}


def _wide(values: Tensor, like: Tensor) -> Tensor:
    """One number a row, ready to multiply pictures."""
    return values.to(like).reshape(-1, *[1] * (like.ndim - 1))


def _mixed(spread: Tensor, least: Any, most: Any) -> Tensor:
    """The log of a variance: `least` where the spread is −1, `most` where it is 1."""
    share = (spread + 1) / 2
    return share * most + (1 - share) * least


def log_chance(
    picture: Float[Tensor, "*s"], mean: Float[Tensor, "*s"], log_variance: Float[Tensor, "*s"], levels: int | None
) -> Float[Tensor, "*s"]:
    """log p of each value under a Gaussian; of one of so many levels from −1 to 1, of all that would be rounded to it.

    What lies beyond the first and the last level is rounded to them.
    """
    off, narrow = picture - mean, torch.exp(-log_variance / 2)
    if levels is None:
        return -((off * narrow) ** 2 + log_variance + math.log(2 * math.pi)) / 2
    half = 1 / (levels - 1)
    low, high = (off - half) * narrow, (off + half) * narrow
    # in the left tail, where small chances keep their digits: log(e^a − e^b) = a + log(1 − e^(b − a))
    right = off > 0
    a, b = log_ndtr(torch.where(right, -low, high)), log_ndtr(torch.where(right, -high, low))
    within = a + torch.log(-torch.expm1(b - a))
    return torch.where(picture < half - 1, log_ndtr(high), torch.where(picture > 1 - half, log_ndtr(-low), within))


@dataclass(frozen=True)
class Steps:
    """Noise in steps, each known by the share ᾱ_t of the picture's power that is left after it."""

    shares: Float[Tensor, "n"]
    says: Said = "eps"
    clip: float | None = None  # x₀ is kept within this of zero on the way back

    def __len__(self) -> int:
        return len(self.shares)

    def draw(self, count: int, device: torch.device | str | None = None) -> Tensor:
        """Times to train at."""
        return torch.randint(len(self), (count,), device=device)

    def clock(self, t: Tensor) -> Tensor:
        return t

    def _roots(self, t: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """√ᾱ and √(1 − ᾱ)."""
        roots = torch.stack((self.shares.sqrt(), (1 - self.shares).sqrt()))
        kept, added = roots.to(like.dtype).to(t.device)[:, t]  # not every device has float64
        return _wide(kept, like), _wide(added, like)

    def noised(self, picture: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        kept, added = self._roots(t, picture)
        return kept * picture + added * noise

    def target(self, picture: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """What the model shall say."""
        if self.says == "eps":
            return noise
        if self.says == "x0":
            return picture
        kept, added = self._roots(t, picture)
        return kept * noise - added * picture

    def apart(self, x: Tensor, said: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The picture and the noise in x, from what the model says."""
        kept, added = self._roots(t, x)
        if self.says == "x0":
            picture = said
        elif self.says == "eps":
            picture = (x - added * said) / kept
        else:
            picture = kept * x - added * said
        if self.clip is not None:
            picture = picture.clamp(-self.clip, self.clip)
        return picture, (x - kept * picture) / added

    def times(self, steps: int) -> list[int]:
        """Where to stop on the way from noise: evenly, the noisiest first and the last at 0."""
        if steps > len(self):
            raise UserError(f"the model was trained with {len(self)} steps of noise, and {steps} were asked for")
        return [round(t) for t in torch.linspace(len(self) - 1, 0, steps, dtype=torch.float64).tolist()]

    def _left(self, t: int) -> float:
        return 1.0 if t < 0 else float(self.shares[t])

    def ddpm(self, x: Tensor, said: Tensor, t: int, before: int, noise: Tensor, spread: Tensor | None = None) -> Tensor:
        """One step back along the chain of DDPM: the mean of what came before x, and noise of its own.

        `spread`, from −1 to 1, is a model's own choice between the least and the most variance there can be.
        """
        picture, _ = self.apart(x, said, torch.full((len(x),), t, device=x.device))
        now, then = self._left(t), self._left(before)
        step = now / then
        mean = math.sqrt(then) * (1 - step) / (1 - now) * picture + math.sqrt(step) * (1 - then) / (1 - now) * x
        if before < 0:
            return mean
        least = (1 - then) / (1 - now) * (1 - step)
        if spread is None:
            return mean + math.sqrt(least) * noise
        return mean + torch.exp(_mixed(spread, math.log(least), math.log(1 - step)) / 2) * noise

    def bound(
        self,
        picture: Float[Tensor, "B *sides"],
        x: Float[Tensor, "B *sides"],
        said: Float[Tensor, "B *sides"],
        spread: Float[Tensor, "B *sides"],
        t: Int[Tensor, "B"],
        levels: int | None = 256,
    ) -> Float[Tensor, "B"]:
        """What step t adds to the bound on −log p(picture), in bits a value; it teaches the spread and nothing else.

        After the first step it is the divergence of the model's Gaussian from the true one of what came before x. At
        t = 0 it is how unlikely the picture is: one of so many levels from −1 to 1, or any numbers.
        """
        told, _ = self.apart(x, said.detach(), t)
        pull, least, most = (_wide(part, x) for part in self._posterior().to(x.dtype).to(t.device)[:, t])
        # both means have the same share of x, so they differ by what they make of the picture
        off, log_variance = told - picture, _mixed(spread, least, most)
        apart = (log_variance - least + torch.exp(least - log_variance) - 1) / 2
        apart = apart + (pull * off) ** 2 * torch.exp(-log_variance) / 2
        unlikely = -log_chance(picture, told, log_variance, levels)
        return torch.where(_wide(t, x) == 0, unlikely, apart).flatten(1).mean(1) / math.log(2)

    def _posterior(self) -> Float[Tensor, "3 n"]:
        """Of what came before x_t: the share of the picture in its mean; the log of its least and of its most variance.

        The least at t = 0 would be none at all: that of t = 1 stands for it.
        """
        then = torch.cat((self.shares.new_ones(1), self.shares[:-1]))
        most = 1 - self.shares / then
        least = (1 - then) / (1 - self.shares) * most
        least[0] = least[1] if len(self) > 1 else most[0]
        return torch.stack((then.sqrt() * most / (1 - self.shares), least.log(), most.log()))

    def ddim(
        self, x: Tensor, said: Tensor, t: int, before: int, noise: Tensor | None = None, eta: float = 0.0
    ) -> Tensor:
        """One step of DDIM: back to the picture and out again to less of the same noise; `eta` of it drawn anew."""
        picture, eps = self.apart(x, said, torch.full((len(x),), t, device=x.device))
        now, then = self._left(t), self._left(before)
        fresh = eta * math.sqrt((1 - then) / (1 - now) * (1 - now / then))
        x = math.sqrt(then) * picture + math.sqrt(max(0.0, 1 - then - fresh**2)) * eps
        return x if noise is None or not fresh else x + fresh * noise


@dataclass(frozen=True)
class Flow:
    """A straight way from a picture (t = 0) to noise (t = 1), walked back."""

    says = "flow"

    def draw(self, count: int, device: torch.device | str | None = None) -> Tensor:
        """Times to train at: most in the middle, where it is hardest to tell picture from noise."""
        return torch.randn(count, device=device).sigmoid()

    def clock(self, t: Tensor) -> Tensor:
        return t * CLOCK

    def noised(self, picture: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        t = _wide(t, picture)
        return (1 - t) * picture + t * noise

    def target(self, picture: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        return noise - picture

    def euler(self, x: Tensor, said: Tensor, t: float, before: float) -> Tensor:
        """Straight on as the model says."""
        return x + (before - t) * said

    def times(self, steps: int) -> list[float]:
        return torch.linspace(1, 0, steps + 1, dtype=torch.float64).tolist()[:-1]


Process = Steps | Flow


def process_of(noise: str, says: Said, clip: float | None = 1.0) -> Process:
    """The process of that name: flow, or steps with a linear or a cosine schedule."""
    return Flow() if noise == "flow" else Steps(SCHEDULES[noise](), says, clip)


SAMPLERS = {"ddpm": Steps, "ddim": Steps, "flow": Flow, "heun": Flow}


def guided(model: Any, given: Tensor | None, scale: float, places: Any = None) -> Denoise:
    """What the model says of x under a condition, pushed away from what it says under none; both in one pass.

    Of the variance it is what the model says under the condition.
    """
    if not math.isfinite(scale):
        raise UserError(f"--guidance must be a number, not {scale}")
    if scale == 1 or given is None:
        return lambda x, clock: model(x, clock, given, places)
    twice = torch.cat((given, given))
    span = None if places is None else places.pick(torch.arange(len(given), device=given.device).repeat(2))
    nothing = torch.arange(2 * len(given), device=given.device) >= len(given)

    def denoise(x: Tensor, clock: Tensor) -> Tensor:
        both = model(torch.cat((x, x)), torch.cat((clock, clock)), twice, span, nothing)
        said, plain = both[:, : x.shape[1]].chunk(2)
        pushed = plain + scale * (said - plain)
        return pushed if both.shape[1] == x.shape[1] else torch.cat((pushed, both[: len(x), x.shape[1] :]), 1)

    return denoise


@torch.no_grad()
def walk(
    process: Process,
    denoise: Denoise,
    x: Tensor,
    steps: int,
    sampler: str | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """From noise x to a picture: x after each step. The sampler is ddim or flow unless another is named."""
    name = sampler or ("flow" if isinstance(process, Flow) else "ddim")
    check_sampler(process, name)
    if steps < 1:
        raise UserError(f"--steps must be at least 1, not {steps}")

    def ask(x: Tensor, t: float) -> Tensor:
        return denoise(x, process.clock(torch.full((len(x),), t, device=x.device)))

    if isinstance(process, Flow):
        times = process.times(steps)
        for t, before in zip(times, [*times[1:], 0.0], strict=True):
            said = ask(x, t)
            if name == "heun" and before > 0:
                said = (said + ask(process.euler(x, said, t, before), before)) / 2
            x = process.euler(x, said, t, before)
            yield x
        return
    stops = process.times(steps)
    for t, before in zip(stops, [*stops[1:], -1], strict=True):
        said, spread = with_spread(ask(x, t), x.shape[1])
        if name == "ddim":
            x = process.ddim(x, said, t, before)
        else:
            noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
            x = process.ddpm(x, said, t, before, noise, spread)
        yield x


def with_spread(said: Tensor, channels: int) -> tuple[Tensor, Tensor | None]:
    """What is said of the picture, and, from a model with twice the channels, of the variance."""
    return (said, None) if said.shape[1] == channels else (said[:, :channels], said[:, channels:])


def check_sampler(process: Process, name: str) -> None:
    """Refuse a sampler that cannot read what the model says."""
    if name not in SAMPLERS:
        raise UserError(f"{name} is not a sampler; known: {', '.join(SAMPLERS)}")
    if not isinstance(process, SAMPLERS[name]):
        fits = " or ".join(n for n, kind in SAMPLERS.items() if isinstance(process, kind))
        raise UserError(f"the sampler {name} does not fit a model that says {process.says}; {fits} would")


@torch.no_grad()
def by_scheduler(scheduler: Any, denoise: Denoise, x: Tensor, steps: int) -> Iterator[Tensor]:
    """The same walk by a scheduler of diffusers: anything with set_timesteps, timesteps and step."""
    scheduler.set_timesteps(steps)
    learned = "learned" in str(getattr(getattr(scheduler, "config", None), "variance_type", None))
    x = x * getattr(scheduler, "init_noise_sigma", 1.0)
    for t in scheduler.timesteps:
        given = scheduler.scale_model_input(x, t) if hasattr(scheduler, "scale_model_input") else x
        said = denoise(given, t.to(x.device).reshape(1).expand(len(x)))
        x = scheduler.step(said if learned else with_spread(said, x.shape[1])[0], t, x).prev_sample
        yield x
