"""The diffusion transformer: a label, a text or nothing in, an image or a video out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from cyclopts import Parameter

from .. import draw
from ..config import EXAMPLE_RUNS, UserError, nearest
from ..core.masks import NOWHERE
from ..core.span import Span
from ..cost.activations import FULL, Activations, adaln_block_group, block_formulas, block_group, norm_bytes
from ..cost.profile import CostProfile, mean_square
from ..data.images.open_images import EMBEDDED
from ..data.tokenizers.tokenizer import Tokenizer
from ..files import read_json, write_all
from ..inference.autoencoder import Autoencoder, autoencoder_for, has_latents
from ..inference.diffusion import MAX_TIMESTEP, RectifiedFlow, check_sampler
from ..inference.graphs import Denoised, Graph, Input, RuntimeProfile, gaussian, ids, masks
from ..inference.image_sampling import decoder_of, process_of, sample_images
from ..inference.text_batches import end_token, pad, shorten, token_label
from ..models.dit import PRESETS, DiT, DiTConfig, groupings
from ..models.reader import ReaderConfig
from ..runs.run import Loaded, Run
from ..tracing.live_trace import LiveTrace, trace
from ..tracing.recording import mapped
from ..train.tasks.diffusion import Diffusion, normal, prediction_loss, score_samples
from ..weights.checkpoint_files import LARGEST_CONFIG, Checkpoint, inside
from ..weights.dit import DIT
from ..weights.dit_original import DIT_ORIGINAL
from .explore_profile import (
    Control,
    ExploreProfile,
    Given,
    Prompt,
    TargetInput,
    example_pictures,
    example_texts,
    grid_labels,
    named,
    patch_facts,
    picture_input,
    picture_of,
    text_of,
)
from .family import Family
from .options import (
    DATA,
    INPUT,
    MOST_SAMPLES,
    MOST_STEPS,
    OUTPUT,
    REPEATABLE,
    SAMPLING,
    ImageSizeOptions,
    NoOptions,
    Output,
    Texts,
    TokenizerOptions,
    check_count,
    default,
)
from .predictions import check_conditions, grouped, input_transform, picture_tensor, read_pictures, to_image
from .runtime_examples import encoded, sessions, tokenizer_of


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


def _class_number(label: str, classes: list[str], path: Path | str) -> int:
    if label not in classes:
        numbers = classes == [str(i) for i in range(len(classes))]
        mend = f"its labels are 0 to {len(classes) - 1}" if numbers else nearest(label, classes)
        raise UserError(f"{path} was not trained on a label {label}; {mend}")
    return classes.index(label)


def _tokens(tokenizer: Tokenizer, text: str, context: int) -> list[int]:
    ids = [end_token(tokenizer), *tokenizer.encode(text).tolist()]
    if len(ids) > context:
        raise UserError(
            f"the text “{shorten(text)}” has {len(ids)} tokens with its first token, and the context is {context}"
        )
    return ids


COLUMNS = 13  # of the picture of the steps
KINDS = frozenset(".png .gif .jpg .jpeg .webp .bmp .tif .tiff .svg .pdf .mp4 .webm .mov .avi".split())
MAX_STEPS, MAX_VIDEO_STEPS = 8 * COLUMNS, 11  # shown; of more only some, evenly spaced
MAX_LATENT_STEPS = COLUMNS  # each goes through the autoencoder, which costs more than a denoising step


@dataclass(frozen=True)
class ImageOutput(NoOptions):
    """Where images are written."""

    out: Annotated[
        Path | None,
        Parameter(
            group=OUTPUT,
            help="A folder, or a .png file (.gif for video); the denoising steps are written beside it.",
            show_default=default("RUN/sampled"),
        ),
    ] = None

    def places(self, run: Path, video: bool) -> tuple[Path, Path]:
        """Where the grid and the steps are written: into a folder, or under the name of a file and beside it."""
        ending = ".gif" if video else ".png"
        if self.out is not None and not self.out.is_dir():
            if self.out.suffix.lower() == ending:
                return self.out, self.out.with_name(f"{self.out.stem}-steps.png")
            if self.out.suffix.lower() in KINDS:
                raise UserError(f"{'a video' if video else 'an image'} is written as {ending}, and --out is {self.out}")
        folder = run / "sampled" if self.out is None else self.out
        return folder / f"grid{ending}", folder / "steps.png"


def shown_steps(video: bool, latent: bool) -> int:
    """How many moments of the first sample are shown at most."""
    return MAX_VIDEO_STEPS if video else MAX_LATENT_STEPS if latent else MAX_STEPS


def write_samples(steps: Sequence[np.ndarray], count: int, places: tuple[Path, Path], output: Output) -> None:
    """The samples as a grid or an animation, and the first of them at each step; `count` are of one condition."""
    made, grid = steps[-1], places[0]
    rows = len(made)
    grid.parent.mkdir(parents=True, exist_ok=True)
    first = [step[0] for step in steps]
    # each of several conditions has a row of its own, or all of them share one
    across = int(np.ceil(np.sqrt(rows))) if rows == count else count if count > 1 else min(rows, COLUMNS)
    if made.ndim == 5:
        sheet, shown = draw.film(_tile(made, across)), [step.swapaxes(0, 1) for step in first]
    else:
        sheet, stills = draw.rows([_tile(made[:, :, None], across)[0][None]]), np.stack(first)
        shown = [stills[i : i + COLUMNS] for i in range(0, len(stills), COLUMNS)]
    for path, content in zip(places, (sheet, draw.rows(shown)), strict=True):
        output.file(path, content)


def _tile(videos: np.ndarray, across: int) -> np.ndarray:
    """Videos (n, C, F, H, W) in rows, as frames (F, C, height, width), one pixel between them."""
    count, channels, frames, height, width = videos.shape
    down = -(-count // across)
    sheet = np.full((frames, channels, down * (height + 1) - 1, across * (width + 1) - 1), 64, np.uint8)
    for i, video in enumerate(videos):
        row, column = divmod(i, across)
        top, left = row * (height + 1), column * (width + 1)
        sheet[:, :, top : top + height, left : left + width] = video.swapaxes(0, 1)
    return sheet


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

    target: Annotated[
        Path | None,
        Parameter(
            group=INPUT,
            help="Instead of a denoising step what training shows the model: this image, with noise of --seed added up "
            "to --time. Its loss is that of training.",
        ),
    ] = None
    time: Annotated[
        float | None,
        Parameter(
            group=INPUT,
            help="With --target: how far towards noise, from 0 (the image) to 1 (noise).",
            show_default=default(0.5),
        ),
    ] = None

    def check(self) -> None:
        super().check()
        check_count("--steps", self.steps, MOST_STEPS)
        if self.time is not None and self.target is None:
            raise UserError("--time says how much noise is added to the image of --target: give one, or leave it out")
        if self.target is not None:
            for name in ("step", "steps", "guidance"):
                if getattr(self, name) is not None:
                    raise UserError(f"--{name} is of sampling, and --target is an image of training: leave one out")
            if self.time is not None and not 0 <= self.time <= 1:
                raise UserError(f"--time must be from 0 to 1, not {self.time:g}")
        steps = STEPS if self.steps is None else self.steps
        if self.step is not None and not 1 <= self.step <= steps:
            raise UserError(f"--step must be from 1 to {steps}, not {self.step}")


class _StepReached(Exception):
    """Sampling has come to the step to trace."""


def trace_step(
    loaded: Loaded, options: TraceOptions, double: bool = False, image: np.ndarray | None = None
) -> LiveTrace:
    """The model at one denoising step, on exactly what `sample` hands it; or on a noised image, as in training.

    That image is in the file of the options, or given as it is, (C, H, W) of bytes.
    """
    model, tokenizer, _ = loaded
    c, named = model.config, options.prompt if model.config.vocab else options.label
    labels, texts = ([] if one is None else [one] for one in (options.label, options.prompt))
    given = condition(loaded, labels, texts)
    steps = STEPS if options.steps is None else options.steps
    step = (steps + 1) // 2 if options.step is None else options.step
    seed, guidance = options.seed or 0, 1.0 if options.guidance is None else options.guidance
    loss = None
    if options.target is None and image is None:
        inputs = _inputs_at(loaded, given, step, steps, seed, guidance)
        about = f"step {step} of {steps}"
    else:
        time = 0.5 if options.time is None else options.time
        inputs, loss = _noised(loaded, str(options.target) if image is None else image, given, time, seed)
        about = f"time {time:g}"
    if double:
        model.double()
        inputs = mapped(inputs, "", lambda _, one: one.double() if one.is_floating_point() else one)
    words = _group_labels(c, [] if guidance == 1 else [str(named), "unconditional"])
    if c.vocab:
        ids, places = given[0][0].tolist(), given[1][0].tolist()
        read = [token_label(tokenizer, i) if at < NOWHERE else "(padding)" for i, at in zip(ids, places, strict=True)]
        words["s"] = ["begin", *read[1:]]
    moment = (f"{named}, " if given else "") + about + (f", seed {seed}" if seed else "")
    traced = trace(model, *inputs, words=words, facts=patch_facts(0, c.grid) | {"moment": moment})
    traced.loss = loss
    return traced


def _without_images(loaded: Loaded) -> str:
    """Why a picture is no example of what the model was trained on; nothing where it is."""
    model, _, run = loaded
    if not has_latents(run, model.config) and model.config.frames == 1:
        return ""
    kind = "videos" if model.config.frames > 1 else "latents"
    return f"{run.path} was trained on {kind}, so --target has no image for it: use --update-at"


def _noised(loaded: Loaded, picture: Any, given: Any, time: float, seed: int) -> tuple[tuple[Any, ...], Any]:
    """The model's inputs for a noised image, and the loss of what it gives."""
    if why_not := _without_images(loaded):
        raise UserError(why_not)
    process = process_of(loaded.model.config, False)
    pictures = read_pictures([picture], input_transform(loaded)) if isinstance(picture, str) else picture[None]
    x = picture_tensor(pictures, loaded)
    noise = normal(torch.tensor([seed]), tuple(x.shape[1:])).to(x.dtype)
    t = torch.tensor([time if isinstance(process, RectifiedFlow) else round(time * (len(process) - 1))])
    noised = process.add_noise(x, noise, t)
    places = Span.at(given[1]) if len(given) > 1 else None

    def loss(model: Any, noised: torch.Tensor, *others: Any) -> torch.Tensor:
        image, added = x.to(noised.dtype), noise.to(noised.dtype)
        return prediction_loss(process, model(noised, *others), image, noised, added, t, 256)

    return (noised, process.timestep(t), given[0] if given else None, places), loss


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


