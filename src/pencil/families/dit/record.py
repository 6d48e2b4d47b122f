"""The diffusion transformer: a label, a text or nothing in, an image or a video out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from cyclopts import Parameter

from ...config import UserError
from ...cost.activations import FULL, Activations, adaln_block_group, block_formulas, block_group, norm_bytes
from ...cost.profile import CostProfile, mean_square
from ...data.images.loading import EMBEDDED
from ...files import write_all
from ...inference.autoencoder import autoencoder_for
from ...inference.diffusion_sampling import check_sampler
from ...inference.image_sampling import decoder_of, process_of, sample_images
from ...models.dit import PRESETS, DiT, DiTConfig, groupings
from ...models.reader import ReaderConfig
from ...runs.run import Loaded
from ...train.tasks.diffusion import Diffusion
from ...train.tasks.sample_scores import score_samples
from ...weights.dit import DIT
from ...weights.dit_original import DIT_ORIGINAL
from ..family import Family
from ..options import (
    DATA,
    INPUT,
    MOST_SAMPLES,
    MOST_STEPS,
    REPEATABLE,
    SAMPLING,
    ImageSizeOptions,
    Texts,
    TokenizerOptions,
    check_count,
    default,
)
from ..output import Output
from ..predictions import check_conditions, grouped, to_image
from .checkpoint_files import imported
from .condition import condition
from .explore import EXPLORE, GUIDANCE
from .image_grid import ImageOutput, shown_steps, write_samples
from .trace import STEPS, TraceOptions, trace_step

_SMALL = dict(batch=64, weight_decay=0.0, ema=0.999, eval_every=500, save_every=500)
_PAPER = dict(
    optimizer="adamw",
    lr=1e-4,
    beta2=0.999,
    weight_decay=0.0,
    schedule="constant",
    warmup=0,
    clip=0.0,
    batch=256,
    steps=400_000,
    ema=0.9999,
    eval_every=10_000,
    save_every=5000,
)
TRAINING: dict[str, dict[str, Any]] = {
    "nano": _SMALL,
    "small": _SMALL | dict(steps=20_000, batch=128, eval_every=2000, save_every=2000),
    **{f"{n}/{p}": _PAPER for n in ("s", "b", "l", "xl") for p in (2, 4, 8)},
}


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
        Parameter(
            group=INPUT, help="The text to sample from, for a run trained on captions; may be repeated.", **REPEATABLE
        ),
    ] = None
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
    compile: Annotated[
        bool,
        Parameter(
            group=SAMPLING,
            negative=(),
            help="Compile the model first: it takes a minute or more, and pays for many images or a large model.",
        ),
    ] = False
    vae: Annotated[
        str | None,
        Parameter(
            group=SAMPLING,
            help="Make pictures of the latents of an imported model with this autoencoder of diffusers: a folder, or a "
            "name on the hub.",
        ),
    ] = None

    def check(self) -> None:
        super().check()
        check_count("--count", self.count, MOST_SAMPLES)
        check_count("--steps", self.steps, MOST_STEPS)


def sample(loaded: Loaded, options: SampleOptions, output: Output) -> None:
    """A grid of images, or an animation of them, and the first of them at each denoising step."""
    places = options.places(loaded.run.path, loaded.model.config.frames > 1)
    count, kind = options.count or 1, "label" if options.label else "prompt"
    write_samples(_denoise(loaded, options, steps_shown=True, notify=output.note), count, places, output)
    given = [{kind: one} for one in options.label or options.prompt or ()] or [{}]
    # as they stand in the grid, in reading order
    output.result([{**one, "sample": k, "seed": options.seed} for one in given for k in range(1, count + 1)])


def predict(loaded: Loaded, inputs: Sequence[Any], options: SampleOptions) -> list[Any]:
    """An image for each label or text, or for nothing; a video is a list of its frames."""
    c, texts = loaded.model.config, check_conditions(inputs)
    if not texts and (c.vocab or c.classes):
        raise UserError(f"{loaded.run.path} is conditioned on {'texts' if c.vocab else 'labels'}: give one, or a list")
    options = replace(options, **{"prompt" if c.vocab else "label": texts})
    made = _denoise(loaded, options, steps_shown=False)[-1]
    videos = made if made.ndim == 5 else made[:, :, None]
    frames = [[to_image(frame) for frame in video.swapaxes(0, 1)] for video in videos]
    return grouped(frames if made.ndim == 5 else [first for (first,) in frames], options.count)


def _denoise(
    loaded: Loaded, options: SampleOptions, steps_shown: bool, notify: Callable[[str], None] | None = None
) -> list[np.ndarray]:
    """The samples as bytes, last in the list; before them, if they are shown, steps of the first."""
    c, count = loaded.model.config, options.count or 1
    autoencoder = autoencoder_for(loaded.run, c, options.vae, loaded.device)
    process = process_of(c, autoencoder is not None)
    if options.sampler is not None:
        check_sampler(process, options.sampler)
    given = condition(loaded, options.label or [], options.prompt or [], count)
    guidance = (float(GUIDANCE) if c.null_condition else 1.0) if options.guidance is None else options.guidance
    rows = len(given[0]) if given else count
    shown = shown_steps(c.frames > 1, autoencoder is not None) if steps_shown else 0
    return sample_images(
        loaded.model,
        process,
        given,
        rows,
        guidance,
        options.steps or STEPS,
        options.sampler,
        options.seed,
        show_steps=shown,
        decode=decoder_of(autoencoder),
        compile=options.compile,
        notify=notify,
    )


def evaluate(
    task: Diffusion, model: Any, folder: Path, classifier_of: Callable[[Diffusion], Any]
) -> tuple[dict[str, float], list[Path]]:
    """The loss, and samples scored by a classifier of the same data, which is trained once and kept."""
    if not task.has_classes:
        return task.report(model, folder)
    folder.mkdir(parents=True, exist_ok=True)
    metrics = task.evaluate(model)
    scores, files = score_samples(task, model, classifier_of(task))
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
    "metadata.jsonl, or of images alone; a folder of MNIST's idx files; .tar files of webdataset; or hf:OWNER/NAME. "
    "--data.fit crop, pad or squash: what becomes of images of another shape.",
    embedded=(*EMBEDDED["label"], *EMBEDDED["caption"]),
    eval_help="loss; the share of samples that a classifier of the same images classifies as their label; of texts, "
    "samples to look at",
    train_settings=("flip", "crop", "augment_ops", "condition_dropout"),
    data_settings=("fit",),
    train_options=TrainOptions,
    sample_options=SampleOptions,
    sample=sample,
    predict=predict,
    trace_options=TraceOptions,
    trace=trace_step,
    explore=EXPLORE,
    evaluate=evaluate,
    cost=CostProfile(
        activations=_activations,
        loss=mean_square,
        groups=dict.fromkeys(
            ("time", "labels", "text_tokens", "text_encoder", "null_text", "ada", "last"), "condition"
        ),
        parameter_formulas=block_formulas,
    ),
    heads="this model denoises in many steps, and a head attends differently at each, so no one score describes it; "
    "pencil trace --png draws the attention at one step",
    checkpoints=(DIT, DIT_ORIGINAL),
    imported=imported,
)
