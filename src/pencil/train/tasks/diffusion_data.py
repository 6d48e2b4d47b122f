"""What the data of a diffusion model must have: annotations, shapes, and a config that fits them."""

from pathlib import Path
from typing import Any

from ...config import UserError, coerce
from ...data.images import loading as images
from ...data.images.folders import annotations_in, has_labels
from ...data.images.image_data import ImageData
from ...data.images.shard_data import annotations_of, find_shards
from ...data.images.sizes import common_size, patch_for
from ..task import Request

# training settings that suit a data set at the default preset
DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": dict(steps=480, warmup=96, ema=0.99, eval_every=480, save_every=240),
    "mnist": dict(steps=3000, batch=128, eval_every=1000),
    "moving-digits": dict(steps=6000, eval_every=1000),
}


def check_fit(config: Any, data: ImageData, captions: bool) -> None:
    """Refuse a condition the data does not have, or images of a shape it does not have."""
    if config.vocab and not captions:
        raise UserError(f"model.vocab is for images with captions, and {data.name} has none")
    if config.classes and not data.classes:
        raise UserError(f"model.classes is for images with labels, and {data.name} has none")
    if config.classes and config.classes < len(data.classes):
        raise UserError(f"model.classes {config.classes} is fewer than the {len(data.classes)} classes of {data.name}")
    made, frames = data.model_defaults, data.model_defaults.get("frames", 1)
    if config.frames != frames and frames == 1:
        raise UserError(f"model.frames {config.frames} is for video, and {data.name} has still images")
    for name in ("frames", "image_size", "channels") if frames > 1 else ():
        if getattr(config, name) != made[name]:
            value = "x".join(map(str, made[name])) if name == "image_size" else made[name]
            raise UserError(f"{data.name} is made with model.{name} {value} only: leave it out")


def image_shape(request: Request, data: ImageData) -> dict[str, Any]:
    """What the data suggests: images in files at the size they all have, cut by a patch that divides it."""
    names = ("image_size", "channels", "patch", "frames", "patch_frames")
    shape = {name: value for name, value in data.model_defaults.items() if name in names}
    size = request.options.size or request.model.get("image_size")
    if size is None:
        shape["image_size"] = common_size(data, request.data) or shape["image_size"]
    elif request.options.vae is None:
        shape["image_size"] = coerce(size, tuple[int, int], "model.image_size")
    other = tuple(shape["image_size"]) != tuple(data.model_defaults["image_size"]) and min(shape["image_size"]) > 0
    if other and request.options.vae is None and "patch" not in request.model:
        shape["patch"] = patch_for(shape["image_size"])
    return shape


def annotations(data: str, labels: bool = False) -> str:
    """What comes with the images: a label, a caption, or nothing; or whether they are videos.

    Where there are both, `labels` are taken if a model with classes was requested.
    """
    path = Path(data).expanduser()
    for want in ("video", "caption"):
        if data in images.EMBEDDED[want]:
            return want
    if shards := find_shards(data):
        found = next((one for one in ("caption", "label") if one in annotations_of(shards)), "nothing")
    else:
        found = annotations_in(path) if path.is_dir() else "label"
    return "label" if labels and found == "caption" else found


def labels_too(data: str) -> bool:
    """Whether images with captions have labels besides."""
    if shards := find_shards(data):
        return "label" in annotations_of(shards)
    path = Path(data).expanduser()
    return path.is_dir() and has_labels(path)