def _group_labels(c: DiTConfig, rows: list[str]) -> dict[str, list[str]]:
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
    options_of_trace = TraceOptions(**prompt.given, step=step, steps=steps, seed=seed, guidance=guidance)
    options_of_trace.check()
    return trace_step(loaded, options_of_trace)


def _target(loaded: Loaded) -> TargetInput | str:
    if why_not := _without_images(loaded):
        return why_not
    pictures = [{"name": name, "picture": one["picture"]} for name, one in example_pictures(loaded)]
    return TargetInput("The image that is noised", [], picture_input(loaded.model.config)["picture"], pictures)


def _trace_target(loaded: Loaded, prompt: Prompt, target: str) -> LiveTrace:
    """The model on a noised image, from a target as the page writes it."""
    time, seed, picture = (*target.split(" ", 2), "", "")[:3]
    options = TraceOptions(**prompt.given, time=_number(time, float), seed=_number(seed, int), target=Path())
    options.check()
    return trace_step(loaded, options, image=picture_of(loaded, {"picture": picture}))


def _number(text: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise UserError(
            f"the target of a step is a time, a seed and a picture, 0.5 3 data:…, and not {text[:20]!r}"
        ) from None


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
    target=_target,
    with_target=_trace_target,
)


def imported(checkpoint: Checkpoint, config: DiTConfig) -> dict[str, Any]:
    """Tables of the run, from the folder of the pipeline that the transformer is a part of."""
    if checkpoint.folder.name != "transformer":
        return {}
    pipeline = checkpoint.folder.parent
    facts: dict[str, Any] = {"classes": names} if (names := _class_names(pipeline, config.classes)) else {}
    return {"run": facts | _autoencoder(pipeline, config.channels)}


