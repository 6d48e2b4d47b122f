"""What a classifier is to be held against: always the commonest class, and a simple model of scikit-learn.

Both take seconds. Of little data a transformer that begins with random weights is often the worse of the two, and its
accuracy alone does not tell.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...config import install
from .metrics import ClassPredictions, classification_metrics

MOST_FITTED = 20_000  # training examples that a baseline is fitted to
FIGURES = {"accuracy": "accuracy", "balanced_accuracy": "balanced", "macro_f1": "macro F1"}
LEVELS = 6  # of a channel in a colour histogram; of a grey image their square
TREES = 100
HEADING = "## Baselines"  # in a model card


class Recipe(NamedTuple):
    """A simple model: its name in a table and in the names of metrics, and how scikit-learn makes it."""

    name: str
    key: str
    make: Callable[[], Any]


class Baseline(NamedTuple):
    """The figures of a simple model on the same held-out examples."""

    name: str
    key: str
    metrics: dict[str, float]
    seconds: float


def _tfidf() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    # a sign alone is a word as well, so that every text has some
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    return make_pipeline(words, LogisticRegression(max_iter=1000))


def _forest() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(TREES, random_state=0)


TFIDF = Recipe("TF-IDF + logistic regression", "tfidf", _tfidf)
FOREST = Recipe("colour histogram + random forest", "forest", _forest)


def histograms(pictures: np.ndarray) -> np.ndarray:
    """Images (n, C, H, W) of bytes as the share of each colour."""
    levels = LEVELS if pictures.shape[1] == 3 else LEVELS * LEVELS
    colours = np.zeros(pictures.shape[:1] + pictures.shape[2:], int)
    for channel in range(pictures.shape[1]):
        colours = colours * levels + pictures[:, channel].astype(int) * levels // 256
    rows = colours.reshape(len(pictures), -1)
    counts = [np.bincount(row, minlength=levels ** pictures.shape[1]) for row in rows]
    return np.stack(counts) / rows.shape[1]


def baselines(task: Any, fitted: Any, notify: Callable[[str], None]) -> list[Baseline]:
    """The baselines on the held-out examples of a task, fitted to the training examples of `fitted`."""
    started = time.monotonic()
    inputs, labels = fitted.baseline_examples(held_out=False)
    test, truth = task.baseline_examples(held_out=True)
    read = time.monotonic() - started

    def measured(predicted: Sequence[int]) -> dict[str, float]:
        parts = [ClassPredictions([0.0] * len(truth), [int(one) for one in predicted], list(truth))]
        every = classification_metrics(parts, task.data.classes, listed=0)
        return {name: every[name] for name in FIGURES}

    (commonest, _), *_ = Counter(labels).most_common(1)
    found = [Baseline("always the commonest class in training", "commonest", measured([commonest] * len(truth)), 0.0)]
    try:
        model = task.baseline.make()
    except ImportError:
        notify(f"{task.baseline.name} is left out, since it needs scikit-learn; {install('baselines')}")
        return found
    started = time.monotonic()  # scikit-learn was imported
    predicted = model.fit(inputs, labels).predict(test)
    seconds = read + time.monotonic() - started
    return [*found, Baseline(task.baseline.name, task.baseline.key, measured(predicted), seconds)]


def as_metrics(found: Sequence[Baseline]) -> dict[str, float]:
    """The figures of baselines under names of their own."""
    return {f"baseline.{one.key}.{name}": value for one in found for name, value in one.metrics.items()}


def rows(found: Sequence[Baseline], metrics: Mapping[str, float]) -> list[list[str]]:
    """The baselines and the model as rows of a table, the first its head."""
    table = [["model", *FIGURES.values(), "seconds"]]
    for one in found:
        table.append([one.name, *(f"{one.metrics[name]:.4f}" for name in FIGURES), f"{one.seconds:.1f}"])
    return [*table, ["this run", *(f"{metrics[name]:.4f}" for name in FIGURES), ""]]


def verdict(found: Sequence[Baseline], metrics: Mapping[str, float], unit: str) -> str:
    """Whether the model or a baseline has the higher accuracy, in a sentence."""
    best, own = max(found, key=lambda one: one.metrics["accuracy"]), metrics["accuracy"]
    other = best.metrics["accuracy"]
    if metrics["accuracy.low"] <= other <= metrics["accuracy.high"]:
        return (
            f"{best.name} has {other:.4f}, within the 95 % interval of this run's accuracy of {own:.4f}: on these "
            f"{unit} neither is clearly better"
        )
    if own > other:
        return f"this run's accuracy of {own:.4f} is clearly higher than the {other:.4f} of {best.name}"
    return (
        f"{best.name} is better on these {unit}: accuracy {other:.4f} against {own:.4f}. Use it, or train longer, on "
        "more data, or from a model that knows more: pencil import, then pencil train --from"
    )


def card(found: Sequence[Baseline], metrics: Mapping[str, float], unit: str) -> str:
    """The baselines as a section of a model card."""
    lines = [f"| {' | '.join(row)} |" for row in rows(found, metrics)]
    sentence = verdict(found, metrics, unit)
    return "\n".join(
        [HEADING, "", lines[0], "|---|---|---|---|---|", *lines[1:], "", f"{sentence[0].upper()}{sentence[1:]}.", ""]
    )
