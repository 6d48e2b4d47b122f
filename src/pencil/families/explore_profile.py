"""What the explorer needs of a family: how an input is read, what is answered, how that is traced and labelled."""

import base64
import binascii
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..config import UserError
from ..core.token_groups import Grouping
from ..data.builtin import Scenes
from ..data.images.decoding import FITTED, fitted, reason
from ..data.images.digits import digits
from ..data.tables.generated_dates import Dates
from ..runs.run import Loaded
from ..tracing.live_trace import LiveTrace
from .predictions import input_transform, to_image

Given = Mapping[str, Any]  # an input as the page sends it: text, source, picture, label, options


@dataclass(frozen=True)
class Control:
    """A number that the page lets its reader choose; `help` says what it does.

    `within` names the control whose value is the most that this one can be.
    """

    name: str
    value: float
    least: float
    most: float
    whole: bool
    help: str
    within: str = ""


@dataclass(frozen=True)
class Prompt:
    """One input as the model reads it."""

    ids: tuple[int, ...] = ()  # the tokens that are read
    # its other inputs, by the names of the model's parameters; of a picture to be drawn, its label or text
    given: Mapping[str, Any] = field(default_factory=dict)
    picture: np.ndarray | None = None  # as the model sees it: (C, H, W) of bytes
    masked: tuple[int, ...] = ()  # the positions whose tokens are predicted, where these are in the text
    texts: tuple[str, ...] = ()  # the texts that become vectors, where there are no logits
    condition: tuple[Any, ...] = ()  # what an image is drawn from


@dataclass(frozen=True)
class TargetInput:
    """How a page asks for the right answer: a class or a text; without a label the input itself has it.

    Or a picture, of which training shows the model a noised one: the target is then "TIME SEED PICTURE".
    """

    label: str = ""
    classes: Sequence[str] = field(default_factory=list)
    picture: Mapping[str, int] | None = None  # its height, width and channels
    examples: Sequence[Mapping[str, str]] = field(default_factory=list)  # such pictures, each with its name


@dataclass(frozen=True)
class ExploreProfile:
    """How the explorer shows the models of a family."""

    takes: Callable[[Loaded], dict[str, Any]]  # which inputs there are, with their labels and sizes
    output: Callable[[Loaded], str]  # tokens, classes, picture or vector
    read: Callable[[Loaded, Given], Prompt]
    trace: Callable[..., LiveTrace]  # (loaded, prompt, the tokens of the answer, options) -> what was computed
    # (loaded, prompt, the tokens of the answer) -> the labels along the sequence, and the facts of the trace
    layout: Callable[[Loaded, Prompt, Sequence[int]], tuple[list[str], dict[str, Any]]]
    examples: Callable[[Loaded], list[tuple[str, dict[str, Any]]]]  # inputs to begin with, by name
    controls: Callable[[Loaded], Sequence[Control]] = lambda loaded: ()
    # groups of tokens that attend only to one another, in the rotation of the blocks; None is all of them
    groups: Callable[[Loaded], Sequence[Grouping | None]] = lambda loaded: (None,)
    writes: bool = False  # whether it writes token after token
    draws: bool = False  # whether it draws a picture out of noise
    # what the model should have answered, for a training step: how a page asks for it, or a sentence why there is none
    target: Callable[[Loaded], TargetInput | str] = lambda loaded: (
        "This model has no loss, so there is no step to take."
    )
    # (loaded, prompt, target) -> the model on both, recorded with its targets
    with_target: Callable[[Loaded, Prompt, str], LiveTrace] | None = None


def writing_controls(tokens: int, most: int, temperature: float) -> tuple[Control, ...]:
    """The controls of a model that writes: how many tokens, and how each is drawn."""
    return (
        Control("tokens", min(tokens, most), 1, most, True, "How many tokens are written at most."),
        Control(
            "temperature", temperature, 0, 2, False, "The logits are divided by it; at 0 the likeliest token is taken."
        ),
        Control("top_k", 0, 0, 100, True, "Only the k likeliest tokens may be drawn; 0 is off."),
        Control("top_p", 1, 0.01, 1, False, "Only the likeliest tokens that together have this probability; 1 is off."),
        Control("min_p", 0, 0, 1, False, "Only tokens at least this fraction as likely as the likeliest; 0 is off."),
        Control("seed", 0, 0, 9999, True, "The same seed draws the same tokens."),
    )


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
    tokenizer, readable = loaded.tokenizer, []
    for text in texts:
        try:
            if 0 < len(tokenizer.encode(text)) < loaded.model.config.context:
                readable.append(text)
        except UserError:
            continue
    return readable or [tokenizer.decode(list(range(min(3, tokenizer.vocab))))]


def example_pictures(loaded: Loaded) -> list[tuple[str, dict[str, Any]]]:
    """Pictures like those the run was trained on, where these come with Pencil; else strokes of a pen."""
    c, name = loaded.model.config, loaded.run.config["run"].get("data")
    rng = np.random.Generator(np.random.Philox(key=7))
    if name in ("scenes", "scenes-hard"):
        pictures, words = Scenes(name == "scenes-hard").draw(rng, 6, unseen=True)
    elif name == "digits":
        some, labels, held_out = digits()
        indices = [int(np.flatnonzero((labels == digit) & held_out)[0]) for digit in range(10)]
        pictures, words = some[indices], [str(digit) for digit in range(10)]
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


def grid_labels(name: str, grid: Sequence[int]) -> list[str]:
    """A label for each cell of a grid, in reading order, counted from 1: "patch 1,2" is in row 1 and column 2."""
    return [f"{name} {','.join(str(i + 1) for i in at)}" for at in np.ndindex(*grid)]


def patch_facts(first: int, grid: Sequence[int]) -> dict[str, Any]:
    """What pictures of the attention need: the first token that is a patch, and the grid of patches."""
    return {"first_patch": first, "grid": list(grid)}


def check_context(ids: Sequence[int], context: int, what: str) -> None:
    if len(ids) > context:
        raise UserError(f"the {what} has {len(ids)} tokens and the context is {context}; shorten it")