def _class_names(pipeline: Path, count: int | None) -> list[str]:
    """The names in the pipeline's list of parts; none where they are not one for each class."""
    if not (pipeline / "model_index.json").exists():
        return []
    names = read_json(inside(pipeline, "model_index.json"), LARGEST_CONFIG).get("id2label")
    numbers = [str(i) for i in range(count or 0)]
    if not isinstance(names, dict) or set(names) != set(numbers) or not all(isinstance(n, str) for n in names.values()):
        return []
    return [names[number] for number in numbers]


def _autoencoder(pipeline: Path, channels: int) -> dict[str, Any]:
    """The autoencoder in vae/, as a run that was trained with one names it; `pencil sample --vae` takes another."""
    if not (pipeline / "vae" / "config.json").exists():
        return {}
    try:
        autoencoder = Autoencoder.open(str(pipeline))
    except UserError:  # diffusers is not installed, or the weights are pickled: sampling says that it needs one
        return {}
    if autoencoder.channels != channels:
        raise UserError(
            f"the autoencoder in {pipeline / 'vae'} makes latents of {autoencoder.channels} channels, and the "
            f"transformer takes {channels}"
        )
    return {"vae": autoencoder.source, "vae_hash": autoencoder.hash}


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
    if loaded.run.path.parent == EXAMPLE_RUNS and not options.label and not options.prompt:
        label = loaded.classes[(options.seed or 0) % len(loaded.classes)]
        options = replace(options, label=[label])
        output.note(f"--label {label}, by the seed; --label chooses another")
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


