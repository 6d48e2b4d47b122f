"""ViT: an image in, its class out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from cyclopts import Parameter

from ..config import UserError, build
from ..core.patches import grid_positions
from ..cost.activations import FULL, SELF_ATTENTION_FLOPS, Activations, block_formulas, block_group, norm_bytes
from ..cost.profile import CostProfile
from ..data.images.open_images import EMBEDDED
from ..data.settings import IMAGE_SETTINGS, DataConfig, check_reading
from ..files import read_json
from ..inference.attention_overlays import class_attention
from ..inference.graphs import Graph, Input, Plain, RuntimeProfile, gaussian
from ..inference.head_patterns import SELF_ATTENTION, AttentionGroup, HeadProfile, Inputs, every, held_out_images
from ..models.vit import PRESETS, ViT, ViTConfig
from ..runs.run import Loaded, Run
from ..tracing.live_trace import LiveTrace, trace
from ..train.tasks.image_classification import ImageClassification
from ..weights.checkpoint_files import Checkpoint
from ..weights.maps import MAPPED, NEUTRAL, Fields, Use, check_fields, only
from ..weights.timm_vit import TIMM_VIT, WHAT, label_names, pretrained
from ..weights.vit import DEIT, VIT, class_names
from .explore_profile import (
    ExploreProfile,
    Given,
    Prompt,
    TargetInput,
    example_pictures,
    grid_labels,
    patch_facts,
    picture_input,
    picture_of,
)
from .family import Family
from .options import OUTPUT, AttentionOutput, ImageInput, ImageSizeOptions, ImageTraceInput, Output, Target, TextOutput
from .predictions import (
    BATCH,
    Prediction,
    class_lines,
    class_row,
    classify,
    input_transform,
    picture_tensor,
    read_pictures,
    target_class,
)
from .runtime_examples import BEST, pictures, sessions

# Pillow's numbers
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
FILE = "preprocessor_config.json"
KINDS = {
    name: kind
    for kind in ("ViT", "DeiT")
    for name in (f"{kind}ImageProcessor", f"{kind}ImageProcessorFast", f"{kind}FeatureExtractor")
}
HALF = [0.5, 0.5, 0.5]
# what a processor does where its file leaves a field out
USUAL: dict[str, dict[str, Any]] = {
    "ViT": dict(resample=2, size=224, do_center_crop=False),
    "DeiT": dict(resample=3, size=256, do_center_crop=True, crop_size=224),
}
PROCESSOR: dict[str, Use] = {
    **dict.fromkeys("size resample do_center_crop crop_size do_normalize image_mean image_std image_processor_type "
                    "feature_extractor_type".split(), MAPPED),
    **dict.fromkeys("_processor_class processor_class do_convert_rgb data_format input_data_format return_tensors "
                    "device disable_grouping default_to_square image_seq_length _valid_processor_keys".split(),
                    NEUTRAL),
    "do_resize": only(True), "do_rescale": only(True), "do_pad": only(False), "rescale_factor": only(1 / 255),
    **dict.fromkeys("size_divisor pad_size crop_pct".split(), only()),
}  # fmt: skip


def imported(checkpoint: Checkpoint, config: ViTConfig) -> dict[str, Any]:
    """The tables of a run that is made of a checkpoint: its classes, and how its images are prepared."""
    theirs, notes = checkpoint.config, []
    if "architecture" in theirs:
        names, data = label_names(theirs), from_timm(theirs, config)
    else:
        names, data, file = class_names(theirs), {}, checkpoint.folder / FILE
        if file.is_file():
            kind = DEIT.name if theirs["model_type"] in DEIT.types else VIT.name
            data = from_transformers(read_json(file), kind, config)
        else:
            notes.append(f"it comes without {FILE}: images are cropped, and their pixels are from −1 to 1")
    run = {"classes": names} if len(names) == config.classes else {}
    if not run:
        notes.append(f"it does not name its {config.classes:,} classes: they are numbers here")
    return {"run": run, "data": data, "notes": notes}


def exported(run: Run, config: ViTConfig, library: str, described: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The files beside the weights, by name, for a run that is described so; and what the user should know of them."""
    reading = build(DataConfig, run.config.get("data") or {}, "data.")
    names = list(map(str, run.config["run"].get("classes") or ()))
    names = names if len(names) == config.classes else []
    if library == "timm":
        prepared, notes = to_timm(config, reading)
        labels = {"label_names": names} if names else {}
        return {"config.json": described | labels | {"pretrained_cfg": described["pretrained_cfg"] | prepared}}, notes
    prepared, notes = to_transformers(config, reading)
    if names:
        described = described | {
            "id2label": {str(i): name for i, name in enumerate(names)},
            "label2id": {name: i for i, name in enumerate(names)},
        }
    return {"config.json": described, **({FILE: prepared} if prepared else {})}, notes


