"""An imported run beside the original, built by the library it comes from."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ...config import UserError
from ...files import memory
from ...runs.files import WEIGHTS
from ...runs.run import Loaded, Run
from ...tensors import check_tensors, torch_dtypes
from ...weights.checkpoint_files import Checkpoint, open_checkpoint
from ...weights.maps import Architecture
from ...weights.maps import load as whole
from ...weights.parity import Difference, compare, compare_lengths
from ..loading import load
from .importing import find_architecture

LARGEST = 1e-5  # of the largest absolute value, in float32


class Compared(NamedTuple):
    """A run beside the original."""

    rows: list[Difference]
    rounded: torch.dtype | None  # that of the run's weights, if they were more exact before: those are compared
    notes: tuple[str, ...] = ()  # what was not compared, and what the library rounds

    @property
    def worst(self) -> Difference:
        return max(self.rows, key=lambda row: row.relative)

    @property
    def equal(self) -> bool:
        return all(row.relative <= LARGEST for row in self.rows)


def compared(what: str, run: str | Path) -> Compared:
    """Every block's largest error for random inputs of growing length; both models in float32.

    Of a run whose weights were rounded at its import the unrounded ones are compared; its own must be those, rounded.
    """
    loaded = load(run, dtype="float32")
    with open_checkpoint(what) as checkpoint:
        (_, architecture), theirs = find_architecture(checkpoint)
        builder = BUILDERS.get(architecture.library)
        if builder is None:
            raise UserError(f"{architecture.library} is not a package that could be asked: --parity has no original")
        original = builder(architecture, theirs, checkpoint).float().eval()
        ours, rounded = loaded.model, _rounding_dtype(checkpoint, loaded.run)
        if rounded is not None:
            ours = whole(architecture, checkpoint.source, loaded.model.config).float()
            _check_rounded(ours, loaded, rounded)
        weights = sum(4 * p.numel() for model in (original, ours) for p in model.parameters())
        reached = compare_lengths(architecture, original, ours, memory() // 2 - weights)
        notes = [reached.unread] if reached.unread else []
        if reached.length:
            notes.insert(0, f"compared with texts of up to {reached.length:,} tokens")
        if architecture.exact:
            plain = compare(architecture, original, ours, exact=False)[-1]
            notes.append(
                f"{architecture.rounds} are computed in float64 for this, and {architecture.library} rounds them to "
                f"float32: its own {plain.name} are {plain.relative:.1e} of the largest value away"
            )
        return Compared(reached.rows, rounded, tuple(notes))


def _rounding_dtype(checkpoint: Checkpoint, run: Run) -> torch.dtype | None:
    """The dtype of a run's weights, if those of the checkpoint are more exact."""
    kinds = {torch_dtypes()[entry.dtype] for entry in check_tensors(run.path / WEIGHTS).tensors.values()}
    least = max(torch.finfo(kind).eps for kind in kinds if kind.is_floating_point)
    finer = [
        kind for kind in checkpoint.source.dtypes().values() if kind.is_floating_point and torch.finfo(kind).eps < least
    ]
    return next(iter(kinds)) if finer else None


def _check_rounded(ours: nn.Module, loaded: Loaded, kind: torch.dtype) -> None:
    """Refuse a run whose weights are not these, rounded."""
    held = loaded.model.state_dict()
    for name, tensor in ours.state_dict().items():
        if not torch.allclose(held[name], tensor.to(kind).float(), rtol=0, atol=0, equal_nan=True):
            raise UserError(f"{name} of {loaded.run.path} is not that of the checkpoint, rounded")


def _transformers(architecture: Architecture, theirs: Mapping[str, Any], checkpoint: Any) -> nn.Module:
    transformers = _package("transformers")
    name = (architecture.classes or theirs.get("architectures") or ("",))[0]  # a file may name the one without a head
    kind = getattr(transformers, str(name), None)
    if kind is None:
        raise UserError(f"{checkpoint.where} names the class {name!r}, which transformers does not have")
    return kind.from_pretrained(checkpoint.folder, dtype=torch.float32, use_safetensors=True)


def _timm(architecture: Architecture, theirs: Mapping[str, Any], checkpoint: Any) -> nn.Module:
    return _package("timm").create_model(f"local-dir:{checkpoint.folder}", pretrained=True)


def _diffusers(architecture: Architecture, theirs: Mapping[str, Any], checkpoint: Any) -> nn.Module:
    kind = getattr(_package("diffusers"), str(theirs["_class_name"]))
    return kind.from_pretrained(checkpoint.folder, use_safetensors=True)


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UserError(f"--parity asks the original: pip install {name}") from None


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "transformers": _transformers,
    "timm": _timm,
    "diffusers": _diffusers,
}