def _activations(c: DiTConfig, batch: int, length: int | None, half: int) -> Activations:
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


def _graphs(model: DiT) -> list[Graph]:
    c = model.config
    inputs = {"picture": Input(("batch", c.channels, *c.sides), gaussian), "timestep": Input(("batch",), _timesteps)}
    if c.vocab:
        inputs |= {"given": Input(("batch", "source"), ids(c.vocab)), "given_mask": Input(("batch", "source"), masks)}
    elif c.classes:
        inputs |= {"given": Input(("batch",), ids(c.classes))}
    if c.null_condition and (c.vocab or c.classes):
        inputs |= {"drop": Input(("batch",), ids(2))}
    return [Graph("model", Denoised(model), inputs, ("prediction",))]


def _timesteps(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(tuple(shape), generator=generator) * MAX_TIMESTEP


def _example(run: Run, c: DiTConfig) -> str:
    """An image of the first label or of a text, from noise in 20 steps, without guidance."""
    head, feed = "import numpy as np\nimport onnxruntime\n", '"picture": x, "timestep": np.array([time], "float32")'
    given = ""
    if c.vocab:
        head += tokenizer_of(run.tokenizer)
        prompt = encoded(run.tokenizer, longest=c.context)
        given = f'given = np.array([{prompt}])\nmask = np.ones(given.shape, "int64")\n'
        feed += ', "given": given, "given_mask": mask'
    elif c.classes:
        feed += ', "given": np.array([0])'
    if given or c.classes:
        feed += ', "drop": np.array([0])' if c.null_condition else ""
    predict = f"predicted = model.run(None, {{{feed}}})[0][:, :{c.channels}]"
    process = process_of(c, latents := has_latents(run, c))
    if isinstance(process, RectifiedFlow):
        steps = (
            "times = np.linspace(1, 0, 21)\nfor now, then in zip(times, times[1:]):\n"
            f"    time = {MAX_TIMESTEP} * now\n    {predict}\n    x = x + np.float32(then - now) * predicted\n"
        )
    else:
        clean = {"eps": "(x - noise * predicted) / signal", "x0": "predicted"}.get(
            process.prediction, "signal * x - noise * predicted"
        )
        steps = (
            'left = np.array(json.loads(model.get_modelmeta().custom_metadata_map["alphas_cumprod"]))\n'
            "times = np.linspace(len(left) - 1, 0, 20).round().astype(int)\n"
            "for time, then in zip(times, [*times[1:], -1]):\n"
            f"    {predict}\n    signal, noise = left[time] ** 0.5, (1 - left[time]) ** 0.5\n"
            f"    clean = {clean}\n"
            + ("" if latents else "    clean = clean.clip(-1, 1)\n")
            + "    rest = (x - signal * clean) / noise\n"
            "    after = left[then] if then >= 0 else 1.0\n"
            '    x = (after**0.5 * clean + (1 - after) ** 0.5 * rest).astype("float32")\n'
        )
        head = "import json\n\n" + head
    shape = (1, c.channels, *c.sides)
    return (
        f"{head}{sessions('model')}{given}"
        f'x = np.random.default_rng(0).standard_normal({shape}).astype("float32")\n{steps}'
        + (
            "print(x.shape)\n"
            if latents
            else 'pixels = ((x[0] + 1) * 127.5).clip(0, 255).round().astype("uint8")\nprint(pixels.shape)\n'
        )
    )


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
    runtime=RuntimeProfile(_graphs, _example),
)
