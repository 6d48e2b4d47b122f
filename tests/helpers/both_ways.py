"""One checkpoint of another library taken in, compared, and given back; and what is refused on either way."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from pencil.api.interchange.parity import compare
from pencil.config import UserError
from pencil.weights.maps import Architecture, Source, load, write

CLOSE = 1e-5  # of the largest absolute value, in float32


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Every parameter, norms and biases too: a fresh model's ones and zeros would hide a missing one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):  # a frozen one is computed, not learned
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * (0.1 if parameter.ndim > 1 else 0.3))


def both_ways(
    architecture: Architecture,
    theirs: nn.Module,
    config: Mapping[str, Any],
    rebuild: Callable[[dict[str, Any]], nn.Module],
    open_file: Callable[[dict[str, Any], dict[str, torch.Tensor]], nn.Module] | None = None,
) -> Any:
    """Import `theirs`, compare every block and the logits; export, and let `rebuild` (their config to their model) load
    the tensors strictly: the same bits. Where a file has other names than a model in memory, `open_file` loads what was
    written, given their config and the tensors. Returns ours."""
    randomise(theirs)
    theirs.eval()
    ours = load(architecture, Source(theirs.state_dict()), settings := architecture.configure(config))
    for difference in compare(architecture, theirs, ours):
        assert difference.relative <= CLOSE, difference
    described = architecture.describe(settings)
    assert architecture.describe(architecture.configure(described)) == described
    written = {name: tensor.contiguous() for name, tensor in write(architecture, ours.state_dict(), settings)}
    if open_file is not None:
        back = open_file(described, written).eval()
    else:
        back = rebuild(described).eval()
        _, unexpected = back.load_state_dict(written, strict=False)
        assert not unexpected
    back.tie_weights() if hasattr(back, "tie_weights") else None
    held, again = theirs.state_dict(), back.state_dict()
    assert held.keys() == again.keys()
    for name in held:
        assert torch.equal(held[name], again[name]), name
    for difference in compare(architecture, back, ours, seed=1):
        assert difference.relative <= CLOSE, difference
    return ours


def check_refused(architecture: Architecture, theirs: Mapping[str, Any], values: Mapping[str, Any], words: str) -> None:
    """A config of theirs is taken, and with these values refused in these words."""
    architecture.configure(theirs)
    with pytest.raises(UserError, match=words):
        architecture.configure({**theirs, **values})


def check_unwritten(architecture: Architecture, ours: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """With these values, settings of ours are not written as theirs, and the first of them is named."""
    words = f"model.{next(iter(values))} is .*which a {architecture.name} does not have"
    with pytest.raises(UserError, match=words):
        architecture.describe(architecture.config(**{**ours, **values}))
