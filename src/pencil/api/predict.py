"""Predictions of an opened run or of a bare model: the options of `pencil sample`, as keywords."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from ..config import UserError, fitted, nearest
from ..core.layers import evaluating
from ..families.predictions import as_batch
from ..families.registry import FAMILIES, family
from ..runs.run import Loaded

# of the options of `pencil sample`: what is predicted from, and files that are written
NOT_TAKEN = ("prompt", "image", "source", "label", "out", "attention", "json")


def predict_with(loaded: Loaded, inputs: Any, given: Mapping[str, Any]) -> Any:
    """The result of one input, or a list of them for a list of inputs."""
    kind, model = family(loaded.run.family), loaded.model
    if kind.predict is None:
        raise UserError(f"a {kind.name} has no predictions here: call its model")
    options = _options(kind.name, kind.sample_options, given)
    batch, single = as_batch(inputs)
    if loaded.tokenizer is None and getattr(model.config, "vocab", None):
        raise UserError(f"a {kind.name} reads and writes text: give its tokenizer too, predict(…, tokenizer=…)")
    with evaluating(model.modules()):
        results = kind.predict(loaded, batch, options)
    return results[0] if single else results


def bare(model: Any, tokenizer: Any, classes: Sequence[str] | None) -> Loaded:
    """A model without a run, as one that was opened; its classes have numbers unless they are named."""
    names = [name for name, record in FAMILIES.items() if type(model) is record.model]
    if not names:
        raise UserError(
            f"{type(model).__name__} is neither a run nor a model of a family; a run is its folder or what pencil.load "
            "gives"
        )
    known = getattr(model.config, "classes", None)
    if classes is not None and len(classes) != known:
        raise UserError(f"{len(classes)} names of classes were given, and the model has {known or 'none'}")
    facts: dict[str, Any] = {} if classes is None else {"classes": list(map(str, classes))}
    run: Any = SimpleNamespace(path="the model", family=names[0], config={"run": facts})
    return Loaded(model, tokenizer, run)


def _options(name: str, kind: type, given: Mapping[str, Any]) -> Any:
    """The sampling options of a family, checked as those of the command line."""
    known = [one.name for one in fields(kind) if one.name not in NOT_TAKEN]
    for word in given:
        if word not in known:
            takes = nearest(word, known) if known else "it takes none"
            raise UserError(f"{word} is not an option of a {name}'s predictions; {takes}")
    values = {word: [value] if word == "stop" and isinstance(value, str) else value for word, value in given.items()}
    lists = {word: values.pop(word) for word in ("stop",) if word in values}
    options = kind(**fitted(kind, values), **lists)
    # the input is checked apart: an empty one is refused where it is read
    inputs = {one: ["-"] for one in ("prompt", "image", "source") if hasattr(options, one)}
    kind(**{one.name: getattr(options, one.name) for one in fields(kind)} | inputs).check()
    return options
