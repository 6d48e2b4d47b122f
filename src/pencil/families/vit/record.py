"""ViT: an image in, its class out."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from cyclopts import Parameter

from ...config import UserError
from ...core.patches import grid_positions
from ...cost.activations import FULL, SELF_ATTENTION_FLOPS, Activations, block_formulas, block_group, norm_bytes
from ...cost.profile import CostProfile
from ...data.images.loading import EMBEDDED
from ...data.settings import IMAGE_SETTINGS
from ...inference.attention_layouts import SELF_ATTENTION, AttentionGroup, HeadProfile, Inputs, every
from ...inference.attention_maps import class_attention
from ...models.vit import PRESETS, ViT, ViTConfig
from ...runs.run import Loaded
from ...tracing.live_trace import LiveTrace, trace
from ...train.tasks.image_classification import ImageClassification
from ...weights.timm_vit import TIMM_VIT
from ...weights.vit import DEIT, VIT
from ..explore_inputs import example_pictures, picture_input, picture_of
from ..explore_profile import ExploreProfile, Given, Prompt
from ..family import Family
from ..head_inputs import held_out_images
from ..options import OUTPUT, AttentionOutput, ImageInput, ImageSizeOptions, ImageTraceInput, TextOutput
from ..output import Output
from ..predictions import (
    BATCH,
    Prediction,
    class_lines,
    class_row,
    classify,
    input_transform,
    picture_tensor,
    read_pictures,
)
from ..trace_labels import grid_labels, image_tensor, patch_facts, read_image
from .checkpoint_files import exported, imported

_DIGITS = dict(batch=64, steps=3200, weight_decay=0.05)
_PAPER = dict(batch=128, steps=50_000, lr=1e-3, warmup=1000, weight_decay=0.1, eval_every=1000, save_every=1000)
TRAINING: dict[str, dict[str, Any]] = {
    "nano": _DIGITS,
    "small": _DIGITS | dict(batch=256, steps=3000, eval_every=500, save_every=500, muon_lr=0.01, augment_ops=2),
    **{name: _PAPER for name in ("ti/16", "s/16", "b/16", "b/32", "l/16")},
}


@dataclass(frozen=True)
class SampleOptions(TextOutput, AttentionOutput, ImageInput):
    """What `pencil sample` takes."""

    attention: Annotated[
        Path | None,
        Parameter(
            group=OUTPUT,
            help="Write the last block's attention to each patch to this .png file.",
        ),
    ] = None


def sample(loaded: Loaded, options: SampleOptions, output: Output) -> None:
    """The most likely classes of each image."""
    paths = options.image or []
    one_image(options, len(paths))
    pictures = read_pictures(paths, input_transform(loaded))
    lines, predictions = [], _classify(loaded, pictures)
    for path, prediction in zip(paths, predictions, strict=True):
        head = [str(path)] if len(paths) > 1 else []
        lines.append("\n".join(head + class_lines(prediction)))
    output.texts(lines)
    output.result([{"image": str(path), **class_row(one)} for path, one in zip(paths, predictions, strict=True)])
    if options.attention:
        output.file(
            options.attention,
            class_attention(loaded.model, pictures[0], picture_tensor(pictures[:1], loaded), predictions[0].label),
        )


def predict(loaded: Loaded, inputs: Sequence[Any], options: SampleOptions) -> list[Prediction]:
    """The classes of each picture."""
    return _classify(loaded, read_pictures(inputs, input_transform(loaded)))


@torch.no_grad()
def _classify(loaded: Loaded, pictures: np.ndarray) -> list[Prediction]:
    parts = [picture_tensor(pictures[i : i + BATCH], loaded) for i in range(0, len(pictures), BATCH)]
    return [one for x in parts for one in classify(loaded.model(x), loaded.classes, loaded.model)]


def one_image(options: AttentionOutput, outputs: int) -> None:
    """--attention is a picture of one output."""
    if options.attention and outputs > 1:
        raise UserError(f"--attention shows one image and its output, and {outputs} were requested")


def trace_image(loaded: Loaded, options: ImageTraceInput, double: bool = False) -> LiveTrace:
    """The model on one image."""
    model = loaded.model.double() if double else loaded.model
    x = image_tensor(model, read_image(loaded, str(options.given)), input_transform(loaded))
    return _trace_tensor(loaded._replace(model=model), x)


def _trace_tensor(loaded: Loaded, x: torch.Tensor) -> LiveTrace:
    """The model on one image as it reads it."""
    model = loaded.model
    tokens, patches = _words(model.config), grid_labels("patch", model.config.grid)
    names = loaded.run.config["run"].get("classes") or []
    labels = {"T": tokens, "S": tokens, "N": patches, "K": names}
    return trace(model, x, words=labels, facts=patch_facts(model.config.before, model.config.grid))


def _words(c: Any) -> list[str]:
    """The labels of the tokens: the class token, registers and patches."""
    first = ["class"] * (c.before > c.registers) + [f"register {i + 1}" for i in range(c.registers)]
    return first + grid_labels("patch", c.grid)


def _activations(c: Any, batch: int, length: int | None, half: int) -> Activations:
    tokens = c.sizes["T"]
    rows = batch * tokens
    blocks = [block_group(c, batch, tokens, c.depth, half, half_residual=True)]
    patches = batch * half * c.sizes["c"] * prod(c.grid)
    # a vector sliced out of all tokens keeps them all, unless autocast copies it
    pooled = rows * FULL * c.width if half == FULL and c.pool == "class" else 0
    normed = (batch if c.norm_pooled else rows) * norm_bytes(c)
    embedded = rows * (norm_bytes(c) if c.embed_norm else 0) + (rows * c.width if c.dropout else 0)
    return Activations(blocks, patches + embedded, normed + pooled)


def _attention_groups(model: ViT, inputs: Inputs) -> list[AttentionGroup]:
    """Patches, and the class token and registers before them if there are any."""
    before = model.config.before
    places = grid_positions(model.config.grid, torch.device("cpu"))
    steps = (places[:, None] - places).abs().sum(-1)
    count = before + len(places)
    own, near = torch.eye(count, dtype=torch.bool), torch.zeros(count, count, dtype=torch.bool)
    near[before:, before:] = steps == 1
    targets = {
        "class": (torch.arange(count) < before - model.config.registers).expand(count, -1) & ~own,
        "near": near,
        "own": own,
    }
    return [AttentionGroup("", SELF_ATTENTION, every(count, count, targets))]


def _read(loaded: Loaded, given: Given) -> Prompt:
    picture = picture_of(loaded, given)
    return Prompt(given={"picture": picture_tensor(picture[None], loaded)}, picture=picture)


EXPLORE = ExploreProfile(
    takes=lambda loaded: picture_input(loaded.model.config),
    output=lambda loaded: "classes",
    read=_read,
    trace=lambda loaded, prompt, written, options: _trace_tensor(loaded, prompt.given["picture"]),
    layout=lambda loaded, prompt, written: (
        _words(loaded.model.config),
        patch_facts(loaded.model.config.before, loaded.model.config.grid),
    ),
    examples=example_pictures,
)
FAMILY = Family(
    name="vit",
    summary="an image to its class",
    config=ViTConfig,
    model=ViT,
    presets=PRESETS,
    training=TRAINING,
    task=ImageClassification,
    data="digits",
    data_help="digits (built in), a folder with one subfolder for each class, a folder of MNIST's idx files, .tar "
    "files of webdataset, or hf:OWNER/NAME. --data.fit crop, pad or squash: what becomes of images of another shape.",
    embedded=EMBEDDED["label"],
    eval_help="accuracy with its interval, precision and recall per class, the confusion matrix, the most confident "
    "mistakes",
    train_settings=("flip", "crop", "augment_ops", "mixup", "class_weights", "balanced_batches"),
    data_settings=IMAGE_SETTINGS,
    train_options=ImageSizeOptions,
    sample_options=SampleOptions,
    sample=sample,
    predict=predict,
    trace_options=ImageTraceInput,
    trace=trace_image,
    explore=EXPLORE,
    cost=CostProfile(
        activations=_activations, parameter_formulas=block_formulas, flop_formulas=lambda c: SELF_ATTENTION_FLOPS
    ),
    heads=HeadProfile(
        _attention_groups,
        held_out=lambda loaded, task: [(picture,) for picture in held_out_images(task)[0]],
        unit="images",
    ),
    checkpoints=(VIT, DEIT, TIMM_VIT),
    imported=imported,
    exported=exported,
)
