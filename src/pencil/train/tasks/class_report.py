"""What an evaluation writes of a classifier: the confusion matrix, its calibration, and every answer in a table."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ... import draw
from .metrics import ClassPredictions, concatenate, in_columns, wilson_interval

BINS = 15  # of the probability of the answer
GROUP_FIGURES = ("group_held_out", "group_accuracy", "group_low", "group_high")  # that each group has


class Answers(NamedTuple):
    """The answers of a classifier to some inputs."""

    labels: Int[Tensor, "n"]
    predicted: Int[Tensor, "n"]
    probability: Float[Tensor, "n"]  # of the predicted class

    @classmethod
    def of(cls, parts: Sequence[ClassPredictions]) -> "Answers":
        """Those of all batches."""
        places = map(ClassPredictions._fields.index, ("labels", "predicted", "probability"))
        return cls(*(concatenate(parts, place) for place in places))

    @property
    def right(self) -> Bool[Tensor, "n"]:
        """Which are right."""
        return self.predicted == self.labels

    @property
    def calibration(self) -> "Calibration":
        """How often they are right beside their probability."""
        return calibration(self.probability, self.right)


class Calibration(NamedTuple):
    """The answers in bins of their probability, of equal width from 0 to 1."""

    counts: Float[Tensor, "bins"]
    probability: Float[Tensor, "bins"]  # the mean in each bin, 0 in an empty one
    accuracy: Float[Tensor, "bins"]

    @property
    def error(self) -> float:
        """The expected calibration error (Guo et al., 2017): |accuracy − probability| of the bins, by their shares."""
        return float((self.counts * (self.accuracy - self.probability).abs()).sum() / self.counts.sum())


def calibration(probability: Float[Tensor, "n"], right: Bool[Tensor, "n"], bins: int = BINS) -> Calibration:
    """How often answers are right beside their probability; one on the border of two bins is in the upper."""
    probability = probability.double()
    bin_of = (probability * bins).long().clamp(max=bins - 1)
    count, sums, rights = (
        torch.zeros(bins, dtype=torch.float64).index_add(0, bin_of, values)
        for values in (torch.ones_like(probability), probability, right.double())
    )
    return Calibration(count, sums / count.clamp(min=1), rights / count.clamp(min=1))


def class_files(
    answers: Answers, columns: Sequence[str], inputs: Sequence[Sequence[str]], classes: Sequence[str], title: str
) -> dict[str, bytes]:
    """The files of an evaluation; `columns` are the names of what `inputs` says of each input."""
    labels, predicted, probability = answers
    bins = answers.calibration
    table = io.StringIO(newline="")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow([*columns, "truth", "answer", "probability"])
    names = dict(enumerate(classes))  # a model may have room for more classes than there are names
    for row, truth, answer, share in zip(
        inputs, labels.tolist(), predicted.tolist(), probability.tolist(), strict=True
    ):
        writer.writerow([*row, names[truth], names.get(answer, answer), f"{share:.6f}"])
    return {
        "confusion.png": confusion_matrix(predicted, labels, classes, title),
        "calibration.png": draw.calibration(
            bins.counts.numpy(), bins.probability.numpy(), bins.accuracy.numpy(), title
        ),
        "predictions.csv": table.getvalue().encode("utf-8", "backslashreplace"),
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


def describe_calibration(metrics: Mapping[str, float]) -> str:
    """What the calibration error is, in a sentence; empty without one."""
    if "calibration_error" not in metrics:
        return ""
    return (
        f"expected calibration error {metrics['calibration_error']:.4f}: how far the share of right answers is from "
        "their mean probability, "
        f"in {BINS} bins of equal width, each counted by its answers"
    )


def group_metrics(answers: Answers, groups: Sequence[str]) -> dict[str, float]:
    """The accuracy of each group of inputs, with its 95 % interval."""
    right: dict[str, list[bool]] = {}
    for group, one in zip(groups, answers.right.tolist(), strict=True):
        right.setdefault(group, []).append(one)
    metrics: dict[str, float] = {}
    for group, ones in sorted(right.items()):
        share = sum(ones) / len(ones)
        values = (len(ones), share, *wilson_interval(share, len(ones)))
        metrics |= {f"{name}.{group}": value for name, value in zip(GROUP_FIGURES, values, strict=True)}
    return metrics


def group_table(metrics: Mapping[str, float], column: str | None) -> list[str]:
    """The accuracies of groups, in columns; none without groups."""
    first = f"{GROUP_FIGURES[0]}."
    rows = [
        [group, f"{int(value):,}", *(f"{metrics[f'{name}.{group}']:.4f}" for name in GROUP_FIGURES[1:])]
        for group, value in (
            (name.removeprefix(first), value) for name, value in metrics.items() if name.startswith(first)
        )
    ]
    return in_columns([[str(column), "evaluated", "accuracy", "from", "to"], *rows]) if rows else []
