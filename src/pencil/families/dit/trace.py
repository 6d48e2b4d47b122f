"""A diffusion transformer traced at one denoising step."""

from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter

from ...config import UserError
from ...core.masks import NOWHERE
from ...inference.autoencoder import has_latents
from ...inference.image_sampling import process_of, sample_images
from ...inference.text_batches import token_label
from ...runs.run import Loaded
from ...tracing.live_trace import LiveTrace, trace
from ...tracing.recording import mapped
from ..options import (
    INPUT,
    MOST_STEPS,
    NoOptions,
    check_count,
    default,
)
from ..trace_labels import grid_labels, patch_facts
from .condition import condition

STEPS = 50


@dataclass(frozen=True)
class TraceOptions(NoOptions):
    """What `pencil trace` reads: what `pencil sample` hands the model at one denoising step."""

    label: Annotated[str | None, Parameter(group=INPUT, help="The class to sample.")] = None
    prompt: Annotated[
        str | None,
        Parameter(
            group=INPUT, help="The text to sample from, for a run trained on captions.", allow_leading_hyphen=True
        ),
    ] = None
    step: Annotated[
        int | None,
        Parameter(
            group=INPUT, help="The denoising step to trace; 1 reads pure noise.", show_default=default("the middle one")
        ),
    ] = None
    steps: Annotated[
        int | None, Parameter(group=INPUT, help="Number of denoising steps.", show_default=default(STEPS))
    ] = None
    seed: Annotated[int | None, Parameter(group=INPUT, help="Seed of the initial noise.", show_default=default(0))] = (
        None
    )
    guidance: Annotated[
        float | None,
        Parameter(
            group=INPUT,
            help="Classifier-free guidance scale; 1 is off. At any other the second row of every tensor is the "
            "unconditional pass.",
            show_default=default(1),
        ),
    ] = None

    def check(self) -> None:
        super().check()
        check_count("--steps", self.steps, MOST_STEPS)
        steps = STEPS if self.steps is None else self.steps
        if self.step is not None and not 1 <= self.step <= steps:
            raise UserError(f"--step must be from 1 to {steps}, not {self.step}")


class _StepReached(Exception):
    """Sampling has come to the step to trace."""


def trace_step(loaded: Loaded, options: TraceOptions, double: bool = False) -> LiveTrace:
    """The model at one denoising step, on exactly what `sample` hands it."""
    model, tokenizer, _ = loaded
    c, named = model.config, options.prompt if model.config.vocab else options.label
    labels, texts = ([] if one is None else [one] for one in (options.label, options.prompt))
    given = condition(loaded, labels, texts)
    steps = STEPS if options.steps is None else options.steps
    step = (steps + 1) // 2 if options.step is None else options.step
    seed, guidance = options.seed or 0, 1.0 if options.guidance is None else options.guidance
    inputs = _inputs_at(loaded, given, step, steps, seed, guidance)
    if double:
        model.double()
        inputs = mapped(inputs, "", lambda _, one: one.double() if one.is_floating_point() else one)
    words = _group_labels(c, [] if guidance == 1 else [str(named), "unconditional"])
    if c.vocab:
        ids, places = given[0][0].tolist(), given[1][0].tolist()
        read = [token_label(tokenizer, i) if at < NOWHERE else "(padding)" for i, at in zip(ids, places, strict=True)]
        words["s"] = ["begin", *read[1:]]
    moment = (f"{named}, " if given else "") + f"step {step} of {steps}" + (f", seed {seed}" if seed else "")
    return trace(model, *inputs, words=words, facts=patch_facts(0, c.grid) | {"moment": moment})


def _inputs_at(loaded: Loaded, given: Any, step: int, steps: int, seed: int, guidance: float) -> tuple[Any, ...]:
    """The model's inputs at this step of `sample_images`, captured by a hook."""
    model, _, run = loaded
    process = process_of(model.config, has_latents(run, model.config))
    calls = []

    def capture(_: Any, inputs: tuple[Any, ...]) -> None:
        calls.append(inputs)
        if len(calls) == step:
            raise _StepReached

    hook = model.register_forward_pre_hook(capture)
    try:
        sample_images(model, process, given, 1, guidance, steps, seed=seed, capture=False)
    except _StepReached:
        pass
    finally:
        hook.remove()
    return calls[-1]


def _group_labels(c: Any, rows: list[str]) -> dict[str, list[str]]:
    """Labels for the patches of an image or a video, and for the groups in which they attend to one another."""

    def each(groups: list[str]) -> list[str]:
        return [f"{row}, {group}" for row in rows for group in groups] or groups

    patches = grid_labels("patch", c.grid)
    labels = {"T": patches, "S": patches, "N": patches} | ({"B": rows} if rows else {})
    if c.attention == "factored":
        last = c.patch_frames - 1
        starts = range(1, c.frames + 1, c.patch_frames)
        times = [f"frames {i}–{i + last}" if last else f"frame {i}" for i in starts]
        within = grid_labels("patch", c.grid[1:])
        labels |= {"w": times, "B·w": each(times), "n": within, "B·n": each(within)}
    elif c.attention == "windowed":
        sizes = [min(c.window, side) for side in c.grid]
        windows = grid_labels("window", [side // size for side, size in zip(c.grid, sizes, strict=True)])
        labels |= {"B·w": each(windows), "n": grid_labels("place", sizes)}
    return labels
