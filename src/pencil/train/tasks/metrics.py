"""Metrics: of predicted classes, and of generated text against a reference."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...console import shortened

Z_95 = 1.959963984540054  # the standard normal distribution has 95 % within ±Z_95
MAX_LISTED_CLASSES = 20  # whose own figures are recorded at each evaluation; pencil eval has those of all
MAX_NAME_CHARACTERS = 40  # of a class's name in a table
NAMED_CLASSES = 3  # in a sentence
CLASS_FIGURES = ("held_out", "precision", "recall", "f1")  # figures that each class has, as in recall.CLASS
CHRF_CHARACTERS, CHRF_RECALL_WEIGHT = 6, 4  # chrF2: n-grams up to six characters, recall counted β² = 4 times
BLEU_WORDS = 4  # BLEU: n-grams up to four words
BLEU_ESCAPES = {"<skipped>": "", "-\n": "", "\n": " ", "&quot;": '"', "&amp;": "&", "&lt;": "<", "&gt;": ">"}
# mteval-v13a, whose words are those of published BLEU scores
BLEU_WORD_RULES = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)


INPUTS = 3  # their place in the predictions, which come from other processes as plain lists


class ClassPredictions(NamedTuple):
    """What the metrics of a batch are computed from; lists, which processes can send to one another."""

    log_probability: list[float]  # of each label
    predicted: list[int]
    labels: list[int]
    inputs: Sequence[str] = ()  # a hash of each, if equal ones are to be known
    probability: Sequence[float] = ()  # of each predicted class


def class_predictions(
    log_probabilities: Float[Tensor, "n classes"], labels: Int[Tensor, "n"], inputs: Iterable[bytes] = ()
) -> ClassPredictions:
    """What the metrics of a batch are computed from; `inputs` are what the model has read."""
    of_labels = log_probabilities.gather(1, labels[:, None])[:, 0]
    hashes = [hashlib.blake2b(one, digest_size=16).hexdigest() for one in inputs]
    highest, predicted = log_probabilities.max(-1)
    return ClassPredictions(of_labels.tolist(), predicted.tolist(), labels.tolist(), hashes, highest.exp().tolist())


def classification_metrics(
    parts: Iterable[ClassPredictions],
    classes: Sequence[str],
    weights: Tensor | None = None,
    listed: int | None = MAX_LISTED_CLASSES,
) -> dict[str, float]:
    """Loss, and figures of the predicted classes, of batches; `weights` are those of the classes in the loss.

    Those of each class are left out where there are more than `listed`. What is not defined is left out as well: the
    precision of a class that is never predicted, the recall of one of which nothing is evaluated. How many of the
    latter there are is among the metrics, since the mean of the recalls leaves them out.
    """
    parts = list(parts)
    values, predicted, labels = (concatenate(parts, i) for i in range(3))
    if weights is None:
        loss = F.nll_loss(values[:, None], torch.zeros_like(labels))
    else:
        loss = -(weights[labels] * values).sum() / weights[labels].sum()
    count = max(len(classes), int(predicted.max()) + 1)  # a model may have room for more classes than there are names
    true, guessed, right = (
        torch.bincount(which, minlength=count).double() for which in (labels, predicted, labels[predicted == labels])
    )
    accuracy = right.sum().item() / len(labels)
    same = Counter(one for part in parts for one in part[INPUTS])
    # equal inputs have the same answer, which counts once (Kish's effective number, where some are there more often)
    low, high = wilson_interval(accuracy, len(labels) ** 2 / sum(n * n for n in same.values()) if same else len(labels))
    f1 = 2 * right / (true + guessed)
    metrics = {
        "val_loss": loss.item(),
        "accuracy": accuracy,
        "accuracy.low": low,
        "accuracy.high": high,
        "accuracy.commonest": true.max().item() / len(labels),
        "accuracy.examples": len(labels),
        "balanced_accuracy": (right / true)[true > 0].mean().item(),
        "macro_f1": f1[true + guessed > 0].mean().item(),
    }
    if 0 < len(same) < len(labels):
        metrics["accuracy.different"] = len(same)
    if absent := int((true[: len(classes)] == 0).sum()):
        metrics["accuracy.unevaluated"] = absent
    if listed is not None and len(classes) > listed:
        return metrics
    for i, name in enumerate(_metric_names(classes)):
        figures = dict(zip(CLASS_FIGURES, (true[i], right[i] / guessed[i], right[i] / true[i], f1[i]), strict=True))
        metrics |= {f"{key}.{name}": value.item() for key, value in figures.items() if value.isfinite()}
    return metrics


def _metric_names(classes: Sequence[str]) -> list[str]:
    """The names of classes in the names of metrics: without spaces, unless two of them would then be the same."""
    plain = [name.replace(" ", "_") for name in classes]
    return [name if plain.count(short) > 1 else short for name, short in zip(classes, plain, strict=True)]


def concatenate(parts: Sequence[ClassPredictions], place: int) -> Tensor:
    """Concatenate one of the lists of numbers of all batches."""
    return torch.tensor([value for part in parts for value in part[place]])


def wilson_interval(share: float, count: float) -> tuple[float, float]:
    """Between which values the true share is, with 95 % confidence, where it is measured on so many examples."""
    middle = share + Z_95 * Z_95 / (2 * count)
    half = Z_95 * math.sqrt(share * (1 - share) / count + Z_95 * Z_95 / (4 * count * count))
    scale = 1 + Z_95 * Z_95 / count
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def is_detail(name: str) -> bool:
    """Whether a metric is shown in a table only, and not beside the others at each evaluation."""
    return name.partition(".")[0] in (*CLASS_FIGURES, "accuracy") and "." in name


def class_names(metrics: Mapping[str, float]) -> list[str]:
    """The classes whose own figures are among the metrics."""
    return [name.removeprefix("held_out.") for name in metrics if name.startswith("held_out.")]


def describe_accuracy(metrics: Mapping[str, float], unit: str) -> str:
    """How sure an accuracy is, and what it is to be held against, in a sentence; empty without classes."""
    if "accuracy.low" not in metrics:
        return ""
    names = class_names(metrics)
    commonest = max(names, key=lambda name: metrics[f"held_out.{name}"], default="")
    absent = [shortened(name) for name in names if not metrics[f"held_out.{name}"]]
    count = int(metrics.get("accuracy.unevaluated", 0))
    named = ", ".join(absent) if absent and count <= NAMED_CLASSES else f"{count} class{'es' * (count > 1)}"
    without = f"; without {named}, of which nothing was evaluated" if count else ""
    different = f", {int(metrics['accuracy.different']):,} of them different" if "accuracy.different" in metrics else ""
    return (
        f"accuracy {metrics['accuracy']:.4f} on {int(metrics['accuracy.examples']):,} held-out {unit}{different}: 95 % "
        f"interval {metrics['accuracy.low']:.4f} to {metrics['accuracy.high']:.4f} (Wilson); always their commonest "
        f"class{f', {shortened(commonest)},' * bool(commonest)} would have {metrics['accuracy.commonest']:.4f}; "
        f"balanced accuracy {metrics['balanced_accuracy']:.4f}, macro F1 {metrics['macro_f1']:.4f}{without}"
    )


def class_rows(metrics: Mapping[str, float]) -> list[list[str]]:
    """The figures of each class as rows of a table, the first its head; none without classes."""
    rows = [["class", "evaluated", "precision", "recall", "F1"]]
    for name in class_names(metrics):
        shares = (metrics.get(f"{key}.{name}") for key in CLASS_FIGURES[1:])
        cells = ["–" if share is None else f"{share:.4f}" for share in shares]
        rows.append([name, f"{int(metrics[f'held_out.{name}']):,}", *cells])
    return rows if len(rows) > 1 else []


def class_table(metrics: Mapping[str, float]) -> list[str]:
    """The figures of each class, in columns."""
    return in_columns(class_rows(metrics))


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table as lines; the first cell of each is a name."""
    rows = [[shortened(name, MAX_NAME_CHARACTERS), *rest] for name, *rest in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([f"{name:{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))])
        for name, *rest in rows
    ]


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
        unchanged = same | less
        more = every & (right_less | ~(unchanged | right_more))
        less = every & right_more & unchanged
    return distance


def corpus_scores(predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """chrF and BLEU of all texts together, from 0 to 100, as sacrebleu's defaults; nothing where there are no texts."""
    return {"chrf": chrf(predictions, references), "bleu": bleu(predictions, references)} if predictions else {}


def chrf(predictions: Sequence[str], references: Sequence[str]) -> float:
    """chrF2 (Popović, 2015): the F-score of character n-grams, averaged over n = 1 … 6; spaces do not count."""
    counted = [[0, 0, 0] for _ in range(CHRF_CHARACTERS)]  # in the predictions, in the references, in both
    for prediction, reference in zip(predictions, references, strict=True):
        texts = ["".join(text.split()) for text in (prediction, reference)]
        for n, counts in enumerate(counted, 1):
            own, theirs = (_ngrams(text, n) for text in texts)
            # of a reference that is too short for n-grams, none can be right
            counts[0] += own.total() if theirs else 0
            counts[1] += theirs.total()
            counts[2] += (own & theirs).total()
    used = [counts for counts in counted if counts[0] and counts[1]]
    precision = sum(both / own for own, _, both in used) / max(1, len(used))
    recall = sum(both / theirs for _, theirs, both in used) / max(1, len(used))
    if not precision + recall:
        return 0.0
    return 100 * (1 + CHRF_RECALL_WEIGHT) * precision * recall / (CHRF_RECALL_WEIGHT * precision + recall)


def bleu(predictions: Sequence[str], references: Sequence[str]) -> float:
    """BLEU-4 (Papineni et al., 2002) with 13a words; an n-gram that never matches counts ½, ¼, … as in NIST's."""
    right, total, lengths = [0] * BLEU_WORDS, [0] * BLEU_WORDS, [0, 0]
    for prediction, reference in zip(predictions, references, strict=True):
        predicted, expected = _bleu_words(prediction), _bleu_words(reference)
        lengths[0], lengths[1] = lengths[0] + len(predicted), lengths[1] + len(expected)
        for n in range(1, BLEU_WORDS + 1):
            grams = _ngrams(predicted, n)
            total[n - 1] += grams.total()
            right[n - 1] += (grams & _ngrams(expected, n)).total()
    if not any(right) or not all(total):
        return 0.0
    smooth, logs = 1.0, 0.0
    for good, of in zip(right, total, strict=True):
        if not good:
            smooth *= 2
        logs += math.log(100 * good / of if good else 100 / (smooth * of))
    brevity = math.exp(min(0.0, 1 - lengths[1] / lengths[0]))
    return brevity * math.exp(logs / BLEU_WORDS)


def _ngrams(items: Sequence[Hashable], n: int) -> Counter[Hashable]:
    return Counter(
        items[i : i + n] if isinstance(items, str) else tuple(items[i : i + n]) for i in range(len(items) - n + 1)
    )


def _bleu_words(text: str) -> list[str]:
    text = text.rstrip()
    for old, new in BLEU_ESCAPES.items():
        text = text.replace(old, new)
    text = f" {text} "
    for rule, new in BLEU_WORD_RULES:
        text = rule.sub(new, text)
    return text.split()
