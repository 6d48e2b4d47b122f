"""What every map checks: the type and fields of a config, and tensors by name and shape; each refused in a sentence."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..config import UserError


class Fields(dict[str, Any]):
    """The fields of another library's config; one that is needed and missing is refused by name."""

    def __init__(self, theirs: Mapping[str, Any], what: str):
        super().__init__(theirs)
        self.what = what

    def __missing__(self, name: str) -> Any:
        raise UserError(f"the config of this {self.what} has no {name}")

    def size(self, name: str) -> int:
        """A field that is a whole number above zero."""
        if not isinstance(self[name], int) or self[name] < 1:
            raise UserError(f"this {self.what}'s {name} must be a whole number above 0, not {self[name]!r}")
        return self[name]

    def only(self, **known: Any) -> None:
        """Refuse a field that is set to a value that ours cannot represent."""
        for name, values in known.items():
            values = values if isinstance(values, tuple) else (values,)
            if self.get(name) is not None and self[name] not in values:
                only = f": only {' or '.join(map(repr, values))}" if values else ""
                raise UserError(f"this {self.what}'s {name} is {self[name]!r}, which ours does not have{only}")


def fields_of(theirs: Mapping[str, Any], what: str) -> Fields:
    """The fields of a config of transformers, whose model_type must be the name in small letters and digits."""
    found, model_type = theirs.get("model_type"), re.sub(r"\W", "", what.lower())
    if found != model_type:
        named = f"is of model_type {found!r}" if found is not None else "has no model_type"
        raise UserError(f"this config {named}: only {model_type!r} can be read as a {what}")
    if theirs.get("quantization_config"):
        raise UserError(f"this {what} is quantized (quantization_config), and only whole weights can be converted")
    return Fields(theirs, what)


def renamed(tensors: Mapping[str, Tensor], rename: Callable[[str], str], what: str) -> dict[str, Tensor]:
    """The tensors under the names of a file; two that become one are refused."""
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if (short := rename(name)) in plain:
            raise UserError(f"this {what} has {name} twice, under two names")
        plain[short] = tensor
    return plain


def drop_tied(tensors: dict[str, Tensor], name: str, table: str, what: str) -> None:
    """Leave out a tensor that is another one again; where they differ they are not tied, and it is refused."""
    if (tied := tensors.get(name)) is None or table not in tensors:
        return
    if not same(tied, tensors[table]):
        raise UserError(f"this {what} is not tied: {name} is not {table}, and ours has one for both")
    del tensors[name]


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same shape and values; one on the meta device has no values."""
    return a.shape == b.shape and (a.is_meta or b.is_meta or torch.equal(a, b.to(a)))


def on_meta(kind: Callable[[Any], nn.Module], config: Any) -> dict[str, Tensor]:
    """The names and shapes of a model's tensors, without their values."""
    return skeleton(kind, config).state_dict()


def skeleton(kind: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    """A model without the values of its tensors."""
    with torch.device("meta"):
        return kind(config)


def check_tensors(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], what: str) -> None:
    """Refuse, by name, a tensor that is missing, one too many, one of another shape, and one that is no numbers."""
    for name in sorted(wanted.keys() - given.keys()):
        raise UserError(f"this {what} has no {name}")
    for name in sorted(given.keys() - wanted.keys()):
        raise UserError(f"this {what} also has {name}, for which ours has no place")
    for name, tensor in wanted.items():
        if given[name].shape != tensor.shape:
            shapes = [tuple(t.shape) for t in (given[name], tensor)]
            raise UserError(f"this {what}'s {name} has shape {shapes[0]}, and its config wants {shapes[1]}")
        if not given[name].is_floating_point():
            raise UserError(f"this {what}'s {name} is {given[name].dtype}, and weights are floating-point numbers")
