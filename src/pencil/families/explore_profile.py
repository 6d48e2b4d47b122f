"""What the explorer needs of a family: how an input is read, what is answered, and how that is traced."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core.groups import Grouping
from ..runs.run import Loaded
from ..tracing.live_trace import LiveTrace

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
