"""Measures of labels: how many are right, of all and of each class, and which was taken for which."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from .. import draw


def measure(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[dict[str, float], Int[Tensor, "n"], Int[Tensor, "n"]]:
    """The loss and the accuracy of (log-probabilities, labels), a few at a time; what was guessed, and the labels."""
    said, labels = (torch.cat(each) for each in zip(*parts, strict=True))
    guessed = said.argmax(-1)
    accuracy = (guessed == labels).double().mean().item()
    return {"val_loss": F.nll_loss(said, labels).item(), "accuracy": accuracy}, guessed, labels


def per_class(guessed: Int[Tensor, "n"], labels: Int[Tensor, "n"], classes: Sequence[str]) -> dict[str, float]:
    """The accuracy over each class that occurs."""
    return {
        f"accuracy.{name.replace(' ', '_')}": (guessed[labels == i] == i).double().mean().item()
        for i, name in enumerate(classes)
        if (labels == i).any()
    }


def confusion(guessed: Int[Tensor, "n"], labels: Int[Tensor, "n"], classes: Sequence[str], title: str) -> bytes:
    """A picture of how often each class was taken for each."""
    size = len(classes)
    matrix = torch.zeros(size, size, dtype=torch.long)
    named = guessed < size  # a model may have room for more classes than there are names
    matrix.index_put_((labels[named], guessed[named]), torch.ones_like(labels[named]), accumulate=True)
    return draw.confusion(matrix.numpy(), classes, title)
