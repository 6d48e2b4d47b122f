"""A picture as it comes out of the noise, step by step."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config import UserError
from ..core.span import Span
from ..families.explore_inputs import data_address
from ..families.explore_profile import Prompt
from ..inference.autoencoder import autoencoder_of, has_latents
from ..inference.diffusion import Process, RectifiedFlow
from ..inference.diffusion_sampling import classifier_free_guidance, draw_noise, sample_steps, split_variance
from ..inference.image_sampling import decoder_of, process_of
from ..runs.run import Loaded

SHOWN = 13  # moments of a picture
SHOWN_OTHER = 7  # of a video, or where each goes through the autoencoder


def drawn(
    loaded: Loaded,
    model: Any,
    prompt: Prompt,
    options: Mapping[str, float],
    on_event: Callable[[str, dict[str, Any]], None],
    step: Callable[[int, int, str], None],
) -> dict[str, Any]:
    """The picture that `pencil sample` draws with the same seed, and moments on the way to it.

    A moment has the number of steps before it, the time, the noisy picture there, and the clean one that the model
    predicts from it. The frames of a video stand side by side.
    """
    c, device, steps = loaded.model.config, loaded.device, int(options["steps"])
    autoencoder = autoencoder_of(loaded.run, device)
    latents = autoencoder is not None or has_latents(loaded.run, c)
    bare = latents and autoencoder is None
    process, decode = process_of(c, latents), decoder_of(autoencoder)
    generators = [torch.Generator().manual_seed(int(options["seed"]) * 1_000_003)]
    x = draw_noise((1, c.channels, *c.sides), generators).to(device)
    given = prompt.condition
    places = Span.at(given[1].to(device)) if len(given) > 1 else None
    guided = classifier_free_guidance(
        model, given[0].to(device) if given else None, float(options.get("guidance", 1.0)), places
    )
    seen: dict[str, Tensor] = {}

    def denoise(x: Tensor, timestep: Tensor) -> Tensor:
        seen["x"], seen["predicted"] = x, guided(x, timestep)
        return seen["predicted"]

    def shown(x: Tensor) -> str:
        return data_address(_side_by_side(decode(x[:, :3] if bare else x)[0]))

    few = SHOWN if c.frames == 1 and autoencoder is None else SHOWN_OTHER
    moments = set(np.linspace(0, steps, min(few, steps + 1)).astype(int).tolist())
    frames, times = [], process.times(steps)
    step(0, steps, "denoising")
    for done, after in enumerate(sample_steps(process, denoise, x, steps, None, generators)):
        if done in moments:
            clean = _clean(process, seen["x"], seen["predicted"], times[done])
            frame = {"step": done, "time": float(times[done]), "picture": shown(seen["x"]), "clean": shown(clean)}
            frames.append(frame)
            on_event("frame", frame)
        x = after
        step(done + 1, steps, "denoising")
    if not x.isfinite().all():
        raise UserError("the sampling diverged: choose a lower guidance, or take back an edit")
    frames.append({"step": steps, "time": 0.0, "picture": shown(x)})
    on_event("frame", frames[-1])
    return {"picture": frames[-1]["picture"], "frames": frames, "notes": _notes(c, bare, model is not loaded.model)}


def _notes(c: Any, bare: bool, edited: bool) -> list[str]:
    lines = {
        "The frames of the video stand side by side.": c.frames > 1,
        "The run has no autoencoder: three channels of its latents are shown as colours.": bare,
        "The edits are made at every denoising step.": edited,
    }
    return [line for line, holds in lines.items() if holds]


def _clean(process: Process, x: Tensor, predicted: Tensor, t: Any) -> Tensor:
    """The clean picture that a prediction at time t implies."""
    predicted, _ = split_variance(predicted, x.shape[1])
    return x - t * predicted if isinstance(process, RectifiedFlow) else process.split(x, predicted, t)[0]


def _side_by_side(picture: np.ndarray) -> np.ndarray:
    """The frames (C, F, H, W) of a video in a row; a picture as it is."""
    return np.concatenate(list(picture.swapaxes(0, 1)), -1) if picture.ndim == 4 else picture
