"""An imported run beside the original, built by the library it comes from."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import UserError
from ..weights.checkpoint_files import open_checkpoint
from ..weights.parity import Difference, compare
from .importing import find_architecture
from .loading import load

LARGEST = 1e-5  # of the largest absolute value, in float32


def compared(what: str, run: str | Path) -> list[Difference]:
    """Every block's largest error for one random input; both models in float32."""
    loaded = load(run, dtype="float32")
    with open_checkpoint(what) as found:
        (_, architecture), theirs = find_architecture(found)
        builder = BUILDERS.get(architecture.library)
        if builder is None:
            raise UserError(f"{architecture.library} is not a package that could be asked: --parity has no original")
        original = builder(theirs, found)
        return compare(architecture, original.float().eval(), loaded.model)


def _transformers(theirs: Mapping[str, Any], found: Any) -> nn.Module:
    transformers = _package("transformers")
    names = theirs.get("architectures") or [""]
    kind = getattr(transformers, str(names[0]), None)
    if kind is None:
        raise UserError(f"{found.where} names the class {names[0]!r}, which transformers does not have")
    return kind.from_pretrained(found.folder, dtype=torch.float32, use_safetensors=True)


def _timm(theirs: Mapping[str, Any], found: Any) -> nn.Module:
    return _package("timm").create_model(f"local-dir:{found.folder}", pretrained=True)


def _diffusers(theirs: Mapping[str, Any], found: Any) -> nn.Module:
    kind = getattr(_package("diffusers"), str(theirs["_class_name"]))
    return kind.from_pretrained(found.folder, use_safetensors=True)


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UserError(f"--parity asks the original: pip install {name}") from None


BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "transformers": _transformers, "timm": _timm, "diffusers": _diffusers,
}  # fmt: skip
