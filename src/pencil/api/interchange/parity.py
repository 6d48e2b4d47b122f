"""An imported run beside the original, built by the library it comes from: the same input through both, and the largest
error of every block."""

from collections.abc import Callable, Mapping
from importlib import import_module
from math import inf, isfinite
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...config import UserError
from ...core.probe import Probe
from ...files import memory
from ...models.config import BlockConfig
from ...runs.files import WEIGHTS
from ...runs.run import Loaded, Run
from ...tensors import check_tensors, torch_dtypes
from ...weights.checkpoint_files import Checkpoint, open_checkpoint
from ...weights.maps import SHORT, Architecture
from ...weights.maps import load as whole
from ..loading import load
from .importing import find_architecture

MAX_RELATIVE_ERROR = 1e-5  # of the largest absolute value, in float32
COMPARISON_SECONDS = 60.0
MAX_ROTATED_POSITIONS = 16_384  # whose angles, position·frequency in float32, are exact enough for the comparison


class Difference(NamedTuple):
    """How far a value of ours is from the original's."""

    name: str
    error: float  # the largest
    largest: float  # absolute value of the original

    @property
    def relative(self) -> float:
        """Of the largest value; infinite where a value is NaN or infinite in either model, since it equals nothing."""
        if not isfinite(self.error) or not isfinite(self.largest):
            return inf
        return self.error / self.largest if self.largest else self.error


class Reached(NamedTuple):
    """What was compared."""

    rows: list[Difference]
    length: int  # the longest text, 0 for models without
    unread: str  # what is beyond it, in a sentence; empty where nothing is


def _context(config: BlockConfig) -> int:
    """The most tokens of a text; 0 for a model that reads none."""
    return config.context if config.vocab else 0


def compare_lengths(
    architecture: Architecture,
    theirs: nn.Module,
    ours: Any,
    memory: int,
    seconds: float = COMPARISON_SECONDS,
    clock: Callable[[], float] = monotonic,
) -> Reached:
    """A short text, and then twice as many tokens at a time up to the model's limit, while the next pass fits into the
    memory and all of them into the seconds. Of each value the largest error."""
    config, most = ours.config, _context(ours.config)
    if config.positions == "rope":
        most = min(most, MAX_ROTATED_POSITIONS)
    length, growth, start = min(SHORT, most), 2.0, clock()
    rows = compare(architecture, theirs, ours, length=length)
    took = clock() - start
    while length < most:
        following = min(2 * length, most)
        if clock() - start + took * growth > seconds or _bytes(config, following) > memory:
            break
        began = clock()
        more = compare(architecture, theirs, ours, length=following)
        rows = [max(pair, key=lambda row: row.relative) for pair in zip(rows, more, strict=True)]
        before, took, length = took, clock() - began, following
        growth = min(max(2.0, took / before if before else 2.0), 4.0)
    return Reached(rows, length, _unread(config, length, most))


def _bytes(config: BlockConfig, length: int) -> int:
    """About how much a pass of both takes: scores, their softmax and a mask; hidden states; and logits in float64."""
    states = 4 * (config.depth + 1) * config.width + 8 * config.vocab
    return 4 * length * (4 * config.heads * length + states)


def _unread(config: BlockConfig, length: int, most: int) -> str:
    if length >= _context(config):
        return ""
    also = f" and the window of {config.window:,}" if (config.window or 0) >= length else ""
    why = "the library rounds their angles in float32" if length == most else "the time and the memory do not suffice"
    return f"positions beyond {length:,}{also} were not compared: {why}"


@torch.no_grad()
def compare(
    architecture: Architecture, theirs: nn.Module, ours: Any, seed: int = 0, length: int = SHORT, exact: bool = True
) -> list[Difference]:
    """Every value that both have, and the logits last, for one random input of so many tokens, at most the context.

    What the library rounds more than the rest is computed exactly there, unless `exact` is False."""
    given = architecture.inputs(ours.config, torch.Generator().manual_seed(seed), min(length, _context(ours.config)))
    watched = dict(architecture.outputs(ours.config))
    outputs: dict[str, Tensor] = {}
    hooks = [
        theirs.get_submodule(module).register_forward_hook(
            lambda _, __, out, name=name: outputs.update({name: _first(out)})
        )
        for name, module in watched.items()
    ]
    for name, module in theirs.named_modules() if exact else ():
        if hook := architecture.exact.get(name.rpartition(".")[2]):
            hooks.append(module.register_forward_hook(hook))
    try:
        wanted = architecture.ask(theirs, given)
    finally:
        for hook in hooks:
            hook.remove()
    probe = Probe(*watched)
    logits = ours(*given, probe=probe)
    missing = [name for name in watched if name not in outputs or name not in probe.values]
    if missing:
        raise UserError(f"{missing[0]} was not computed by both models")
    pairs = [(name, probe.values[name], outputs[name]) for name in watched] + [("logits", logits, wanted)]
    return [_difference(name, own, other) for name, own, other in pairs]


def _first(output: Any) -> Tensor:
    """A module's output; of several, the first."""
    return (output[0] if isinstance(output, tuple) else output).detach().clone()


def _difference(name: str, ours: Tensor, theirs: Tensor) -> Difference:
    if ours.shape != theirs.shape:
        raise UserError(f"{name} has shape {tuple(ours.shape)} here and {tuple(theirs.shape)} in the original")
    error = (ours.double() - theirs.double()).abs().amax().item()
    return Difference(name, error, theirs.double().abs().amax().item())


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
        return all(row.relative <= MAX_RELATIVE_ERROR for row in self.rows)


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
    rounded = loaded.model.state_dict()
    for name, tensor in ours.state_dict().items():
        if not torch.allclose(rounded[name], tensor.to(kind).float(), rtol=0, atol=0, equal_nan=True):
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
