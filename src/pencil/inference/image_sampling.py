"""Images and videos sampled from noise by a diffusion transformer, as bytes."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import UserError
from ..core.layers import evaluating
from ..core.span import Span
from ..models.build import check_finite
from ..progress import duration, pollable
from .autoencoder import Autoencoder, to_bytes
from .cuda_graph import Captured
from .diffusion import Process, classifier_free_guidance, draw_noise, make_process, sample_steps

MAX_SEED = 2**43 - 1  # a row's own seed is a million times as large, and torch's have 63 bits
STARTING = 2  # steps that are slower than the others: the model's call is compiled in the first, captured in the second


@torch.no_grad()
def sample_images(
    model: Any,
    process: Process,
    given: Sequence[Tensor],
    count: int,
    guidance: float = 1.0,
    steps: int = 50,
    sampler: str | None = None,
    seed: int = 0,
    show_steps: int = 0,
    decode: Callable[[Tensor], np.ndarray] = to_bytes,
    compile: bool = False,
    capture: bool = True,
    notify: Callable[[str], None] | None = None,
) -> list[np.ndarray]:
    """`count` images as bytes, last in the list; before them, the first row after some of the steps.

    `show_steps` is how many moments of the first row there are at most, from its noise to the image, evenly spaced.
    They are decoded together at the end. `given` is the condition: nothing, the labels, or the tokens of texts and
    their places. A seed gives each row a generator of its own, for its first noise and for that of every step. On CUDA
    the model's call is captured, unless `capture` is False; with `compile` it is compiled first. `notify` gets the
    time of both, apart from that of the sampling.
    """
    c, device = model.config, next(model.parameters()).device
    if guidance != 1 and not c.null_condition:
        why = "without the null condition" if given else "without a condition"
        raise UserError(f"the model was trained {why}, so classifier-free guidance is not possible: use --guidance 1")
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"--seed must be from 0 to {MAX_SEED}, not {seed}")
    rows = [torch.Generator().manual_seed(seed * 1_000_003 + i) for i in range(count)]
    x = draw_noise((count, c.channels, *c.sides), rows).to(device)
    places = Span.at(given[1].to(device)) if len(given) > 1 else None
    denoise = classifier_free_guidance(model, given[0].to(device) if given else None, guidance, places)
    captured = capture and device.type == "cuda" and steps > STARTING
    denoise = torch.compile(denoise, dynamic=False) if compile else denoise
    denoise = Captured(denoise) if captured else denoise
    began = ready = _now(device)
    # the last moment is the first of the images themselves
    shown = set(np.linspace(0, steps, max(0, min(show_steps, steps + 1))).astype(int).tolist()) - {steps}
    moments = [x[:1].clone()] if 0 in shown else []
    with evaluating(model.modules()):
        for number, step in enumerate(pollable(sample_steps(process, denoise, x, steps, sampler, rows), steps), 1):
            x = step
            if number in shown:
                moments.append(x[:1].clone())
            if number == STARTING:
                ready = _now(device)
    if notify is not None and (compile or captured) and steps > STARTING:
        start, rest = duration(ready - began), duration(_now(device) - ready)
        notify(f"start-up and the first {STARTING} steps took {start}, the other {steps - STARTING} steps {rest}")
    if not x.isfinite().all():
        check_finite(model.named_parameters())
        raise UserError("sampling diverged (NaN); lower --guidance")
    return [*(list(decode(torch.cat(moments))[:, None]) if moments else []), decode(x)]


def _now(device: torch.device) -> float:
    """The time, when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def process_of(config: Any, latents: bool) -> Process:
    """The process a model was trained with; x₀ is clipped to −1 … 1 for images, not for latents."""
    return make_process(config.noise_schedule, config.prediction, None if latents else 1.0)


def decoder_of(autoencoder: Autoencoder | None) -> Callable[[Tensor], np.ndarray]:
    """What turns the model's samples into bytes."""
    return to_bytes if autoencoder is None else autoencoder.decode
