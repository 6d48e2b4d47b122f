"""The run whose weights a training begins with: what the new model takes of it, and what is new in it.

A training from weights begins with a checkpoint of step 0. `--from` copies the weights of another run into the model
that was built anew, and saves them before the first step: resuming needs the other run no more, and is the same to the
bit. Which tensors depend on the classes is found by building the model on the meta device with one class more: those
whose shape changes are new where the classes are others. Settings that need other weights are refused; at step 0
nothing was trained yet, so training settings may still change freely.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..config import UserError, fitted
from ..core.patches import by
from ..data.settings import DataConfig
from ..data.split import SPLIT
from ..data.tokenizers.tokenizer import ByteTokenizer, CharTokenizer, Tokenizer

FREE = ("dropout", "attention_dropout", "key_dropout")  # settings without weights
CONTEXTS = ("context", "source_context")  # which may be smaller
IMAGE_SIZE = "image_size"  # which may be another where the model can be resized


@dataclass
class Start:
    """A source run, opened: its model's settings and weights, its tokenizer, its classes, how it reads pictures."""

    place: str  # of the run, as it was named
    record: Any  # of the family
    config: Any  # of the model
    tensors: dict[str, Tensor]
    tokenizer: Tokenizer | None = None
    classes: tuple[str, ...] = ()
    reading: DataConfig | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # what the new run records of it
    tokens: Mapping[str, Any] | None = None  # its table of special tokens
    vae: str | None = None  # its autoencoder
    vae_hash: str | None = None
    preset: str = ""
    others: Mapping[str, bytes] = field(default_factory=dict)  # files that the new run keeps of it
    fresh: frozenset[str] = frozenset()  # tensors of the new model that are not taken from it
    data: frozenset[str] = frozenset()  # what it was trained on, as it was named and where it is
    split: int = SPLIT  # the rule by which a part of that was held out

    @property
    def values(self) -> dict[str, Any]:
        """The settings of its model."""
        return {field.name: getattr(self.config, field.name) for field in fields(self.config)}

    def configure(self, from_data: Mapping[str, Any], chosen: Mapping[str, Any]) -> Any:
        """The new model's config: the source's, with the classes and the vocabulary of the data.

        A choice that would need other weights is refused; dropout may be chosen, a smaller context, and the size of the
        images of a model that can be resized.
        """
        values = self.values
        chosen = fitted(self.record.config, chosen, "model.")
        if "classes" in values:
            values["classes"] = chosen.get("classes", from_data.get("classes"))
        if "head" in values:
            values["head"] = None  # it follows from the classes
        if "vocab" in values and "vocab" in from_data:
            if values["vocab"] is None:  # a text as the condition is new to the model
                values["context"] = from_data.get("context", values["context"])
            values["vocab"] = max(values["vocab"] or 0, from_data["vocab"])
        elif "vocab" in values:
            values["vocab"] = None
        if self.values.get("classes") is None and self.values.get("vocab") is None:
            values.pop("null_condition", None)  # there was no condition
        for name, value in chosen.items():
            if name in FREE:
                values[name] = value
            elif name in CONTEXTS and value is not None and value < values[name]:
                values |= {name: value, **self._trained_context(name)}
            elif name == IMAGE_SIZE and hasattr(self._shapeless(), "resized"):
                values[name] = value
            elif values.get(name) != value:
                raise UserError(
                    f"model.{name} {_shown(value)} is not that of {self.place}, {_shown(values.get(name))}, and its "
                    "weights fit no other: leave it out, or train without --from"
                )
        return self.record.config(**values)

    def _trained_context(self, name: str) -> dict[str, int]:
        """RoPE's scaling depends on the context trained on, which is recorded before a smaller one is set."""
        c = self.config
        if name != "context" or getattr(c, "rope_scaling", None) is None or c.rope_original_context:
            return {}
        return {"rope_original_context": max(1, round(c.context / c.rope_factor))}

    def reading_for(self, image_size: tuple[int, int]) -> DataConfig:
        """How it reads images, for those of another size: an image is resized, before it is cut, in proportion."""
        reading = self.reading or DataConfig()
        own = getattr(self.config, IMAGE_SIZE, image_size)
        if reading.resize is None or own == image_size:
            return reading
        height, width = (
            round(side * new / old) for side, new, old in zip(reading.resize, image_size, own, strict=True)
        )
        return replace(reading, resize=(height, width))

    def tokenizer_for(self, ended: bool = False) -> Tokenizer:
        """The source's tokenizer; `ended` gives one of characters or bytes an end token, which comes last."""
        own = self.tokenizer
        if own is None:
            raise UserError(f"{self.place} has no tokenizer, and this data has text: train without --from")
        if ended and isinstance(own, CharTokenizer) and own.end is None:
            return CharTokenizer(own.characters, ended=True)
        if ended and isinstance(own, ByteTokenizer) and own.end is None:
            return ByteTokenizer(ended=True)
        return own

    def in_order(self, classes: Sequence[str]) -> tuple[str, ...] | None:
        """The order of the source's classes, where the data has the same ones in another order."""
        same = set(classes) == set(self.classes) and tuple(classes) != self.classes
        return self.classes if same and len(self.classes) == len(classes) else None

    def plan(self, config: Any, classes: Sequence[str]) -> list[str]:
        """Decide what of the new model is taken from the source; sentences about what is not."""
        resized = self._resize(config) if getattr(config, IMAGE_SIZE, None) != self.values.get(IMAGE_SIZE) else []
        new, old = _shapes(self.record, config), {name: tuple(t.shape) for name, t in self.tensors.items()}
        was, now = getattr(self.config, "classes", None), getattr(config, "classes", None)
        other = now is not None and (was != now or tuple(classes) != self.classes)
        by_class = set()
        if other and now is not None:
            more = _shapes(self.record, replace(config, classes=now + 1))
            by_class = {name for name, shape in new.items() if more.get(name) != shape}
        self.fresh = frozenset(by_class | {name for name in new if name not in old})
        notes = []
        if other or (was is not None and now is None):
            notes.append(self._about_head(was, now, by_class))
        rows = [name for name in new if name in old and name not in self.fresh and new[name] != old[name]]
        grown = [name for name in rows if new[name][0] > old[name][0]]
        if grown:
            count = new[grown[0]][0] - old[grown[0]][0]
            notes.append(f"{', '.join(grown)}: {count} new row{'s' * (count > 1)} for tokens that {self.place} lacks")
        if not notes and (left := sorted({name.partition(".")[0] for name in old.keys() - new.keys()})):
            notes.append(f"left out of {self.place}: {', '.join(left)}")
        parts = sorted({name.partition(".")[0] for name in self.fresh - by_class} - {"head"})
        if parts:
            notes.append(f"{', '.join(parts)}: new, since {self.place} has none")
        return resized + notes

    def _shapeless(self) -> Any:
        """Its model without numbers."""
        with torch.device("meta"):
            return self.record.create(self.config)

    def _resize(self, config: Any) -> list[str]:
        """Fit the weights to images of another size; a sentence about it."""
        model, before = self._shapeless(), self.tensors
        model.load_state_dict(before, assign=True)
        self.tensors = model.resized(config.image_size).state_dict()
        fitted = [name for name, tensor in self.tensors.items() if tensor.shape != before[name].shape]
        how = f"{', '.join(fitted)}: interpolated (bicubic)" if fitted else "no weight depends on their number"
        new, old = (f"{by(c.image_size)} in {by(c.grid)} patches" for c in (config, self.config))
        return [f"images of {new} instead of {old}; {how}"]

    def _about_head(self, was: int | None, now: int | None, by_class: set[str]) -> str:
        if now is None:
            return f"the {was} classes of {self.place} are left out: the data has none"
        part = "head" if not by_class or any(name.startswith("head.") for name in by_class) else "table of labels"
        if was is None:
            masked = "head" in {name.partition(".")[0] for name in self.tensors}
            rest = ", and its head is left out" if masked and part == "head" else ""
            return f"a new {part} of {now} classes: {self.place} has none{rest}"
        others = "others, and " if was == now else ""
        return f"a new {part} of {now} classes: the {was} of {self.place} are {others}left out"

    def load_into(self, model: nn.Module) -> None:
        """Copy the weights into a model that was built anew; of a table with more or fewer rows, the first ones."""
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if name in self.fresh:
                    continue
                source = self.tensors[name]
                if tensor.shape == source.shape:
                    tensor.copy_(source)
                else:
                    rows = min(len(tensor), len(source))
                    tensor[:rows].copy_(source[:rows])
        self.tensors = {}  # they are needed once


def _shapes(record: Any, config: Any) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(t.shape) for name, t in record.create(config).state_dict().items()}


def _shown(value: Any) -> str:
    return "×".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