def from_transformers(theirs: Mapping[str, Any], kind: str, c: ViTConfig) -> dict[str, Any]:
    """Our settings from preprocessor_config.json, for a model that is a `kind`: ViT or DeiT."""
    what = f"{kind}'s {FILE}"
    check_fields(theirs, PROCESSOR, what)
    made = theirs.get("image_processor_type") or theirs.get("feature_extractor_type") or f"{kind}ImageProcessor"
    if made not in KINDS:
        raise UserError(
            f"this {what} is for a {made}, and only that of a ViTImageProcessor or a DeiTImageProcessor can be read"
        )
    fields = Fields(USUAL[KINDS[made]] | {k: v for k, v in theirs.items() if v is not None}, what)
    size, centre = _size(fields, "size"), bool(fields["do_center_crop"])
    last = _size(fields, "crop_size") if centre else size
    if last != tuple(c.image_size):
        raise UserError(f"this {what} makes images of {_by(last)}, and the model reads {_by(c.image_size)}")
    for name, whole, part in zip(("height", "width"), size, last, strict=True):
        if round((whole - part) / 2) != (whole - part) // 2:
            raise UserError(f"this {what} cuts a {name} of {part} out of {whole}, whose middle is rounded in two ways")
    if fields["resample"] not in RESAMPLING:
        raise UserError(f"this {what} has resample {fields['resample']!r}, which is none of {list(RESAMPLING)}")
    normal = {"mean": fields.given("image_mean", HALF), "std": fields.given("image_std", HALF)}
    if not fields.given("do_normalize", True):
        normal = {"mean": 0.0, "std": 1.0}
    return _check_reading(c, fit="squash", resize=size, resample=RESAMPLING[fields["resample"]], **normal)


def from_timm(theirs: Mapping[str, Any], c: ViTConfig) -> dict[str, Any]:
    """Our settings from timm's pretrained_cfg: as its images are prepared to be evaluated."""
    cfg = pretrained(theirs)
    percent, mode = cfg.get("crop_pct") or 0.875, cfg.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        raise UserError(f"this {WHAT}'s crop_mode is {mode!r}, which ours does not have: only 'center' or 'squash'")
    if not isinstance(percent, int | float) or not 0 < percent <= 1:
        raise UserError(f"this {WHAT}'s crop_pct must be above 0 and at most 1, not {percent!r}")
    resample = cfg.get("interpolation") or "bicubic"
    if resample not in RESAMPLING.values():
        raise UserError(f"this {WHAT}'s interpolation is {resample!r}, which ours does not have")
    height, width = (math.floor(side / percent) for side in c.image_size)
    if mode == "center" and height != width:
        resample = "bilinear"  # so does timm, whatever its interpolation
    return _check_reading(
        c,
        fit="crop" if mode == "center" else "squash",
        resize=(height, width),
        resample=resample,
        mean=cfg.get("mean") or (0.485, 0.456, 0.406),
        std=cfg.get("std") or (0.229, 0.224, 0.225),
    )


def _check_reading(c: ViTConfig, **values: Any) -> dict[str, Any]:
    """The settings, built once, so that what does not fit is refused at import."""
    for name in ("mean", "std"):
        if isinstance(values[name], float | int):
            values[name] = [float(values[name])] * c.channels
    check_reading(build(DataConfig, values, "data."), c.image_size, c.channels)
    # both libraries convert images to RGB, which drops transparency
    return values | {"mean": list(values["mean"]), "std": list(values["std"]), "transparency": "drop"}


def _size(fields: Fields, name: str) -> tuple[int, int]:
    """Height and width; one number is both."""
    value = fields[name]
    if isinstance(value, Mapping):
        if set(value) != {"height", "width"}:
            raise UserError(f"this {fields.what} has {name} {dict(value)}: only height and width can be read")
        value = (value["height"], value["width"])
    size = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(size) != 2 or any(type(side) is not int or side < 1 for side in size):
        raise UserError(f"this {fields.what}'s {name} must be whole numbers above 0, not {fields[name]!r}")
    return size


def to_transformers(c: ViTConfig, reading: DataConfig) -> tuple[dict[str, Any] | None, list[str]]:
    """preprocessor_config.json for a run that reads its images so; and what it does not do as the run does."""
    height, width = c.image_size
    size = reading.resize or (height, width)
    numbers = {name: number for number, name in RESAMPLING.items()}
    processor: dict[str, Any] = dict(
        do_resize=True,
        size={"height": size[0], "width": size[1]},
        resample=numbers[reading.resample or "bicubic"],
        do_rescale=True,
        rescale_factor=1 / 255,
        do_normalize=True,
        **_normal(c, reading, "image_mean", "image_std"),
    )
    if reading.fit == "squash":
        kind = "ViTImageProcessor" if size == (height, width) else "DeiTImageProcessor"
    elif size[0] != size[1] or reading.fit == "pad":
        what = "pads images" if reading.fit == "pad" else "crops images that are not square"
        return None, [f"without {FILE}: no image processor of transformers {what} as the run does"]
    else:
        kind, processor["size"] = "CLIPImageProcessor", {"shortest_edge": size[0]}
    processor["do_center_crop"] = kind != "ViTImageProcessor"
    if processor["do_center_crop"]:
        processor["crop_size"] = {"height": height, "width": width}
    note = [] if reading.resize is not None and reading.fit == "squash" else [_note("transformers")]
    return {"image_processor_type": kind, "do_convert_rgb": c.channels == 3, **processor}, note


