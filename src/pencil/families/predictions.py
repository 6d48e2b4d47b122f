"""What `predict` gives and reads: classes with their probabilities, texts, and pictures from files or memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..config import UserError, build, nearest
from ..console import shortened, visible
from ..data.images.augment import ImageTransform, upright
from ..data.images.decoding import image_of_array, open_image, to_arrays
from ..data.settings import DataConfig, image_transform
from ..inference.text_batches import shorten
from ..models.build import normalize, refuse_output
from ..runs.run import Loaded, Run

TOP_CLASSES = 5  # classes shown
BATCH = 64  # pictures or texts in one forward pass


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """The classes of one input, or the tokens for one [mask], with their probabilities."""

    probabilities: np.ndarray  # of every class, by its number
    name: Callable[[int], str]  # of a class, by its number

    @property
    def number(self) -> int:
        """The most likely class, by its number."""
        return self.top(1)[0][0]

    @property
    def label(self) -> str:
        """The most likely class."""
        return self.name(self.number)

    @property
    def probability(self) -> float:
        """Of the most likely class."""
        return self.top(1)[0][2]

    def top(self, count: int = TOP_CLASSES) -> list[tuple[int, str, float]]:
        """The most likely classes, best first: number, name and probability."""
        best = torch.from_numpy(self.probabilities).topk(min(count, len(self.probabilities)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [(i, self.name(i), p) for i, p in pairs]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name!r} {p:.4f}" for _, name, p in self.top(3))
        return f"Prediction({shown}{', …' if len(self.probabilities) > 3 else ''})"


def target_class(loaded: Loaded, named: str | None) -> Tensor | None:
    """The right class of one input by its name, or by its index, as the target of a loss."""
    if named is None:
        return None
    if not (names := loaded.classes):
        raise UserError("--target names a class, and this model tells no classes apart: leave it out")
    if named not in names and not (named.isdecimal() and int(named) < len(names)):
        raise UserError(f"--target {named} is not a class of this run; {nearest(named, names)}")
    return torch.tensor([names.index(named) if named in names else int(named)])


@dataclass(frozen=True, repr=False)
class Text:
    """A generated text. `print` shows the text alone."""

    text: str  # as `pencil sample` prints it: after a prompt, with the prompt
    new: str  # what the model added
    ended: str  # why it ended: end (the model's own end), length, context or stop
    score: float | None = None  # of a beam search: the log-probability, divided by the length penalty

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score={self.score:.4f}"
        return f"Text({shorten(self.text, 200)!r}, ended={self.ended!r}{score})"


def classify(logits: Tensor, classes: Sequence[str], model: Any) -> list[Prediction]:
    """The prediction of each row of logits, which are the model's; a class without a name has its number."""
    names = list(classes)
    likely = logits.float().softmax(-1).cpu().numpy()
    if not np.isfinite(likely).all():
        refuse_output(model, "the logits")
    return [Prediction(row, lambda i: names[i] if i < len(names) else str(i)) for row in likely]


def class_lines(prediction: Prediction) -> list[str]:
    """The most likely classes, a line each, with their probabilities."""
    return [f"{visible(shortened(name), one_line=True)} {p:.4f}" for _, name, p in prediction.top()]


def class_row(prediction: Prediction, count: int | None = None) -> dict[str, Any]:
    """The same as data: the most likely class, and the probability of every class, or of the `count` most likely."""
    top = prediction.top(len(prediction.probabilities) if count is None else count)
    likely = {name: p for _, name, p in top}
    return {"label": prediction.label, "probability": prediction.probability, "probabilities": likely}


def input_transform(loaded: Loaded) -> ImageTransform:
    """How a picture is brought to the size that the model reads."""
    return transform_of(loaded.run, loaded.model.config)


def transform_of(run: Run, config: Any) -> ImageTransform:
    """The same of a run, for its model's config."""
    reading = build(DataConfig, run.config.get("data") or {}, "data.")
    return image_transform(config.image_size, config.channels, reading)


