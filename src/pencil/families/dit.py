"""The diffusion transformer: a label, a text or nothing in, an image or a video out."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

import torch
from cyclopts import Parameter

from ..config import UserError, nearest
from ..core.masks import NOWHERE
from ..cost.activations import FULL, Activations, adaln_block_group, block_formulas, block_group, norm_bytes
from ..cost.profile import CostProfile, mean_square
from ..data.images import EMBEDDED
from ..files import write_all
from ..inference.autoencoder import autoencoder_of
from ..inference.diffusion import check_sampler
from ..inference.image_sampling import decoder_of, process_of, sample_images
from ..inference.text_batches import end_token, pad, shorten, token_label
from ..models.dit import PRESETS, DiT, DiTConfig, groupings
from ..models.reader import ReaderConfig
from ..runs import Loaded
from ..tracing.nested import mapped
from ..tracing.record import LiveTrace, trace
from ..train.diffusion import Diffusion
from ..train.diffusion_eval import score_samples
from ..weights import dit as dit_weights
from .classifier import trained_classifier
from .image_grid import ImageOutput, shown_steps, write_samples
from .options import (
    DATA,
    INPUT,
    REPEATABLE,
    SAMPLING,
    ImageSizeOptions,
    NoOptions,
    Texts,
    TokenizerOptions,
    at_least_one,
    default,
)
from .output import Output
from .record import Family
from .trace_labels import grid_labels, patch_facts

_SMALL = dict(batch=64, weight_decay=0.0, ema=0.999, eval_every=500, save_every=500)
_PAPER = dict(
    optimizer="adamw", lr=1e-4, beta2=0.999, weight_decay=0.0, schedule="constant", warmup=0, clip=0.0, batch=256,
    steps=400_000, ema=0.9999, eval_every=10_000, save_every=5000,
)  # fmt: skip
TRAINING: dict[str, dict[str, Any]] = {
    "nano": _SMALL,
    "small": _SMALL | dict(steps=20_000, batch=128, eval_every=2000, save_every=2000),
    **{f"{n}/{p}": _PAPER for n in ("s", "b", "l", "xl") for p in (2, 4, 8)},
}
GUIDANCE, STEPS = 3, 50


@dataclass(frozen=True)
class TrainOptions(TokenizerOptions, ImageSizeOptions):
    """What `pencil train` takes."""

    size: Annotated[
        str | None,
        Parameter(
            group=DATA,
            help="Image size: 64, or 64x96 for height and width; the same as --model.image_size. With --vae: of "
            "the images it encodes.",
        ),
    ] = None
    vae: Annotated[
        str | None,
        Parameter(
            group=DATA,
            help="Train on the latents of this autoencoder of diffusers: a folder, or a name on the hub. Images are "
            "encoded "
            "once and cached.",
        ),
    ] = None


@dataclass(frozen=True)
class SampleOptions(ImageOutput):
    """What `pencil sample` takes."""

    label: Annotated[Texts, Parameter(group=INPUT, help="The class to sample; may be repeated.", **REPEATABLE)] = None
    prompt: Annotated[
        Texts,
        Parameter(group=INPUT, help="The text to sample from, for a run trained on captions; may be repeated.",
                  **REPEATABLE),
    ] = None  # fmt: skip
    count: Annotated[
        int | None,
        Parameter(group=SAMPLING, help="Number of images for each label or prompt.", show_default=default(1)),
    ] = None
    guidance: Annotated[
        float | None,
        Parameter(
            group=SAMPLING,
            help="Classifier-free guidance scale; 1 is off, and all that an unconditional run takes.",
            show_default=default(GUIDANCE),
        ),
    ] = None
    steps: Annotated[
        int | None, Parameter(group=SAMPLING, help="Number of denoising steps.", show_default=default(STEPS))
    ] = None
    sampler: Annotated[
        str | None,
        Parameter(
            group=SAMPLING,
            help="flow (default) or heun for a rectified flow; ddim (default) or ddpm for a linear or cosine schedule.",
        ),
    ] = None
    seed: Annotated[int, Parameter(group=SAMPLING, help="Random seed; the same seed gives the same images.")] = 0

    def check(self) -> None:
        super().check()
        at_least_one("--count", self.count)
        at_least_one("--steps", self.steps)


@dataclass(frozen=True)
class TraceOptions(NoOptions):
    """What `pencil trace` reads: what `pencil sample` hands the model at one denoising step."""

    label: Annotated[str | None, Parameter(group=INPUT, help="The class to sample.")] = None
    prompt: Annotated[
        str | None, Parameter(group=INPUT, help="The text to sample from, for a run trained on captions.",
                              allow_leading_hyphen=True),
    ] = None  # fmt: skip
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
        at_least_one("--steps", self.steps)
        steps = STEPS if self.steps is None else self.steps
        if self.step is not None and not 1 <= self.step <= steps:
            raise UserError(f"--step must be from 1 to {steps}, not {self.step}")


def condition(loaded: Loaded, labels: list[str], texts: list[str], count: int = 1) -> tuple[Any, ...]:
    """The condition, `count` rows of each: class numbers, or the tokens of texts and their places; or nothing."""
    model, tokenizer, run = loaded
    c = model.config
    if not (c.vocab or c.classes):
        if labels or texts:
            raise UserError(f"{run.path} is unconditional: leave {'--label' if labels else '--prompt'} out")
        return ()
    given, other = (texts, labels) if c.vocab else (labels, texts)
    right, wrong = ("--prompt", "--label") if c.vocab else ("--label", "--prompt")
    if other:
        raise UserError(f"{run.path} is conditioned on {'texts' if c.vocab else 'labels'}: use {right}, not {wrong}")
    if not given:
        raise UserError(f"{right} is missing: {run.path} is conditioned on {'texts' if c.vocab else 'labels'}")
    rows = [one for one in given for _ in range(count)]
    if c.vocab:
        return pad([_tokens(tokenizer, text, c.context) for text in rows], end_token(tokenizer), c.context)
    return (torch.tensor([_class_number(label, loaded.classes, run.path) for label in rows]),)


def _class_number(label: str, classes: list[str], path: Any) -> int:
    if label not in classes:
        raise UserError(f"{path} was not trained on a label {label}; {nearest(label, classes)}")
    return classes.index(label)


def _tokens(tokenizer: Any, text: str, context: int) -> list[int]:
    ids = [end_token(tokenizer), *tokenizer.encode(text).tolist()]
    if len(ids) > context:
        raise UserError(
            f"the text “{shorten(text)}” has {len(ids)} tokens with its first token, and the context is {context}"
        )
    return ids


def sample(loaded: Loaded, options: SampleOptions, output: Output) -> None:
    """A grid of images, or an animation of them, and the first of them at each denoising step."""
    c, count = loaded.model.config, options.count or 1
    places = options.places(loaded.run.path, c.frames > 1)
    autoencoder = autoencoder_of(loaded.run, loaded.device)
    process = process_of(c, autoencoder is not None)
    if options.sampler is not None:
        check_sampler(process, options.sampler)
    given = condition(loaded, options.label or [], options.prompt or [], count)
    guidance = (float(GUIDANCE) if c.null_condition else 1.0) if options.guidance is None else options.guidance
    rows = len(given[0]) if given else count
    steps = sample_images(
        loaded.model, process, given, rows, guidance, options.steps or STEPS, options.sampler, options.seed,
        show_steps=shown_steps(c.frames > 1, autoencoder is not None), decode=decoder_of(autoencoder),
    )  # fmt: skip
    write_samples(steps, count, places, output)


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
    process = process_of(model.config, "vae" in run.config["run"])
    calls = []

    def capture(_: Any, inputs: tuple[Any, ...]) -> None:
        calls.append(inputs)
        if len(calls) == step:
            raise _StepReached

    hook = model.register_forward_pre_hook(capture)
    try:
        sample_images(model, process, given, 1, guidance, steps, seed=seed)
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
        starts = range(0, c.frames, c.patch_frames)
        times = [f"frames {i}–{i + last}" if last else f"frame {i}" for i in starts]
        within = grid_labels("patch", c.grid[1:])
        labels |= {"w": times, "B·w": each(times), "n": within, "B·n": each(within)}
    elif c.attention == "windowed":
        sizes = [min(c.window, side) for side in c.grid]
        windows = grid_labels("window", [side // size for side, size in zip(c.grid, sizes, strict=True)])
        labels |= {"B·w": each(windows), "n": grid_labels("place", sizes)}
    return labels


def evaluate(
    task: Diffusion, model: Any, folder: Path, notify: Callable[[str], None]
) -> tuple[dict[str, float], list[Path]]:
    """The loss, and samples scored by a classifier of the same data, which is trained once and kept."""
    if not task.has_classes:
        return task.report(model, folder)
    folder.mkdir(parents=True, exist_ok=True)
    metrics = task.evaluate(model)
    scores, files = score_samples(task, model, trained_classifier(task, notify))
    return metrics | scores, write_all(folder, files)


def _activations(c: Any, batch: int, length: int | None, half: int) -> Activations:
    patches, blocks = prod(c.grid), []
    kinds = groupings(c, torch.device("meta"))
    for i, kind in enumerate(kinds[: c.depth]):
        groups, tokens = (1, patches) if kind is None else (kind.count, kind.size)
        blocks.append(adaln_block_group(c, batch, groups, tokens, len(range(i, c.depth, len(kinds))), half))
    if c.vocab:
        text = ReaderConfig(width=c.width, heads=c.heads, hidden=c.hidden, rope_fraction=c.rope_fraction)
        blocks.append(block_group(text, batch, c.context, c.text_encoder_depth, half))
    rows, output = batch * patches, FULL * c.width + half * c.width + 2 * FULL * c.sizes["o"]
    return Activations(blocks, rows * half * c.sizes["c"], rows * (norm_bytes(c) + output))


FAMILY = Family(
    name="dit",
    summary="a label, a text or nothing to an image; a label to a video",
    config=DiTConfig,
    model=DiT,
    presets=PRESETS,
    training=TRAINING,
    task=Diffusion,
    data="digits",
    data_help="digits, scenes or moving-digits (built in); a folder with one subfolder a class, or of images with "
    "metadata.jsonl, or of images alone; a folder of MNIST's idx files; or hub:OWNER/NAME.",
    embedded=(*EMBEDDED["label"], *EMBEDDED["caption"]),
    eval_help="loss; the share of samples that a classifier of the same images classifies as their label; of texts, "
    "samples to look at",
    train_settings=("flip", "crop", "augment_ops", "condition_dropout"),
    train_options=TrainOptions,
    sample_options=SampleOptions,
    sample=sample,
    trace_options=TraceOptions,
    trace=trace_step,
    evaluate=evaluate,
    cost=CostProfile(
        activations=_activations,
        loss=mean_square,
        groups=dict.fromkeys(
            ("time", "labels", "text_tokens", "text_encoder", "null_text", "ada", "last"), "condition"
        ),
        parameter_formulas=block_formulas,
    ),
    heads="its attention changes with every denoising step, so no single score describes it; "
    "pencil trace --png draws the attention at one step",
    checkpoints={"dit": dit_weights},
)
