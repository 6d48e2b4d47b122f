"""Tasks: what the loop asks of a family. A batch is a pure function of (seed, step)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn

from ..config import UserError
from ..data.tokenizers import Tokenizer
from ..runs import Run

Batch = tuple[Tensor, ...]


class Preview(NamedTuple):
    """Something to look at: a file name's ending and its content."""

    suffix: str
    content: bytes


@runtime_checkable
class Task(Protocol):
    """Everything the training loop needs to know of a family."""

    family: str
    unit: str  # what the rate counts
    headline: str  # the measure to tell first
    chooses: bool  # whether the weights kept are the best by validation, or the last
    slow: bool  # whether batches are worth making ahead even where the training needs every core

    @property
    def usage(self) -> str:
        """What `pencil sample` needs besides the run."""
        ...

    def build(self) -> nn.Module: ...

    def batch(self, step: int, micro: int = 0) -> Batch:
        """The examples of a step; the same for the same (seed, step), whatever came before."""
        ...

    def loss(self, model: nn.Module, batch: Batch) -> Tensor: ...

    def count(self, batch: Batch) -> int:
        """How many units a batch holds."""
        ...

    def evaluate(self, model: nn.Module, batches: int | None = None) -> dict[str, float]:
        """Measures on held-out data, `val_loss` among them; on all of it when `batches` is None."""
        ...

    def preview(self, model: nn.Module) -> Preview: ...

    def report(self, model: nn.Module, folder: Path) -> tuple[dict[str, float], list[Path]]:
        """All measures on all held-out data, and pictures of them written into the folder."""
        ...

    def skipped(self) -> list[tuple[str, str]]:
        """Data that could not be used so far, and why."""
        ...


@dataclass
class Asked:
    """What a training was asked for, in words not yet checked against the data."""

    family: str
    data: str
    preset: str
    tokenizer: str | None = None
    vocab: int = 4096
    model: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    vae: str | None = None  # an autoencoder, in whose latents a dit draws
    size: str | None = None  # of the pictures it is given


class Begun(NamedTuple):
    """What a family made of it: everything a run folder is written from."""

    task: Any
    name: str  # of the data
    hash: str
    sizes: Any
    config: Any
    tokenizer: Tokenizer | None
    facts: dict[str, Any]


def random_of(seed: int, step: int, micro: int = 0) -> np.random.Generator:
    """The random numbers of one step: keyed, not drawn from a state, so resuming is exact."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, step, micro]))


def in_turn(seed: int, first: int, count: int, total: int) -> list[int]:
    """`count` of `total` examples from the `first` on: each epoch all of them, in an order of its own."""
    return [int(_shuffled(seed, at // total, total)[at % total]) for at in range(first, first + count)]


@lru_cache(maxsize=4)
def _shuffled(seed: int, epoch: int, total: int) -> np.ndarray:
    return random_of(seed, epoch, 1 << 21).permutation(total)


def unchanged(run: Run, found: str) -> None:
    """Refuse data whose hash is not that of what the run was trained on."""
    facts = run.config["run"]
    if found != facts["data_hash"]:
        raise UserError(f"{facts['data']} has changed since {run.path} was trained on it")
