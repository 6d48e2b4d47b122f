"""Settings of how data is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..config import UserError, fitted, refuse
from .images.augment import Fit, ImageTransform, Resample, Transparency

IMAGE_SETTINGS = ("fit", "resize", "resample", "transparency", "mean", "std")


@dataclass(frozen=True)
class DataConfig:
    """How data is read; what is unset follows from the data."""

    fit: Fit | None = None  # pictures of another shape: crop to their middle, pad with grey bars, squash both sides
    resize: tuple[int, int] | None = None  # before the centre is cut out: the shorter side to it, or, to squash, both
    resample: Resample | None = None  # of that resize; bicubic unless given
    transparency: Transparency | None = None  # on white, or dropped: the colours as they are stored; white unless given
    mean: tuple[float, ...] | None = None  # of each channel, from 0 to 1: (pixel/255 − mean)/std; unless given −1 to 1
    std: tuple[float, ...] | None = None  # of each channel; goes with mean
    delimiter: Literal["comma", "semicolon", "tab", "pipe"] | None = None  # of a table
    header: bool | None = None  # whether the first line of a table names its columns
    text_column: str | None = None  # of texts with labels: a column's name, or its number from 1; of JSON a key
    label_column: str | None = None  # of the labels: a column's name, or its number from 1; of JSON a key
    source_column: str | None = None  # of the source texts: a column's name, or its number from 1; of JSON a key
    target_column: str | None = None  # of the target texts: a column's name, or its number from 1; of JSON a key


def check_data_settings(record: Any, settings: Mapping[str, Any]) -> None:
    """Refuse a setting that is not one, or that the family of this record does not have."""
    for name in fitted(DataConfig, settings, "data."):
        if name not in record.data_settings:
            raise UserError(f"data.{name} has no effect on a {record.name}: leave it out")


def image_transform(size: tuple[int, int], channels: int, reading: DataConfig, **augmentation: Any) -> ImageTransform:
    """How images become a model's input, with these settings."""
    set_ = {name: value for name in IMAGE_SETTINGS if (value := getattr(reading, name)) is not None}
    check_reading(reading, size, channels)
    for name in {"mean", "std"} & set_.keys():
        set_[name] = tuple(set_[name]) * (channels if len(set_[name]) == 1 else 1)
    return ImageTransform(size, channels, **set_, **augmentation)


def check_reading(reading: DataConfig, size: tuple[int, int], channels: int) -> None:
    """Refuse settings of images that do not fit one another or the model."""
    height, width = reading.resize or size
    refuse(
        (
            height < size[0] or width < size[1],
            f"data.resize {height}×{width} is smaller than the model's images, {size[0]}×{size[1]}",
        ),
        (
            reading.resize is not None and reading.fit == "pad",
            "data.fit pad cannot be used with data.resize: set data.fit to crop or squash",
        ),
        (
            reading.resample is not None and reading.resize is None,
            "data.resample has no effect without data.resize: set both, or leave it out",
        ),
        (
            (reading.mean is None) != (reading.std is None),
            "data.mean and data.std belong together: set both, or leave both out",
        ),
    )
    for name, values in (("mean", reading.mean or (1.0,)), ("std", reading.std or (1.0,))):
        refuse(
            (
                len(values) not in (1, channels),
                f"data.{name} has {len(values)} values, and the model reads images of {channels} channels",
            ),
            (name == "std" and min(values) <= 0, f"data.std must be above 0, not {min(values)}"),
        )