def to_timm(c: ViTConfig, reading: DataConfig) -> tuple[dict[str, Any], list[str]]:
    """The part of timm's pretrained_cfg that says how images are prepared; and what it does not do as the run does."""
    fit = reading.fit or "crop"
    size, resample = reading.resize or c.image_size, reading.resample or "bicubic"
    mode = {"crop": "center", "squash": "squash", "pad": "border"}[fit]
    percent = _percent(c.image_size, size)
    if percent is None:
        raise UserError(f"data.resize {_by(size)} is not the same share of both sides of {_by(c.image_size)}")
    uneven = fit == "crop" and size[0] != size[1]
    if uneven and reading.resize is not None and resample != "bilinear":
        raise UserError(f"data.resample is {resample}, and timm crops images that are not square by bilinear only")
    prepared = dict(interpolation=resample, crop_pct=percent, crop_mode=mode, **_normal(c, reading, "mean", "std"))
    return prepared, [] if reading.resize is not None else [_note("timm")]


def _percent(part: tuple[int, int], whole: tuple[int, int]) -> float | None:
    """The crop_pct with which timm comes to `whole`: a short number, if there is one."""
    near = part[0] / whole[0]
    for percent in (*(round(near, digits) for digits in range(1, 7)), near, part[0] / (whole[0] + 0.5)):
        if 0 < percent <= 1 and all(math.floor(p / percent) == w for p, w in zip(part, whole, strict=True)):
            return percent
    return None


def _normal(c: ViTConfig, reading: DataConfig, mean: str, std: str) -> dict[str, list[float]]:
    values = {mean: reading.mean or (0.5,), std: reading.std or (0.5,)}
    return {name: list(one) * (c.channels if len(one) == 1 else 1) for name, one in values.items()}


def _note(library: str) -> str:
    return f"{library} resizes images of another size in its own way, so their pixels differ a little from the run's"


def _by(size: tuple[int, ...]) -> str:
    return "×".join(map(str, size))


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
    options.require_one_image(len(paths))
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


@dataclass(frozen=True)
class TraceOptions(ImageTraceInput):
    """What `pencil trace` reads."""

    target: Target = None


def trace_image(loaded: Loaded, options: TraceOptions, double: bool = False) -> LiveTrace:
    """The model on one image, with its loss where the right class is given."""
    loaded = loaded._replace(model=loaded.model.double() if double else loaded.model)
    pictures = read_pictures([str(options.given)], input_transform(loaded))
    return _trace_tensor(loaded, picture_tensor(pictures, loaded), target_class(loaded, options.target))


def _trace_tensor(loaded: Loaded, x: torch.Tensor, target: torch.Tensor | None = None) -> LiveTrace:
    """The model on one image as it reads it."""
    model = loaded.model
    tokens, patches = _words(model.config), grid_labels("patch", model.config.grid)
    names = loaded.run.config["run"].get("classes") or []
    labels = {"T": tokens, "S": tokens, "N": patches, "K": names}
    facts = patch_facts(model.config.before, model.config.grid)
    return trace(model, x, words=labels, facts=facts, targets=target)


def _words(c: ViTConfig) -> list[str]:
    """The labels of the tokens: the class token, registers and patches."""
    first = ["class"] * (c.before > c.registers) + [f"register {i + 1}" for i in range(c.registers)]
    return first + grid_labels("patch", c.grid)


def _activations(c: ViTConfig, batch: int, length: int | None, half: int) -> Activations:
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
    target=lambda loaded: TargetInput("The right class", loaded.classes),
    with_target=lambda loaded, prompt, target: _trace_tensor(
        loaded, prompt.given["picture"], target_class(loaded, target)
    ),
)


def _graphs(model: ViT) -> list[Graph]:
    c = model.config
    picture = {"picture": Input(("batch", c.channels, *c.image_size), gaussian)}
    return [Graph("model", Plain(model), picture, ("logits",))]


def _example(run: Run, c: ViTConfig) -> str:
    """The class of a picture."""
    return (
        f"import json\n\nimport onnxruntime\n{sessions('model')}{pictures(run, c)}"
        f'logits = model.run(None, {{"picture": pixels("picture.png")}})[0][0]\n{BEST}'
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
    trace_options=TraceOptions,
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
    runtime=RuntimeProfile(_graphs, _example),
)
