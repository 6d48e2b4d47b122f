"""What is on the page: a model, an input and edits; checked, completed, and known by a key."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from ..config import UserError, nearest
from ..families.explore_profile import Control

TEXTS = ("text", "source", "picture", "label")
MOST_EDITS = 64


@dataclass(frozen=True)
class State:
    """A model by its id, its input with every option set, and the edits."""

    model: str
    input: Mapping[str, str]
    options: Mapping[str, float]
    edits: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        given = {**self.input, **({"options": dict(self.options)} if self.options else {})}
        return {"model": self.model, "input": given, "edits": list(self.edits)}

    def with_edits(self, edits: Sequence[str]) -> "State":
        return replace(self, edits=tuple(edits))

    def key(self, of: str) -> str:
        """A name for what is computed from it by the model that `of` names."""
        content = json.dumps([of, dict(self.input), dict(self.options), self.edits], sort_keys=True)
        return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:24]


def read_state(raw: Any, model: str, takes: Mapping[str, Any], controls: Sequence[Control]) -> State:
    """A state as the page sends it: what the model does not take is refused, what is left out has its usual value."""
    if not isinstance(raw, Mapping):
        raise UserError("a state is an object with model, input and edits")
    given = raw.get("input") or {}
    if not isinstance(given, Mapping):
        raise UserError("the input of a state is an object with text, source, picture, label and options")
    texts: dict[str, str] = {}
    for name, value in given.items():
        if name == "options" or value is None:
            continue
        if name not in takes:
            raise UserError(f"this model takes no {name}; {_taken(takes)}")
        if not isinstance(value, str):
            raise UserError(f"{name} of an input is a text, not {type(value).__name__}")
        texts[name] = value
    edits = raw.get("edits") or []
    if not isinstance(edits, Sequence) or isinstance(edits, str) or not all(isinstance(one, str) for one in edits):
        raise UserError("the edits of a state are a list of texts, such as blocks.0.attn.pattern[:,2]=0")
    if len(edits) > MOST_EDITS:
        raise UserError(f"{len(edits)} edits were given, and at most {MOST_EDITS} are made at once")
    return State(model, texts, _options(given.get("options") or {}, controls), tuple(edits))


def _taken(takes: Mapping[str, Any]) -> str:
    return f"it takes {' and '.join(takes)}" if takes else "it takes no input"


def _options(raw: Any, controls: Sequence[Control]) -> dict[str, float]:
    if not isinstance(raw, Mapping):
        raise UserError("the options of an input are an object of numbers")
    known, found = {one.name: one for one in controls}, {one.name: one.value for one in controls}
    for name, value in raw.items():
        if name not in known:
            raise UserError(f"{name} is not an option of this model; {nearest(str(name), known)}")
        control = known[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise UserError(f"{name} is a number, not {value!r}")
        if not control.least <= value <= control.most:
            raise UserError(f"{name} must be from {control.least:g} to {control.most:g}, not {value:g}")
        if control.whole and value != int(value):
            raise UserError(f"{name} is a whole number, not {value:g}")
        found[name] = int(value) if control.whole else float(value)
    for control in controls:
        if control.within and found[control.name] > (most := found[control.within]):
            if control.name in raw:
                raise UserError(
                    f"{control.name} must be at most {control.within}, {most:g}, not {found[control.name]:g}"
                )
            found[control.name] = most
    return found
