"""A diffusion transformer as the explorer shows it."""

from collections.abc import Sequence
from typing import Any

import torch

from ...models.dit import groupings
from ...runs.run import Loaded
from ...tracing.live_trace import LiveTrace
from ..explore_inputs import example_texts, named, text_of
from ..explore_profile import Control, ExploreProfile, Given, Prompt
from ..trace_labels import grid_labels, patch_facts
from .condition import condition
from .trace import STEPS, TraceOptions, trace_step

GUIDANCE = 3


def _takes(loaded: Loaded) -> dict[str, Any]:
    c = loaded.model.config
    if c.vocab:
        return {"text": {"label": "What the picture shows", "longest": c.context - 1, "optional": False}}
    return {"label": {"classes": loaded.classes}} if c.classes else {}


def _read(loaded: Loaded, given: Given) -> Prompt:
    c = loaded.model.config
    label = text_of(given, "label") if c.classes else None
    text = text_of(given) if c.vocab else None
    labels, texts = ([] if one is None else [one] for one in (label, text))
    return Prompt(given={"label": label, "prompt": text}, condition=condition(loaded, labels, texts))


def _trace_answer(loaded: Loaded, prompt: Prompt, written: Sequence[int], options: Any) -> LiveTrace:
    step, steps, seed = (int(options[name]) for name in ("step", "steps", "seed"))
    guidance = options.get("guidance", 1.0)
    chosen = TraceOptions(**prompt.given, step=step, steps=steps, seed=seed, guidance=guidance)
    chosen.check()
    return trace_step(loaded, chosen)


def _controls(loaded: Loaded) -> list[Control]:
    guided = loaded.model.config.null_condition
    return [
        Control("steps", STEPS, 1, 250, True, "The number of denoising steps."),
        Control(
            "step",
            (STEPS + 1) // 2,
            1,
            250,
            True,
            "The step whose numbers are opened; 1 reads pure noise.",
            within="steps",
        ),
        *(
            [Control("guidance", GUIDANCE, 0, 10, False, "How far beyond the unconditional prediction; 1 is off.")]
            if guided
            else []
        ),
        Control("seed", 0, 0, 9999, True, "The same seed draws the same picture."),
    ]


def _examples(loaded: Loaded) -> list[tuple[str, dict[str, Any]]]:
    c = loaded.model.config
    if c.vocab:
        return named([{"text": text} for text in example_texts(loaded, ("seven above two", "the cat sat"))], "text")
    return named([{"label": one} for one in loaded.classes[:20]], "label") if c.classes else [("noise", {})]


EXPLORE = ExploreProfile(
    takes=_takes,
    output=lambda loaded: "picture",
    read=_read,
    trace=_trace_answer,
    layout=lambda loaded, prompt, written: (
        grid_labels("patch", loaded.model.config.grid),
        patch_facts(0, loaded.model.config.grid),
    ),
    examples=_examples,
    controls=_controls,
    groups=lambda loaded: groupings(loaded.model.config, torch.device("cpu")),
    draws=True,
)
