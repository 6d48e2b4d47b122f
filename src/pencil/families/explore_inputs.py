"""Inputs of the explorer: pictures out of data addresses, texts, and examples to begin with."""

import base64
import binascii
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..config import UserError
from ..data.builtin import Scenes
from ..data.images.decoding import FITTED, fitted, reason
from ..data.images.digits import digits
from ..data.tables.dates import Dates
from ..runs.run import Loaded
from .explore_profile import Given
from .predictions import input_transform, to_image

LARGEST = 24_000_000  # letters of a picture's data address
SENTENCES = ("the cat sat on the mat", "The", "It was", "1")


class _InMemory:
    """The bytes of a file, opened as a file is."""

    def __init__(self, content: bytes):
        self.content = content

    def open(self) -> io.BytesIO:
        return io.BytesIO(self.content)


def text_of(given: Given, name: str = "text") -> str:
    """A text of the input; nothing where there is none."""
    text = given.get(name)
    if text is not None and not isinstance(text, str):
        raise UserError(f"{name} of an input is a text, not {type(text).__name__}")
    return text or ""


def picture_of(loaded: Loaded, given: Given) -> np.ndarray:
    """The picture of the input as the model sees it: (C, H, W) of bytes, at its size."""
    address = given.get("picture")
    if not isinstance(address, str) or not address:
        raise UserError("there is no picture: draw one, or choose a file")
    head, comma, body = address.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise UserError("a picture is given as data:image/png;base64,…")
    if len(body) > LARGEST:
        raise UserError(f"the picture has more than {LARGEST * 3 // 4_000_000} MB: choose a smaller one")
    transform = input_transform(loaded)
    try:
        content = _InMemory(base64.b64decode(body, validate=True))
        picture = np.array(fitted(content, transform, address.startswith(FITTED)))
        return picture[None] if picture.ndim == 2 else np.ascontiguousarray(picture.transpose(2, 0, 1))
    except binascii.Error:
        raise UserError("the picture cannot be read: its data address is not base64") from None
    except UserError as error:
        raise UserError(f"the picture cannot be used: {error}") from None
    except Exception as error:  # Pillow's readers raise many kinds
        raise UserError(f"the picture cannot be read: {reason(error)}") from None


def data_address(picture: np.ndarray) -> str:
    """A picture (C, H, W) of bytes as an address that a page can show: a PNG file inside it."""
    out = io.BytesIO()
    to_image(np.ascontiguousarray(picture)).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def example_texts(loaded: Loaded, texts: Sequence[str] = SENTENCES) -> list[str]:
    """Those of the texts that the tokenizer can read and the model has room for; else its first tokens."""
    tokenizer, found = loaded.tokenizer, []
    for text in texts:
        try:
            if 0 < len(tokenizer.encode(text)) < loaded.model.config.context:
                found.append(text)
        except UserError:
            continue
    return found or [tokenizer.decode(list(range(min(3, tokenizer.vocab))))]


def example_pictures(loaded: Loaded) -> list[tuple[str, dict[str, Any]]]:
    """Pictures like those the run was trained on, where these come with Pencil; else strokes of a pen."""
    c, name = loaded.model.config, loaded.run.config["run"].get("data")
    rng = np.random.Generator(np.random.Philox(key=7))
    if name in ("scenes", "scenes-hard"):
        pictures, words = Scenes(name == "scenes-hard").draw(rng, 6, unseen=True)
    elif name == "digits":
        some, labels, held = digits()
        chosen = [int(np.flatnonzero((labels == digit) & held)[0]) for digit in range(10)]
        pictures, words = some[chosen], [str(digit) for digit in range(10)]
    else:
        pictures, words = _strokes(c.channels, *c.image_size), ["a stroke", "a ring", "an empty picture"]
    fits = [(word, one) for word, one in zip(words, pictures, strict=True) if one.shape == (c.channels, *c.image_size)]
    if not fits:
        fits = [("a stroke", _strokes(c.channels, *c.image_size)[0])]
    return [(word, {"picture": data_address(one)}) for word, one in fits]


def _strokes(channels: int, height: int, width: int) -> np.ndarray:
    """A diagonal, a ring and nothing, white on black."""
    y, x = np.mgrid[0:height, 0:width] / np.array([max(height - 1, 1), max(width - 1, 1)]).reshape(2, 1, 1)
    radius = np.hypot(y - 0.5, x - 0.5)
    shapes = (abs(y - x) < 0.12, abs(radius - 0.33) < 0.09, np.zeros_like(y, bool))
    return np.stack([np.repeat(255 * shape[None].astype(np.uint8), channels, 0) for shape in shapes])


def example_sources(loaded: Loaded) -> list[str]:
    """Sources like those the run was trained on, where these come with Pencil."""
    if loaded.run.config["run"].get("data") == "dates":
        rng = np.random.Generator(np.random.Philox(key=7))
        return [source for source, _ in Dates().draw(rng, 4, held_out=True)]
    return example_texts(loaded)


def picture_input(config: Any) -> dict[str, Any]:
    """What the page says of the picture that a model reads."""
    height, width = config.image_size
    return {"picture": {"height": height, "width": width, "channels": config.channels}}


def named(inputs: Sequence[Mapping[str, Any]], key: str) -> list[tuple[str, dict[str, Any]]]:
    """Inputs under their own text."""
    return [(str(one[key]), dict(one)) for one in inputs]