def is_picture(one: Any) -> bool:
    """Whether this is one picture that is in memory, not the path of one."""
    return isinstance(one, Image.Image) or (isinstance(one, np.ndarray | Tensor) and one.ndim in (2, 3))


def as_batch(inputs: Any) -> tuple[list[Any], bool]:
    """The inputs as a list, and whether there was only one, outside a list."""
    if inputs is None or isinstance(inputs, str | Path | int) or is_picture(inputs):
        return [inputs], True
    if isinstance(inputs, np.ndarray | Tensor) and inputs.ndim != 4:
        raise UserError(f"an array of pictures has 4 axes (pictures, height, width, channels), not {inputs.ndim}")
    try:
        batch = list(inputs)
    except TypeError:
        raise UserError(f"the inputs are one input or a list of them, not {type(inputs).__name__}") from None
    if not batch:
        raise UserError("the list of inputs is empty")
    return batch, False


class ReadPicture(NamedTuple):
    """A picture that was brought to a model's size before, on another thread: uint8 (C, H, W)."""

    pixels: np.ndarray


def read_pictures(inputs: Sequence[Any], transform: ImageTransform) -> np.ndarray:
    """Paths, PIL images or uint8 arrays as uint8 (n, C, H, W) of a model's size."""
    return np.stack([read_picture(one, transform) for one in inputs])


def read_picture(one: Any, transform: ImageTransform) -> np.ndarray:
    """One of them, as uint8 (C, H, W)."""
    if isinstance(one, ReadPicture):
        return one.pixels
    if isinstance(one, str | Path):
        return open_image(one, transform)
    if isinstance(one, np.ndarray | Tensor):
        one = image_of_array(np.asarray(one.cpu() if isinstance(one, Tensor) else one))
    if not isinstance(one, Image.Image):
        raise UserError(f"a picture is a path, a PIL image or an array of uint8, not {type(one).__name__}")
    image = upright(one, transform.mode, transform.transparency)
    return next(iter(to_arrays([image], transform.without_augmentation, None)))


def picture_tensor(pictures: np.ndarray, loaded: Loaded) -> Tensor:
    """Pictures (n, C, H, W) of bytes as a model reads them, in its precision."""
    transform, dtype = input_transform(loaded), next(loaded.model.parameters()).dtype
    return normalize(torch.from_numpy(pictures).to(loaded.device), transform.mean, transform.std).to(dtype)


def check_conditions(inputs: Sequence[Any]) -> list[str]:
    """What images are sampled from: labels or texts; nothing where the only input is None."""
    if list(inputs) == [None]:
        return []
    for one in inputs:
        if isinstance(one, bool) or not isinstance(one, str | int):
            raise UserError(f"images are sampled from a label or a text, not {type(one).__name__}")
    return [str(one) for one in inputs]


def to_image(picture: np.ndarray) -> Image.Image:
    """A picture (C, H, W) of bytes as a PIL image."""
    return Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0))


def grouped(results: list[Any], count: int | None) -> list[Any]:
    """The results by input: one each, or, where a count was asked for, a list of as many."""
    return results if count is None else [results[i : i + count] for i in range(0, len(results), count)]


def check_texts(inputs: Sequence[Any], what: str) -> list[str]:
    """The inputs, which are all texts."""
    for i, one in enumerate(inputs):
        if not isinstance(one, str):
            kind = "a picture" if is_picture(one) or isinstance(one, Path) else type(one).__name__
            raise UserError(f"{place_in(inputs, i)}{what} is a str, not {'None' if one is None else kind}")
    return list(inputs)


def place_in(inputs: Sequence[Any], index: int) -> str:
    """Which of several inputs an error is of, before its sentence; nothing where there is only one."""
    return f"inputs[{index}]: " if len(inputs) > 1 else ""
