"""Pictures drawn from noise by a diffusion transformer, as bytes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import UserError
from ..core.span import Span
from ..diffusion import Process, guided, process_of, walk
from .latents import Codec, as_bytes

SEEDS = 2**43  # a row's noise has a seed a million times as large, and torch's have 63 bits


@torch.no_grad()
def paint(
    model: Any,
    process: Process,
    given: Sequence[Tensor],
    count: int,
    guidance: float = 1.0,
    steps: int = 50,
    sampler: str | None = None,
    seed: int = 0,
    films: bool = False,
    finish: Callable[[Tensor], np.ndarray] = as_bytes,
) -> list[np.ndarray]:
    """`count` pictures from noise, as bytes: the last ones, and before them the first row's after every step where a
    film is asked for. A seed gives a row its noise."""
    c, device = model.config, next(model.parameters()).device
    if guidance != 1 and not c.null:
        why = "trained without the null class" if given else "told nothing of what to draw"
        raise UserError(f"the model was {why}, so it cannot be guided: leave --guidance at 1")
    if not 0 <= seed < SEEDS:
        raise UserError(f"--seed must be from 0 to {SEEDS - 1}, not {seed}")
    rows = [torch.Generator().manual_seed(seed * 1_000_003 + i) for i in range(count)]
    x = torch.stack([torch.randn((c.channels, *c.sides), generator=g) for g in rows]).to(device)
    places = Span.at(given[1].to(device)) if len(given) > 1 else None
    denoise = guided(model, given[0].to(device) if given else None, guidance, places)
    stops = [finish(x[:1])] if films else []
    for less in walk(process, denoise, x, steps, sampler, torch.Generator().manual_seed(seed)):
        if films:
            stops.append(finish(less[:1]))
        x = less
    if not x.isfinite().all():
        raise UserError("the picture ran away from all numbers on its way: a --guidance nearer to 1 may help")
    return [*stops[:-1], finish(x)]


def drawing_of(sizes: Any, latents: bool) -> Process:
    """How a model of these sizes draws: pictures are kept within −1 … 1 on the way, latents have no such bounds."""
    return process_of(sizes.noise, sizes.says, None if latents else 1.0)


def finish_of(codec: Codec | None) -> Callable[[Tensor], np.ndarray]:
    """What makes pictures of what the model has drawn."""
    return as_bytes if codec is None else codec.decode
