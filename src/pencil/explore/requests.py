"""What a page asks for: each part of a request checked once, and what a request is refused with."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..config import UserError, nearest

if TYPE_CHECKING:  # the process that decodes pictures needs no torch
    from ..families.explore_profile import Control

TEXT_CHARACTERS, WORD_CHARACTERS, OPTION_CHARACTERS = 1_000_000, 1_000, 40  # at most
PICTURE_CHARACTERS = 32_000_000  # at most, as a data URL; its bytes are limited where it is decoded
MOST_EDITS, MOST_OPTIONS, MOST_OPEN = 64, 32, 256
MOST_TRAINED = 10**12  # steps of a training
MOST_LESSONS, MOST_STEPS = 16, 1000  # inputs that a copy of the model is trained on, and steps in all
RATES = (1e-6, 1000.0)  # of a training step, as multiples of the run's learning rate: the least and the most
INPUT_CHARACTERS = {
    "text": TEXT_CHARACTERS,
    "source": TEXT_CHARACTERS,
    "picture": PICTURE_CHARACTERS,
    "label": WORD_CHARACTERS,
}
UNKNOWN = 404  # the status where there is nothing of that name
GONE = 410  # and where it is no longer kept: the page records it again, or shows the sentence
INPUTS = (*INPUT_CHARACTERS, "options")
INDEX = re.compile(r"(?:(?::|\d{1,9})(?:,(?::|\d{1,9})){0,15})?", re.ASCII)


class Refused(UserError):
    """A request that is not answered, with the HTTP status that says why."""

    def __init__(self, sentence: str, status: int = 400):
        super().__init__(sentence)
        self.status = status


# ---- what is on the page


@dataclass(frozen=True)
class Lesson:
    """Training steps on one input and its target, with so many times the run's learning rate."""

    input: Mapping[str, str]
    target: str
    steps: int
    rate: float = 1.0

    def as_json(self) -> dict[str, Any]:
        return {"input": dict(self.input), "target": self.target, "steps": self.steps, "rate": self.rate}

    def is_on(self, input: Mapping[str, str], target: str) -> bool:
        return (dict(self.input), self.target) == (dict(input), target)


@dataclass(frozen=True)
class State:
    """What is on the page: a model by its id, its input with every option set, and the edits.

    `lessons` are the training steps that a copy of the model has taken. With `step`, a target, the trace of the state
    is of one more step, on its input, with `rate` times the run's learning rate. `other` is the input, with its
    options, whose values an edit with `patch` takes. `at` is a step of the run's training, whose weights are looked at.
    """

    model: str
    weights: str  # the run that the model is of, and the step of its weights
    input: Mapping[str, str]
    options: Mapping[str, float]
    edits: tuple[str, ...] = ()
    lessons: tuple[Lesson, ...] = ()
    step: str | None = None
    rate: float = 1.0
    other: "State | None" = None
    at: int | None = None

    @cached_property
    def key(self) -> str:
        """A name for what the model computes from it: a hash of the weights, the input, the edits and the step."""
        parts: list[Any] = [
            self.trained_weights,
            dict(self.input),
            dict(self.options),
            self.edits,
            self.step,
            self.rate,
        ]
        if self.patched and self.other is not None:
            parts.append(self.other.key)
        content = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:24]

    @property
    def patched(self) -> bool:
        """Whether an edit takes its values from the other input."""
        return any(edit.replace(" ", "").endswith("=patch") for edit in self.edits)

    def of_other(self) -> "State":
        """The same of the other input."""
        assert self.other is not None
        return replace(self, input=self.other.input, options=self.other.options, other=None)

    @property
    def trained_weights(self) -> str:
        """A name for the weights of the step that is looked at, or of the copy that has taken the lessons."""
        weights = self.weights if self.at is None else f"{self.weights} at {self.at}"
        return weights + (json.dumps([lesson.as_json() for lesson in self.lessons]) if self.lessons else "")

    def as_json(self) -> dict[str, Any]:
        options = {"options": dict(self.options)} if self.options else {}
        lessons = {"lessons": [lesson.as_json() for lesson in self.lessons]} if self.lessons else {}
        other = {} if self.other is None else {"other": self.other.as_json()["input"]}
        at = {} if self.at is None else {"at": self.at}
        shown = {"model": self.model, "input": {**self.input, **options}, "edits": list(self.edits)}
        return {**shown, **lessons, **other, **at}

    def with_edits(self, edits: Iterable[str]) -> "State":
        return replace(self, edits=tuple(edits))

    def with_pictures(self, pictures: Mapping[str, str]) -> "State":
        """The same with other pictures in the place of its own, in the input and in the lessons."""

        def other(input: Mapping[str, str]) -> dict[str, str]:
            return {name: pictures[value] if name == "picture" else value for name, value in input.items()}

        lessons = tuple(replace(lesson, input=other(lesson.input)) for lesson in self.lessons)
        patched = None if self.other is None else self.other.with_pictures(pictures)
        return replace(self, input=other(self.input), lessons=lessons, other=patched)

    @property
    def pictures(self) -> set[str]:
        """Every picture in it."""
        inputs = [self.input, *(lesson.input for lesson in self.lessons)]
        inputs += [] if self.other is None else [self.other.input]
        return {input["picture"] for input in inputs if "picture" in input}


