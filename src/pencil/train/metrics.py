"""Metrics: of predicted classes, and of generated text against a reference."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from .. import draw


def classification_metrics(
    parts: Sequence[tuple[Tensor, Tensor]],
) -> tuple[dict[str, float], Int[Tensor, "n"], Int[Tensor, "n"]]:
    """Loss and accuracy of (log-probabilities, labels) in batches; the predicted classes, and the labels."""
    log_probabilities, labels = (torch.cat(each) for each in zip(*parts, strict=True))
    predicted = log_probabilities.argmax(-1)
    accuracy = (predicted == labels).double().mean().item()
    return {"val_loss": F.nll_loss(log_probabilities, labels).item(), "accuracy": accuracy}, predicted, labels


Scored = tuple[list[float], list[bool]]  # log p of each label, and whether it is the class predicted


def scored(log_probabilities: Tensor, labels: Int[Tensor, "n"]) -> Scored:
    """What the loss and the accuracy of a batch are computed from."""
    right = log_probabilities.argmax(-1) == labels
    return log_probabilities.gather(1, labels[:, None])[:, 0].tolist(), right.tolist()


def loss_and_accuracy(parts: Sequence[Scored]) -> dict[str, float]:
    """Loss and accuracy of batches, as `classification_metrics` has them."""
    values = torch.tensor([value for part, _ in parts for value in part])
    right = torch.tensor([one for _, part in parts for one in part])
    loss = F.nll_loss(values[:, None], torch.zeros(len(values), dtype=torch.long))
    return {"val_loss": loss.item(), "accuracy": right.double().mean().item()}


def accuracy_per_class(
    predicted: Int[Tensor, "n"], labels: Int[Tensor, "n"], classes: Sequence[str]
) -> dict[str, float]:
    """The accuracy over each class that occurs."""
    return {
        f"accuracy.{name.replace(' ', '_')}": (predicted[labels == i] == i).double().mean().item()
        for i, name in enumerate(classes)
        if (labels == i).any()
    }


def confusion_matrix(
    predicted: Int[Tensor, "n"], labels: Int[Tensor, "n"], classes: Sequence[str], title: str
) -> bytes:
    """A picture of how often each class was predicted for each."""
    size = len(classes)
    matrix = torch.zeros(size, size, dtype=torch.long)
    named = predicted < size  # a model may have room for more classes than there are names
    matrix.index_put_((labels[named], predicted[named]), torch.ones_like(labels[named]), accumulate=True)
    return draw.confusion(matrix.numpy(), classes, title)


def exact_match(predictions: Sequence[str], references: Sequence[str]) -> float:
    """The share of texts that equal their reference."""
    return sum(a == b for a, b in zip(predictions, references, strict=True)) / max(1, len(references))


def character_error_rate(predictions: Sequence[str], references: Sequence[str]) -> float:
    """Character edits from prediction to reference, per character of the reference; can exceed 1."""
    edits = sum(edit_distance(a, b) for a, b in zip(predictions, references, strict=True))
    return edits / max(1, sum(map(len, references)))


def edit_distance(one: str, other: str) -> int:
    """The Levenshtein distance: characters inserted, deleted or replaced.

    By Myers: a column of the table of distances is kept as the bits of two integers, one for the steps down it that add
    an edit and one for those that save one, so that a character of `other` costs a few operations on them.
    """
    if not one or not other:
        return len(one) + len(other)
    places: dict[str, int] = {}
    for i, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << i
    every, last = (1 << len(one)) - 1, 1 << (len(one) - 1)
    more, less, distance = every, 0, len(one)
    for character in other:
        same = places.get(character, 0)
        diagonal = (((same & more) + more) ^ more) | same
        right_more = less | (every & ~(diagonal | more))
        right_less = more & diagonal
        distance += bool(right_more & last) - bool(right_less & last)
        right_more = right_more << 1 | 1
        right_less = right_less << 1
        kept = same | less
        more = every & (right_less | ~(kept | right_more))
        less = every & right_more & kept
    return distance
