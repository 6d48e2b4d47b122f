"""What a checkpoint of an image model has beside its weights: how images are prepared, and the names of the classes.

How other libraries prepare images becomes settings of [data], and back: the same pixels, or refused by the field.
transformers has a file of its own for it, preprocessor_config.json; timm has it in config.json.
"""

import math
from collections.abc import Mapping
from typing import Any

from ...config import UserError, build
from ...data.settings import DataConfig, check_reading
from ...files import read_json
from ...runs.run import Run
from ...weights.checkpoint_files import Checkpoint
from ...weights.fields import MAPPED, NEUTRAL, Fields, Use, check_fields, only
from ...weights.timm_vit import WHAT, label_names, pretrained
from ...weights.vit import DEIT, VIT, class_names

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


def imported(checkpoint: Checkpoint, config: Any) -> dict[str, Any]:
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


def exported(run: Run, config: Any, library: str, described: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
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


def from_transformers(theirs: Mapping[str, Any], kind: str, c: Any) -> dict[str, Any]:
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


def from_timm(theirs: Mapping[str, Any], c: Any) -> dict[str, Any]:
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


def _check_reading(c: Any, **values: Any) -> dict[str, Any]:
    """The settings, built once, so that what does not fit is refused at import."""
    for name in ("mean", "std"):
        if isinstance(values[name], float | int):
            values[name] = [float(values[name])] * c.channels
    check_reading(build(DataConfig, values, "data."), tuple(c.image_size), c.channels)
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


def to_transformers(c: Any, reading: DataConfig) -> tuple[dict[str, Any] | None, list[str]]:
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


def to_timm(c: Any, reading: DataConfig) -> tuple[dict[str, Any], list[str]]:
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


def _normal(c: Any, reading: DataConfig, mean: str, std: str) -> dict[str, list[float]]:
    values = {mean: reading.mean or (0.5,), std: reading.std or (0.5,)}
    return {name: list(one) * (c.channels if len(one) == 1 else 1) for name, one in values.items()}


def _note(library: str) -> str:
    return f"{library} resizes images of another size in its own way, so their pixels differ a little from the run's"


def _by(size: tuple[int, ...]) -> str:
    return "×".join(map(str, size))