def read_state(
    raw: object, model: str, weights: str, takes: Mapping[str, object], controls: "Sequence[Control]"
) -> State:
    """A state as the page sends it: what the model does not take is refused, what is left out has its usual value."""
    if not isinstance(raw, Mapping):
        raise Refused("a state is an object with model, input and edits")
    other = raw.get("other")
    input = {} if raw.get("input") is None else raw["input"]
    if not isinstance(input, Mapping):
        raise Refused("the input of a state is an object with text, source, picture, label and options")
    options = {} if input.get("options") is None else input["options"]
    edits = [] if raw.get("edits") is None else raw["edits"]
    step = raw.get("step")
    return State(
        model,
        weights,
        _read_texts(input, takes),
        _read_options(options, controls),
        _read_edits(edits),
        _read_lessons([] if raw.get("lessons") is None else raw["lessons"], takes),
        None if step is None else text(step, "a target", TEXT_CHARACTERS),
        1.0 if step is None else _read_rate(raw),
        None if other is None else read_state({"input": other}, model, weights, takes, controls),
        _read_at(raw),
    )


def _read_at(raw: Mapping[str, object]) -> int | None:
    at = raw.get("at")
    if at is None:
        return None
    if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at <= MOST_TRAINED:
        raise Refused("at is a step of the training: a whole number")
    if raw.get("lessons") or raw.get("step") is not None:
        raise Refused("a training step is taken from the run's own weights: leave the slider over the training first")
    return at


def _read_rate(raw: Mapping[str, object]) -> float:
    rate, (least, most) = number(raw.get("rate", 1), "rate"), RATES
    if not least <= rate <= most:
        raise Refused(f"rate must be from {least:g} to {most:g}, not {rate:g}")
    return float(rate)


def _read_lessons(raw: object, takes: Mapping[str, object]) -> tuple[Lesson, ...]:
    lessons = []
    for one in entries(raw, "lessons", MOST_LESSONS):
        lesson = table(one, "a lesson")
        steps = lesson.get("steps")
        if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MOST_STEPS:
            raise Refused(f"the steps of a lesson are a whole number from 1 to {MOST_STEPS}")
        input, target = table(lesson.get("input"), "the input of a lesson"), lesson.get("target", "")
        lessons.append(
            Lesson(_read_texts(input, takes), text(target, "a target", TEXT_CHARACTERS), steps, _read_rate(lesson))
        )
    if sum(lesson.steps for lesson in lessons) > MOST_STEPS:
        raise Refused(f"a copy takes at most {MOST_STEPS} training steps: go back to the run's weights", 413)
    return tuple(lessons)


