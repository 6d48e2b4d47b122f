"""Classes that are not equally frequent: weights in the loss, or batches with as many examples of each.

The loss with class weights is divided by the weights of the whole update. A task's `targets` is what its micro-batch
counts for: the number of its targets, or the sum of their weights. Weights are of single precision and added in double
precision, which is exact, so exact mode has the same bits on any number of processes. Balanced batches follow from the
place of each example in the run, as all batches do. The validation loss weighs the classes as training does: it selects
the weights.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...config import UserError
from ..settings import TrainConfig
from ..task import random_of

# keys of the random numbers, beside that of the order of an epoch (1 << 21)
CLASS_ORDER_KEY, EXAMPLE_ORDER_KEY = (1 << 21) + 1, (1 << 21) + 2


class ClassBalance:
    """How much each class counts in a training, from its settings and the labels of its examples.

    The loss with weights is torch's: Σ wᵢ lossᵢ / Σ wᵢ, over the whole update, whatever it is divided into. The
    validation loss weighs the classes as training does, or the best weights would be chosen for something else.
    """

    def __init__(self, train: TrainConfig, labels: Sequence[int], classes: Sequence[str], outputs: int, data: str):
        counts = np.bincount(np.asarray(labels, dtype=np.int64), minlength=outputs)
        balanced = np.where(counts, len(labels) / (max(1, np.count_nonzero(counts)) * np.maximum(counts, 1)), 1.0)
        self.weights: Tensor | None = None  # in the loss, of each output
        if train.class_weights == "balanced":
            self.weights = torch.tensor(balanced, dtype=torch.float32)
        elif train.class_weights is not None:
            if len(train.class_weights) != len(classes):
                names = ", ".join(classes[:10]) + (", …" if len(classes) > 10 else "")
                raise UserError(
                    f"train.class_weights has {len(train.class_weights)} "
                    f"number{'s' * (len(train.class_weights) != 1)}, and {data} has {len(classes)} "
                    f"classes ({names}): give one for each, in this order"
                )
            self.weights = torch.ones(outputs)
            self.weights[: len(classes)] = torch.tensor(train.class_weights)
        self.members: list[np.ndarray] = []  # the examples of each class, if they are drawn equally often
        self.evaluation = self.weights  # in the validation loss
        if train.balanced_batches:
            self.members = [np.flatnonzero(np.asarray(labels) == i) for i in np.flatnonzero(counts)]
            equal = torch.tensor(balanced, dtype=torch.float32)
            self.evaluation = equal if self.weights is None else equal * self.weights
            self.shuffled = lru_cache(2 * max(1, len(self.members)))(self._shuffle)

    def cross_entropy(
        self, logits: Float[Tensor, "n outputs"], labels: Int[Tensor, "n"], counted: Int[Tensor, "n"] | None = None
    ) -> Float[Tensor, ""]:
        """The mean over the labels, by their weights; `counted` are other labels whose weights it is divided by."""
        if self.weights is None:
            return F.cross_entropy(logits, labels)
        weights = self.weights.to(logits.device)
        whole = weights[labels if counted is None else counted].sum()
        return F.cross_entropy(logits, labels, weights, reduction="sum") / whole

    def targets(self, labels: Int[Tensor, "n"]) -> float:
        """How much the loss of these labels counts in an update: their number, or the sum of their weights.

        Weights of single precision are added in double precision: exactly, so in any order.
        """
        return len(labels) if self.weights is None else self.weights.double()[labels].sum().item()

    def indices(self, seed: int, first: int, count: int) -> list[int]:
        """`count` examples from the `first` on. Each round draws every class once, in a new random order.

        The examples of a class come in a new random order, too, when all of them were drawn.
        """
        indices = []
        for at in range(first, first + count):
            turn, place = divmod(at, len(self.members))
            which = int(_order_of_classes(seed, turn, len(self.members))[place])
            epoch, number = divmod(turn, len(self.members[which]))
            indices.append(int(self.members[which][self.shuffled(seed, epoch, which)[number]]))
        return indices

    def _shuffle(self, seed: int, epoch: int, which: int) -> np.ndarray:
        return random_of(seed, epoch, EXAMPLE_ORDER_KEY, which).permutation(len(self.members[which]))


@lru_cache(maxsize=1024)
def _order_of_classes(seed: int, turn: int, count: int) -> np.ndarray:
    return random_of(seed, turn, CLASS_ORDER_KEY).permutation(count)