def _read_texts(input: Mapping[str, object], takes: Mapping[str, object]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name, value in input.items():
        if name == "options" or value is None:
            continue
        if name not in INPUT_CHARACTERS:
            raise Refused(f"{str(name)[:40]!r} is not a part of an input; known: {', '.join(INPUTS)}")
        if name not in takes:
            takes_these = f"it takes {' and '.join(takes)}" if takes else "it takes no input"
            raise Refused(f"this model takes no {name}; {takes_these}")
        if not isinstance(value, str):
            raise Refused(f"{name} of an input is a text, not {type(value).__name__}")
        texts[name] = text(value, name, INPUT_CHARACTERS[name])
    return texts


def _read_edits(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, Sequence) or isinstance(raw, str) or not all(isinstance(edit, str) for edit in raw):
        raise Refused("the edits of a state are a list of texts, such as blocks.0.attn.pattern[:,2]=0")
    if len(raw) > MOST_EDITS:
        raise Refused(f"{len(raw):,} edits were given, and at most {MOST_EDITS} are made at once", 413)
    return tuple(text(edit, "an edit") for edit in raw)


def _read_options(raw: object, controls: "Sequence[Control]") -> dict[str, float]:
    if not isinstance(raw, Mapping):
        raise Refused("the options of an input are an object of numbers")
    entries(list(raw), "options", MOST_OPTIONS)
    by_name = {control.name: control for control in controls}
    options = {control.name: control.value for control in controls}
    for name, value in raw.items():
        if text(name, "an option", OPTION_CHARACTERS) not in by_name:
            raise Refused(f"{name} is not an option of this model; {nearest(name, by_name)}")
        control = by_name[name]
        value = number(value, name)
        if not control.least <= value <= control.most:
            raise Refused(f"{name} must be from {control.least:g} to {control.most:g}, not {value:g}")
        if control.whole and value != int(value):
            raise Refused(f"{name} is a whole number, not {value:g}")
        options[name] = int(value) if control.whole else float(value)
    for control in controls:
        if control.within and options[control.name] > (most := options[control.within]):
            if control.name in raw:
                raise Refused(
                    f"{control.name} must be at most {control.within}, {most:g}, not {options[control.name]:g}"
                )
            options[control.name] = most
    return options


@dataclass(frozen=True)
class Shown:
    """What is open on the page: a view, a cell, what the views keep in the address, and the divided parts of Why."""

    view: str = ""
    cell: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    open: Sequence[str] = ()
    title: str = ""  # empty: the model's name and its input

    def as_json(self) -> dict[str, Any]:
        return {"cell": self.cell, "more": dict(self.more), "open": list(self.open)}


def read_shown(body: Mapping[str, object]) -> Shown:
    """What is open on the page, for a file that opens the same."""
    at = table(body.get("shown", {}), "shown")
    more = table(at.get("more", {}), "more")
    entries(list(more), "more", MOST_OPTIONS)
    return Shown(
        text(body.get("view", ""), "view"),
        text(at.get("cell", ""), "cell"),
        {text(name, "a name", OPTION_CHARACTERS): text(value, name) for name, value in more.items()},
        [text(part, "a part") for part in entries(at.get("open", []), "open", MOST_OPEN)],
    )


# ---- the types of JSON


def table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Refused(f"{name} must be an object")
    return value


def text(value: object, name: str, most: int = WORD_CHARACTERS) -> str:
    """A text of at most so many characters, which can be written as UTF-8."""
    if not isinstance(value, str):
        raise Refused(f"{name} must be a text")
    if len(value) > most:
        raise Refused(f"{name} has {len(value):,} characters; at most {most:,} are read", 413)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(f"{name} has half of a character pair (a lone surrogate), which is no text") from None
    return value


def number(value: object, name: str) -> float | int:
    """A finite number; JSON's true is none, and neither is one too large for a float."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            if math.isfinite(value):
                return value
        except OverflowError:
            raise Refused(f"{name} must be a finite number") from None
    raise Refused(f"{name} is a number, not {repr(value)[:40]}")


def entries(value: object, name: str, most: int) -> list[Any]:
    if not isinstance(value, list):
        raise Refused(f"{name} must be a list")
    if len(value) > most:
        raise Refused(f"{name} has {len(value):,} entries; at most {most} are read", 413)
    return value


def seed_of(body: Mapping[str, object]) -> int | None:
    seed = body.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= 1_000_000_000):
        raise Refused("seed must be a whole number, or null")
    return seed


# ---- the parts of an address


def word(query: Mapping[str, str], name: str) -> str | None:
    """A text of the query; none is None, or refused where it is needed."""
    value = query.get(name) or None
    return None if value is None else text(value, name)


def needed(query: Mapping[str, str], name: str) -> str:
    value = word(query, name)
    if value is None:
        raise Refused(f"{name} is missing")
    return value


def whole(query: Mapping[str, str], name: str, most: int = 1_000_000_000) -> int | None:
    value = query.get(name) or None
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,10}", value, re.ASCII) or int(value) > most:
        raise Refused(f"{name} must be a whole number from 0 to {most}")
    return int(value)


def index(query: Mapping[str, str]) -> list[int | None] | None:
    """An index such as 0,2,:,: where : is an axis that is shown whole; None where there is none."""
    value = query.get("index", "")
    if len(value) > WORD_CHARACTERS or not INDEX.fullmatch(value):
        raise Refused("an index is numbers and colons with commas between, such as 0,2,:,:")
    return [None if axis == ":" else int(axis) for axis in value.split(",")] if value else None
